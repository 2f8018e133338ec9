"""Importing Keras and its backend: which, and without their start-up chatter."""

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path

from keras_transformer.utils.errors import UserError, unknown

BACKENDS = ("tensorflow", "jax")
"""Backends that this project trains on, by preference."""


def load_keras():
    """Imports Keras and its backend; what TensorFlow prints to stderr meanwhile is shown only if that fails.

    Its C++ parts ignore every log-level variable before they are initialised, so the file descriptor itself is
    turned away for these seconds. Raises ImportError as the import does.

    Raises:
        UserError: The backend is none of `BACKENDS` or not installed.
    """
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = chosen_backend()
        if os.environ["KERAS_BACKEND"] == "tensorflow":
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
            # TensorFlow takes these faster matrix products by itself on some processors alone.
            os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
            with stderr_set_aside():
                import keras
                import tensorflow as tf

                tf.config.list_physical_devices()
    import keras

    check_backend(keras.backend.backend())
    if keras.backend.backend() == "jax":
        keep_compilations()


def chosen_backend():
    """Returns what KERAS_BACKEND says, or else the backend that is installed; of several, the one in keras.json.

    Raises:
        UserError: It is none of `BACKENDS` or not installed, or none is.
    """
    if named := os.environ.get("KERAS_BACKEND"):
        check_backend(named)
        if not importlib.util.find_spec(named):
            raise UserError(f"KERAS_BACKEND={named}, but {named} is not installed: pip install {named}")
        return named
    # Keras writes its default into keras.json by itself, so what stands there need not be installed.
    for name in (_configured_backend(), *BACKENDS):
        if name in BACKENDS and importlib.util.find_spec(name):
            return name
    raise UserError("no backend of Keras is installed: pip install tensorflow, or pip install jax")


def check_packages(what, extra, packages, then=""):
    """Raise a `UserError` that names all packages that are not installed, with the command that installs them.

    Args:
        what: What needs the packages: the beginning of the sentence.
        extra: Extra of pyproject.toml that has all packages.
        packages: Names of the packages.
        then: What else to do: the end of the sentence.
    """
    missing = [name for name in packages if not importlib.util.find_spec(name.replace("-", "_"))]
    if missing:
        raise UserError(
            f"{what} needs {' and '.join(missing)}, not installed here: run pip install '.[{extra}]' in the folder of "
            f"this project{then}"
        )


def check_backend(name):
    """Raises a `UserError` unless `name` is one of `BACKENDS`."""
    if name not in BACKENDS:
        raise unknown("backend in KERAS_BACKEND", name, BACKENDS)


def keep_compilations():
    """Lets JAX keep what it compiles in the user's cache, unless told where (JAX_COMPILATION_CACHE_DIR)."""
    import jax

    if jax.config.jax_compilation_cache_dir is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
        jax.config.update("jax_compilation_cache_dir", str(cache / "keras_transformer" / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)  # by default a second


def _configured_backend():
    home = Path(os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras"))
    try:
        return json.loads((home / "keras.json").read_text()).get("backend")
    except (OSError, ValueError, AttributeError):
        return None


@contextlib.contextmanager
def stderr_set_aside():
    """What the process writes to stderr in the block, C++ parts too, is shown only if the block raises."""
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
