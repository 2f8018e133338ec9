"""Tests that Keras masks, as created by `mask_zero=True`, have the same effect as explicit attention masks."""

import warnings

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.layers import (
    AdditiveAttention,
    Decoder,
    DecoderLayer,
    Dropout,
    Encoder,
    EncoderLayer,
    FeedForward,
    LearnedPositions,
    MultiHeadAttention,
    PostNorm,
    PreNorm,
    RestrictedAttention,
    SinusoidalPositions,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)
from keras_transformer.layers.additive_attention import additive_attention

SOURCE = np.array([[3, 4, 5, 6, 7], [5, 6, 0, 0, 0], [7, 0, 0, 0, 0]], "int32")
TARGET = np.array([[2, 8, 9, 0], [2, 3, 0, 0], [2, 5, 6, 7]], "int32")
HIDDEN = np.arange(5)[None, None, None] != 1  # an explicit mask that hides the second source token
ATTENTION = {"d_model": 8, "num_heads": 2, "seed": 1}
STACK = {"d_model": 8, "d_ff": 12, "num_heads": 2, "seed": 1}

pytestmark = pytest.mark.filterwarnings("error:.*destroy the mask")


def embedded(tokens, mask_zero):
    """Embed tokens as `[batch, length, 8]`. `mask_zero` adds a Keras mask and does not affect the vectors."""
    table = np.random.default_rng(0).normal(size=(10, 8))
    layer = keras.layers.Embedding(
        10, 8, mask_zero=mask_zero, embeddings_initializer=keras.initializers.Constant(table)
    )
    return layer(tokens)


def close(found, expected, rows):
    """Assert that two outputs agree at the positions of real tokens in `rows`."""
    found, expected = (np.asarray(x)[rows != 0] for x in (found, expected))
    np.testing.assert_allclose(found, expected, atol=1e-5)


ATTENTIONS = [
    MultiHeadAttention(**ATTENTION), AdditiveAttention(**ATTENTION), RestrictedAttention(**ATTENTION, window=3)
]  # fmt: skip
explicitly = pytest.mark.parametrize("explicit", [None, HIDDEN], ids=["alone", "combined"])


def combined(mask, explicit):
    return np.asarray(mask) if explicit is None else np.asarray(mask) & explicit


@pytest.mark.backend
@explicitly
@pytest.mark.parametrize("layer", ATTENTIONS, ids=lambda layer: type(layer).__name__)
def test_attention_honours_keras_masks(layer, explicit):
    x, plain = embedded(SOURCE, True), embedded(SOURCE, False)
    expected = layer(plain, plain, attention_mask=combined(padding_mask(SOURCE), explicit))
    close(layer(x, x, attention_mask=explicit), expected, SOURCE)
    assert abs(np.asarray(layer(plain, plain)) - np.asarray(expected)).max() > 1e-3


RANDOM_MASK = np.random.default_rng(3).random((3, 5, 5)) < 0.7


def masked_calls():
    """Return functions from a mask `[batch, 5, 5]` or `[batch, 1, 5, 5]` to an output, for each masked argument."""
    x = np.asarray(embedded(SOURCE, False))
    sizes = {**STACK, "num_heads": 3, "d_k": 4, "d_v": 4}  # as many heads as sentences
    attention = MultiHeadAttention(8, 3, 4, 4, seed=1)
    additive = AdditiveAttention(8, 3, 4, 4, seed=1)
    attention.build()
    encoders, decoders = (EncoderLayer(**sizes), Encoder(1, **sizes)), (DecoderLayer(**sizes), Decoder(1, **sizes))
    return {
        "attention": lambda mask: attention(x, x, attention_mask=mask, memory_mask=SOURCE != 0),
        "additive": lambda mask: additive(x, x, attention_mask=mask),
        "attend": lambda mask: attention.attend(*attention.project_fused(x, attention.fused_kernel()), mask)[0],
        "function": lambda mask: scaled_dot_product_attention(*[x[:, None].repeat(3, axis=1)] * 3, mask)[0],
        "additive_function": lambda mask: additive_attention(*[x[:, None].repeat(3, axis=1)] * 3, x[0, :3], mask)[0],
        **{type(one).__name__: lambda mask, one=one: one(x, attention_mask=mask) for one in encoders},
        **{type(one).__name__: lambda mask, one=one: one(x, x, cross_mask=mask) for one in decoders},
        "self_mask": lambda mask: decoders[0](x, x, self_mask=mask),
        "causal self_mask": lambda mask: decoders[0](x, x, self_mask=np.logical_and(causal_mask(5)[0], mask)),
    }


