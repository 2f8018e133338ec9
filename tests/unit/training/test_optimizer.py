"""Tests of Adam (§5.3), clipping, non-finite gradients, the moving average and loss scaling on one or two devices."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.runs.checkpoint import assign_training, optimizer_state, training_arrays
from keras_transformer.training.optimizer import FIRST_LOSS_SCALE, GuardedAdam

ADAM = {"learning_rate": 0.1, "beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}
SHAPES = {"kernel": (3, 4), "bias": (5,)}


def random_arrays(seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype("float32") for shape in SHAPES.values()]


def made(**arguments):
    """Return (variables with random values, optimizer built for them)."""
    variables = [keras.Variable(value, name=name) for name, value in zip(SHAPES, random_arrays(0))]
    optimizer = GuardedAdam(**ADAM, **arguments)
    optimizer.build(variables)
    return variables, optimizer


def apply(optimizer, variables, gradients):
    optimizer.apply([ops.convert_to_tensor(gradient) for gradient in gradients], variables)


def arrays(variables):
    return [np.array(ops.convert_to_numpy(variable.value)) for variable in variables]


def state(optimizer):
    """Return the optimizer's step and slots as {path: array}."""
    variables = optimizer_state(optimizer)
    return dict(zip((variable.path for variable in variables), arrays(variables)))


def norm_of(gradients):
    return np.sqrt(sum((gradient.astype("float64") ** 2).sum() for gradient in gradients))


def adam(values, updates, clip_norm=None):
    """Apply updates with Algorithm 1 of Kingma & Ba (2015) in float64. Return the new values."""
    values = [value.astype("float64") for value in values]
    means, variances = [0.0 * value for value in values], [0.0 * value for value in values]
    for step, gradients in enumerate(updates, start=1):
        scale = 1.0 if clip_norm is None else min(1.0, clip_norm / norm_of(gradients))
        for i, gradient in enumerate(gradients):
            gradient = scale * gradient.astype("float64")
            means[i] = 0.9 * means[i] + 0.1 * gradient
            variances[i] = 0.98 * variances[i] + 0.02 * gradient**2
            mean, variance = means[i] / (1 - 0.9**step), variances[i] / (1 - 0.98**step)
            values[i] = values[i] - 0.1 * mean / (np.sqrt(variance) + 1e-9)
    return values


@pytest.mark.backend
@pytest.mark.parametrize("clip_norm", [None, 0.5, 1e6])
def test_optimizer_is_adam_with_clipped_norm(clip_norm):
    updates = [random_arrays(seed) for seed in range(1, 8)]
    variables, optimizer = made(clip_norm=clip_norm)
    for gradients in updates:
        apply(optimizer, variables, gradients)
    for value, expected in zip(arrays(variables), adam(random_arrays(0), updates, clip_norm)):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.backend
def test_optimizer_without_clipping_equals_keras_adam():
    # On JAX, `GuardedAdam` and Keras' Adam give bit-for-bit identical values. On TensorFlow, `GuardedAdam` uses a fused
    # operation, which rounds 1 − β differently.
    tolerance = {"rtol": 0, "atol": 0} if keras.backend.backend() == "jax" else {"rtol": 1e-5, "atol": 1e-7}
    updates = [random_arrays(seed) for seed in range(1, 8)]
    variables, optimizer = made()
    others = [keras.Variable(value, name=name) for name, value in zip(SHAPES, random_arrays(0))]
    other = keras.optimizers.Adam(**ADAM, name="adam")
    other.build(others)
    for gradients in updates:
        apply(optimizer, variables, gradients)
        apply(other, others, gradients)
    for value, expected in zip(arrays(variables), arrays(others)):
        np.testing.assert_allclose(value, expected, **tolerance)
    slots = dict(zip((v.path for v in other.variables), arrays(other.variables)))
    assert state(optimizer).keys() == slots.keys()
    for path, array in state(optimizer).items():
        np.testing.assert_allclose(array, slots[path], **tolerance)


@pytest.mark.backend
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_optimizer_skips_nonfinite_updates(poison, clip_norm):
    variables, optimizer = made(clip_norm=clip_norm)
    apply(optimizer, variables, random_arrays(1))
    before, slots = arrays(variables), state(optimizer)
    for update in range(3):
        gradients = random_arrays(2 + update)
        gradients[update % 2].flat[3] = poison
        apply(optimizer, variables, gradients)
    for value, expected in zip(arrays(variables), before):
        np.testing.assert_array_equal(value, expected)
    after = state(optimizer)
    assert after.pop("adam/iteration") == slots.pop("adam/iteration") + 3 == 4
    for path, array in after.items():
        np.testing.assert_array_equal(array, slots[path])
    norms, faults, first = optimizer.watched()
    assert (faults, first) == (3, 2) and norms["gradient_norm"] == pytest.approx(norm_of(random_arrays(1)), rel=1e-5)
    assert optimizer.watched() == ({}, 0, 0)
    apply(optimizer, variables, random_arrays(9))
    assert all((value != old).all() for value, old in zip(arrays(variables), before))


