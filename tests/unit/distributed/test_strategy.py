"""Tests that one device, several replicas and accumulated micro-batches make equal updates."""

import keras
import numpy as np
import pytest
from helpers.quick import eager_functions
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
from keras_transformer.distributed.strategy import make_strategy
from keras_transformer.layers.dropout import Dropout

tf = pytest.importorskip("tensorflow")
if keras.backend.backend() != "tensorflow":
    pytest.skip("tf.distribute needs KERAS_BACKEND=tensorflow", allow_module_level=True)


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    return EverySecond(data_dir=str(tmp_path_factory.mktemp("data"))).prepare()


@pytest.fixture(scope="module")
def mirrored():
    """A strategy created directly, as in a notebook. Other tests use `make_strategy` instead."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(scope="module")
def one_device(problem):
    with eager_functions():
        return fit(problem)


@pytest.fixture(scope="module")
def two_replicas(problem, mirrored):
    return fit(problem, mirrored)


def test_training_batches_are_uneven(problem):
    batches = problem.batches("train", small())
    rows = [len(batches[i][1]) for i in range(UPDATES)]
    lengths = {batches[i][1].shape[1] for i in range(UPDATES)}
    assert 1 in rows and any(n > 1 and n % 2 for n in rows) and any(n > 1 and n % 3 for n in rows)
    assert len(lengths) > 2


def test_training_changes_the_weights(problem, one_device):
    model, _ = one_device
    new = kt.Transformer.from_hparams(small(), problem)
    changes = [np.abs(a.numpy() - b.numpy()).max() for a, b in zip(model.trainable_variables, new.trainable_variables)]
    assert min(changes) > 1e-3


def test_accumulate_makes_the_same_update(problem, one_device):
    assert_same_training(fit(problem, accumulate=2), one_device)


def test_mirrored_makes_the_same_update(two_replicas, one_device):
    assert_same_training(two_replicas, one_device)


def test_mirrored_accumulate_and_r_drop_make_the_same_update(problem, one_device, mirrored):
    trained = fit(problem, mirrored, accumulate=3, r_drop=5.0)  # without dropout, R-Drop adds nothing to the loss
    assert trained[0].passes == 2
    assert_same_training(trained, one_device)


def test_mirrored_without_sample_weights_makes_the_same_update():
    found = fit_without_weights(make_strategy("mirrored"), loss=kt.SmoothedCrossEntropy(0.1))
    with eager_functions():
        expected = fit_without_weights(loss=kt.SmoothedCrossEntropy(0.1))
    assert_same_training(found, expected, number=1, names=())


def test_mirrored_replicas_hold_the_same_weights(mirrored, two_replicas):
    for variable in two_replicas[0].trainable_variables:
        first, second = mirrored.experimental_local_results(variable.value)
        np.testing.assert_array_equal(first.numpy(), second.numpy())


def test_mirrored_evaluate_reports_the_same(problem, one_device, two_replicas):
    batches = problem.batches("test", small())
    expected, found = (model.evaluate(batches, verbose=0, return_dict=True) for model, _ in (one_device, two_replicas))
    assert found == pytest.approx(expected, rel=1e-5)


def test_mirrored_dropout_depends_on_seed_replica_and_step(mirrored):
    first, second = found = dropped(mirrored, calls=2)
    assert 0.3 < np.mean(first[0] != first[1]) < 0.7
    for before, after in zip(first, second):
        assert 0.3 < np.mean(before != after) < 0.7
    np.testing.assert_array_equal(found, dropped(mirrored, calls=2))


def dropped(strategy, calls):
    """Apply dropout with rate 0.5 to 1,000 ones. Return the outputs as an array `[calls, replicas, 1000]`."""
    with strategy.scope():
        layer = Dropout(0.5, seed=7)
        layer.build()
    step = tf.function(lambda: strategy.run(lambda: layer(tf.ones(1000), training=True)))
    return [[np.array(mask) for mask in strategy.experimental_local_results(step())] for _ in range(calls)]


def test_make_strategy_mirrors_all_or_the_given_devices():
    assert make_strategy("mirrored").num_replicas_in_sync == 4
    assert make_strategy("mirrored", 2).num_replicas_in_sync == 2
    assert make_strategy("one") is None
    with pytest.raises(kt.UserError, match=r"available devices, got 5; tensorflow finds 4: .*Lower --devices"):
        make_strategy("mirrored", 5)


def test_auto_strategy_uses_one_device_without_accelerators():
    assert make_strategy("auto") is None and make_strategy("auto", 1) is None
    said = r"number of accelerators, got 2; tensorflow finds none\. Lower --devices, or use --strategy=mirrored "
    with pytest.raises(kt.UserError, match=said):
        make_strategy("auto", 2)
    with pytest.raises(kt.UserError, match=r"got 5; tensorflow finds none\. Lower --devices\.$"):
        make_strategy("auto", 5)


def test_mirrored_train_resumes_to_same_weights(tmp_path):
    assert_train_resumes_and_ends_alike("mirrored", tmp_path)


def test_mirrored_validation_reads_all_batches_each_time(problem, two_replicas, recwarn):
    model, history = two_replicas
    assert len(history["val_nll"]) == 2
    batches = problem.batches("validation", small())
    found = [model.evaluate(batches, verbose=0, return_dict=True)["nll"] for _ in range(2)]
    assert found == pytest.approx([history["val_nll"][-1]] * 2, rel=1e-5)
    assert not [warning for warning in recwarn if "ran out of data" in str(warning.message)]
