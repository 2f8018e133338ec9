"""Short training runs, without tracing of TensorFlow functions and with few validation pairs."""

import contextlib
import sys

import pytest

from keras_transformer.config import registry


@contextlib.contextmanager
def eager_functions():
    """Run TensorFlow functions as plain Python. On other backends nothing changes.

    Searches use larger batches, because an eager step takes about the same time for any number of sentences.
    """
    import keras  # conftest.py must call `load_keras` first

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
    """Validate `copy`, `reverse` and `sort` on few pairs. If `eager` is true, also run TensorFlow functions eagerly."""
    registry.load_catalog()
    sizes = sys.modules[registry.problems.get("reverse").__module__].PAIRS
    with pytest.MonkeyPatch.context() as patch, eager_functions() if eager else contextlib.nullcontext():
        patch.setitem(sizes, "validation", 12)
        yield
