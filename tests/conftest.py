"""Fixtures of all tests, and two logical CPU devices, so that mirrored training is tested in the same process."""

import os
import random
from pathlib import Path

import pytest

from keras_transformer.startup import load_keras

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / (os.environ.get("KERAS_TRANSFORMER_TEST_DATA") or "../shared/data")
SEED = int(os.environ.get("KERAS_TRANSFORMER_TEST_SEED") or random.SystemRandom().randrange(2**31))


def make_two_devices():
    """Splits the CPU in two; possible only until TensorFlow runs its first operation."""
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


load_keras()
make_two_devices()


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
