"""Tests of layers and of the loss in a user's own Keras models."""

import keras
import numpy as np
import pytest
from helpers.arrays import normal
from keras import ops

import keras_transformer as kt
from keras_transformer import layers

VOCAB, WIDTH = 9, 8
TOKENS = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]])
STACK = dict(d_model=WIDTH, d_ff=12, num_heads=2)


@pytest.mark.backend
def test_tied_embedding_projects_with_trained_matrix(tmp_path):
    embedding = layers.TiedEmbedding(VOCAB, WIDTH)
    model = functional_tied_model(embedding)
    before = np.asarray(embedding.table)
    assert model.outputs[0].shape == (None, None, VOCAB)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(TOKENS, TOKENS, verbose=0)
    assert abs(np.asarray(embedding.table) - before).min() > 0
    states = layers.SinusoidalPositions(WIDTH)(embedding(TOKENS))
    expected = ops.convert_to_numpy(states) @ np.asarray(embedding.table).T
    np.testing.assert_allclose(model.predict(TOKENS, verbose=0), expected, rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "x.keras")
    loaded = keras.saving.load_model(tmp_path / "x.keras")
    np.testing.assert_allclose(loaded.predict(TOKENS, verbose=0), expected, rtol=1e-4, atol=1e-5)


class TiedModel(keras.Model):
    """A user's own subclassed model, which embeds tokens and projects them to logits."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding, self.positions = embedding, layers.SinusoidalPositions(WIDTH)

    def call(self, tokens):
        return self.embedding.logits(self.positions(self.embedding(tokens)))


def functional_tied_model(embedding):
    tokens = keras.Input((None,), dtype="int32")
    return keras.Model(tokens, embedding.logits(layers.SinusoidalPositions(WIDTH)(embedding(tokens))))


@pytest.mark.backend
@pytest.mark.parametrize("make", [TiedModel, functional_tied_model])
def test_tied_embedding_propagates_mask_to_loss(make):
    found = []
    for mask_zero, weights in ((True, None), (False, TOKENS != 0)):
        model = make(layers.TiedEmbedding(VOCAB, WIDTH, seed=1, mask_zero=mask_zero))
        model.compile(loss=kt.SmoothedCrossEntropy())
        found.append(model.evaluate(TOKENS, TOKENS, sample_weight=weights, verbose=0))
        unmasked = model.evaluate(TOKENS, TOKENS, verbose=0)
    np.testing.assert_allclose(*found, rtol=1e-5)
    assert unmasked > found[0] * 1.1


@pytest.mark.backend
@pytest.mark.parametrize("mask_zero", [True, False])
def test_tied_embedding_masks_like_keras_embedding(mask_zero):
    tied = layers.TiedEmbedding(VOCAB, WIDTH, mask_zero=mask_zero)
    expected = keras.layers.Embedding(VOCAB, WIDTH, mask_zero=mask_zero)(TOKENS)
    found = [getattr(x, "_keras_mask", None) for x in (tied(TOKENS), tied.logits(tied(TOKENS)), expected)]
    for mask in found:
        np.testing.assert_array_equal(mask, TOKENS != 0 if mask_zero else None)


@pytest.mark.backend
def test_tied_embedding_logits_build_layer():
    tied, states = layers.TiedEmbedding(VOCAB, WIDTH), normal(1, 2, WIDTH)
    found = tied.logits(states)
    np.testing.assert_allclose(found, states @ np.asarray(tied.table).T, rtol=1e-4, atol=1e-5)


@pytest.mark.backend
@pytest.mark.parametrize("weights", [None, [[0.5], [2.0]], np.arange(10).reshape(2, 5)], ids=["no", "rows", "tokens"])
def test_loss_follows_keras_masks_and_weights(weights):
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(VOCAB, WIDTH, mask_zero=True)(tokens)
    model = keras.Model(tokens, keras.layers.Dense(VOCAB)(layers.Encoder(1, **STACK)(x)))
    weights = weights if weights is None else np.array(weights, "float32")
    found = []
    for loss in (
        kt.SmoothedCrossEntropy(),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight"),
    ):
        model.compile(loss=loss)
        found.append(model.evaluate(TOKENS, TOKENS, sample_weight=weights, verbose=0))
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_loss_round_trips_through_config():
    loss = kt.SmoothedCrossEntropy(0.1, name="mine", r_drop=2.0)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert (copy.label_smoothing, copy.name, copy.r_drop, copy.dtype) == (0.1, "mine", 2.0, "float32")


@pytest.mark.parametrize("before, after", [(0.0, 0.3), (0.3, 0.0)])
def test_weights_load_into_layer_with_another_dropout_rate(tmp_path, before, after):
    models = []
    for rate in (before, after):
        models.append(keras.Sequential([keras.Input((3, WIDTH)), layers.EncoderLayer(**STACK, dropout=rate)]))
    models[0].save_weights(tmp_path / "a.weights.h5")
    models[1].load_weights(tmp_path / "a.weights.h5")
    x = normal(1, 2, 3, WIDTH)
    np.testing.assert_array_equal(models[1](x), models[0](x))


@pytest.mark.parametrize("make", [layers.EncoderLayer, lambda **sizes: layers.Encoder(1, **sizes)])
def test_layers_without_seed_differ(make):
    x = normal(1, 2, 3, WIDTH)
    first, second = (np.asarray(make(**STACK)(x)) for _ in range(2))
    assert abs(first - second).max() > 1e-3
    np.testing.assert_array_equal(make(**STACK, seed=3)(x), make(**STACK, seed=3)(x))


@pytest.mark.backend
@pytest.mark.parametrize("make", [lambda: layers.TiedEmbedding(9, 8), lambda: layers.MultiHeadAttention(8, 2)])
def test_set_random_seed_determines_initial_weights(make):
    def weights():
        keras.utils.set_random_seed(5)
        drawn = [make() for _ in range(2)]
        for layer in drawn:
            layer.build((None, 3, WIDTH))
        return [np.asarray(layer.trainable_variables[0]) for layer in drawn]

    first, second = weights()
    assert abs(first - second).max() > 1e-3
    np.testing.assert_array_equal([first, second], weights())


@pytest.mark.parametrize("residual", [layers.PostNorm, layers.PreNorm])
@pytest.mark.parametrize("wrap", [lambda layer: layer, lambda layer: lambda x: layer(x)], ids=["layer", "function"])
def test_residual_rejects_tensor_of_functional_model(residual, wrap):
    with pytest.raises(kt.UserError, match=f"which would not train .* Call {residual.__name__} in the `call` method"):
        residual()(keras.Input((3, WIDTH)), sublayer=wrap(keras.layers.Dense(WIDTH)))


class Block(keras.layers.Layer):
    """A user's own layer with a residual connection, without `compute_output_shape`."""

    def __init__(self):
        super().__init__()
        self.dense, self.residual = keras.layers.Dense(WIDTH), layers.PostNorm()

    def build(self, shape):
        self.dense.build(shape)
        self.residual.build(shape)

    def call(self, x):
        return self.residual(x, sublayer=lambda y: self.dense(y))


