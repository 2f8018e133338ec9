"""R-Drop (Liang et al. 2021): a batch goes through the model twice, and the two outputs are drawn to each other.

The passes p and q of a token differ by what dropout takes away. Its loss is the mean of both cross-entropies and
α/2 · J, where J = ½ [KL(p‖q) + KL(q‖p)]: half of the publication's, which adds the cross-entropies up.
"""

import keras
from keras import ops


def twice(arrays):
    """Returns nested arrays `[batch, …]` as `[2 · batch, …]`: each row is followed by itself."""
    return keras.tree.map_structure(lambda array: ops.repeat(array, 2, axis=0), arrays)


def side_by_side(array):
    """`[2 · batch, length, …]` → `[batch, length, 2, …]`: both passes of a token next to each other."""
    rows, *shape = ops.shape(array)
    return ops.swapaxes(ops.reshape(array, (rows // 2, 2, *shape)), 1, 2)


def divergence(log_p):
    """How far the two passes of a token are from each other.

    Args:
        log_p: float32 `[2 · tokens, vocab_size]`, logarithms of probabilities; a token's passes are rows 2i and 2i + 1.

    Returns:
        J of each row's token `[2 · tokens]`, in nats, and its gradient `[2 · tokens, vocab_size]` with respect to the
        row's logits, ½ [p ∘ (log p − log q − KL(p‖q)) + p − q].
    """
    pairs = ops.reshape(log_p, (-1, 2, log_p.shape[-1]))
    p, gap = ops.exp(pairs), pairs - ops.flip(pairs, axis=1)
    kl = ops.sum(p * gap, axis=-1, keepdims=True)
    slope = 0.5 * (p * (gap - kl) + p - ops.flip(p, axis=1))
    mean = ops.repeat(ops.mean(kl[..., 0], axis=1), 2)
    return mean, ops.reshape(slope, ops.shape(log_p))
