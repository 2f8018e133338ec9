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


def tied_model():
    embedding, tokens = layers.TiedEmbedding(VOCAB, WIDTH), keras.Input((None,), dtype="int32")
    states = layers.SinusoidalPositions(WIDTH)(embedding(tokens))
    return keras.Model(tokens, embedding.logits(states)), embedding


@pytest.mark.backend
def test_tied_embedding_projects_with_trained_matrix(tmp_path):
    model, embedding = tied_model()
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
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"),
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


def test_residual_rejects_layer_that_would_not_be_trained():
    dense, x = keras.layers.Dense(WIDTH), keras.Input((3, WIDTH))
    with pytest.raises(kt.UserError, match="would not train Dense"):
        layers.PreNorm()(x, sublayer=dense)


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
