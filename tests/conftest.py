"""Fixtures for all tests. Importing this file also splits the CPU into logical devices for multi-device tests."""

import gc
import importlib
import json
import os
import random
import shutil
import signal
import sys

import hypothesis
import pytest
from helpers.commands import REVERSE, Home, Outcome, start
from helpers.paths import DATA
from helpers.quick import eager_functions
from helpers.sharing import shared_folder

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import run_command

SEED = int(os.environ.get("KERAS_TRANSFORMER_TEST_SEED") or random.SystemRandom().randrange(2**31))
os.environ["KERAS_TRANSFORMER_TEST_SEED"] = str(SEED)  # subprocesses inherit the seed

hypothesis.settings.register_profile("dev", max_examples=25, deadline=None)
hypothesis.settings.register_profile("ci-slow", max_examples=200, deadline=None)
hypothesis.settings.load_profile("dev")  # the default; pytest --hypothesis-profile=NAME overrides it

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # shells make background jobs ignore SIGINT
    signal.signal(signal.SIGINT, signal.default_int_handler)


def make_devices():
    """Split the CPU into four logical devices, or two on JAX, before the backend runs any operation."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    else:
        import jax

        jax.config.update("jax_num_cpu_devices", 2)


TRANSLATORS = {}
"""Cache of `load_once`: maps the arguments of `Translator.from_runs` to the loaded translator."""

load_keras()
import keras  # noqa: E402

make_devices()
ON_JAX = keras.backend.backend() == "jax"
if not ON_JAX:  # garbage collection would take 20% of the time, because graphs have many objects
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


@pytest.fixture(scope="module", autouse=True)
def free_compiled_programs():
    """Free JAX's compiled programs after each test file. They use memory maps, and Linux allows 65,530 per process."""
    yield
    if ON_JAX:
        import jax

        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def test_data():
    """Return the path of the folder with real corpora. Skip the test if the folder is missing."""
    if not DATA.is_dir():
        pytest.skip(f"{DATA} is missing; set KERAS_TRANSFORMER_TEST_DATA to the folder of corpora")
    return DATA.resolve()


@pytest.fixture(scope="session")
def fresh_seed():
    """Return a seed that differs between test runs, for behaviour that must hold with any seed."""
    print(f"seed {SEED}")
    return SEED


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"seed {SEED} (repeat with KERAS_TRANSFORMER_TEST_SEED={SEED})")


@pytest.fixture
def call(monkeypatch, capsys):
    """Return a function that runs a command in this process and returns its `Outcome`."""

    def call(command, *arguments):
        main = importlib.import_module(f"keras_transformer.{command}").main
        monkeypatch.setattr(sys, "argv", [command, *map(str, arguments)])
        status = 0
        try:
            run_command(main)
        except SystemExit as end:
            status = end.code
        return Outcome(status, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def eager_module():
    """Apply `eager` to all tests of a file."""
    with eager_functions():
        yield


@pytest.fixture
def eager():
    """Run TensorFlow functions eagerly. For a few short sentences, this is faster than tracing them."""
    with eager_functions():
        yield


@pytest.fixture
def load_once(monkeypatch):
    """Return a function that makes `Translator.from_runs` cache the translators of a run that no test changes.

    All tests in the process share the cache, so they also reuse compiled functions.
    """
    from keras_transformer.decoding.translator import Translator

    from_runs = Translator.from_runs

    def load_once(run):
        def loaded(runs, checkpoint=None, precision="float32", jit_compile=False):
            paths = [str(one.path) for one in runs]
            if any(path != str(run) for path in paths):
                return from_runs(runs, checkpoint, precision, jit_compile)
            key = (*paths, str(checkpoint), precision, jit_compile)
            if key not in TRANSLATORS:
                TRANSLATORS[key] = from_runs(runs, checkpoint, precision, jit_compile)
            return TRANSLATORS[key]

        monkeypatch.setattr(Translator, "from_runs", staticmethod(loaded))

    return load_once


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """Return a read-only `Home` that all test processes share."""

    def make(path):
        outcome = start("train", *REVERSE, "--train_steps=6", cwd=path)
        (path / "outcome.json").write_text(json.dumps(outcome))

    path = shared_folder(tmp_path_factory, "home", make)
    return Home(path, Outcome(*json.loads((path / "outcome.json").read_text())))


@pytest.fixture
def copied(home, tmp_path):
    """Return the path of a copy of the run in `home`. Tests may change the copy."""
    return shutil.copytree(home.run, tmp_path / "copied")


@pytest.fixture(scope="session")
def saved(home, tmp_path_factory):
    """Return the path of a SavedModel of the run in `home`. The model returns two translations of each text.

    All test processes share the SavedModel.
    """

    def make(path):
        flags = (f"--run={home.run}", "--format=saved_model", "--nbest=2", f"--output_dir={path}/model")
        assert start("export", *flags, cwd=path).succeeded() == [
            f"wrote {path}/model for tf.saved_model.load and TensorFlow Serving; export.json lists its fixed options"
        ]

    return shared_folder(tmp_path_factory, "saved", make) / "model"
