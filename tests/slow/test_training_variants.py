"""Tests that XLA, four replicas and a Keras loss do not change the updates."""

import keras
import pytest
from helpers.quick import eager_functions
from helpers.training_alike import EverySecond, assert_same_training, fit, fit_without_weights

from keras_transformer.distributed.strategy import make_strategy

if keras.backend.backend() != "tensorflow":
    pytest.skip("tf.distribute needs KERAS_BACKEND=tensorflow", allow_module_level=True)


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    return EverySecond(data_dir=str(tmp_path_factory.mktemp("data"))).prepare()


@pytest.fixture(scope="module")
def one_device(problem):
    with eager_functions():
        return fit(problem)


def test_four_replicas_make_the_same_update(problem, one_device):
    assert_same_training(fit(problem, make_strategy("mirrored")), one_device)


def test_xla_makes_the_same_update():
    found = fit_without_weights(jit_compile=True)
    assert_same_training(found, fit_without_weights(jit_compile=False), number=1, names=())


def test_keras_loss_without_sample_weights_makes_the_same_update():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = fit_without_weights(make_strategy("mirrored"), loss=loss)
    assert_same_training(found, fit_without_weights(loss=loss), number=1, names=())
