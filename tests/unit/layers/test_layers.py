"""Tests of the layers of §3: comparison with NumPy oracles, initial weights, and requirements of Keras."""

import dataclasses
import importlib
import inspect
import json
import pkgutil

import keras
import numpy as np
import oracles
import pytest
from helpers.arrays import close, normal
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import keras_transformer.layers
from keras_transformer.layers.additive_attention import AdditiveAttention
from keras_transformer.layers.attention import (
    MultiHeadAttention,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)
from keras_transformer.layers.decoder import Decoder, DecoderLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.embedding import TiedEmbedding
from keras_transformer.layers.encoder import Encoder, EncoderLayer
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.normalization import LayerNormalization
from keras_transformer.layers.position import LearnedPositions, Positions, SinusoidalPositions
from keras_transformer.layers.residual import PostNorm, PreNorm, Residual
from keras_transformer.layers.restricted_attention import RestrictedAttention
from keras_transformer.layers.stack import Stack, StackLayer

widths = st.integers(1, 6)


def randomize(layer, seed=0):
    """Assign random values to all weights. Return the layer."""
    random = np.random.default_rng(seed)
    for variable in layer.trainable_variables:
        variable.assign(random.normal(size=variable.shape, scale=0.5))
    return layer


# Attention (§3.2)


@settings(max_examples=25, deadline=None)
@given(
    batch=widths, heads=widths, n=widths, m=widths, d_k=widths, d_v=widths, masked=st.booleans(), seed=st.integers(0)
)
def test_attention_matches_equation_1(batch, heads, n, m, d_k, d_v, masked, seed):
    query, key, value = (
        3 * normal([seed, i], batch, heads, rows, columns)
        for i, (rows, columns) in enumerate([(n, d_k), (m, d_k), (m, d_v)])
    )
    mask = None
    if masked:
        mask = normal([seed, 3], batch, 1, n, m) > 0
        mask[..., 0] = True
    values, weights = scaled_dot_product_attention(query, key, value, mask)
    expected, expected_weights = oracles.attention(query.astype("float64"), key, value, mask)
    close(values, expected)
    close(weights, expected_weights)


def test_attention_gives_masked_keys_zero_weight():
    query, key, value = normal(0, 1, 1, 2, 4), 50 * normal(1, 1, 1, 3, 4), normal(2, 1, 1, 3, 4)
    mask = np.array([[True, False, True], [False, False, False]])
    weights = np.asarray(scaled_dot_product_attention(query, key, value, mask)[1])[0, 0]
    assert weights[0, 1] == 0
    np.testing.assert_allclose(weights.sum(axis=-1), [1, 1], rtol=1e-6)  # no NaN in fully masked rows


@pytest.mark.backend
def test_causal_and_padding_masks():
    legal = np.asarray(causal_mask(5))
    np.testing.assert_array_equal(legal, np.tril(np.ones((1, 1, 5, 5), bool)))
    np.testing.assert_array_equal(padding_mask(np.array([[7, 1, 0], [0, 0, 0]]))[:, 0, 0], [[1, 1, 0], [0, 0, 0]])


def test_attention_to_parts_equals_attention_to_whole():
    layer = MultiHeadAttention(8, 2, 3, 5)
    layer.build()
    randomize(layer)
    x, memory, mask = normal(1, 3, 4, 8), normal(2, 3, 7, 8), normal(3, 3, 1, 4, 7) > 0
    query = layer.project_query(x)
    whole, _ = layer.attend(query, *layer.project_memory(memory), mask)
    for cuts in ([0, 7], [0, 0, 7], [0, 2, 7], [0, 2, 3, 7]):
        parts = [layer.project_memory(memory[:, begin:end]) for begin, end in zip(cuts, cuts[1:])]
        close(layer.attend_to_parts(query, parts, mask), whole)


@pytest.mark.parametrize("d_k, d_v", [(3, 3), (3, 5)])
def test_fused_projection_equals_three_projections(d_k, d_v):
    layer = MultiHeadAttention(8, 2, d_k, d_v)
    layer.build()
    randomize(layer)
    x = normal(1, 3, 4, 8)
    query, keys, values = layer.project_fused(x, layer.fused_kernel())
    for found, kernel in (
        (query, layer.query_kernel), (keys, layer.key_kernel), (values, layer.value_kernel),
        *zip(layer.project_memory(x), (layer.key_kernel, layer.value_kernel), strict=True),
    ):  # fmt: skip
        separate = np.asarray(x) @ np.asarray(kernel)
        close(found, separate.reshape(3, 4, 2, -1).transpose(0, 2, 1, 3))


