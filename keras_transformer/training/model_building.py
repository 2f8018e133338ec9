"""Construction and compilation of the model of a run."""

import contextlib

import keras

from keras_transformer.config import registry
from keras_transformer.distributed.strategy import check_strategy, make_strategy
from keras_transformer.training.options import TrainOptions
from keras_transformer.training.schedule import compile_arguments


def build_model(run, vocab_size, options=None):
    """Build and compile the model of a run.

    Args:
        run: `Run`.
        vocab_size: Number of tokens in the vocabulary.
        options: `TrainOptions`.

    Returns:
        A tuple (model, distribution strategy). The strategy is None for one device.
    """
    options = options or TrainOptions()
    distribution = make_strategy(options.strategy, options.devices)
    jit_compile = options.jit_compile
    if distribution and keras.backend.backend() == "tensorflow":
        check_strategy("mirrored", jit_compile=jit_compile)  # `TrainOptions` cannot check this for "auto"
        jit_compile = False
    with distribution.scope() if distribution else contextlib.nullcontext():
        model = registry.models.get(run.hparams.model)(
            vocab_size, run.hparams, dtype=keras.dtype_policies.get(options.dtype_policy)
        )
        model.compile(**compile_arguments(run.hparams, options.accumulate, jit_compile, options.remat))
    return model, distribution
