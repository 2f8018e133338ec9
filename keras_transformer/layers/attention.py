"""§3.2: scaled dot-product attention and multi-head attention."""

import keras
from keras import ops

from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.initializers import projection, query_key_value
from keras_transformer.layers.matmul import matmul
from keras_transformer.utils.errors import UserError

MASKED_LOGIT = -1e9
"""The logit of an illegal connection. −∞ makes a row without any legal position NaN."""


def padding_mask(tokens, pad=0):
    """Return bool `[batch, 1, 1, length]`: which of the tokens, int `[batch, length]`, may be attended to."""
    return (tokens != pad)[:, None, None, :]


class PaddingMask(keras.Operation):
    """`padding_mask` as one operation, which `keras.utils.plot_model` draws as one box."""

    def call(self, tokens):
        return padding_mask(tokens)

    def compute_output_spec(self, tokens):
        batch, length = tokens.shape
        return keras.KerasTensor((batch, 1, 1, length), "bool")


def causal_mask(length):
    """Return bool `[1, 1, length, length]`: position i may attend to positions ≤ i (§3.2.3)."""
    position = ops.arange(length)
    return (position[None, :] <= position[:, None])[None, None]


def with_padding(mask, *padding):
    """Return a mask that also hides the padding of the keys, or None if there is nothing to hide.

    Args:
        mask: bool, broadcasts to `[batch, heads, query_length, key_length]`, or None.
        *padding: Keras masks of the keys, bool `[batch, key_length]`, False on padding, or None.
    """
    for keys in padding:
        if keys is not None:
            keys = ops.cast(keys, "bool")[:, None, None, :]
            mask = keys if mask is None else ops.logical_and(mask, keys)
    return mask


def head_width(d_model, num_heads):
    """Return d_model / num_heads, the width of one head's queries, keys and values in the paper (§3.2.2).

    Raises:
        UserError: `d_model` is not divisible by `num_heads`.
    """
    if d_model % num_heads:
        raise UserError(
            f"d_model must be divisible by num_heads, got d_model={d_model} and num_heads={num_heads}. "
            "Change one of them or give d_k and d_v."
        )
    return d_model // num_heads


def written(cache, position, new):
    """Return `cache`, `[batch, heads, length, d]`, with `new`, `[batch, heads, n, d]`, from a position on."""
    batch, heads, length, width = ops.shape(cache)
    # As rows of a matrix: for a slice's update TensorFlow would start XLA.
    rows = ops.arange(batch * heads)[:, None] * length + position + ops.arange(ops.shape(new)[2])[None]
    flat = ops.scatter_update(
        ops.reshape(cache, (-1, width)), ops.reshape(rows, (-1, 1)), ops.reshape(new, (-1, width))
    )
    return ops.reshape(flat, ops.shape(cache))


def scaled_dot_product_attention(query, key, value, mask=None, dropout=None):
    """softmax(QKᵀ/√d_k)V, equation 1 (§3.2.1).

    Args:
        query: `[batch, heads, query_length, d_k]`.
        key: `[batch, heads, key_length, d_k]`.
        value: `[batch, heads, key_length, d_v]`.
        mask: bool, broadcasts to `[batch, heads, query_length, key_length]`; False where a connection is illegal.
        dropout: Function of the attention weights, if any.

    Returns:
        The attended values `[batch, heads, query_length, d_v]`, and the weights
        `[batch, heads, query_length, key_length]`, float32.
    """
    # The smaller factor is scaled: q is [.., T, d_k], the logits are [.., T, T].
    query = query * ops.cast(query.shape[-1] ** -0.5, query.dtype)
    return weighted_values(ops.matmul(query, ops.swapaxes(key, -1, -2)), value, mask, dropout)


def weighted_values(logits, value, mask=None, dropout=None):
    """softmax(logits)V, whatever function of queries and keys the logits are.

    Args:
        logits: `[..., query_length, key_length]`.
        value, mask, dropout: As in `scaled_dot_product_attention`.

    Returns:
        What `scaled_dot_product_attention` returns.
    """
    weights = masked_softmax(logits, mask)
    used = dropout(weights) if dropout else weights
    return ops.matmul(ops.cast(used, value.dtype), value), weights


