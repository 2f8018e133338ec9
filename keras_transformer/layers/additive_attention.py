"""Additive attention (§3.2.1), which the paper compares with dot-product attention."""

import keras
from keras import ops

from keras_transformer.layers.attention import MultiHeadAttention, weighted_values, with_heads
from keras_transformer.layers.initializers import projection


def additive_attention(query, key, value, score, mask=None, dropout=None):
    """Compute softmax(logits)V with the logits vᵀtanh(q + k), a feed-forward network with one hidden layer.

    Args:
        query: `[batch, heads, query_length, d_k]`.
        key: `[batch, heads, key_length, d_k]`.
        value: `[batch, heads, key_length, d_v]`.
        score: `[heads, d_k]`, the vector v of each head.
        mask, dropout: As in `scaled_dot_product_attention`.

    Returns:
        Same as `scaled_dot_product_attention`.
    """
    # The hidden layer has d_k units for each pair of positions, so it needs d_k times the memory of dot products.
    hidden = ops.tanh(query[:, :, :, None] + key[:, :, None])  # [batch, heads, query_length, key_length, d_k]
    logits = ops.matmul(hidden, score[:, None, :, None])[..., 0]
    return weighted_values(logits, value, with_heads(mask), dropout)


@keras.saving.register_keras_serializable("keras_transformer")
class AdditiveAttention(MultiHeadAttention):
    """Multi-head attention with the logits vᵀtanh(W_q q + W_k k) in each head.

    The arguments, call arguments and result are the same as for `MultiHeadAttention`.

    References:
        Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and Translate" (2015), A.1.2.
    """

    def build(self, query_shape=None, memory_shape=None):
        super().build(query_shape, memory_shape)
        self.score_kernel = self.add_weight(
            name="score", shape=(self.num_heads, self.d_k), initializer=projection(self.seed, "score")
        )

    def attend_heads(self, query, keys, values, mask, dropout):
        return additive_attention(query, keys, values, ops.cast(self.score_kernel, query.dtype), mask, dropout)
