"""§3.4 and §5.4 in one operation: projection to logits and label-smoothed cross-entropy, a chunk of tokens at a time.

All logits at once are the largest array of a training, `[tokens, vocab_size]` and as much again for their gradient.
Here only those of a chunk are there at any time. The gradient is computed with the loss: it is linear in what comes
from above, a scalar.
"""

import keras
from keras import ops

from keras_transformer.backend.devices import on_cpu
from keras_transformer.models.r_drop import divergence

CHUNK_LOGITS = 1 << 24
"""Logits of a chunk at most: 64 MiB in float32."""
CHUNK_TOKENS = 2048
"""Tokens of a chunk at most: in float16 a sum over more could overflow."""
CACHED = 1 << 22
"""Logits of a chunk on a CPU, about: 16 MiB, which stay in its cache from one pass to the next."""


def fused_linear_cross_entropy(states, table, labels, weights, label_smoothing, training=True, r_drop=0.0):
    """Returns Σ weight · smoothed cross-entropy of the logits states · tableᵀ, and both cross-entropies of each token.

    Args:
        states: `[tokens, d_model]`, any floating dtype, in which products are computed.
        table: float32 `[vocab_size, d_model]`.
        labels: int `[tokens]`.
        weights: float32 `[tokens]`, from 0 on.
        label_smoothing: ε.
        training: Whether there may be a gradient, with respect to states and table.
        r_drop: α of R-Drop, which is part of the smoothed cross-entropy in training: tokens 2i and 2i + 1 are two
            passes of one. 0: they are not.

    Returns:
        Scalar float32; smoothed and plain cross-entropy, float32 `[tokens]` in nats, which are constants to a gradient.
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
            return _times(grad_out, gradients, (states.dtype, table.dtype))

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
        return *_times(grad_out[0], gradients, (states.dtype, "float32")), None, None

    fused.defvjp(forward, backward)
    loss, smoothed, plain = fused(states, ops.convert_to_tensor(table), labels, weights)
    return loss, jax.lax.stop_gradient(smoothed), jax.lax.stop_gradient(plain)


def _times(grad_out, gradients, dtypes):
    scale, *gradients = gradients
    return [ops.cast(grad_out * scale * gradient, dtype) for gradient, dtype in zip(gradients, dtypes)]


def _chunked(states, table, labels, weights, label_smoothing, r_drop, training):
    """Both cross-entropies `[tokens]`, and the gradient: a scale, and what it multiplies, of states and of table.

    The gradient of a logit is its token's weight times p, less 1 − ε at the label, less ε/V; with R-Drop p has what the
    divergence adds. All else is multiplied with rows of d_model numbers, not with all logits: a pass over those takes
    as long as a tenth of a product.
    """
    passes, (vocab_size, width) = 2 if r_drop else 1, table.shape
    tokens = ops.shape(states)[0] // passes
    # Relative to the largest the weights are near 1, so that their products in float16 do not vanish.
    scale = ops.maximum(ops.max(weights), 1e-30)
    weights, labels, confidence = weights / scale, ops.cast(labels, "int32"), 1.0 - label_smoothing
    kernel = ops.cast(table, states.dtype)
    # Accelerators may round the factors of float32 products, too.
    exact = keras.backend.standardize_dtype(kernel.dtype) == "float32" and on_cpu()
    mean_row = ops.mean(ops.cast(kernel, "float32"), axis=0)

    def add_chunk(grad_table, *rows):
        states, labels, weights = (merged(ops.swapaxes(array, 0, 1)) for array in rows)  # pass after pass
        logits = ops.cast(ops.matmul(states, ops.transpose(kernel)), "float32")
        # log Σ exp from the softmax, whose largest value does not vanish: its logit, less its logarithm.
        p = ops.softmax(logits)
        normalizer = ops.max(logits, axis=-1) - ops.log(ops.max(p, axis=-1))
        gold = ops.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
        mean = ops.matmul(ops.cast(states, "float32"), mean_row[:, None])[:, 0]
        losses = [normalizer - confidence * gold - label_smoothing * mean, normalizer - gold]
        if not training:
            return grad_table, losses
        if r_drop:
            both, norms = halves(logits), halves(normalizer)
            added, grad_divergence = divergence(halves(p), both[0] - both[1] - (norms[0] - norms[1])[:, None], r_drop)
            losses[0], grad_divergence = losses[0] + ops.tile(added, 2), merged(grad_divergence)
            p = p + grad_divergence
        grad_logits = ops.cast(p, states.dtype)
        if not exact:  # rounded, p and 1 − ε would not cancel out in a sum of products
            places = ops.stack([ops.arange(ops.shape(labels)[0], dtype="int32"), labels], axis=1)
            at_label = ops.exp(gold - normalizer) - confidence
            if r_drop:
                at_label += ops.take_along_axis(grad_divergence, labels[:, None], axis=-1)[:, 0]
            grad_logits = ops.scatter_update(grad_logits, places, ops.cast(at_label, grad_logits.dtype))
        grad_states = ops.cast(ops.matmul(grad_logits, kernel), "float32") * weights[:, None]
        weighted = states * ops.cast(weights[:, None], states.dtype)
        grad_table = grad_table + ops.cast(ops.matmul(ops.transpose(grad_logits), weighted), "float32")
        return grad_table, [*losses, grad_states]

    grad_table = ops.zeros((vocab_size, width) if training else (), "float32")
    chunks = -(-tokens // max(chunk_tokens(vocab_size, width) // passes, 1))

    def joined(array):
        """`[chunks, passes · tokens of a chunk, …]` → `[tokens · passes, …]`"""
        array = ops.reshape(array, (chunks, passes, -1, *array.shape[2:]))
        return merged(merged(ops.moveaxis(array, 2, 0))[:tokens])

    # A chunk has every n-th token: part of each device's, where devices share the tokens.
    rows = [ops.reshape(array, (-1, passes, *array.shape[1:])) for array in (states, labels, weights)]
    rows = [ops.swapaxes(divided(array, chunks), 0, 1) for array in rows]
    grad_table, losses = in_turn(add_chunk, grad_table, rows, outputs=3 if training else 2)
    smoothed, plain, *grad_states = map(joined, losses)
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


def chunk_tokens(vocab_size, width):
    """Returns how many tokens a chunk has at most."""
    tokens = min(CHUNK_LOGITS // vocab_size, CHUNK_TOKENS)
    if on_cpu():
        # With fewer tokens than d_model, to add up the table's gradient would take longer than passes over the logits.
        tokens = min(tokens, max(CACHED // vocab_size, width))
    return max(tokens, 1)


def halves(array):
    """`[2 · rows, …]` → `[2, rows, …]`."""
    return ops.reshape(array, (2, -1, *array.shape[1:]))


def merged(array):
    """`[rows, columns, …]` → `[rows · columns, …]`."""
    return ops.reshape(array, (-1, *array.shape[2:]))


def divided(array, parts):
    """`[rows, …]` → `[rows / parts, parts, …]`, filled up with zeros."""
    rows, *lengths = ops.shape(array)
    array = ops.pad(array, [(0, -rows % parts), *((0, 0) for _ in lengths)])
    return ops.reshape(array, (-1, parts, *lengths))


def in_turn(function, carried, arrays, outputs):
    """Returns what a function carries on over the first axis of arrays, one after the other, and its outputs, stacked.

    Args:
        function: Of what is carried and of a part of each array; returns what is carried on, and a list of float32.
        carried: An array.
        arrays: A list.
        outputs: How many there are.
    """
    if keras.backend.backend() == "jax":
        import jax

        return jax.lax.scan(lambda carried, parts: function(carried, *parts), carried, arrays)
    import tensorflow as tf

    parts = ops.shape(arrays[0])[0]
    written = [tf.TensorArray("float32", parts) for _ in range(outputs)]

    def step(number, carried, written):
        carried, values = function(carried, *[array[number] for array in arrays])
        return number + 1, carried, [array.write(number, output) for array, output in zip(written, values)]

    _, carried, written = tf.while_loop(
        lambda number, *_: number < parts, step, (0, carried, written), parallel_iterations=1
    )
    return carried, [array.stack() for array in written]