def masked_softmax(logits, mask=None):
    """softmax over the last axis in float32, where the mask, bool, is True; a row that is all False is even."""
    logits = ops.cast(logits, "float32")
    if logits.shape[-1] == 1:  # Keras would warn of a softmax of one number
        return ops.ones_like(logits)
    if mask is not None:
        # Chosen, not added: TensorFlow fuses product and sum into an operation that is many times as slow.
        logits = ops.where(mask, logits, MASKED_LOGIT)
    return ops.softmax(logits, axis=-1)


@keras.saving.register_keras_serializable("keras_transformer")
class MultiHeadAttention(keras.layers.Layer):
    """Concat(head_1, …, head_h)W^O, head_i = Attention(QW_i^Q, KW_i^K, VW_i^V), without biases (§3.2.2).

    Args:
        d_model: Width of the output.
        num_heads: Number of heads, h in the paper.
        d_k: Width of one head's queries and keys (default: d_model / num_heads).
        d_v: Width of one head's values (default: d_model / num_heads).
        dropout: Dropout of the attention weights (0 in the paper).
        seed: Seed of initial weights and dropout.

    Call arguments:
        query: `[batch, query_length, d_model]`.
        memory: `[batch, key_length, d_model]`, what is attended to; keys and values are made from it.
        attention_mask: The mask of `scaled_dot_product_attention`.
        training: Whether to drop.
        memory_mask: bool `[batch, key_length]`, False on padding, combined with `attention_mask`. Keras passes the mask
            of `memory`, for example that of `keras.layers.Embedding(…, mask_zero=True)`.

    Returns:
        `[batch, query_length, d_model]`, with the Keras mask of `query`.

    Raises:
        UserError: `d_k` or `d_v` is missing, and `d_model` is not divisible by `num_heads`.
    """

    def __init__(self, d_model, num_heads, d_k=None, d_v=None, dropout=0.0, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.d_model, self.num_heads, self.seed = d_model, num_heads, seed
        self.d_k = head_width(d_model, num_heads) if d_k is None else d_k
        self.d_v = head_width(d_model, num_heads) if d_v is None else d_v
        self.dropout = Dropout(dropout, seed, dtype=self.dtype_policy, name="dropout")
        self.on_weights = None  # called with the attention weights of every call, where somebody wants to see them

    def build(self, query_shape=None, memory_shape=None):
        def kernel(name, rows, columns, initializer):
            return self.add_weight(name=name, shape=(rows, columns), initializer=initializer(self.seed, name))

        keys, values = self.num_heads * self.d_k, self.num_heads * self.d_v
        self.query_kernel = kernel("query", self.d_model, keys, query_key_value)
        self.key_kernel = kernel("key", self.d_model, keys, query_key_value)
        self.value_kernel = kernel("value", self.d_model, values, query_key_value)
        self.output_kernel = kernel("output", values, self.d_model, projection)
        self.dropout.build()

    def call(self, query, memory, attention_mask=None, training=False, memory_mask=None):
        attention_mask = with_padding(attention_mask, memory_mask)
        if query is memory:
            query, keys, values = self.project_fused(memory, self.fused_kernel(), training)
        else:
            query, (keys, values) = self.project_query(query, training), self.project_memory(memory, training)
        attended, weights = self._attend(query, keys, values, attention_mask, training)
        if self.on_weights:
            self.on_weights(self.to_dense_weights(weights, ops.shape(memory)[1]))
        return attended

    def project_query(self, query, training=False):
        """Return queries `[batch, heads, length, d_k]` of `query`."""
        return self._split_heads(matmul(query, self.query_kernel, training))

    def project_memory(self, memory, training=False):
        """Return keys `[batch, heads, length, d_k]` and values `[batch, heads, length, d_v]` of `memory`."""
        kernel = self._side_by_side(self.key_kernel, self.value_kernel)
        return self._split_projection(matmul(memory, kernel, training), self.num_heads * self.d_k)

    def fused_kernel(self):
        """Return the kernels of queries, keys and values side by side, `[d_model, heads * (2 d_k + d_v)]`."""
        return self._side_by_side(self.query_kernel, self.key_kernel, self.value_kernel)

    def project_fused(self, x, fused_kernel, training=False):
        """Return queries, keys and values `[batch, heads, length, d]` of `x`: one product in place of three."""
        keys = self.num_heads * self.d_k
        return self._split_projection(matmul(x, fused_kernel, training), keys, 2 * keys)

    def attend(self, query, keys, values, attention_mask=None, training=False):
        """Attend from `query` `[batch, query_length, d_model]` to projected keys and values.

        Returns:
            The output `[batch, query_length, d_model]`, and the weights
            `[batch, heads, query_length, key_length]`, float32.
        """
        return self._attend(self.project_query(query, training), keys, values, attention_mask, training)

    def _attend(self, query, keys, values, attention_mask, training):
        heads, weights = self.attend_heads(
            query, keys, values, attention_mask, lambda weights: self.dropout(weights, training=training)
        )
        return self._join_heads(heads, training), weights

    def attend_to_parts(self, query, parts, attention_mask):
        """Attend to keys and values that lie in several arrays, as if they were one: none is copied.

        Args:
            query: Projected, `[batch, heads, query_length, d_k]`.
            parts: Pairs (keys `[batch, heads, length_i, d_k]`, values `[batch, heads, length_i, d_v]`).
            attention_mask: bool, broadcasts to `[batch, heads, query_length, Σ length_i]`.

        Returns:
            `[batch, query_length, d_model]`.
        """
        query = query * ops.cast(self.d_k**-0.5, query.dtype)
        logits = ops.concatenate([ops.matmul(query, ops.swapaxes(keys, -1, -2)) for keys, _ in parts], axis=-1)
        weights = ops.cast(masked_softmax(logits, attention_mask), query.dtype)
        heads, begin = 0.0, 0
        for _, values in parts:
            length = ops.shape(values)[2]
            heads = heads + ops.matmul(weights[..., begin : begin + length], values)
            begin = begin + length
        return self._join_heads(heads)

    def attend_heads(self, query, keys, values, mask, dropout):
        """What happens between the projections, `scaled_dot_product_attention`; other attentions replace it."""
        return scaled_dot_product_attention(query, keys, values, mask, dropout)

    def to_dense_weights(self, weights, key_length):
        """Return weights of `attend` as `[batch, heads, query_length, key_length]`, where they have another form."""
        return weights

    def flops(self, rows, query_length, key_length):
        """Return the floating point operations of a call's matrix products; a multiply-add is two.

        Padding costs as much as tokens do, and hidden positions as much as seen ones.
        """
        widths = self.num_heads * (self.d_k + self.d_v)
        # Query and output kernel meet each query, key and value kernel each key; a pair is scored, and its value added.
        products = (query_length + key_length) * self.d_model + self.pairs(query_length, key_length)
        return 2 * rows * products * widths

    def pairs(self, query_length, key_length):
        """Return the number of (query, key) pairs that one head of one row computes."""
        return query_length * key_length

    def _side_by_side(self, *kernels):
        return ops.concatenate([ops.cast(kernel, self.compute_dtype) for kernel in kernels], axis=1)

    def _split_projection(self, projected, *borders):
        """`[batch, length, columns]` → an array `[batch, heads, length, d]` for the columns up to each border, and one
        for the others."""
        # Split, not sliced: the gradient of each slice would be a whole array, most of it zeros.
        return [self._split_heads(part) for part in ops.split(projected, borders, axis=-1)]

    def _split_heads(self, x):
        """`[batch, length, heads * d]` → `[batch, heads, length, d]`."""
        batch, length, width = ops.shape(x)
        x = ops.reshape(x, (batch, length, self.num_heads, width // self.num_heads))
        return ops.transpose(x, (0, 2, 1, 3))

    def _join_heads(self, heads, training=False):
        """Concat(head_1, …, head_h)W^O: `[batch, heads, length, d_v]` → `[batch, length, d_model]`."""
        batch, _, length, _ = ops.shape(heads)
        joined = ops.reshape(ops.transpose(heads, (0, 2, 1, 3)), (batch, length, self.num_heads * self.d_v))
        return matmul(joined, self.output_kernel, training)

    def compute_output_shape(self, query_shape, memory_shape=None):
        return (*query_shape[:-1], self.d_model)

    def get_config(self):
        own = {name: getattr(self, name) for name in ("d_model", "num_heads", "d_k", "d_v", "seed")}
        return {**super().get_config(), **own, "dropout": self.dropout.rate}
