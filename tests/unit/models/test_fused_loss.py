"""Tests that projection and cross-entropy in chunks give the same loss and gradients as an unchunked computation."""

import keras
import numpy as np
import oracles
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.models import fused_loss
from keras_transformer.models.fused_loss import fused_linear_cross_entropy

TOKENS, WIDTH, VOCAB_SIZE = 23, 8, 11


@pytest.fixture
def inputs(fresh_seed):
    random = np.random.default_rng(fresh_seed)
    states = random.normal(size=(TOKENS, WIDTH)).astype("float32")
    table = random.normal(size=(VOCAB_SIZE, WIDTH)).astype("float32")
    labels = random.integers(1, VOCAB_SIZE, TOKENS).astype("int32")
    labels[-5:] = 0
    weights = ((labels > 0) * random.uniform(0.5, 1, TOKENS) / TOKENS).astype("float32")
    return states, table, labels, weights


def expected(states, table, labels, weights, label_smoothing, r_drop=0.0):
    """Compute the loss, the smoothed and plain cross-entropies, and the gradients in float64."""
    states, table = states.astype("float64"), table.astype("float64")
    logits = states @ table.T
    p = oracles.softmax(logits)
    q = np.full(p.shape, label_smoothing / VOCAB_SIZE)
    q[np.arange(len(q)), labels] += 1 - label_smoothing
    smoothed, plain = -(q * np.log(p)).sum(-1), -np.log(p[np.arange(len(q)), labels])
    grad_logits = p - q
    if r_drop:  # half of equation 4 of Liang et al. 2021; rows 2i and 2i + 1 are two passes of a token
        other = p.reshape(-1, 2, VOCAB_SIZE)[:, ::-1].reshape(p.shape)
        there, back = ((a * np.log(a / b)).sum(-1, keepdims=True) for a, b in ((p, other), (other, p)))
        smoothed = smoothed + r_drop / 2 * (there + back)[:, 0] / 2
        grad_logits = grad_logits + r_drop / 2 * (p * (np.log(p / other) - there) + p - other)
    grad_logits = grad_logits * weights[:, None]
    return (smoothed * weights).sum(), smoothed, plain, grad_logits @ table, grad_logits.T @ states


def found(states, table, labels, weights, label_smoothing, r_drop=0.0, scale=1.0):
    """Return the same values as `expected`, computed with `fused_linear_cross_entropy`.

    The gradients are those of `scale` · loss, divided by `scale`.
    """
    arrays = [ops.convert_to_tensor(array) for array in (labels, weights)]

    def scaled(states, table):
        loss, smoothed, plain = fused_linear_cross_entropy(states, table, *arrays, label_smoothing, r_drop=r_drop)
        return loss * scale, (loss, smoothed, plain)

    states, table = ops.convert_to_tensor(states), ops.convert_to_tensor(table)
    if keras.backend.backend() == "jax":
        import jax

        gradients, outputs = jax.jit(jax.grad(scaled, argnums=(0, 1), has_aux=True))(states, table)
    else:
        import tensorflow as tf

        @tf.function(
            input_signature=[tf.TensorSpec((None, states.shape[-1]), states.dtype), tf.TensorSpec(table.shape)]
        )
        def gradients_and_outputs(states, table):
            with tf.GradientTape() as tape:
                tape.watch((states, table))
                loss, outputs = scaled(states, table)
            return tape.gradient(loss, (states, table)), outputs

        gradients, outputs = gradients_and_outputs(states, table)
    gradients = [ops.convert_to_numpy(ops.cast(gradient, "float32")) / scale for gradient in gradients]
    return *map(ops.convert_to_numpy, outputs), *gradients


@pytest.mark.backend
@pytest.mark.parametrize(
    ("tokens_per_chunk", "label_smoothing"), [(1, 0.1), (4, 0.0), (4, 0.1), (22, 0.1), (23, 0.1), (100, 0.1)]
)
def test_fused_loss_chunks_match_unchunked_oracle(monkeypatch, inputs, label_smoothing, tokens_per_chunk):
    monkeypatch.setattr(fused_loss, "CHUNK_LOGITS", tokens_per_chunk * VOCAB_SIZE + 1)
    for value, wanted in zip(found(*inputs, label_smoothing), expected(*inputs, label_smoothing), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=3e-6)


@pytest.fixture
def pairs(inputs):
    """`inputs` with two passes for each token. Both passes have the same label and weight."""
    states, table, labels, weights = inputs
    return states[:22], table, np.repeat(labels[:11], 2), np.repeat(weights[:11], 2)


@pytest.mark.parametrize(
    ("tokens_per_chunk", "label_smoothing", "r_drop"),
    [(1, 0.1, 5.0), (2, 0.1, 5.0), (8, 0.0, 1.0), (8, 0.1, 5.0), (22, 0.1, 5.0), (100, 0.1, 5.0)],
)
def test_r_drop_loss_and_gradients_match_oracle(monkeypatch, pairs, label_smoothing, r_drop, tokens_per_chunk):
    monkeypatch.setattr(fused_loss, "CHUNK_LOGITS", tokens_per_chunk * VOCAB_SIZE + 1)
    wanted = expected(*pairs, label_smoothing, r_drop)
    for value, one in zip(found(*pairs, label_smoothing, r_drop), wanted, strict=True):
        np.testing.assert_allclose(value, one, rtol=1e-5, atol=3e-6)
    states, table, labels, _ = pairs
    loss, logits = kt.SmoothedCrossEntropy(label_smoothing, r_drop=r_drop), ops.convert_to_tensor(states @ table.T)
    smoothed = loss.token_losses(ops.convert_to_tensor(labels), logits)[0] + loss.pair_losses(logits)
    np.testing.assert_allclose(ops.convert_to_numpy(smoothed), wanted[1], rtol=1e-5, atol=3e-6)


