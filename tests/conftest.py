"""Fixtures of all tests, and several logical CPU devices, so that training on them is tested in the same process."""

import gc
import importlib
import json
import os
import random
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
os.environ["KERAS_TRANSFORMER_TEST_SEED"] = str(SEED)  # of all processes of this run

hypothesis.settings.register_profile("dev", max_examples=25, deadline=None)
hypothesis.settings.register_profile("ci-slow", max_examples=200, deadline=None)
hypothesis.settings.load_profile("dev")  # another one: --hypothesis-profile=NAME

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to its background, and commands inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def make_devices():
    """Splits the CPU, in four or, on JAX, in two; possible only until the backend runs its first operation."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    else:
        import jax

        jax.config.update("jax_num_cpu_devices", 2)


TRANSLATORS = {}
"""What `load_once` keeps, by the arguments of `Translator.load`."""

load_keras()
import keras  # noqa: E402

make_devices()
ON_JAX = keras.backend.backend() == "jax"
if not ON_JAX:  # what graphs are made of is many objects, which are looked through again and again: a fifth of the time
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_are_let_go():
    """After each file: on JAX they take memory maps, of which Linux gives a process 65,530, and ends it beyond them."""
    yield
    if ON_JAX:
        import jax

        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def test_data():
    """Path of the real corpora."""
    if not DATA.is_dir():
        pytest.skip(f"there are no corpora in {DATA}; KERAS_TRANSFORMER_TEST_DATA names their directory")
    return DATA.resolve()


@pytest.fixture(scope="session")
def fresh_seed():
    """A seed that no run has had before: what is tested with it must hold for any."""
    print(f"seed {SEED}")
    return SEED


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"seed {SEED} (repeat with KERAS_TRANSFORMER_TEST_SEED={SEED})")


@pytest.fixture
def call(monkeypatch, capsys):
    """Runs a command in this process, which is quicker; returns its `Outcome`."""

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


@pytest.fixture
def eager():
    """Run TensorFlow's functions without tracing them. For few and short sentences: each step takes longer."""
    with eager_functions():
        yield


@pytest.fixture
def load_once(monkeypatch):
    """Return a function that lets the test's later calls of `Translator.load` share translators of one unchanged run.

    The translators and what they have compiled are kept for the other tests of the process.
    """
    from keras_transformer.decoding.translator import Translator

    load = Translator.load

    def load_once(run):
        def loaded(run_dir, checkpoint=None, precision="float32", jit_compile=False):
            runs = run_dir if isinstance(run_dir, list) else [run_dir]
            if any(str(path) != str(run) for path in runs):
                return load(run_dir, checkpoint, precision, jit_compile)
            key = (*map(str, runs), str(checkpoint), precision, jit_compile)
            if key not in TRANSLATORS:
                TRANSLATORS[key] = load(run_dir, checkpoint, precision, jit_compile)
            return TRANSLATORS[key]

        monkeypatch.setattr(Translator, "load", staticmethod(loaded))

    return load_once


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A `Home` that all test processes share, for reading only."""

    def make(path):
        outcome = start("train", *REVERSE, "--train_steps=6", cwd=path)
        (path / "outcome.json").write_text(json.dumps(outcome))

    path = shared_folder(tmp_path_factory, "home", make)
    return Home(path, Outcome(*json.loads((path / "outcome.json").read_text())))


@pytest.fixture(scope="session")
def saved(home, tmp_path_factory):
    """The SavedModel of `home`, with two translations of each text, which all test processes share."""

    def make(path):
        flags = (f"--run={home.run}", "--format=saved_model", "--nbest=2", f"--output_dir={path}/model")
        assert start("export", *flags, cwd=path).succeeded() == [
            f"wrote {path}/model for tf.saved_model.load and TensorFlow Serving; export.json lists its fixed options"
        ]

    return shared_folder(tmp_path_factory, "saved", make) / "model"
