"""Conversion of `TokenBatches` to the input of Keras' `fit` and `evaluate`, for any number of devices."""

import contextlib

import keras

from keras_transformer.data.token_batches import TokenBatches

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"


def adapt_batches(model, batches):
    """Return `batches` with the padding that the model's replicas and XLA require.

    With several JAX processes, the result contains only the rows of this process.

    Args:
        model: `Seq2SeqModel`, compiled.
        batches: `TokenBatches`.
    """
    if ON_TENSORFLOW:
        return batches.replace(row_multiple=_num_replicas(model), few_shapes=bool(model.jit_compile))
    if model.distribution is None:
        return batches
    import jax

    part = jax.process_index(), jax.process_count()
    return batches.replace(row_multiple=model.distribution.num_model_replicas, part=part)


def to_keras_input(model, batches, endless):
    """Convert `batches` to an input for Keras: a `tf.data.Dataset` on TensorFlow, `TokenBatches` on JAX.

    Args:
        model: `Seq2SeqModel`, compiled.
        batches: `TokenBatches`. The function returns any other object unchanged.
        endless: Whether the batches continue after an epoch.
    """
    if not isinstance(batches, TokenBatches):
        return batches
    batches = adapt_batches(model, batches).replace(endless=endless)
    if not ON_TENSORFLOW:
        return batches
    if _num_replicas(model) == 1:
        return batches.as_dataset()

    def worker_dataset(context):
        workers = context.num_input_pipelines
        # Endless even for evaluations, which Keras stops after the number of batches that `count_steps` returns.
        part = batches.replace(part=(context.input_pipeline_id, workers), endless=True)
        return part.as_dataset(context.num_replicas_in_sync // workers)

    return model.distribute_strategy.distribute_datasets_from_function(worker_dataset)


@contextlib.contextmanager
def data_errors(batches):
    """Inside a `with` block, raise the original `UserError` for a damaged corpus instead of the backend's error.

    Args:
        batches: Input that the `with` block reads. If it is not `TokenBatches`, errors remain unchanged.
    """
    try:
        yield
    except Exception as error:
        failure = batches.split.failure if isinstance(batches, TokenBatches) else None
        if failure is None or failure is error:
            raise
        raise failure from error


def count_steps(model, batches):
    """Return the number of batches per epoch, or None if Keras can determine it.

    Keras cannot determine the number for `TokenBatches` with several replicas on TensorFlow.

    Args:
        model: `Seq2SeqModel`.
        batches: `TokenBatches`, or any other input that Keras accepts.
    """
    distributed = ON_TENSORFLOW and _num_replicas(model) > 1
    return batches.batches_per_epoch if distributed and isinstance(batches, TokenBatches) else None


def _num_replicas(model):
    """Return the number of replicas of a model on TensorFlow."""
    return model.distribute_strategy.num_replicas_in_sync if model.distribute_strategy else 1
