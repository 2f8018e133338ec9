"""Tests that updates on JAX are equal with one device, with two devices and with accumulated micro-batches."""

import keras
import numpy as np
import pytest
from helpers.training_alike import (
    EverySecond,
    assert_same_training,
    assert_train_resumes_and_ends_alike,
    fit,
    fit_without_weights,
    small,
)

import keras_transformer as kt
from keras_transformer.distributed.strategy import count_accelerators, make_strategy
from keras_transformer.layers.dropout import Dropout
from keras_transformer.training.options import TrainOptions

if keras.backend.backend() != "jax":
    pytest.skip("keras.distribution needs KERAS_BACKEND=jax", allow_module_level=True)
import jax

pytestmark = pytest.mark.backend

HPARAMS = small(batch_tokens=64)  # two batch shapes; one has three rows, which two devices cannot share equally


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    return EverySecond(data_dir=str(tmp_path_factory.mktemp("data"))).prepare()


@pytest.fixture(scope="module")
def one_device(problem):
    return fit(problem, hparams=HPARAMS)


@pytest.fixture(scope="module")
def shardings():
    """Shardings of the labels in each trace of `two_devices`."""
    return []


@pytest.fixture(scope="module")
def two_devices(problem, shardings):
    def look(model, x, labels, *arguments, original=kt.Transformer.compute_loss, **options):
        jax.debug.inspect_array_sharding(labels, callback=shardings.append)
        return original(model, x, labels, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kt.Transformer, "compute_loss", look)
        return fit(problem, make_strategy("jax"), hparams=HPARAMS)


def test_jax_devices_make_the_same_update(two_devices, one_device):
    assert_same_training(two_devices, one_device)


def test_jax_devices_replicate_weights_and_shard_rows(two_devices, one_device, shardings):
    for model, number in ((two_devices[0], 2), (one_device[0], 1)):
        for variable in [*model.variables, *model.optimizer.variables]:
            assert len(variable.value.devices()) == number and variable.value.sharding.is_fully_replicated
    assert shardings and all(len(one.device_set) == 2 and not one.is_fully_replicated for one in shardings)


def test_jax_devices_with_accumulate_make_the_same_update(problem, one_device):
    assert_same_training(fit(problem, make_strategy("jax"), accumulate=3, hparams=HPARAMS), one_device)


def test_jax_devices_with_r_drop_make_the_same_update(problem, one_device):
    assert_same_training(fit(problem, make_strategy("jax"), r_drop=5.0, hparams=HPARAMS), one_device)


@pytest.mark.parametrize(
    "loss", [kt.SmoothedCrossEntropy(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)]
)
def test_jax_devices_without_sample_weights_make_the_same_update(loss):
    found = fit_without_weights(make_strategy("jax"), loss=loss)
    assert_same_training(found, fit_without_weights(loss=loss), number=1, names=())


def test_jax_devices_evaluate_the_same(problem, one_device, two_devices):
    batches = problem.batches("test", HPARAMS)
    expected, found = (model.evaluate(batches, verbose=0, return_dict=True) for model, _ in (one_device, two_devices))
    assert found == pytest.approx(expected, rel=1e-5)


def test_jax_devices_draw_dropout_masks_of_one_device():
    def dropped(ones):
        layer = Dropout(0.5, seed=7)
        layer.build()
        return np.asarray(layer(ones, training=True))

    ones = np.ones((2, 1000), "float32")
    with make_strategy("jax").scope():
        layout = keras.distribution.distribution().get_data_layout(ones.shape).backend_layout
        first, second = masks = dropped(jax.device_put(ones, layout))
    assert 0.3 < np.mean(first != second) < 0.7
    np.testing.assert_array_equal(masks, dropped(ones))


def test_jax_devices_start_with_weights_of_one_device(monkeypatch):
    """Compare weights from compiled initializers.

    By default, Keras on JAX compiles only the initializers of large variables.
    """
    monkeypatch.setattr("keras.src.backend.jax.core.should_shard_at_init", lambda layout, shape: True)
    with make_strategy("jax").scope():
        model = kt.Transformer(9, small())
    for variable, expected in zip(model.variables, kt.Transformer(9, small()).variables, strict=True):
        assert len(variable.value.devices()) == 2
        np.testing.assert_array_equal(variable.value, expected.value)


def test_compile_outside_of_strategy_scope_is_rejected():
    with make_strategy("jax").scope():
        model = kt.Transformer(9, small())
    with pytest.raises(kt.UserError, match="in different scopes"):
        model.compile(**kt.compile_arguments(small()))


def test_training_resets_keras_distribution(two_devices):
    assert keras.distribution.distribution() is None


def test_make_strategy_chooses_devices():
    assert make_strategy("jax").num_model_replicas == 2 and count_accelerators(make_strategy("jax")) == 0
    assert make_strategy("one") is None and make_strategy("auto") is None  # "auto" ignores CPU devices
    assert make_strategy("auto", 1) is None
    with pytest.raises(kt.UserError, match="accelerators, got 2; jax finds none. Lower --devices, or use .*=jax "):
        make_strategy("auto", 2)
    with pytest.raises(kt.UserError, match="needs KERAS_BACKEND=tensorflow, got jax; use --strategy=jax"):
        make_strategy("mirrored")
    with pytest.raises(kt.UserError, match="unknown strategy 'jaxx': did you mean jax"):
        TrainOptions(strategy="jaxx")


def test_jax_devices_train_resumes_to_same_weights(tmp_path):
    assert_train_resumes_and_ends_alike("jax", tmp_path)
