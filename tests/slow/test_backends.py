"""Tests that all backends give the same results and resume each other's runs, and that JAX needs no TensorFlow."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers import cross_backend
from helpers.paths import ROOT
from helpers.sharing import shared_folder

from keras_transformer.backend import loading
from keras_transformer.runs.run import Run

BACKENDS = [name for name in loading.BACKENDS if importlib.util.find_spec(name)]
THIS = keras.backend.backend()
OTHER = next((name for name in BACKENDS if name != THIS), None)
both = pytest.mark.skipif(OTHER is None, reason=f"only {THIS} is installed")


def python(backend, home, *arguments, **environment):
    """Run Python with the given backend and home directory. Return the completed process."""
    environment = {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "PATH": os.environ["PATH"], "HOME": str(home),
        "KERAS_BACKEND": backend, **environment,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=home, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="session")
def folder(tmp_path_factory, fresh_seed):
    """Return a folder with runs that one backend started and the other finished.

    The results of each backend are in `<backend>.json`.
    """

    def make(folder):
        found = cross_backend.begin(folder, fresh_seed, THIS)
        shutil.copytree(folder / f"from_{THIS}", folder / "whole")
        cross_backend.train(folder, "whole", 12)
        done = python(OTHER, folder, "-m", "helpers.cross_backend", folder, fresh_seed, THIS)
        assert done.returncode == 0, done.stderr
        found |= cross_backend.finish(folder, THIS, OTHER)
        (folder / f"{THIS}.json").write_text(json.dumps(found))

    return shared_folder(tmp_path_factory, "backends", make)


@pytest.fixture
def found(folder):
    """Return the results of `cross_backend` as {backend: results}."""
    return {backend: json.loads((folder / f"{backend}.json").read_text()) for backend in BACKENDS}


@both
@pytest.mark.parametrize("accumulate", [1, 2])
def test_backends_give_same_first_20_losses(found, accumulate):
    own, other = (found[backend]["metrics"][str(accumulate)] for backend in (THIS, OTHER))
    for name, values in own.items():
        assert len(set(values)) == 20 == len(values)  # the metrics differ between updates
        np.testing.assert_allclose(other[name], values, rtol=2e-4, err_msg=name)
    assert other["loss"][-1] < other["loss"][0]


@both
@pytest.mark.parametrize("first", BACKENDS)
def test_backends_resume_each_others_checkpoints(folder, found, first):
    second = next(backend for backend in BACKENDS if backend != first)
    assert "  resuming after update 6" in found[second]["resumed"]
    run = Run.open(folder / f"from_{first}")
    assert run.manifest()["backend"] == second
    after, expected = run.checkpoints.load(12)[0], Run.open(folder / "whole").checkpoints.load(12)[0]
    for part in ("weights", "optimizer"):
        assert after[part].keys() == expected[part].keys()
        for path, array in expected[part].items():
            np.testing.assert_allclose(after[part][path], array, rtol=1e-3, atol=2e-5, err_msg=path)
    assert after["optimizer"]["adam/iteration"] == 12


@both
def test_backends_translate_a_run_alike(found):
    own, other = found[THIS], found[OTHER]
    assert own["texts"] == other["texts"] and any(map(any, own["texts"])) and own["score"] == other["score"]
    for scores, others in zip(own["scores"], other["scores"], strict=True):
        np.testing.assert_allclose(scores, others, atol=1e-3)


@both
@pytest.mark.skipif(THIS == "jax", reason="requires TensorFlow")
def test_jax_commands_import_no_tensorflow(folder, found):
    assert found["jax"]["prepare_imports"] == [] and found["jax"]["all_imports"] == ["jax"]
    assert list((folder / ".cache" / "keras_transformer" / "jax").iterdir())  # JAX's compilation cache


@pytest.mark.backend
def test_notebook_may_start_with_batches(tmp_path):
    code = (
        "import keras_transformer as kt; print(kt.problem('sort').batches('test', kt.hparams('toy')).batches_per_epoch)"
    )
    if THIS == "tensorflow":
        code += "; from tensorflow.python.util import _pywrap_util_port as p; print(p.IsMklEnabled())"
    done = python("", tmp_path, "-c", code, TF_ENABLE_ONEDNN_OPTS="0")
    assert done.returncode == 0, done.stderr
    batches, *onednn = done.stdout.splitlines()[-2 if THIS == "tensorflow" else -1 :]
    assert int(batches) > 0 and onednn == ["False"] * (THIS == "tensorflow")
    assert "'torch'" in python("torch", tmp_path, "-c", code).stderr.splitlines()[-1]
