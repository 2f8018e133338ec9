"""What a user gets who installs the package: all problems and hparams, from any directory, whatever lies in it."""

import importlib.metadata
import os
import subprocess
import sys
import venv
import zipfile

import pytest
from helpers.paths import ROOT

from keras_transformer import registry

SMALL = ("--num_layers=1", "--d_model=16", "--d_ff=16", "--num_heads=2", "--batch_tokens=256", "--train_steps=2")
NOT_A_USER_S = ("PYTHONPATH", "KERAS_BACKEND", "PYTHONDONTWRITEBYTECODE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture
def elsewhere(tmp_path):
    """A directory of a user who has folders of the same names, which must neither be run nor hide ours."""
    for name in ("problems", "hparams", "_bundled"):
        (tmp_path / name).mkdir()
        for file in ("__init__.py", "transformer.py", "algorithmic.py", "mine.py"):
            (tmp_path / name / file).write_text("raise SystemExit('the folder of the user was run')\n")
    return tmp_path


def run(*command, cwd):
    """Runs a command outside of the checkout, which must go well; returns its stdout."""
    environment = {name: value for name, value in os.environ.items() if name not in NOT_A_USER_S}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_lists_everything(listing):
    registry.load_catalog()
    names = {line.split()[0] for line in listing.splitlines() if line.startswith("  ")}
    for entries in (registry.problems, registry.hparams, registry.models):
        assert {name for name, _ in entries.describe()} <= names


def test_the_wheel_carries_problems_and_hparams_and_nothing_beside_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for folder in ("problems", "hparams"):
        expected = {f"keras_transformer/_bundled/{folder}/{path.name}" for path in (ROOT / folder).glob("*.py")}
        assert expected and expected <= set(names)
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"keras_transformer"}


def test_the_wheel_in_an_empty_environment_trains_from_another_directory(wheel, elsewhere, tmp_path_factory):
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", f"{wheel}[jax]", cwd=elsewhere)
    assert_lists_everything(run(python, "-m", "keras_transformer", cwd=elsewhere))
    run(python, "-m", "keras_transformer.train", "--problem=sort", "--hparams=toy", *SMALL, cwd=elsewhere)
    lines = run(python, "-m", "keras_transformer.evaluate", "--run=runs/sort-toy", cwd=elsewhere).splitlines()
    assert lines[-1].startswith("exact match = ")
    code = "import keras_transformer; print(keras_transformer.problem('toy_ende').name, keras_transformer.__file__)"
    name, place = run(python, "-c", code, cwd=elsewhere).split()
    assert name == "toy_ende" and place.startswith(str(home))


def test_an_editable_install_works_from_another_directory(elsewhere):
    try:
        importlib.metadata.version("keras-transformer-toolkit")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed in this environment: pip install -e .")
    assert_lists_everything(run(sys.executable, "-m", "keras_transformer", cwd=elsewhere))
    run(sys.executable, "-m", "keras_transformer.prepare", "--problem=copy", cwd=elsewhere)
