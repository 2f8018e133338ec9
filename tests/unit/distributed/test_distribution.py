"""Contract 2: one device, several replicas and accumulated slices make the same update."""

import keras
import numpy as np
import pytest
from helpers.training_alike import (
    UPDATES,
    EverySecond,
    assert_same_training,
    assert_train_resumes_and_ends_alike,
    fit,
    fit_without_weights,
    small,
)

import keras_transformer as kt
from keras_transformer.layers.dropout import Dropout
from keras_transformer.training.distribution import make_strategy

tf = pytest.importorskip("tensorflow")
if keras.backend.backend() != "tensorflow":
    pytest.skip("tf.distribute needs KERAS_BACKEND=tensorflow", allow_module_level=True)


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    return EverySecond(data_dir=str(tmp_path_factory.mktemp("data"))).prepare()


@pytest.fixture(scope="module")
def mirrored():
    """A strategy as a notebook makes it; `make_strategy`'s is tested with `train`, below."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(scope="module")
def one_device(problem):
    return fit(problem)


@pytest.fixture(scope="module")
def two_replicas(problem, mirrored):
    return fit(problem, mirrored)


def test_the_batches_are_uneven(problem):
    batches = problem.batches("train", small())
    rows = [len(batches[i][1]) for i in range(UPDATES)]
    lengths = {batches[i][1].shape[1] for i in range(UPDATES)}
    assert 1 in rows and any(n > 1 and n % 2 for n in rows) and any(n > 1 and n % 3 for n in rows)
    assert len(lengths) > 2


def test_training_changed_the_weights(problem, one_device):
    model, _ = one_device
    new = kt.Transformer.from_hparams(small(), problem)
    changes = [np.abs(a.numpy() - b.numpy()).max() for a, b in zip(model.trainable_variables, new.trainable_variables)]
    assert min(changes) > 1e-3


@pytest.mark.parametrize("accumulate", (2, 3))
def test_accumulate_makes_the_same_update(problem, one_device, accumulate):
    assert_same_training(fit(problem, accumulate=accumulate), one_device)


def test_mirrored_makes_the_same_update(two_replicas, one_device):
    assert_same_training(two_replicas, one_device)


def test_mirrored_and_accumulate_together_make_the_same_update(problem, one_device, mirrored):
    assert_same_training(fit(problem, mirrored, accumulate=3), one_device)


def test_mirrored_r_drop_without_dropout_makes_the_same_update(problem, one_device, mirrored):
    trained = fit(problem, mirrored, accumulate=3, r_drop=5.0)
    assert trained[0].passes == 2
    assert_same_training(trained, one_device)


@pytest.mark.parametrize(
    "loss", [kt.SmoothedCrossEntropy(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)]
)
def test_mirrored_without_sample_weights_make_the_same_update(loss):
    found = fit_without_weights(make_strategy("mirrored"), loss=loss)
    assert_same_training(found, fit_without_weights(loss=loss), number=1, names=())


def test_mirrored_replicas_hold_the_same_weights(mirrored, two_replicas):
    for variable in two_replicas[0].trainable_variables:
        first, second = mirrored.experimental_local_results(variable.value)
        np.testing.assert_array_equal(first.numpy(), second.numpy())


def test_mirrored_evaluate_reports_the_same(problem, one_device, two_replicas):
    batches = problem.batches("test", small())
    expected, found = (model.evaluate(batches, verbose=0, return_dict=True) for model, _ in (one_device, two_replicas))
    assert found == pytest.approx(expected, rel=1e-5)


def test_metrics_weigh_every_token_alike(problem, one_device):
    model, losses = one_device[0], []
    batches = problem.batches("test", small())
    for i in range(batches.batches_per_epoch):
        (source, decoder_input), labels, weights = batches[i]
        log_p = np.array(keras.ops.log_softmax(model((source, decoder_input), training=False)))
        losses.extend(-np.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0][weights > 0])
    assert model.evaluate(batches, verbose=0, return_dict=True)["nll"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_mirrored_replicas_draw_different_dropout_masks(mirrored):
    first, second = dropped(mirrored, calls=1)[0]
    assert 0.3 < np.mean(first != second) < 0.7


def test_mirrored_dropout_masks_depend_on_the_seed_alone(mirrored):
    np.testing.assert_array_equal(dropped(mirrored, calls=2), dropped(mirrored, calls=2))


def test_mirrored_dropout_masks_change_from_step_to_step(mirrored):
    step_1, step_2 = dropped(mirrored, calls=2)
    for before, after in zip(step_1, step_2):
        assert 0.3 < np.mean(before != after) < 0.7


def dropped(strategy, calls):
    """[calls, replicas, 1000]: what dropout of one half makes of ones."""
    with strategy.scope():
        layer = Dropout(0.5, seed=7)
        layer.build()
    step = tf.function(lambda: strategy.run(lambda: layer(tf.ones(1000), training=True)))
    return [[np.array(mask) for mask in strategy.experimental_local_results(step())] for _ in range(calls)]


def test_mirrored_on_four_devices_makes_the_same_update(problem, one_device):
    assert_same_training(fit(problem, make_strategy("mirrored")), one_device)


def test_mirrored_make_strategy_takes_all_devices_or_as_many_as_asked_for():
    assert make_strategy("mirrored").num_replicas_in_sync == 4
    assert make_strategy("mirrored", 2).num_replicas_in_sync == 2
    assert make_strategy("one") is None


def test_mirrored_train_resumes_and_ends_with_the_weights_of_one_device(tmp_path):
    assert_train_resumes_and_ends_alike("mirrored", tmp_path)


def test_mirrored_validation_goes_through_its_batches_once_each_time(problem, mirrored, recwarn):
    model, history = fit(problem, mirrored)
    assert len(history["val_nll"]) == 2
    batches = problem.batches("validation", small())
    found = [model.evaluate(batches, verbose=0, return_dict=True)["nll"] for _ in range(2)]
    assert found == pytest.approx([history["val_nll"][-1]] * 2, rel=1e-5)
    assert not [warning for warning in recwarn if "ran out of data" in str(warning.message)]
