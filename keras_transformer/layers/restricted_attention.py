"""§4: self-attention restricted to a neighbourhood, in time and memory that grow with r · n · d (Table 1)."""

import keras
from keras import ops

from keras_transformer.layers.attention import MultiHeadAttention, scaled_dot_product_attention


def restricted_attention(query, key, value, window, mask=None, dropout=None):
    """Scaled dot-product attention of each position to the `window` positions around it.

    Position i attends to i - ⌊window / 2⌋, …, i + ⌈window / 2⌉ - 1, as far as they exist: an even window reaches one
    further back. The sequence is cut into blocks of ⌊window / 2⌋, so that a block's positions see only that block and
    the two beside it, and nothing has length × length numbers.

    Args:
        query, key: `[batch, heads, length, d_k]`.
        value: `[batch, heads, length, d_v]`.
        window: r, the number of positions that a position attends to, itself among them.
        mask: bool `[batch or 1, heads or 1, 1, length]`, False where a key is hidden from all queries.
        dropout: Function of the attention weights, if any.

    Returns:
        The attended values `[batch, heads, length, d_v]`, and the weights `[batch, heads, blocks, block, 3 * block]`,
        float32; the last axis runs over the block before, the query's own, and the one after.

    Raises:
        ValueError: Queries and keys differ in number, or the mask differs between queries.
    """
    if query.shape[2] != key.shape[2]:
        raise ValueError(f"restricted attention is self-attention: {query.shape[2]} queries, {key.shape[2]} keys")
    if mask is not None and mask.shape[2] != 1:
        raise ValueError(f"restricted attention takes a mask of keys, [batch, heads, 1, length], not {mask.shape}")
    batch, heads, length = ops.shape(query)[:3]
    block = block_size(length, window)
    # What pads the ends is hidden like any other padding.
    legal = ops.ones((1, 1, length, 1), dtype="bool") if mask is None else ops.swapaxes(mask, 2, 3)
    legal = ops.logical_and(ops.swapaxes(_neighbourhoods(legal, block), 3, 4), _band(block, window))
    values, weights = scaled_dot_product_attention(
        _blocks(query, block), _neighbourhoods(key, block), _neighbourhoods(value, block), legal, dropout
    )
    values = ops.reshape(values, (batch, heads, ops.shape(values)[2] * block, value.shape[3]))
    return values[:, :, :length], weights


def block_size(length, window):
    """Return the positions of a block, for an int or a scalar tensor `length`; a short sequence is one block."""
    reach = max(window // 2, 1)
    return max(min(length, reach), 1) if isinstance(length, int) else ops.clip(length, 1, reach)


def to_dense_weights(weights, length):
    """Return weights of `restricted_attention` as `[batch, heads, length, length]`, 0 outside of neighbourhoods."""
    batch, heads, blocks, block, reach = ops.shape(weights)
    rows = ops.reshape(weights, (batch, heads, blocks * block, reach))[:, :, :length]
    position = ops.arange(length)
    column = position[None, :] - (position[:, None] // block - 1) * block  # of a key in its query's neighbourhood
    index = ops.broadcast_to(ops.clip(column, 0, reach - 1)[None, None], (batch, heads, length, length))
    return ops.where((column >= 0) & (column < reach), ops.take_along_axis(rows, index, axis=3), 0.0)


def _blocks(x, block, around=0):
    """`[batch, heads, length, d]` → `[batch, heads, blocks, block, d]`, `around` more blocks of zeros at each end."""
    batch, heads, length = ops.shape(x)[:3]
    missing, margin = -length % block, around * block
    x = ops.pad(x, ((0, 0), (0, 0), (margin, missing + margin), (0, 0)))
    return ops.reshape(x, (batch, heads, (length + missing) // block + 2 * around, block, x.shape[3]))


def _neighbourhoods(x, block):
    """`[batch, heads, length, d]` → `[batch, heads, blocks, 3 * block, d]`: each block between its neighbours."""
    x = _blocks(x, block, around=1)
    batch, heads, blocks, _, width = ops.shape(x)
    # ops.slice, not x[:, :, …]: on TensorFlow the gradient of the latter takes several times as long.
    shape = (batch, heads, blocks - 2, block, width)
    return ops.concatenate([ops.slice(x, (0, 0, first, 0, 0), shape) for first in range(3)], axis=3)


def _band(block, window):
    """Return bool `[block, 3 * block]`: whether a block's position may attend to one of the neighbourhood's."""
    offset = ops.arange(3 * block)[None, :] - block - ops.arange(block)[:, None]
    return ops.logical_and(offset >= -(window // 2), offset < window - window // 2)


@keras.saving.register_keras_serializable("keras_transformer")
class RestrictedAttention(MultiHeadAttention):
    """Multi-head self-attention of each position to its neighbourhood; the weights are `MultiHeadAttention`'s.

    Args:
        d_model, num_heads, d_k, d_v, dropout, seed: `MultiHeadAttention`'s.
        window: r, the number of positions that a position attends to, centred on it.

    Call arguments and result: `MultiHeadAttention`'s, where `memory` has the length of `query` and the mask is one of
    keys, `[batch or 1, heads or 1, 1, length]`. The weights of `attend` are those of `restricted_attention`.

    Raises:
        ValueError: The window is below 1; in a call, what `restricted_attention` raises.
        UserError: As `MultiHeadAttention`.
    """

    def __init__(self, d_model, num_heads, d_k=None, d_v=None, dropout=0.0, seed=None, *, window, **kwargs):
        super().__init__(d_model, num_heads, d_k, d_v, dropout, seed, **kwargs)
        if window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        self.window = window

    def attend_heads(self, query, keys, values, mask, dropout):
        return restricted_attention(query, keys, values, self.window, mask, dropout)

    def to_dense_weights(self, weights, key_length):
        return to_dense_weights(weights, key_length)

    def pairs(self, query_length, key_length):
        block = block_size(query_length, self.window)
        return -(-query_length // block) * block * 3 * block  # the last block's padding included

    def get_config(self):
        return {**super().get_config(), "window": self.window}
