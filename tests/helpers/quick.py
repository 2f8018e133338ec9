"""Context managers that make short training runs faster."""

import contextlib
import sys

import pytest

from keras_transformer.config import registry


@contextlib.contextmanager
def eager_functions():
    """Run TensorFlow functions eagerly inside the `with` block. On other backends, this has no effect.

    Searches also use larger batches, because the time of an eager step hardly depends on the number of sentences.
    """
    import keras  # not at the top, because conftest.py must call `load_keras` first

    from keras_transformer.decoding import search_batches

    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search_batches, "BATCH_ROWS", 1024)
            yield
    finally:
        tf.config.run_functions_eagerly(False)


@contextlib.contextmanager
def quick_runs(eager=True):
    """Use only 12 validation pairs in `copy`, `reverse` and `sort`. If `eager` is true, run TensorFlow eagerly."""
    registry.load_catalog()
    sizes = sys.modules[registry.problems.get("reverse").__module__].PAIRS
    with pytest.MonkeyPatch.context() as patch, eager_functions() if eager else contextlib.nullcontext():
        patch.setitem(sizes, "validation", 12)
        yield
