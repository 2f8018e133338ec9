"""Short training runs, without tracing of TensorFlow functions and with few validation pairs."""

import contextlib
import sys

import pytest

from keras_transformer.config import registry


@contextlib.contextmanager
def eager_functions():
    """Run TensorFlow functions as plain Python. On other backends nothing changes.

    Searches take few and large batches, because a step costs about the same for any number of sentences.
    """
    import keras  # only after conftest.py has called `load_keras`

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
    """Run eagerly if `eager`, and validate `copy`, `reverse` and `sort` on few pairs."""
    registry.load_catalog()
    sizes = sys.modules[registry.problems.get("reverse").__module__].PAIRS
    with pytest.MonkeyPatch.context() as patch, eager_functions() if eager else contextlib.nullcontext():
        patch.setitem(sizes, "validation", 12)
        yield