@pytest.mark.backend
@pytest.mark.parametrize("num_heads, d_k, d_v", [(1, 4, 4), (2, 3, 5), (3, 5, 1), (4, 2, 2)])
def test_multi_head_attention_matches_oracle(num_heads, d_k, d_v):
    layer = MultiHeadAttention(8, num_heads, d_k, d_v)
    layer.build()
    weights = oracles.attention_weights(randomize(layer))
    assert len(layer.weights) == 4  # no biases
    x, memory, mask = normal(1, 3, 4, 8), normal(2, 3, 6, 8), normal(3, 3, 4, 6) > -1
    mask[..., 0] = True
    close(layer(x, memory), oracles.multi_head_attention(x, memory, weights, num_heads))
    close(layer(x, x), oracles.multi_head_attention(x, x, weights, num_heads))
    close(
        layer(x, memory, attention_mask=mask[:, None]),
        oracles.multi_head_attention(x, memory, weights, num_heads, mask),
    )


def test_attention_dropout_applies_in_training_only():
    layer = MultiHeadAttention(8, 2, 4, 4, dropout=0.5, seed=1)
    x = normal(0, 2, 5, 8)
    close(layer(x, x), oracles.multi_head_attention(x, x, oracles.attention_weights(layer), 2))
    assert not np.allclose(layer(x, x, training=True), layer(x, x), atol=1e-3)


@pytest.mark.backend
def test_attention_softmax_stays_float32_in_bfloat16():
    layer = MultiHeadAttention(8, 2, 4, 4, dtype="mixed_bfloat16")
    layer.build()
    x = ops.cast(normal(0, 1, 300, 8), "bfloat16")
    output, weights = layer.attend(layer.project_query(x), *layer.project_memory(x))
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    np.testing.assert_allclose(np.asarray(weights).sum(axis=-1), 1, rtol=1e-5)


# Feed-forward, residual and normalization (§3.1, §3.3)


@pytest.mark.backend
@pytest.mark.parametrize("shape", [(2, 6), (2, 3, 6), (2, 3, 4, 6)])
@pytest.mark.parametrize("activation", ["relu", "swish", "gelu"])
def test_feed_forward_matches_equation_2(shape, activation):
    layer = FeedForward(6, 10, activation=activation)
    layer.build()
    weights = oracles.feed_forward_weights(randomize(layer))
    x = normal(1, *shape)
    close(layer(x), oracles.feed_forward(x, weights))


@pytest.mark.backend
@pytest.mark.parametrize("residual, oracle", [(PostNorm, oracles.post_norm), (PreNorm, oracles.pre_norm)])
def test_residual_normalizes_in_the_right_place(residual, oracle):
    layer = residual()
    layer.build((None, None, 8))
    norm = oracles.norm_weights(randomize(layer).normalization)
    x = 5 + 3 * normal(1, 2, 3, 8)
    close(layer(x, sublayer=lambda y: ops.tanh(2 * y)), oracle(x, lambda y: np.tanh(2 * y), norm))


@pytest.mark.parametrize("residual", [PostNorm, PreNorm])
def test_residual_drops_sublayer_output_before_addition(residual):
    layer = residual(dropout=0.5, seed=1)
    x = 7 * np.ones((2, 3, 64), "float32")
    y = np.asarray(layer(x, sublayer=ops.ones_like, training=True))
    values = np.unique(y.round(3))
    if residual is PreNorm:
        assert values.tolist() == [7, 9]  # dropout leaves the residual stream unchanged
    else:
        assert (y < 0).any() and (y > 0).any() and not (y == 0).any()  # the norm's inputs are 7 and 9


# Embeddings (§3.4)


@pytest.mark.backend
def test_tied_embedding_scales_and_shares_its_matrix():
    layer = TiedEmbedding(7, 16, seed=1)
    tokens, states = np.array([[0, 6, 3], [3, 3, 1]]), normal(0, 2, 3, 16)
    close(layer(tokens), oracles.array(layer.table)[tokens] * 4)
    close(layer.logits(states), states @ oracles.array(layer.table).T)
    assert len(layer.weights) == 1


# Initial weights