def test_r_drop_of_equal_passes_is_plain_loss(pairs):
    states, *others = pairs
    alike = np.repeat(states[::2], 2, axis=0)
    for value, one in zip(found(alike, *others, 0.1, 5.0), found(alike, *others, 0.1), strict=True):
        np.testing.assert_allclose(value, one, rtol=0, atol=1e-6)


@pytest.mark.parametrize("label_smoothing", (0.0, 0.1))
def test_fused_loss_same_without_gradient(inputs, label_smoothing):
    arrays = [ops.convert_to_tensor(array) for array in inputs]
    outputs = fused_linear_cross_entropy(*arrays, label_smoothing, training=False)
    for value, wanted in zip(outputs, expected(*inputs, label_smoothing)):
        np.testing.assert_allclose(ops.convert_to_numpy(value), wanted, rtol=0, atol=3e-6)


@pytest.mark.backend
@pytest.mark.parametrize("r_drop", (0.0, 2.0))
@pytest.mark.parametrize(("dtype", "error"), (("bfloat16", 0.03), ("float16", 0.004)))
def test_fused_loss_in_half_precision(monkeypatch, pairs, dtype, error, r_drop):
    """Use token weights that are too small to be accurate in float16."""
    monkeypatch.setattr(fused_loss, "CHUNK_LOGITS", 6 * VOCAB_SIZE)
    states, table, labels, weights = pairs
    weights = weights / 1e5
    states = ops.convert_to_numpy(ops.cast(ops.cast(states, dtype), "float32"))
    wanted = expected(states, table, labels, weights, 0.1, r_drop)
    values = found(ops.cast(states, dtype), table, labels, weights, 0.1, r_drop, scale=2.0**15)
    for value, one in zip(values, wanted, strict=True):
        assert np.abs(value - one).max() <= error * np.abs(one).max()


@pytest.mark.backend
def test_model_with_bfloat16_weights_trains():
    hparams = kt.HParams(num_layers=1, d_model=8, d_ff=8, num_heads=1, warmup_steps=1)
    model = kt.Transformer(50, hparams, dtype="bfloat16")
    model.compile(**kt.compile_arguments(hparams))
    ids = np.full((2, 3), 5, "int32")
    losses = [model.train_on_batch((ids, ids), ids, return_dict=True)["loss"] for _ in range(2)]
    assert losses[1] < losses[0]


def test_fused_loss_does_not_overflow_float16():
    count = 20_000
    states, table = np.full((count, WIDTH), 4.0, "float32"), np.zeros((VOCAB_SIZE, WIDTH), "float32")
    labels, weights = np.ones(count, "int32"), np.full(count, 1 / count, "float32")
    found_table = found(ops.cast(states, "float16"), table, labels, weights, 0.0)[-1]
    wanted = np.repeat(np.where(np.arange(VOCAB_SIZE) == 1, -1 + 1 / VOCAB_SIZE, 1 / VOCAB_SIZE)[:, None] * 4, WIDTH, 1)
    np.testing.assert_allclose(found_table, wanted, rtol=0.01)


def test_fused_loss_not_used_with_custom_logits():
    class Flat(kt.Transformer):
        def logits(self, states):
            return 0 * super().logits(states)

    hparams = kt.HParams(num_layers=1, d_model=8, d_ff=8, num_heads=1)
    ids = np.full((2, 3), 5, "int32")
    for kind, projects in ((Flat, False), (kt.Transformer, True)):
        model = kind.from_hparams(hparams, vocab_size=50)
        model.compile(**kt.compile_arguments(hparams))
        assert (model.projection is not None) == projects
        loss = ops.convert_to_numpy(model.compute_loss(None, ids, model.states((ids, ids))))
        assert projects or loss == pytest.approx(np.log(50), rel=1e-5)


def test_fused_loss_of_padding_only_is_zero(inputs):
    states, table, labels, weights = inputs
    loss, _, _, *gradients = found(states, table, 0 * labels, 0 * weights, 0.1)
    assert loss == 0 and not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_fused_loss_label_gradient_keeps_precision(dtype):
    vocab_size, smoothing = 11, 0.1
    table = np.eye(vocab_size, 16, dtype="float32")
    labels = np.arange(vocab_size, dtype="int32")
    states = 4.5 * table  # the probabilities are 0.90002 for the label and 0.01 for other tokens
    logits = states.astype("float64") @ table.T
    q = np.full(logits.shape, smoothing / vocab_size) + (1 - smoothing) * np.eye(vocab_size)
    grad_logits = oracles.softmax(logits) - q
    weights = np.ones(vocab_size, "float32")
    inputs = ops.cast(states, dtype), table, labels, weights
    *_, grad_states, grad_table = found(*inputs, smoothing, scale=1.0)
    # The target probability of the label is 0.1 / 11 + 0.9. If 0.90002 were rounded to bfloat16 before the subtraction
    # of this target, the difference would change by a sixth.
    for value, wanted in ((grad_states, grad_logits @ table), (grad_table, grad_logits.T @ states)):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=0.02 * np.abs(wanted).max())
