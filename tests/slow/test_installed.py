"""Tests that the installed package finds all problems and hparams from any working directory."""

import importlib.metadata
import os
import subprocess
import sys
import venv
import zipfile

import pytest
from helpers.paths import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from keras_transformer.config import registry

SMALL = ("--num_layers=1", "--d_model=16", "--d_ff=16", "--num_heads=2", "--batch_tokens=256", "--train_steps=2")
HIDDEN = ("PYTHONPATH", "KERAS_BACKEND", "PYTHONDONTWRITEBYTECODE")
"""Environment variables that only tests set."""


@pytest.fixture
def elsewhere(tmp_path):
    """Return a directory with modules named like modules of the package. A process that imports one of them exits."""
    for name in ("problems", "hparams", "_bundled"):
        (tmp_path / name).mkdir()
        for file in ("__init__.py", "transformer.py", "algorithmic.py", "mine.py"):
            (tmp_path / name / file).write_text("raise SystemExit('the folder of the user was run')\n")
    return tmp_path


def run(*command, cwd):
    """Run a command in the directory `cwd` without the tests' environment variables. Return its stdout."""
    environment = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def link_requirements(names, folder):
    """Link the installed packages `names` and all their requirements into a site-packages folder."""
    linked, left = set(), [Requirement(name) for name in names]
    while left:
        requirement = left.pop()
        extras = requirement.extras or {""}
        for extra in {(canonicalize_name(requirement.name), extra) for extra in extras} - linked:
            linked.add(extra)
            distribution = importlib.metadata.distribution(requirement.name)
            assert requirement.specifier.contains(distribution.version, prereleases=True), requirement
            for top in {path.parts[0] for path in distribution.files} - {"..", "__pycache__"}:
                if not (folder / top).exists():
                    (folder / top).symlink_to(distribution.locate_file(top))
            required = [Requirement(line) for line in distribution.requires or ()]
            left += [one for one in required if not one.marker or one.marker.evaluate({"extra": extra[1]})]


def assert_lists_everything(listing):
    registry.load_catalog()
    names = {line.split()[0] for line in listing.splitlines() if line.startswith("  ")}
    for entries in (registry.problems, registry.hparams, registry.models):
        assert {name for name, _ in entries.describe()} <= names


USE = """
import keras_transformer
from keras_transformer.evaluate import main
main(["--run=runs/sort-toy"])
print(keras_transformer.problem("toy_ende").name, keras_transformer.__file__)
"""


def test_wheel_in_an_empty_environment_trains(elsewhere, tmp_path_factory):
    """Train in an environment that contains only the wheel and the requirements of its extra `[jax]`."""
    pytest.importorskip("jax")
    home = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", home, ROOT, cwd=home)
    (wheel,) = home.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for folder in ("problems", "hparams"):
        expected = {f"keras_transformer/_bundled/{folder}/{path.name}" for path in (ROOT / folder).glob("*.py")}
        assert expected and expected <= set(names)
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"keras_transformer"}

    venv.create(home / "venv")
    python = home / "venv" / "bin" / "python"
    (packages,) = (home / "venv" / "lib").glob("python*/site-packages")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-compile", wheel, cwd=home)
    (metadata,) = importlib.metadata.distributions(name="keras-transformer-toolkit", path=[str(packages)])
    required = [Requirement(line) for line in metadata.requires]
    required = [
        str(one).partition(";")[0] for one in required if not one.marker or one.marker.evaluate({"extra": "jax"})
    ]
    assert any(one.startswith("jax") for one in required) and not any("tensorflow" in one for one in required)
    link_requirements(required, packages)
    assert not (packages / "tensorflow").exists() and not (packages / "pytest").exists()
    assert_lists_everything(run(python, "-m", "keras_transformer", cwd=elsewhere))
    run(python, "-m", "keras_transformer.train", "--problem=sort", "--hparams=toy", *SMALL, cwd=elsewhere)
    *_, score, used = run(python, "-c", USE, cwd=elsewhere).splitlines()
    assert score.startswith("exact match = ")
    name, place = used.split()
    assert name == "toy_ende" and place.startswith(str(packages))


def test_editable_install_works_from_another_directory(elsewhere):
    try:
        importlib.metadata.version("keras-transformer-toolkit")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed in this environment: pip install -e .")
    assert_lists_everything(run(sys.executable, "-m", "keras_transformer", cwd=elsewhere))
    run(sys.executable, "-m", "keras_transformer.prepare", "--problem=copy", cwd=elsewhere)