@pytest.mark.parametrize("name", masked_calls())
def test_mask_with_three_axes_applies_to_all_heads(name):
    call = masked_calls()[name]
    expected = call(RANDOM_MASK[:, None])
    np.testing.assert_allclose(call(RANDOM_MASK), expected, atol=1e-6)


def test_cross_attention_honours_memory_keras_mask():
    layer = MultiHeadAttention(**ATTENTION)
    expected = layer(embedded(TARGET, False), embedded(SOURCE, False), attention_mask=padding_mask(SOURCE))
    np.testing.assert_allclose(layer(embedded(TARGET, False), embedded(SOURCE, True)), expected, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("attention", [MultiHeadAttention, AdditiveAttention])
def test_memory_mask_adds_to_memory_keras_mask(attention, dtype):
    layer, x, visible = attention(**ATTENTION, dtype=dtype), embedded(TARGET, False), np.arange(5) != 1
    visible = np.repeat(visible[None], 3, axis=0)
    expected = layer(x, embedded(SOURCE, False), memory_mask=visible & (SOURCE != 0))
    found = layer(x, embedded(SOURCE, True), memory_mask=visible)
    np.testing.assert_array_equal(
        *(keras.ops.convert_to_numpy(keras.ops.cast(y, "float32")) for y in (found, expected))
    )


@pytest.mark.backend
def test_memory_mask_adds_to_keras_mask_in_compiled_code():
    layer, visible = MultiHeadAttention(**ATTENTION), np.repeat(np.arange(5)[None] != 1, 3, axis=0)
    target, source = keras.Input((4,), dtype="int32"), keras.Input((5,), dtype="int32")
    mask = keras.Input((5,), dtype="bool")
    outputs = layer(embedded(target, False), embedded(source, True), memory_mask=mask)
    found = keras.Model([target, source, mask], outputs).predict([TARGET, SOURCE, visible], verbose=0)
    expected = layer(embedded(TARGET, False), embedded(SOURCE, False), memory_mask=visible & (SOURCE != 0))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@explicitly
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("stack", [EncoderLayer, Encoder])
def test_encoders_honour_keras_masks(stack, norm, explicit):
    layer = stack(**STACK, norm=norm, **({"num_layers": 2} if stack is Encoder else {}))
    plain = embedded(SOURCE, False)
    expected = layer(plain, attention_mask=combined(padding_mask(SOURCE), explicit))
    close(layer(embedded(SOURCE, True), attention_mask=explicit), expected, SOURCE)
    close(layer(plain, attention_mask=explicit, mask=SOURCE != 0), expected, SOURCE)
    assert abs(np.asarray(layer(plain)) - np.asarray(expected))[SOURCE != 0].max() > 1e-3


@explicitly
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("stack", [DecoderLayer, Decoder])
def test_decoders_honour_keras_masks(stack, norm, explicit):
    layer = stack(**STACK, norm=norm, **({"num_layers": 2} if stack is Decoder else {}))
    plain = embedded(TARGET, False), embedded(SOURCE, False)
    expected = layer(*plain, cross_mask=combined(padding_mask(SOURCE), explicit))
    found = layer(embedded(TARGET, True), embedded(SOURCE, True), cross_mask=explicit)
    close(found, expected, TARGET)  # target padding follows all tokens, so the causal mask hides it
    assert abs(np.asarray(layer(*plain)) - np.asarray(expected))[TARGET != 0].max() > 1e-3


def test_decoder_layers_honour_left_padding():
    layer, target = DecoderLayer(**STACK), TARGET[:, ::-1]
    memory = embedded(SOURCE, False)
    mask = np.asarray(causal_mask(4)) & np.asarray(padding_mask(target))
    expected = layer(embedded(target, False), memory, self_mask=mask)
    close(layer(embedded(target, True), memory), expected, target)
    close(Decoder(1, **STACK)(embedded(target, True), memory), expected, target)  # same weights as `layer`


def test_decoder_layers_are_causal_by_default():
    layer, x, memory = DecoderLayer(**STACK), embedded(TARGET, False), embedded(SOURCE, False)
    np.testing.assert_allclose(layer(x, memory), layer(x, memory, self_mask=causal_mask(4)), atol=1e-6)


@pytest.mark.parametrize("stack", [Encoder, Decoder])
def test_rematerialized_stacks_honour_keras_masks(stack):
    layer = stack(2, **STACK)
    inputs = (embedded(SOURCE, True),) * (2 if stack is Decoder else 1)
    expected = layer(*inputs, training=True)
    layer.remat = True
    np.testing.assert_allclose(layer(*inputs, training=True), expected, atol=1e-6)


PASSING = {
    "FeedForward": lambda: FeedForward(8, 12),
    "Dropout": lambda: Dropout(0.1),
    "EncoderLayer": lambda: EncoderLayer(**STACK),
    "Encoder": lambda: Encoder(2, **STACK),
    "SinusoidalPositions": lambda: SinusoidalPositions(8),
    "LearnedPositions": lambda: LearnedPositions(8, 4),
}


class Seen(keras.layers.Layer):
    """Layer that returns the Keras mask of its input."""

    def call(self, x, mask=None):
        return mask


def seen(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns that `Seen` removes the mask
        return np.asarray(Seen()(x))


@pytest.mark.parametrize("make", PASSING.values(), ids=PASSING)
def test_layers_propagate_keras_masks(make):
    np.testing.assert_array_equal(seen(make()(embedded(SOURCE, True))), SOURCE != 0)


@pytest.mark.parametrize("residual", [PostNorm, PreNorm])
def test_residuals_propagate_keras_masks(residual):
    x = residual()(embedded(SOURCE, True), sublayer=lambda y: 2 * y)
    np.testing.assert_array_equal(seen(x), SOURCE != 0)


@pytest.mark.parametrize("layer", [MultiHeadAttention(**ATTENTION), DecoderLayer(**STACK), Decoder(1, **STACK)])
def test_layers_with_memory_propagate_first_mask(layer):
    np.testing.assert_array_equal(seen(layer(embedded(TARGET, True), embedded(SOURCE, True))), TARGET != 0)


@pytest.mark.parametrize("positions", [SinusoidalPositions(8), LearnedPositions(8, 4)])
def test_positions_are_added_to_embeddings(positions):
    x = embedded(SOURCE, False)
    np.testing.assert_allclose(positions(x), np.asarray(x) + np.asarray(positions(np.arange(5))), atol=1e-6)
    assert positions(keras.Input((None, 8))).shape == (None, None, 8)
    for tokens in (SOURCE, keras.Input((None,))):
        with pytest.raises(kt.UserError, match="the input must be integer positions .* got shape"):
            positions(tokens)


# Widths


def test_head_widths_default_to_d_model_over_heads():
    layers = [MultiHeadAttention(12, 3), AdditiveAttention(12, 3), RestrictedAttention(12, 3, window=3)]
    layers += [EncoderLayer(12, 8, 3).self_attention, Encoder(1, 12, 8, 3).layers[0].self_attention]
    layers += [DecoderLayer(12, 8, 3).self_attention, Decoder(1, 12, 8, 3).layers[0].cross_attention]
    assert {(layer.d_k, layer.d_v) for layer in layers} == {(4, 4)}
    assert (MultiHeadAttention(12, 5, d_k=2, d_v=3).d_k, MultiHeadAttention(12, 3, d_v=5).d_v) == (2, 5)


@pytest.mark.parametrize("layer", [MultiHeadAttention, lambda *sizes: Encoder(1, sizes[0], 8, *sizes[1:])])
def test_indivisible_width_is_a_user_error(layer):
    with pytest.raises(kt.UserError, match="d_model must be divisible by num_heads, got d_model=12 and num_heads=5"):
        layer(12, 5)
    with pytest.raises(kt.UserError, match="set d_k and d_v"):
        layer(12, 5, 3)
