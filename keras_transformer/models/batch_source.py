"""`TokenBatches` as the input of Keras' `fit` and `evaluate`, for any number of devices."""

import keras

from keras_transformer.data.token_batches import TokenBatches

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"


def adapt_batches(model, batches):
    """Return `TokenBatches` padded for the replicas of a model and for XLA; on JAX only those rows of this process.

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


def source_of(model, batches, endless):
    """Return what Keras reads: on TensorFlow a dataset, with open shapes unless XLA compiles each shape.

    Args:
        model: `Seq2SeqModel`, compiled.
        batches: `TokenBatches`; anything else is returned as it is.
        endless: Whether the batches continue after an epoch.
    """
    if not isinstance(batches, TokenBatches):
        return batches
    batches = adapt_batches(model, batches).replace(endless=endless)
    if not ON_TENSORFLOW:
        return batches
    if _num_replicas(model) == 1:
        return batches.as_dataset()

    def of_worker(context):
        workers = context.num_input_pipelines
        part = batches.replace(part=(context.input_pipeline_id, workers), endless=True)  # see `steps_of`
        return part.as_dataset(context.num_replicas_in_sync // workers)

    return model.distribute_strategy.distribute_datasets_from_function(of_worker)


def steps_of(model, batches):
    """Return the batches per epoch for several replicas on TensorFlow, where Keras cannot know the number; else None.

    Args:
        model: `Seq2SeqModel`.
        batches: `TokenBatches`, or anything else that Keras accepts.
    """
    several = ON_TENSORFLOW and _num_replicas(model) > 1
    return batches.batches_per_epoch if several and isinstance(batches, TokenBatches) else None


def _num_replicas(model):
    """Return the number of replicas on TensorFlow."""
    return model.distribute_strategy.num_replicas_in_sync if model.distribute_strategy else 1