def test_qkv_start_with_half_glorot_variance():
    layer = MultiHeadAttention(256, 4, d_k=32, d_v=96, seed=1)
    layer.build()
    for name, weights in oracles.attention_weights(layer).items():
        glorot = 2 / sum(weights.shape)
        variance = glorot if name == "output" else glorot / 2
        assert weights.var() == pytest.approx(variance, rel=0.03)
        assert abs(weights.mean()) < 0.03 * variance**0.5
        assert abs(weights).max() == pytest.approx((3 * variance) ** 0.5, rel=0.01)  # uniform
    assert not np.allclose(layer.query_kernel, layer.key_kernel)


def test_feed_forward_starts_glorot_with_zero_bias():
    layer = FeedForward(128, 512, seed=1)
    layer.build()
    weights = oracles.feed_forward_weights(layer)
    for name in ("kernel_1", "kernel_2"):
        assert weights[name].var() == pytest.approx(2 / 640, rel=0.03)
        assert abs(weights[name]).max() == pytest.approx((6 / 640) ** 0.5, rel=0.01)
    assert not weights["bias_1"].any() and not weights["bias_2"].any()


@pytest.mark.parametrize("layer", [TiedEmbedding(1000, 256, seed=1), LearnedPositions(256, 1000, seed=1)])
def test_tables_start_normal_with_variance_1_over_d_model(layer):
    layer.build()
    table = oracles.array(layer.table)
    assert table.std() == pytest.approx(256**-0.5, rel=0.02)
    assert (abs(table) < 256**-0.5).mean() == pytest.approx(0.6827, abs=0.01)


# Stacks (§3.1)

STACK = dict(d_model=8, d_ff=12, num_heads=2, d_k=3, d_v=5)
NORMS = [("post", oracles.post_norm), ("pre", oracles.pre_norm)]
X, MEMORY = normal(11, 3, 4, 8), normal(12, 3, 6, 8)
MASK = np.arange(6) < np.array([[6], [2], [4]])


@pytest.mark.backend
@pytest.mark.parametrize("norm, residual", NORMS)
def test_encoder_layer_matches_oracle(norm, residual):
    layer = EncoderLayer(**STACK, norm=norm)
    layer.build((None, None, 8))
    weights = oracles.layer_weights(randomize(layer))
    expected = oracles.encoder_layer(MEMORY, weights, 2, MASK[:, None], residual)
    close(layer(MEMORY, attention_mask=MASK[:, None, None]), expected, 1e-4)


@pytest.mark.backend
@pytest.mark.parametrize("norm, residual", NORMS)
def test_decoder_layer_matches_oracle(norm, residual):
    layer = DecoderLayer(**STACK, norm=norm)
    layer.build((None, None, 8))
    weights = oracles.layer_weights(randomize(layer))
    expected = oracles.decoder_layer(X, MEMORY, weights, 2, MASK[:, None], residual)
    close(layer(X, MEMORY, self_mask=causal_mask(4), cross_mask=MASK[:, None, None]), expected, 1e-4)


@pytest.mark.parametrize("stack", [Encoder, Decoder])
def test_only_pre_norm_stack_ends_with_normalization(stack):
    assert stack(2, **STACK).final_norm is None
    assert stack(2, **STACK, norm="pre").final_norm is not None


# Requirements of Keras


@dataclasses.dataclass
class Case:
    layer: type
    arguments: dict
    inputs: tuple = (X,)
    call: dict = dataclasses.field(default_factory=dict)
    shape: tuple = (3, 4, 8)


