"""Tests of additive (§3.2.1) and restricted (§4) attention: comparison with oracles, unknown lengths and cost."""

import keras
import numpy as np
import oracles
import pytest
from helpers.arrays import close, normal
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import keras_transformer as kt
from keras_transformer.config import registry
from keras_transformer.layers.additive_attention import AdditiveAttention, additive_attention
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.encoder import EncoderLayer
from keras_transformer.layers.restricted_attention import (
    RestrictedAttention,
    restricted_attention,
    to_dense_weights,
)

TENSORFLOW = keras.backend.backend() == "tensorflow"
small = st.integers(1, 6)


def layers(window, **arguments):
    """Return a full and a restricted layer with the same random weights."""
    arguments = {"d_model": 8, "num_heads": 2, "d_k": 3, "d_v": 5, **arguments}
    full, restricted = MultiHeadAttention(**arguments), RestrictedAttention(**arguments, window=window)
    for layer in (full, restricted):
        layer.build()
    for seed, pair in enumerate(zip(full.trainable_variables, restricted.trainable_variables)):
        for variable in pair:
            variable.assign(normal(seed, *variable.shape))
    return full, restricted


def random_mask(seed, batch, length):
    """Return a boolean mask of shape `[batch, 1, 1, length]` that hides random keys."""
    return np.random.default_rng(seed).random((batch, 1, 1, length)) < 0.7


# Additive attention


@settings(max_examples=25 if TENSORFLOW else 8, deadline=None)
@given(
    batch=small, heads=small, n=small, m=small, d_k=small, d_v=small, masked=st.booleans(), seed=st.integers(0, 2**31)
)
def test_additive_attention_matches_bahdanau(batch, heads, n, m, d_k, d_v, masked, seed):
    query, key, value, score = (
        normal([seed, i], *shape)
        for i, shape in enumerate(
            [(batch, heads, n, d_k), (batch, heads, m, d_k), (batch, heads, m, d_v), (heads, d_k)]
        )
    )
    mask = None
    if masked:
        mask = normal([seed, 4], batch, 1, n, m) > 0
        mask[..., 0] = True
    values, weights = additive_attention(query, key, value, ops.convert_to_tensor(score), mask)
    for head in range(heads):
        expected = oracles.additive_attention(
            *(x[:, head].astype("float64") for x in (query, key, value)),
            score[head],
            None if mask is None else mask[:, 0],
        )
        close(values[:, head], expected[0])
        close(weights[:, head], expected[1])


@pytest.mark.backend
def test_additive_layer_matches_oracle():
    layer = AdditiveAttention(8, 2, 3, 5)
    layer.build()
    for seed, variable in enumerate(layer.trainable_variables):
        variable.assign(normal(seed, *variable.shape))
    assert [tuple(weight.shape) for weight in layer.weights][-1] == (2, 3) and len(layer.weights) == 5
    x, memory, mask = normal(11, 3, 4, 8), normal(12, 3, 6, 8), normal(13, 3, 4, 6) > -1
    mask[..., 0] = True
    weights = oracles.attention_weights(layer)
    close(layer(x, memory), oracles.multi_head_attention(x, memory, weights, 2))
    expected = oracles.multi_head_attention(x, memory, weights, 2, mask)
    close(layer(x, memory, attention_mask=mask[:, None]), expected)


# Restricted attention


