"""The model that is trained: built and compiled, on the devices that are to train it."""

import contextlib

import keras

from keras_transformer.config import registry
from keras_transformer.distributed.strategy import check_strategy, make_strategy
from keras_transformer.training.schedule import compile_arguments

PRECISIONS = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def build_model(
    run,
    vocab_size,
    *,
    strategy="auto",
    devices=None,
    precision="float32",
    accumulate=1,
    jit_compile="auto",
    remat=False,
):
    """Returns the compiled model of a run with its initial weights, and what joins its devices or None.

    Args:
        run: `Run`.
        vocab_size: Tokens in the vocabulary.
        strategy: Of `make_strategy`.
        devices: How many devices of this process, likewise.
        precision: "float32", "bfloat16" or "float16".
        accumulate: Slices of a batch whose gradients are added before an update.
        jit_compile: Whether XLA compiles the step: True, False or "auto".
        remat: Whether layers are computed once more in the backward pass.
    """
    distribution = make_strategy(strategy, devices)
    if distribution and keras.backend.backend() == "tensorflow":
        check_strategy("mirrored", jit_compile=jit_compile)  # "auto" may have become it
        jit_compile = False
    with distribution.scope() if distribution else contextlib.nullcontext():
        model = registry.models.get(run.config["model"])(
            vocab_size, run.hparams, dtype=keras.dtype_policies.get(PRECISIONS[precision])
        )
        model.compile(**compile_arguments(run.hparams, accumulate, jit_compile, remat))
    return model, distribution
