"""Fused projection to logits (§3.4) and label-smoothed cross-entropy (§5.4), computed in chunks of tokens.

The logits `[tokens, vocab_size]` and their gradient are the largest arrays of a training step. The forward pass
of this operation computes both in chunks, so that only one chunk is in memory at a time. Because the loss is a scalar,
the backward pass only has to multiply the gradients of the inputs by the incoming gradient.
"""

import keras
from keras import ops

from keras_transformer.backend.devices import on_cpu
from keras_transformer.models.chunks import merge_axes, scan, split_halves, split_rows
from keras_transformer.models.r_drop import divergence

CHUNK_LOGITS = 1 << 24
"""Maximum number of logits in a chunk. They take 64 MiB in float32."""
CHUNK_TOKENS = 2048
"""Maximum number of tokens in a chunk. A float16 sum over more tokens could overflow."""
CACHED_LOGITS = 1 << 22
"""Approximate number of logits in a chunk on a CPU. They take 16 MiB, which fits in the CPU's cache."""


def fused_linear_cross_entropy(states, table, labels, weights, label_smoothing, training=True, r_drop=0.0):
    """Return the weighted, label-smoothed cross-entropy of the logits `states · tableᵀ`.

    Args:
        states: `[tokens, d_model]`, floating point. Their dtype is also the dtype of the matrix products.
        table: `[vocab_size, d_model]`, floating point.
        labels: int `[tokens]`.
        weights: float32 `[tokens]`, non-negative.
        label_smoothing: ε.
        training: Whether the caller needs the gradients of the loss with respect to `states` and `table`.
        r_drop: α of R-Drop. If it is positive, rows 2i and 2i + 1 contain the two passes of the same token. In
            training, the smoothed cross-entropy then includes the R-Drop term.

    Returns:
        The loss, Σ weight · smoothed cross-entropy, as a float32 scalar, and the smoothed and the plain cross-entropy
        of each token in nats, float32 `[tokens]`. Gradients flow only through the loss.
    """
    if not training:
        (smoothed, plain), _ = _chunked(states, table, labels, weights, label_smoothing, 0.0, False)
        return ops.sum(smoothed * weights), smoothed, plain
    if keras.backend.backend() == "jax":
        return _on_jax((label_smoothing, r_drop), states, table, labels, weights)
    return _on_tensorflow((label_smoothing, r_drop), states, table, labels, weights)


def _on_tensorflow(regularisation, states, table, labels, weights):
    import tensorflow as tf

    @tf.custom_gradient
    def fused(states, table):
        losses, gradients = _chunked(states, table, labels, weights, *regularisation, True)

        def backward(grad_out, *_):
            return _scale_gradients(grad_out, gradients, (states.dtype, table.dtype))

        return (ops.sum(losses[0] * weights), *losses), backward

    loss, smoothed, plain = fused(states, tf.convert_to_tensor(table))
    return loss, tf.stop_gradient(smoothed), tf.stop_gradient(plain)


def _on_jax(regularisation, states, table, labels, weights):
    import jax

    @jax.custom_vjp
    def fused(states, table, labels, weights):
        return forward(states, table, labels, weights)[0]

    def forward(states, table, labels, weights):
        losses, gradients = _chunked(states, table, labels, weights, *regularisation, True)
        return (ops.sum(losses[0] * weights), *losses), gradients

    def backward(gradients, grad_out):
        return *_scale_gradients(grad_out[0], gradients, (states.dtype, table.dtype)), None, None

    fused.defvjp(forward, backward)
    loss, smoothed, plain = fused(states, ops.convert_to_tensor(table), labels, weights)
    return loss, jax.lax.stop_gradient(smoothed), jax.lax.stop_gradient(plain)


def _scale_gradients(grad_out, gradients, dtypes):
    scale, *gradients = gradients
    return [ops.cast(grad_out * scale * gradient, dtype) for gradient, dtype in zip(gradients, dtypes)]