@settings(max_examples=60 if TENSORFLOW else 15, deadline=None)
@given(
    batch=st.integers(1, 3), heads=st.integers(1, 3), n=st.integers(1, 25), window=st.integers(1, 30),
    masked=st.booleans(), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_restricted_attention_equals_banded_full_attention(batch, heads, n, window, masked, seed):
    query, key, value = (normal([seed, i], batch, heads, n, d) for i, d in enumerate((3, 3, 4)))
    keys = random_mask([seed, 3], batch, n) if masked else None
    legal = oracles.neighbourhood(n, window) & (True if keys is None else keys)
    legal = np.broadcast_to(legal, (batch, 1, n, n))
    sees = legal.any(axis=-1)[:, 0]  # outputs of fully masked rows are arbitrary, but finite
    values, weights = restricted_attention(query, key, value, window, keys)
    values = np.asarray(values)
    assert np.isfinite(values).all() and np.isfinite(np.asarray(weights)).all()
    expected, of_all = oracles.attention(
        *(x.astype("float64") for x in (query, key, value)), np.where(sees[:, None, :, None], legal, True)
    )
    weights = np.asarray(to_dense_weights(weights, n))
    for row in range(batch):
        close(values[row][:, sees[row]], expected[row][:, sees[row]])
        close(weights[row][:, sees[row]], of_all[row][:, sees[row]])


@pytest.mark.parametrize(
    "window, sees", [(1, [5]), (2, [4, 5]), (3, [4, 5, 6]), (4, [3, 4, 5, 6]), (5, [3, 4, 5, 6, 7])]
)
def test_window_is_number_of_visible_positions(window, sees):
    _, layer = layers(window)
    x = normal(0, 1, 11, 8)
    before, changing = np.asarray(layer(x, x)), []
    for position in range(11):
        changed = x.copy()
        changed[0, position] += 1
        if abs(np.asarray(layer(changed, changed)) - before)[0, 5].max() > 1e-4:
            changing.append(position)
    assert changing == sees


def gradients(layer, x, mask, upstream):
    """Return the gradients of Σ upstream · output with respect to the inputs and each weight."""
    variables = layer.trainable_variables
    if TENSORFLOW:
        import tensorflow as tf

        x = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x, x, attention_mask=mask) * upstream)
        return tape.gradient(loss, [x, *(variable.value for variable in variables)])
    import jax

    def loss(x, values):
        output, _ = layer.stateless_call(values, [], x, x, attention_mask=mask)
        return ops.sum(output * upstream)

    grad_x, grad_variables = jax.grad(loss, argnums=(0, 1))(x, [variable.value for variable in variables])
    return [grad_x, *grad_variables]


@pytest.mark.parametrize("length, window", [(12, 4), pytest.param(13, 5, marks=pytest.mark.backend), (3, 9), (9, 1)])
def test_gradients_equal_banded_full_attention(length, window):
    full, restricted = layers(window)
    x, keys = normal(1, 2, length, 8), random_mask(2, 2, length)
    band = oracles.neighbourhood(length, window)
    legal = band & keys
    sees = legal.any(axis=-1, keepdims=True)[:, 0]
    upstream = normal(3, 2, length, 8) * sees
    # The two layers differ in fully masked rows, so these rows get no upstream gradient.
    expected = gradients(full, x, legal | ~sees[:, None], upstream)
    for actual, wanted in zip(gradients(restricted, x, keys, upstream), expected):
        close(actual, np.asarray(wanted, "float64"), 1e-4)
    everything = gradients(restricted, x, np.zeros_like(keys), normal(3, 2, length, 8))
    assert all(np.isfinite(np.asarray(gradient)).all() for gradient in everything)


def test_restricted_attention_in_bfloat16():
    x, keys = normal(1, 2, 21, 8), random_mask(2, 2, 21)
    keys[..., ::3] = True
    expected = layers(4)[1](x, x, attention_mask=keys)
    output = layers(4, dtype="mixed_bfloat16")[1](x, x, attention_mask=keys)
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    scale = float(np.abs(np.asarray(expected)).max())
    np.testing.assert_allclose(np.asarray(output, "float32") / scale, np.asarray(expected) / scale, atol=0.03)
    layer, x = layers(4)[1], ops.cast(x, "bfloat16")
    _, weights = layer.attend(layer.project_query(x), *layer.project_memory(x))
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"


@pytest.mark.skipif(not TENSORFLOW, reason="JAX compiles each shape")
def test_graph_with_unknown_length_serves_all_lengths():
    import tensorflow as tf

    _, layer = layers(6)
    traces = []

    @tf.function(input_signature=[tf.TensorSpec([None, None, 8]), tf.TensorSpec([None, 1, 1, None], tf.bool)])
    def call(x, mask):
        traces.append(1)
        return layer(x, x, attention_mask=mask)

    for length in (1, 2, 3, 6, 7, 20):
        x, mask = normal(length, 2, length, 8), random_mask(length, 2, length)
        close(call(x, mask), np.asarray(layer(x, x, attention_mask=mask)).astype("float64"))
    assert call(normal(0, 0, 5, 8), random_mask(0, 0, 5)).shape == (0, 5, 8)  # an empty batch
    assert len(traces) == 1


