"""Eager execution, which saves the time of tracing: most of the time of short commands on TensorFlow."""

import contextlib
from unittest import mock


@contextlib.contextmanager
def eagerly():
    """Run TensorFlow's functions without tracing them; JAX always traces."""
    import keras  # which must be imported after `load_keras`

    from keras_transformer.decoding import translator

    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    try:
        with mock.patch.object(translator, "BATCH_ROWS", 1024):  # a step costs the same for any number of rows
            yield
    finally:
        tf.config.run_functions_eagerly(False)
