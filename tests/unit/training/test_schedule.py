"""Tests of the learning rate schedule and of Adam's settings (§5.3). Keras counts updates from 0, the paper from 1."""

import keras
import numpy as np
import oracles
import pytest

import keras_transformer as kt
from keras_transformer.training.optimizer import GuardedAdam


@pytest.mark.parametrize("preset, d_model", [("base", 512), ("big", 1024)])
@pytest.mark.parametrize("step", [1, 2, 3999, 4000, 4001, 100_000])
def test_learning_rate_matches_equation_3(preset, d_model, step):
    schedule = kt.compile_arguments(kt.hparams(preset))["optimizer"]._learning_rate
    assert float(schedule(step - 1)) == pytest.approx(oracles.learning_rate(d_model, step), rel=1e-5)


@pytest.mark.parametrize("d_model, peak", [(512, 6.99e-4), (1024, 4.94e-4)])
def test_learning_rate_peaks_at_end_of_warmup(d_model, peak):
    schedule = kt.TransformerSchedule(d_model, 4000)
    rates = [float(schedule(step - 1)) for step in range(3990, 4011)]
    assert max(rates) == pytest.approx(peak, rel=1e-3)
    assert np.argmax(rates) == 10


def test_first_update_uses_rate_of_step_1():
    """Check the size of Adam's first update, which equals the learning rate for any gradient."""
    optimizer = kt.compile_arguments(kt.hparams("base"))["optimizer"]
    weight = keras.Variable([0.0, 0.0])
    optimizer.apply([keras.ops.convert_to_tensor([0.5, -3.0])], [weight])
    np.testing.assert_allclose(oracles.array(weight), np.array([-1, 1]) * oracles.learning_rate(512, 1), rtol=1e-4)
    assert float(optimizer.learning_rate) == pytest.approx(oracles.learning_rate(512, 2))


def test_adam_has_paper_settings():
    optimizer = kt.compile_arguments(kt.hparams("base"))["optimizer"]
    # test_optimizer.py compares GuardedAdam with Adam.
    assert type(optimizer) is GuardedAdam and optimizer.clip_norm is optimizer.ema_decay is None
    assert (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon) == (0.9, 0.98, 1e-9)
    extras = (optimizer.weight_decay, optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue)
    assert not any((*extras, optimizer.use_ema, optimizer.gradient_accumulation_steps))


def test_compile_arguments_pass_all_training_hparams():
    changes = dict(adam_beta_1=0.8, adam_beta_2=0.7, adam_epsilon=0.5, learning_rate_scale=3, warmup_steps=50)
    changes |= dict(label_smoothing=0.25, clip_norm=0.9, ema_decay=0.4)
    arguments = kt.compile_arguments(kt.hparams("base", **changes), accumulate=3)
    optimizer = arguments["optimizer"]
    assert (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon) == (0.8, 0.7, 0.5)
    assert (optimizer.clip_norm, optimizer.ema_decay) == (0.9, 0.4)
    assert float(optimizer.learning_rate) == pytest.approx(3 * oracles.learning_rate(512, 1, 50))
    assert arguments["loss"].label_smoothing == 0.25
    assert arguments["accumulate"] == 3


def test_schedule_optimizer_and_loss_configs_round_trip():
    arguments = kt.compile_arguments(
        kt.hparams("big", warmup_steps=7, learning_rate_scale=2.0, label_smoothing=0.3, r_drop=2.0)
    )
    schedule = arguments["optimizer"]._learning_rate
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert copy.get_config() == schedule.get_config() == {"d_model": 1024, "warmup_steps": 7, "scale": 2.0}
    optimizer = keras.optimizers.deserialize(keras.optimizers.serialize(arguments["optimizer"]))
    assert float(optimizer.learning_rate) == pytest.approx(2 * oracles.learning_rate(1024, 1, 7))
    loss = keras.losses.deserialize(keras.losses.serialize(arguments["loss"]))
    assert type(loss) is kt.SmoothedCrossEntropy and (loss.label_smoothing, loss.r_drop) == (0.3, 2.0)
