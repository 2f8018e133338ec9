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


def divergence(p, gap, alpha):
    """What is added to the loss of each of a token's two passes, so that it is part of their mean.

    Args:
        p: float32 `[2, tokens, vocab_size]`, the probabilities p and q of both passes.
        gap: float32 `[tokens, vocab_size]`, log p − log q.
        alpha: α.

    Returns:
        α/2 · J `[tokens]`, in nats; and what it adds to a logit's gradient, `[2, tokens, vocab_size]`: of the first
        pass α/2 [p ∘ (log p − log q − KL(p‖q)) + p − q].
    """
    there, back = (ops.sum(one * gap, axis=-1, keepdims=True) for one in (p[0], p[1]))  # KL(p‖q), −KL(q‖p)
    half, apart = alpha / 2 * gap, alpha / 2 * (p[0] - p[1])
    gradients = [p[0] * (half - alpha / 2 * there) + apart, p[1] * (alpha / 2 * back - half) - apart]
    return alpha / 4 * (there - back)[:, 0], ops.stack(gradients)