@pytest.mark.parametrize("ema_decay", [0.0, 0.4, 0.999])
def test_optimizer_keeps_moving_average(ema_decay):
    variables, optimizer = made(ema_decay=ema_decay)
    expected = [0.0 * array.astype("float64") for array in random_arrays(0)]
    for step in range(1, 9):
        apply(optimizer, variables, random_arrays(step))
        decay = min((step - 1) / (step + 9), ema_decay)
        expected = [decay * old + (1 - decay) * new for old, new in zip(expected, arrays(variables))]
    before = arrays(optimizer.averages)
    for average, wanted in zip(before, expected):
        np.testing.assert_allclose(average, wanted, rtol=1e-5, atol=1e-6)
    assert not {average.path for average in optimizer.averages} & state(optimizer).keys()
    apply(optimizer, variables, [np.full(shape, np.nan, "float32") for shape in SHAPES.values()])
    for average, wanted in zip(arrays(optimizer.averages), before):
        np.testing.assert_array_equal(average, wanted)


def test_optimizer_reports_mean_and_largest_norm():
    variables, optimizer = made(clip_norm=0.5)
    norms = []
    for seed in (3, 4, 5):
        apply(optimizer, variables, random_arrays(seed))
        norms.append(norm_of(random_arrays(seed)))
    found, faults, first = optimizer.watched()
    assert found["gradient_norm"] == pytest.approx(np.mean(norms), rel=1e-5) and (faults, first) == (0, 0)
    assert found["largest_gradient_norm"] == pytest.approx(max(norms), rel=1e-5)


def scaled(optimizer, gradients):
    return [gradient * float(optimizer.scale_loss(1.0)) for gradient in gradients]


def test_loss_scaling_changes_no_bit():
    one, other = made(clip_norm=0.5, ema_decay=0.9), made(clip_norm=0.5, ema_decay=0.9, scales_loss=True)
    for seed in range(1, 6):
        apply(one[1], one[0], random_arrays(seed))
        apply(other[1], other[0], scaled(other[1], random_arrays(seed)))
    for value, expected in zip(arrays([*other[0], *other[1].averages]), arrays([*one[0], *one[1].averages])):
        np.testing.assert_array_equal(value, expected)
    norms, *_ = other[1].watched()
    assert norms.pop("loss_scale") == FIRST_LOSS_SCALE and norms == pytest.approx(one[1].watched()[0])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_float16_gradients_match_float32_at_any_scale(accumulate):
    """Compare gradients instead of weights, because Adam would hide a wrong scale."""
    random = np.random.default_rng(1)
    source, labels = random.integers(4, 40, (2, 6, 5)).astype("int32")
    inputs = source, np.concatenate([np.full((6, 1), 2, "int32"), labels[:, :-1]], axis=1)
    hparams = kt.HParams(num_layers=1, d_model=16, d_ff=32, num_heads=2, dropout=0, learning_rate_scale=1e-30)
    found = {}
    for precision in ("float32", "mixed_float16"):
        model = kt.Transformer(40, hparams, dtype=precision)
        model.compile(**kt.compile_arguments(hparams, accumulate))
        for scale in (2.0**15, 2.0**10):
            if model.optimizer.scales_loss:
                model.optimizer.loss_scale.assign(scale)
            model.fit(inputs, labels, batch_size=6, epochs=2, shuffle=False, verbose=0)
            found[precision, scale] = model.optimizer.watched()[0]["gradient_norm"]
    assert model.optimizer.scales_loss and int(model.optimizer.good_updates.value) == 4
    assert len(set(found.values())) > 1 and list(found.values()) == pytest.approx(
        [found["float32", 2.0**15]] * 4, rel=0.02
    )


def test_checkpoint_holds_loss_scale():
    hparams = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2)
    models = [kt.Transformer(9, hparams, dtype="mixed_float16") for _ in range(2)]
    for model in models:
        model.compile(**kt.compile_arguments(hparams))
    models[0].optimizer.loss_scale.assign(64.0)
    models[0].optimizer.good_updates.assign(7)
    assign_training(models[1], training_arrays(models[0]), "it")
    assert [int(variable.value) for variable in models[1].optimizer.scale_variables] == [64, 7]