def _chunked(states, table, labels, weights, label_smoothing, r_drop, training):
    """Compute the losses and the gradient in chunks.

    The gradient with respect to the logits of a token is `weight · (p − (1 − ε) · onehot(label) − ε/V)`, where p is
    the softmax of the logits and V the vocabulary size. R-Drop adds the gradient of the divergence to p. Each
    additional operation on all logits would take a tenth of the time of a matrix product. Therefore, the function
    applies the weight and the term ε/V to arrays of width d_model instead. If the matrix products are exact, it treats
    the term (1 − ε) · onehot(label) in the same way.

    Returns:
        Two tuples: the smoothed and the plain cross-entropy, `[tokens]` each, and (scale, gradient of states, gradient
        of table). The caller must multiply both gradients by the scale. If `training` is False, the second tuple is
        replaced by None.
    """
    passes, (vocab_size, width) = 2 if r_drop else 1, table.shape
    tokens = ops.shape(states)[0] // passes
    # Divide the weights by their maximum. The quotients are near 1, so float16 products do not underflow.
    scale = ops.maximum(ops.max(weights), 1e-30)
    weights, labels, confidence = weights / scale, ops.cast(labels, "int32"), 1.0 - label_smoothing
    kernel = ops.cast(table, states.dtype)
    # Accelerators may round the factors of float32 products, so only CPU products are exact.
    exact = keras.backend.standardize_dtype(kernel.dtype) == "float32" and on_cpu()
    mean_row = ops.mean(ops.cast(kernel, "float32"), axis=0)

    def add_chunk(grad_table, *rows):
        # Put all tokens of the first pass before all tokens of the second pass.
        states, labels, weights = (merge_axes(ops.swapaxes(array, 0, 1)) for array in rows)
        logits = ops.cast(ops.matmul(states, ops.transpose(kernel)), "float32")
        # Compute log Σ exp z as max z − log max p, which reuses the softmax p. The maximum of p cannot underflow.
        p = ops.softmax(logits)
        normalizer = ops.max(logits, axis=-1) - ops.log(ops.max(p, axis=-1))
        gold = ops.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
        mean = ops.matmul(ops.cast(states, "float32"), mean_row[:, None])[:, 0]
        losses = [normalizer - confidence * gold - label_smoothing * mean, normalizer - gold]
        if not training:
            return grad_table, losses
        if r_drop:
            both, norms = split_halves(logits), split_halves(normalizer)
            gap = both[0] - both[1] - (norms[0] - norms[1])[:, None]
            penalty, grad_divergence = divergence(split_halves(p), gap, r_drop)
            losses[0], grad_divergence = losses[0] + ops.tile(penalty, 2), merge_axes(grad_divergence)
            p = p + grad_divergence
        grad_logits = ops.cast(p, states.dtype)
        if not exact:
            # Subtract 1 − ε from p before rounding. Otherwise, p and 1 − ε would be in two matrix products with
            # different rounding errors, which would not cancel out.
            indices = ops.stack([ops.arange(ops.shape(labels)[0], dtype="int32"), labels], axis=1)
            at_label = ops.exp(gold - normalizer) - confidence
            if r_drop:
                at_label += ops.take_along_axis(grad_divergence, labels[:, None], axis=-1)[:, 0]
            grad_logits = ops.scatter_update(grad_logits, indices, ops.cast(at_label, grad_logits.dtype))
        grad_states = ops.cast(ops.matmul(grad_logits, kernel), "float32") * weights[:, None]
        weighted = states * ops.cast(weights[:, None], states.dtype)
        grad_table = grad_table + ops.cast(ops.matmul(ops.transpose(grad_logits), weighted), "float32")
        return grad_table, [*losses, grad_states]

    grad_table = ops.zeros((vocab_size, width) if training else (), "float32")
    chunks = -(-tokens // max(max_chunk_tokens(vocab_size, width) // passes, 1))

    def join_chunks(array):
        """Reshape `[chunks, passes · chunk_tokens, …]` to `[tokens · passes, …]`."""
        array = ops.reshape(array, (chunks, passes, -1, *array.shape[2:]))
        return merge_axes(merge_axes(ops.moveaxis(array, 2, 0))[:tokens])

    # Each chunk contains every n-th token, so that all devices work on each chunk.
    rows = [ops.reshape(array, (-1, passes, *array.shape[1:])) for array in (states, labels, weights)]
    rows = [ops.swapaxes(split_rows(array, chunks), 0, 1) for array in rows]
    grad_table, losses = scan(add_chunk, grad_table, rows, num_outputs=3 if training else 2)
    smoothed, plain, *grad_states = map(join_chunks, losses)
    if not training:
        return (smoothed, plain), None
    (grad_states,), weighted = grad_states, ops.cast(states, "float32") * weights[:, None]
    if exact:
        grad_states = grad_states - confidence * weights[:, None] * ops.take(kernel, labels, axis=0)
        grad_table = ops.scatter_update(grad_table, labels[:, None], -confidence * weighted, reduction="add")
    if label_smoothing:
        grad_states = grad_states - label_smoothing * weights[:, None] * mean_row
        grad_table = grad_table - label_smoothing / vocab_size * ops.sum(weighted, axis=0)
    return (smoothed, plain), (scale, grad_states, grad_table)


def max_chunk_tokens(vocab_size, width):
    """Return the maximum number of tokens in a chunk."""
    tokens = min(CHUNK_LOGITS // vocab_size, CHUNK_TOKENS)
    if on_cpu():
        # With fewer than d_model tokens, adding to the table's gradient would dominate the time.
        tokens = min(tokens, max(CACHED_LOGITS // vocab_size, width))
    return max(tokens, 1)
