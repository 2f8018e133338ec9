"""R-Drop (Liang et al. 2021): two forward passes per batch, with a penalty on the divergence of their outputs.

The distributions p and q of the two passes differ, because the passes have different dropout masks. The loss of a token
is the mean of both cross-entropies plus α/2 · J, where J = ½ [KL(p‖q) + KL(q‖p)]. This is half of the published loss,
which is the sum of the two cross-entropies plus α · J.
"""

import keras
from keras import ops


def twice(arrays):
    """Repeat each row of nested arrays `[batch, …]`. Return `[2 · batch, …]`."""
    return keras.tree.map_structure(lambda array: ops.repeat(array, 2, axis=0), arrays)


def side_by_side(array):
    """Reshape `[2 · batch, length, …]` to `[batch, length, 2, …]`, with both passes of a token next to each other."""
    rows, *shape = ops.shape(array)
    return ops.swapaxes(ops.reshape(array, (rows // 2, 2, *shape)), 1, 2)


def divergence(p, gap, alpha):
    """Return the R-Drop term α/2 · J and its gradient with respect to the logits.

    Args:
        p: float32 `[2, tokens, vocab_size]`, the probabilities of both passes, p and q.
        gap: float32 `[tokens, vocab_size]`, log p − log q.
        alpha: α.

    Returns:
        The term α/2 · J in nats, `[tokens]`, to be added to the loss of each pass, and its contribution to the
        gradient of the logits, `[2, tokens, vocab_size]`. The contribution for the first pass is
        α/2 [p ∘ (log p − log q − KL(p‖q)) + p − q].
    """
    kl_pq = ops.sum(p[0] * gap, axis=-1, keepdims=True)
    minus_kl_qp = ops.sum(p[1] * gap, axis=-1, keepdims=True)
    half_gap, difference = alpha / 2 * gap, alpha / 2 * (p[0] - p[1])
    gradients = [
        p[0] * (half_gap - alpha / 2 * kl_pq) + difference,
        p[1] * (alpha / 2 * minus_kl_qp - half_gap) - difference,
    ]
    return alpha / 4 * (kl_pq - minus_kl_qp)[:, 0], ops.stack(gradients)