@pytest.mark.backend
def test_functional_model_trains_residual_in_own_layer():
    x = keras.Input((3, WIDTH))
    model = keras.Model(x, Block()(x))
    model.compile("sgd", "mse")
    before = [np.asarray(variable) for variable in model.trainable_variables]
    model.fit(normal(1, 2, 3, WIDTH), normal(2, 2, 3, WIDTH), verbose=0)
    assert len(before) == 4
    assert all(abs(np.asarray(now) - old).max() > 0 for now, old in zip(model.trainable_variables, before))


@pytest.mark.parametrize("rate", [-0.1, 1, 1.5])
def test_dropout_rejects_rate(rate):
    with pytest.raises(kt.UserError, match=f"rate must be at least 0 and less than 1, got {rate}"):
        layers.Dropout(rate)


def test_dropout_accepts_rate_close_to_1():
    assert not np.asarray(layers.Dropout(1 - 1e-9)(np.ones(50, "float32"), training=True)).all()


def test_transformer_rejects_unknown_field_of_dictionary():
    with pytest.raises(kt.UserError, match="n_layers"):
        kt.Transformer(VOCAB, {"n_layers": 1})


def test_frozen_transformer_stays_frozen():
    model = kt.Transformer(VOCAB, kt.HParams(num_layers=1, **STACK), trainable=False)
    assert not kt.Transformer.from_config(model.get_config()).trainable
