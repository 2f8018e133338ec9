"""Import of Keras and its backend without the start-up messages of TensorFlow."""

import contextlib
import gc
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path

from keras_transformer.utils.errors import UserError, unknown

BACKENDS = ("tensorflow", "jax")
"""Supported backends in order of preference."""

OPTIONAL = ("matplotlib", "pandas", "jax")
"""Packages that Keras and TensorFlow import, if installed, to draw figures, read data frames and convert JAX models."""


def load_keras(optional=True):
    """Import Keras and its backend. Show TensorFlow's messages on stderr only if the import fails.

    The function redirects the file descriptor of stderr, because TensorFlow's C++ code ignores log levels until it is
    initialized.

    Args:
        optional: Whether Keras and TensorFlow may import the packages in `OPTIONAL`. False makes a command start
            faster: it skips these packages, and excludes all objects that exist after the imports from garbage
            collection.

    Raises:
        UserError: The backend is not supported or not installed, or floatx in keras.json is not float32.
        ImportError: The import of Keras or the backend fails.
    """
    if "keras" not in sys.modules:
        if (floatx := _configured("floatx")) not in (None, "float32"):
            raise UserError(f"floatx must be float32 in keras.json, got {floatx}; use --precision instead")
        backend = os.environ["KERAS_BACKEND"] = chosen_backend()
        with hidden_packages(() if optional else {*OPTIONAL} - {backend}), paused_garbage_collection():
            if backend == "tensorflow":
                os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
                # oneDNN speeds up matrix products, but TensorFlow uses oneDNN by default only on some processors.
                os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
                with hidden_stderr():
                    import keras
                    import tensorflow as tf

                    tf.config.list_physical_devices()
            import keras
        if not optional:
            gc.freeze()  # so that later collections, including the last one at exit, skip the imported objects
    else:
        import keras

    check_backend(keras.backend.backend())
    if keras.backend.backend() == "jax":
        enable_compilation_cache()


def chosen_backend():
    """Return the name of the backend to import.

    KERAS_BACKEND takes precedence over keras.json. If KERAS_BACKEND is not set and keras.json does not name an
    installed backend, the function returns the first installed one of `BACKENDS`.

    Raises:
        UserError: KERAS_BACKEND is not supported or not installed, or no backend is installed.
    """
    if named := os.environ.get("KERAS_BACKEND"):
        check_backend(named)
        if not importlib.util.find_spec(named):
            raise UserError(f"KERAS_BACKEND={named}, but {named} is not installed. Run pip install {named}.")
        return named
    # Keras writes its default backend into keras.json even if that backend is not installed.
    for name in (_configured("backend"), *BACKENDS):
        if name in BACKENDS and importlib.util.find_spec(name):
            return name
    raise UserError("no Keras backend is installed; run pip install tensorflow or pip install jax")


def check_packages(what, extra, packages, then=""):
    """Raise a `UserError` unless all packages are installed.

    The message names the missing packages and the command that installs them.

    Args:
        what: Name of the feature that needs the packages, for the beginning of the message.
        extra: Extra in pyproject.toml that contains all packages.
        packages: Names of the packages.
        then: Additional remedy, appended to the message.
    """
    missing = [name for name in packages if not importlib.util.find_spec(name.replace("-", "_"))]
    if missing:
        raise UserError(
            f"{what} needs {' and '.join(missing)} to be installed; run pip install '.[{extra}]' in the folder of this "
            f"project{then}"
        )


def check_backend(name):
    """Raise a `UserError` unless `name` is one of `BACKENDS`."""
    if name not in BACKENDS:
        raise unknown("backend in KERAS_BACKEND", name, BACKENDS)


def enable_compilation_cache():
    """Let JAX cache compiled functions in the user's cache folder, unless JAX_COMPILATION_CACHE_DIR is set."""
    import jax

    if jax.config.jax_compilation_cache_dir is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
        jax.config.update("jax_compilation_cache_dir", str(cache / "keras_transformer" / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)  # in seconds; JAX's default is 1


def _configured(setting):
    """Return the value of a setting in keras.json, or None."""
    home = Path(os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras"))
    try:
        return json.loads((home / "keras.json").read_text()).get(setting)
    except (OSError, ValueError, AttributeError):
        return None


@contextlib.contextmanager
def hidden_packages(names):
    """Make imports of packages fail inside the `with` block, except for packages that are already imported."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextlib.contextmanager
def paused_garbage_collection():
    """Pause Python's garbage collector inside the `with` block.

    Use this function for imports, which create many objects that live as long as the process. Otherwise, the collector
    would examine these objects repeatedly.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def hidden_stderr():
    """Hide all output of the process on stderr, including that of C++ code, unless the `with` block raises."""
    try:
        sys.stderr.flush()
        original = os.dup(2)
    except (AttributeError, OSError):  # the process has no stderr
        yield
        return
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(original, 2)
            hidden.seek(0)
            os.write(2, hidden.read())
            raise
        finally:
            os.dup2(original, 2)
            os.close(original)
