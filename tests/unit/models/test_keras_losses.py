"""Tests that Keras losses in `compile` give the same updates and losses as in an ordinary Keras model."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt

VOCAB = 9
RANDOM = np.random.default_rng(5)
LABELS = np.where(np.arange(4) < np.array([[4], [2], [3]]), RANDOM.integers(1, VOCAB, (3, 4)), 0).astype("int32")
INPUTS = (RANDOM.integers(1, VOCAB, (3, 5)).astype("int32"), np.roll(LABELS, 1, axis=1))
WEIGHTS = (RANDOM.uniform(0.2, 2, (3, 4)) * (LABELS != 0)).astype("float32")


def crossentropy(**arguments):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **arguments)


def squared(labels, logits):
    return ops.square(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))


def masked_mean(labels, logits):
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    mask = ops.cast(labels != 0, "float32")
    return ops.sum(losses * mask) / ops.sum(mask)


class Plain(keras.Model):
    """Ordinary Keras model that wraps a `Transformer` but uses Keras' own `train_step`."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, inputs, training=False):
        return self.inner(inputs, training=training)


def regularize_weights(model):
    for variable in (model.embedding.table, model.decoder.layers[0].feed_forward.trainable_variables[0]):
        variable.regularizer = keras.regularizers.L2(0.1)


def add_loss_of_states(model):
    layer = model.encoder.layers[0].feed_forward
    inner_call = layer.call

    def call(x, training=False):
        layer.add_loss(0.1 * ops.mean(ops.square(x)))
        return inner_call(x, training=training)

    layer.call = call


def updated(weights, plain=False, change=lambda model: None, **arguments):
    """Make one update. Return the trainable weights after the update, and the losses before and after the update."""
    hparams = kt.HParams(num_layers=1, d_model=8, d_ff=8, num_heads=2, dropout=0)
    model = inner = kt.Transformer(VOCAB, hparams)
    change(inner)
    if plain:
        model = Plain(inner)
        model(INPUTS)
    eager = keras.backend.backend() == "tensorflow"
    model.compile(keras.optimizers.SGD(0.5), run_eagerly=eager, **arguments)
    data = {"y": LABELS, "sample_weight": weights, "return_dict": True}
    losses = [model.train_on_batch(INPUTS, **data)["loss"], model.test_on_batch(INPUTS, **data)["loss"]]
    return [ops.convert_to_numpy(variable) for variable in inner.trainable_variables], losses


def assert_same(found, expected):
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
    for value, wanted in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "weights"),
    [
        (crossentropy(), None),
        (crossentropy(), WEIGHTS),
        (crossentropy(reduction="sum"), WEIGHTS),
        (crossentropy(reduction="mean_with_sample_weight"), WEIGHTS),
        (crossentropy(ignore_class=0), None),
        (squared, WEIGHTS),
    ],
)
def test_keras_loss_updates_like_plain_keras(loss, weights):
    expected = updated(weights, plain=True, loss=loss)
    assert abs(expected[1][0] - expected[1][1]) > 1e-3
    assert_same(updated(weights, loss=loss), expected)


@pytest.mark.parametrize("change", [regularize_weights, pytest.param(add_loss_of_states, marks=pytest.mark.backend)])
def test_keras_loss_includes_losses_of_layers(change):
    expected = updated(WEIGHTS, plain=True, change=change, loss=crossentropy())
    assert_same(updated(WEIGHTS, change=change, loss=crossentropy()), expected)


@pytest.mark.parametrize("r_drop", [0, 1])
@pytest.mark.parametrize("shape", [(len(LABELS),), (len(LABELS), 1)])
def test_token_loss_rejects_weights_of_rows(shape, r_drop):
    with pytest.raises(kt.UserError, match="SmoothedCrossEntropy needs one sample weight per label"):
        updated(np.ones(shape, "float32"), loss=kt.SmoothedCrossEntropy(r_drop=r_drop))


@pytest.mark.backend
def test_rematerialized_layers_reject_add_loss():
    with pytest.raises(kt.UserError, match="remat=True does not support losses from add_loss"):
        updated(WEIGHTS, change=add_loss_of_states, loss=crossentropy(), remat=True)


@pytest.mark.backend
def test_losses_of_the_model_itself_do_not_accumulate():
    def change(model):
        states = model.states

        def states_with_loss(inputs, training=False):
            model.add_loss(ops.ones(()))
            return states(inputs, training=training)

        model.states = states_with_loss

    found, expected = (updated(WEIGHTS, change=one, loss=crossentropy())[1] for one in (change, lambda model: None))
    np.testing.assert_allclose(found, np.add(expected, 1), rtol=1e-5)


@pytest.mark.backend
@pytest.mark.parametrize("change", [regularize_weights, add_loss_of_states])
@pytest.mark.parametrize("arguments", [{}, {"accumulate": 2}, {"weighted_metrics": ["accuracy"]}], ids=str)
def test_token_loss_rejects_losses_of_layers(change, arguments):
    with pytest.raises(kt.UserError, match="no weight regularizers and no losses from add_loss with SmoothedCrossEntr"):
        updated(WEIGHTS, change=change, loss=kt.SmoothedCrossEntropy(), **arguments)


def test_scalar_loss_updates_like_plain_keras():
    assert_same(updated(None, loss=masked_mean), updated(None, plain=True, loss=masked_mean))


def test_summed_keras_loss_equals_smoothed_cross_entropy():
    weights = (LABELS != 0) / np.float32((LABELS != 0).sum())
    found, expected = (
        updated(weights, loss=crossentropy(reduction="sum")),
        updated(weights, loss=kt.SmoothedCrossEntropy()),
    )
    assert_same(found, expected)


@pytest.mark.parametrize(
    ("loss", "accumulate", "said"),
    [
        (
            "sparse_categorical_crossentropy",
            1,
            r"got sparse_categorical_crossentropy with from_logits=False. Use keras",
        ),
        (keras.losses.SparseCategoricalCrossentropy(), 1, "with from_logits=False"),
        (crossentropy(reduction=None), 1, "must have a reduction, got None"),
        (crossentropy(), 2, "accumulate must be 1 with losses other than SmoothedCrossEntropy, got 2"),
    ],
)
def test_compile_rejects_unsupported_losses(loss, accumulate, said):
    with pytest.raises(kt.UserError, match=said):
        updated(None, loss=loss, accumulate=accumulate)