def test_restricted_attention_rejects_wrong_arguments():
    _, layer = layers(3)
    x = normal(0, 2, 5, 8)
    with pytest.raises(ValueError, match="got 4 keys and 5 queries"):
        layer(x, x[:, :4])
    with pytest.raises(ValueError, match="mask of restricted attention must have shape"):
        layer(x, x, attention_mask=np.ones((1, 1, 5, 5), bool))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        RestrictedAttention(8, 2, 3, 5, window=0)


# Cost


def largest_tensor(layer, length, d_model=8):
    """Return the size of the largest tensor in the forward and backward pass of a layer."""
    shape = (1, length, d_model)
    if TENSORFLOW:
        import tensorflow as tf

        @tf.function
        def both(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(layer(x, x) ** 2)
            return tape.gradient(loss, [x, *(variable.value for variable in layer.trainable_variables)])

        graph = both.get_concrete_function(tf.TensorSpec(shape)).graph
        tensors = [tensor for operation in graph.get_operations() for tensor in operation.outputs]
        sizes = [tensor.shape.num_elements() for tensor in tensors if tensor.shape.rank is not None]
        assert None not in sizes
        return max(sizes)
    import jax

    def loss(x, values):
        return ops.sum(layer.stateless_call(values, [], x, x)[0] ** 2)

    values = [variable.value for variable in layer.trainable_variables]
    return largest_of_jaxpr(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(np.zeros(shape, "float32"), values).jaxpr)


def largest_of_jaxpr(jaxpr):
    """Return the size of the largest array in a JAX program, including nested programs."""
    largest = 0
    for equation in jaxpr.eqns:
        sizes = [int(np.prod(variable.aval.shape)) for variable in equation.outvars]
        inner = [value for value in equation.params.values() if hasattr(value, "jaxpr") or hasattr(value, "eqns")]
        largest = max(largest, *sizes, *(largest_of_jaxpr(getattr(program, "jaxpr", program)) for program in inner))
    return largest


@pytest.mark.backend
def test_memory_grows_linearly_with_length():
    full, restricted = layers(8)
    once, twice = (largest_tensor(restricted, length) for length in (512, 1024))
    assert once == 512 * 2 * 3 * 5  # positions × heads × (a block and its two neighbours) × head width
    assert twice == 2 * once < 1024**2
    assert largest_tensor(full, 512) == 2 * 512**2


# Encoder layers


@pytest.mark.parametrize("attention, window", [("additive", None), ("restricted", 3)])
def test_encoder_layer_builds_named_attention(attention, window):
    layer = EncoderLayer(8, 12, 2, 3, 5, attention=attention, attention_window=window)
    assert type(layer.self_attention) is registry.attentions.get(attention)
    assert getattr(layer.self_attention, "window", None) == window
    assert layer.get_config()["attention_window"] == window


def test_unused_window_is_rejected():
    with pytest.raises(ValueError, match="window"):
        EncoderLayer(8, 12, 2, 3, 5, attention="full", attention_window=3)


def test_custom_attention_needs_no_window_or_flops(monkeypatch):
    class Plain(keras.layers.Layer):
        """Attention with the constructor and `call` arguments of `MultiHeadAttention`, and no other methods."""

        def __init__(self, d_model, num_heads, d_k, d_v, dropout=0.0, seed=None, **kwargs):
            super().__init__(**kwargs)

        def call(self, query, memory, attention_mask=None, training=False):
            return memory

    class Windowed(Plain):
        """Attention with an additional argument `window`, which has a default."""

        def __init__(self, *arguments, window=7, **kwargs):
            super().__init__(*arguments, **kwargs)
            self.window = window

    attentions = registry.attentions
    monkeypatch.setattr(attentions, "_entries", {**attentions._entries, "plain": Plain, "windowed": Windowed})
    small = kt.HParams(num_layers=1, d_model=8, d_ff=12, num_heads=2)
    full = kt.Transformer(11, small)
    for changes, window in [({}, 7), ({"attention_window": 4}, 4)]:
        model = kt.Transformer(11, small.replace(encoder_attention="windowed", **changes))
        assert model.encoder.layers[0].self_attention.window == window
    assert kt.Transformer(11, small.replace(encoder_attention="plain")).flops(2, 3, 4) == full.flops(2, 3, 4)