POSITIONS, TOKENS = np.arange(5), np.array([[1, 2], [0, 6]])
DROPOUTS = dict(activation="swish", dropout=0.1, attention_dropout=0.1, activation_dropout=0.1, seed=3)
SUBLAYER = {"sublayer": lambda y: ops.tanh(2 * y)}
ATTENTION = dict(d_model=8, num_heads=2, d_k=3, d_v=5, dropout=0.1, seed=3)
CASES = {
    "MultiHeadAttention": Case(MultiHeadAttention, ATTENTION, (X, MEMORY)),
    "AdditiveAttention": Case(AdditiveAttention, ATTENTION, (X, MEMORY)),
    "RestrictedAttention": Case(RestrictedAttention, {**ATTENTION, "window": 3}, (X, X)),
    "FeedForward": Case(FeedForward, dict(d_model=8, d_ff=12, dropout=0.1, seed=3, activation="gelu")),
    "Dropout": Case(Dropout, dict(rate=0.1, seed=3)),
    "LayerNormalization": Case(LayerNormalization, dict(epsilon=1e-5)),
    "PostNorm": Case(PostNorm, dict(dropout=0.1, seed=3), call=SUBLAYER),
    "PreNorm": Case(PreNorm, dict(dropout=0.1, seed=3), call=SUBLAYER),
    "SinusoidalPositions": Case(SinusoidalPositions, dict(d_model=8), (POSITIONS,), shape=(5, 8)),
    "LearnedPositions": Case(LearnedPositions, dict(d_model=8, max_length=5, seed=3), (POSITIONS,), shape=(5, 8)),
    "TiedEmbedding": Case(
        TiedEmbedding, dict(vocab_size=7, d_model=8, seed=3, mask_zero=True), (TOKENS,), shape=(2, 2, 8)
    ),
    "EncoderLayer": Case(EncoderLayer, {**STACK, **DROPOUTS}),
    "DecoderLayer": Case(DecoderLayer, {**STACK, **DROPOUTS}, (X, MEMORY)),
    "Encoder": Case(Encoder, {"num_layers": 2, **STACK, **DROPOUTS}),
    "Decoder": Case(Decoder, {"num_layers": 2, **STACK, **DROPOUTS, "norm": "pre"}, (X, MEMORY)),
}
every_layer = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def layer_classes():
    classes = set()
    for module in pkgutil.iter_modules(keras_transformer.layers.__path__, "keras_transformer.layers."):
        for entry in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(entry) and issubclass(entry, keras.layers.Layer) and entry.__module__ == module.name:
                classes.add(entry)
    return classes - {Residual, Positions, Stack, StackLayer}


def test_layer_classes_all_have_a_case():
    assert layer_classes() == {case.layer for case in CASES.values()}


def test_layers_package_exports_all_layers():
    exported = {name: getattr(keras_transformer.layers, name) for name in keras_transformer.layers.__all__}
    assert {entry for entry in exported.values() if inspect.isclass(entry)} == layer_classes()
    assert all(entry.__name__ == name for name, entry in exported.items())
    assert keras_transformer.layers.__all__ == sorted(exported)


@every_layer
def test_layer_round_trips_through_config(case):
    layer = case.layer(**case.arguments, name="mine")
    config = json.loads(json.dumps(layer.get_config()))
    copies = [case.layer.from_config(config), keras.saving.deserialize_keras_object(serialized(layer))]
    for copy in copies:
        assert copy.get_config() == layer.get_config()
        assert {name: config[name] for name in case.arguments} == case.arguments
        for training in (False, True):  # equal seeds give equal weights and dropout masks
            expected = layer(*case.inputs, **case.call, **training_argument(layer, training))
            close(copy(*case.inputs, **case.call, **training_argument(copy, training)), np.asarray(expected))
        reset_seeds(layer)


def serialized(layer):
    return json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))


def training_argument(layer, training):
    return {"training": training} if "training" in inspect.signature(layer.call).parameters else {}


def reset_seeds(layer):
    for variable in layer.non_trainable_variables:
        variable.assign(np.asarray(variable.value) * [1, 0])


@every_layer
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_layer_output_shape_and_dtype(case, policy):
    layer = case.layer(**case.arguments, dtype=policy)
    output = layer(*case.inputs, **case.call)
    assert keras.backend.standardize_dtype(output.dtype) == policy.removeprefix("mixed_")
    assert tuple(output.shape) == case.shape == layer.compute_output_shape(*(x.shape for x in case.inputs))
    assert {variable.dtype for variable in layer.trainable_variables} <= {"float32"}
    reference = case.layer(**case.arguments)(*case.inputs, **case.call)
    np.testing.assert_allclose(np.asarray(output, "float32"), reference, atol=0 if policy == "float32" else 0.1)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not issubclass(case.layer, Residual)])
def test_layer_is_built_by_symbolic_call(name):
    case = CASES[name]
    inputs = [keras.Input(x.shape[1:], batch_size=len(x), dtype=x.dtype) for x in case.inputs]
    layer = case.layer(**case.arguments)
    assert layer(*inputs, **case.call).shape == case.shape
    assert layer.built


@every_layer
def test_layer_gradient_step_changes_every_weight(case):
    tf = pytest.importorskip("tensorflow")
    layer = case.layer(**case.arguments)
    layer(*case.inputs, **case.call)
    before = [oracles.array(variable) for variable in layer.trainable_variables]
    with tf.GradientTape() as tape:
        output = layer(*case.inputs, **case.call, **training_argument(layer, True))
        loss = tf.reduce_sum(output * normal(5, *case.shape))
    keras.optimizers.SGD(0.1).apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
    for variable, old in zip(layer.trainable_variables, before):
        assert 1e-6 < abs(oracles.array(variable) - old).max() < 100, variable.path
