"""Tests of the choice and settings of the backend, and errors that name missing packages."""

import gc
import importlib.util
import json
import os
import sys
import types

import keras
import pytest

import keras_transformer as kt
from keras_transformer.backend import loading


@pytest.fixture
def choose_from(monkeypatch, tmp_path):
    """Return a function that sets the inputs of `chosen_backend`: environment, keras.json and installed packages."""

    def choose_from(environment, configured, installed):
        monkeypatch.delenv("KERAS_BACKEND", raising=False)
        if environment is not None:
            monkeypatch.setenv("KERAS_BACKEND", environment)
        monkeypatch.setenv("KERAS_HOME", str(tmp_path))
        if configured:
            (tmp_path / "keras.json").write_text(json.dumps({"backend": configured}))
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in installed or None)

    return choose_from


@pytest.mark.parametrize(
    ("environment", "configured", "installed", "chosen"),
    [
        ("jax", "tensorflow", {"tensorflow", "jax"}, "jax"),
        (None, None, {"tensorflow", "jax"}, "tensorflow"),
        (None, "jax", {"tensorflow", "jax"}, "jax"),
        (None, "tensorflow", {"jax"}, "jax"),  # keras.json may contain Keras' default, not the user's choice
        ("", None, {"jax"}, "jax"),
        (None, "torch", {"jax", "torch"}, "jax"),
    ],
)
def test_chosen_backend_prefers_environment_then_config(choose_from, environment, configured, installed, chosen):
    choose_from(environment, configured, installed)
    assert loading.chosen_backend() == chosen


@pytest.mark.parametrize(
    ("environment", "installed", "message"),
    [
        ("jax", {"tensorflow"}, "KERAS_BACKEND=jax, but jax is not installed. Run pip install jax."),
        ("tensorflow", {"jax"}, "tensorflow is not installed. Run pip install tensorflow."),
        ("torch", {"torch"}, "unknown backend in KERAS_BACKEND 'torch': choose one of jax, tensorflow"),
        ("tensorfow", {"tensorflow"}, "did you mean tensorflow"),
        (None, set(), "no Keras backend is installed; run pip install tensorflow or pip install jax"),
    ],
)
def test_chosen_backend_rejects_missing_and_unknown_ones(choose_from, environment, installed, message):
    choose_from(environment, None, installed)
    with pytest.raises(kt.UserError, match=message):
        loading.chosen_backend()


def test_load_keras_rejects_other_floatx(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delitem(sys.modules, "keras")
    (tmp_path / "keras.json").write_text('{"floatx": "float16"}')
    with pytest.raises(kt.UserError, match=r"floatx must be float32 in keras\.json, got float16"):
        loading.load_keras()


@pytest.mark.backend
@pytest.mark.parametrize("backend", ["jax", "tensorflow", None])
@pytest.mark.parametrize("missing", [("tensorflow", "tensorflow-text"), ("tensorflow-text",)])
def test_export_names_all_missing_packages(home, call, tmp_path, monkeypatch, missing, backend):
    hidden = [name.replace("-", "_") for name in missing]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name not in hidden or None)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    if backend:
        monkeypatch.setenv("KERAS_BACKEND", backend)
    message = (
        f"--format=saved_model needs {' and '.join(missing)} to be installed; run pip install '.[tensorflow]' in "
        "the folder of this project, then export with KERAS_BACKEND=tensorflow"
    )
    call("export", f"--run={home.run}", "--format=saved_model", f"--output_dir={tmp_path}/new").refused(message)
    (tmp_path / "export.json").write_text('{"format": "saved_model", "files": [], "nbest": 1}')
    from keras_transformer.server.engines import load_engine

    with pytest.raises(kt.UserError, match=f"a SavedModel, needs {' and '.join(missing)} to be installed"):
        load_engine(tmp_path)


@pytest.mark.parametrize(
    ("given", "cache_home", "kept"),
    [
        (None, None, {"jax_compilation_cache_dir": "/home/me/.cache/keras_transformer/jax"}),
        (None, "/x", {"jax_compilation_cache_dir": "/x/keras_transformer/jax"}),
        ("/y", "/x", {}),  # a folder from JAX_COMPILATION_CACHE_DIR takes precedence
    ],
)
def test_keep_compilations_uses_user_cache(monkeypatch, given, cache_home, kept):
    updates = {}
    config = types.SimpleNamespace(jax_compilation_cache_dir=given, update=updates.__setitem__)
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(config=config))
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if cache_home:
        monkeypatch.setenv("XDG_CACHE_HOME", cache_home)
    loading.enable_compilation_cache()
    assert updates == (kept and {**kept, "jax_persistent_cache_min_compile_time_secs": 0.1})


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="requires TensorFlow")
def test_tensorflow_uses_onednn_by_default():
    from tensorflow.python.util import _pywrap_util_port

    assert _pywrap_util_port.IsMklEnabled() == (os.environ["TF_ENABLE_ONEDNN_OPTS"] != "0")


def test_hidden_packages_cannot_be_imported_inside(monkeypatch):
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with loading.hidden_packages(("json", "this")):
        assert importlib.import_module("json") is json  # already imported
        with pytest.raises(ImportError, match="this"):
            importlib.import_module("this")
    assert "this" not in sys.modules and importlib.util.find_spec("this")


@pytest.mark.parametrize("enabled", [True, False])
def test_paused_garbage_collection_restores_the_state(enabled):
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(OSError), loading.paused_garbage_collection():
            assert not gc.isenabled()
            raise OSError
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
