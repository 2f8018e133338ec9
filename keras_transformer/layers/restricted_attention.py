"""Restricted self-attention (§4), with time and memory proportional to r · n · d (Table 1)."""

import keras
from keras import ops

from keras_transformer.layers.attention import MultiHeadAttention, scaled_dot_product_attention


def restricted_attention(query, key, value, window, mask=None, dropout=None):
    """Compute scaled dot-product attention of each position to the `window` positions around it.

    Position i attends to the existing positions among i - ⌊window / 2⌋, …, i + ⌈window / 2⌉ - 1. The function divides
    the sequence into blocks of ⌊window / 2⌋ positions. A block attends only to itself and its two neighbours, so no
    array has length × length elements.

    Args:
        query, key: `[batch, heads, length, d_k]`.
        value: `[batch, heads, length, d_v]`.
        window: r, the number of positions that each position attends to, including itself.
        mask: bool `[batch or 1, heads or 1, 1, length]`. False hides a key from all queries.
        dropout: Function applied to the attention weights, or None.

    Returns:
        The attended values `[batch, heads, length, d_v]`, and the weights `[batch, heads, blocks, block, 3 * block]`,
        float32. The last axis covers the preceding block, the query's own block and the following block.

    Raises:
        ValueError: The numbers of queries and keys differ, or the mask differs between queries.
    """
    if query.shape[2] != key.shape[2]:
        raise ValueError(
            f"restricted attention requires equal numbers of keys and queries, got {key.shape[2]} keys and "
            f"{query.shape[2]} queries. Use it for self-attention only."
        )
    if mask is not None and mask.shape[2] != 1:
        raise ValueError(
            f"the mask of restricted attention must have shape [batch, heads, 1, length], got {tuple(mask.shape)}. "
            "Use full attention for other masks."
        )
    batch, heads, length = ops.shape(query)[:3]
    block = block_size(length, window)
    # The mask also hides the positions that pad the last block.
    mask = ops.ones((1, 1, length, 1), dtype="bool") if mask is None else ops.swapaxes(mask, 2, 3)
    mask = ops.logical_and(ops.swapaxes(_neighbourhoods(mask, block), 3, 4), _band(block, window))
    values, weights = scaled_dot_product_attention(
        _blocks(query, block), _neighbourhoods(key, block), _neighbourhoods(value, block), mask, dropout
    )
    values = ops.reshape(values, (batch, heads, ops.shape(values)[2] * block, value.shape[3]))
    return values[:, :, :length], weights


def block_size(length, window):
    """Return the block size: ⌊window / 2⌋ positions, clipped to [1, length]. `length` is an int or a tensor."""
    reach = max(window // 2, 1)
    return max(min(length, reach), 1) if isinstance(length, int) else ops.clip(length, 1, reach)


def to_dense_weights(weights, length):
    """Convert the weights of `restricted_attention` to `[batch, heads, length, length]`, 0 outside the window."""
    batch, heads, blocks, block, reach = ops.shape(weights)
    rows = ops.reshape(weights, (batch, heads, blocks * block, reach))[:, :, :length]
    position = ops.arange(length)
    column = position[None, :] - (position[:, None] // block - 1) * block  # index of each key on the last axis
    index = ops.broadcast_to(ops.clip(column, 0, reach - 1)[None, None], (batch, heads, length, length))
    return ops.where((column >= 0) & (column < reach), ops.take_along_axis(rows, index, axis=3), 0.0)


def _blocks(x, block, around=0):
    """Split `[batch, heads, length, d]` into `[batch, heads, blocks, block, d]`.

    The function pads the last block with zeros, and adds `around` blocks of zeros at each end.
    """
    batch, heads, length = ops.shape(x)[:3]
    padding, margin = -length % block, around * block
    x = ops.pad(x, ((0, 0), (0, 0), (margin, padding + margin), (0, 0)))
    return ops.reshape(x, (batch, heads, (length + padding) // block + 2 * around, block, x.shape[3]))


def _neighbourhoods(x, block):
    """Join each block of `[batch, heads, length, d]` and its neighbours: `[batch, heads, blocks, 3 * block, d]`."""
    x = _blocks(x, block, around=1)
    batch, heads, blocks, _, width = ops.shape(x)
    # On TensorFlow, the gradient of ops.slice is several times faster than that of x[:, :, …].
    shape = (batch, heads, blocks - 2, block, width)
    return ops.concatenate([ops.slice(x, (0, 0, first, 0, 0), shape) for first in range(3)], axis=3)


def _band(block, window):
    """Return a mask, bool `[block, 3 * block]`, True where a key is in the window of a query."""
    offset = ops.arange(3 * block)[None, :] - block - ops.arange(block)[:, None]
    return ops.logical_and(offset >= -(window // 2), offset < window - window // 2)


@keras.saving.register_keras_serializable("keras_transformer")
class RestrictedAttention(MultiHeadAttention):
    """Multi-head self-attention in which each position attends only to a window around itself.

    Args:
        d_model, num_heads, d_k, d_v, dropout, seed: As in `MultiHeadAttention`.
        window: r, the number of positions in the window around each position, including the position itself.

    The call arguments and result are the same as for `MultiHeadAttention`. `memory` must have the length of `query`,
    and the mask must be `[batch or 1, heads or 1, 1, length]`. `attend` returns weights in the format of
    `restricted_attention`.

    Raises:
        ValueError: The window is less than 1, or a call does not meet the requirements of `restricted_attention`.
        UserError: As in `MultiHeadAttention`.
    """

    def __init__(self, d_model, num_heads, d_k=None, d_v=None, dropout=0.0, seed=None, *, window, **kwargs):
        super().__init__(d_model, num_heads, d_k, d_v, dropout, seed, **kwargs)
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}. Choose an odd number to center it.")
        self.window = window

    def attend_heads(self, query, keys, values, mask, dropout):
        return restricted_attention(query, keys, values, self.window, mask, dropout)

    def to_dense_weights(self, weights, key_length):
        return to_dense_weights(weights, key_length)

    def pairs(self, query_length, key_length):
        block = block_size(query_length, self.window)
        return -(-query_length // block) * block * 3 * block  # includes the padding of the last block

    def get_config(self):
        return {**super().get_config(), "window": self.window}