def test_overflow_halves_loss_scale():
    variables, optimizer = made(scales_loss=True)
    before = arrays(variables)
    poison = [np.full(shape, np.inf, "float32") for shape in SHAPES.values()]
    for halved in range(15):
        assert float(optimizer.scale_loss(1.0)) == FIRST_LOSS_SCALE / 2**halved
        apply(optimizer, variables, poison)
    assert float(optimizer.scale_loss(1.0)) == 1 and optimizer.watched() == ({}, 0, 0)
    apply(optimizer, variables, poison)
    assert float(optimizer.scale_loss(1.0)) == 1 and optimizer.watched() == ({}, 1, 16)
    for value, expected in zip(arrays(variables), before):
        np.testing.assert_array_equal(value, expected)
    apply(optimizer, variables, random_arrays(1))
    assert all((value != old).all() for value, old in zip(arrays(variables), before))


def test_loss_scale_doubles_after_finite_updates(monkeypatch):
    monkeypatch.setattr("keras_transformer.training.optimizer.GOOD_UPDATES", 3)
    variables, optimizer = made(scales_loss=True)
    scales = []
    for update in range(12):
        gradients = random_arrays(update)
        if update in (4, 5):
            gradients[1].flat[0] = np.nan
        apply(optimizer, variables, scaled(optimizer, gradients))
        scales.append(float(optimizer.scale_loss(1.0)) / FIRST_LOSS_SCALE)
    assert scales == [1, 1, 2, 2, 1, 0.5, 0.5, 0.5, 1, 1, 1, 2]


@pytest.mark.parametrize(
    "argument", [{"weight_decay": 0.1}, {"use_ema": True}, {"clipnorm": 1.0}, {"loss_scale_factor": 2.0}]
)
def test_optimizer_rejects_bypassing_arguments(argument):
    with pytest.raises(TypeError, match=next(iter(argument))):
        GuardedAdam(**argument)


def test_optimizer_rejects_epsilon_0():
    """With epsilon 0, a zero gradient would give 0 / (√0 + 0), which is NaN."""
    with pytest.raises(ValueError, match="epsilon must be greater than 0, got 0"):
        GuardedAdam(epsilon=0)


def test_optimizer_round_trips_through_config():
    optimizer = GuardedAdam(**ADAM, clip_norm=2.0, ema_decay=0.5, scales_loss=True)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert type(again) is GuardedAdam and again.get_config() == optimizer.get_config()
    assert (again.clip_norm, again.ema_decay, again.scales_loss) == (2.0, 0.5, True) and again.beta_2 == 0.98


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.distribute needs KERAS_BACKEND=tensorflow")
@pytest.mark.parametrize("scales_loss", [False, True])
def test_optimizer_replicas_skip_and_clip_together(scales_loss):
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    with strategy.scope():
        variables, optimizer = made(clip_norm=0.5, ema_decay=0.0, scales_loss=scales_loss)

    @tf.function
    def update(gradients, poison):
        def on_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            share = tf.where(replica == 0, 0.25, 0.75)
            own = [gradient * optimizer.scale_loss(share) for gradient in gradients]
            own[1] = tf.where((replica == 1) & poison, own[1] * float("nan"), own[1])
            optimizer.apply(own, variables)

        strategy.run(on_replica)

    updates = [random_arrays(seed) for seed in range(1, 6)]
    for number, gradients in enumerate(updates):
        update([tf.constant(gradient) for gradient in gradients], tf.constant(False))
        if number == 2:
            before = arrays(variables)
            update([tf.constant(gradient) for gradient in gradients], tf.constant(True))
            for value, expected in zip(arrays(variables), before):
                np.testing.assert_array_equal(value, expected)
    for average, value in zip(arrays(optimizer.averages), arrays(variables)):
        np.testing.assert_allclose(average, value, rtol=1e-6)
    norms, faults, first = optimizer.watched()
    assert (faults, first) == ((0, 0) if scales_loss else (1, 4))
    assert float(optimizer.scale_loss(1.0)) == (FIRST_LOSS_SCALE / 2 if scales_loss else 1)
    assert norms["gradient_norm"] == pytest.approx(np.mean([norm_of(gradients) for gradients in updates]), rel=1e-5)
    assert norms["largest_gradient_norm"] == pytest.approx(max(map(norm_of, updates)), rel=1e-5)
