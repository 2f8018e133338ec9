"""Importing Keras and its backend without their start-up chatter."""

import contextlib
import os
import sys
import tempfile


def load_keras():
    """Imports Keras and its backend; what they print to stderr meanwhile is shown only if that fails.

    TensorFlow's C++ parts ignore every log-level variable before they are initialised, so the file descriptor
    itself is turned away for these seconds. Raises ImportError as the import does.
    """
    if "keras" in sys.modules:
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _stderr_set_aside():
        import keras

        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            tf.config.list_physical_devices()


@contextlib.contextmanager
def _stderr_set_aside():
    try:
        sys.stderr.flush()
        original = os.dup(2)
    except (AttributeError, OSError):  # no stderr at all
        yield
        return
    with tempfile.TemporaryFile() as aside:
        os.dup2(aside.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(original, 2)
            aside.seek(0)
            os.write(2, aside.read())
            raise
        finally:
            os.dup2(original, 2)
            os.close(original)
