"""Scaled dot-product attention and multi-head attention (§3.2)."""

import keras
from keras import ops
from keras.src.backend import get_keras_mask  # on JAX, tensors have no attribute with their mask

from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.initializers import projection, query_key_value
from keras_transformer.layers.matmul import matmul
from keras_transformer.utils.errors import UserError

MASKED_LOGIT = -1e9
"""Logit of a masked position. With −∞, a row whose positions are all masked would become NaN."""


def padding_mask(tokens, pad=0):
    """Return the padding mask of int tokens `[batch, length]`: bool `[batch, 1, 1, length]`, False on padding."""
    return (tokens != pad)[:, None, None, :]


def causal_mask(length):
    """Return the causal mask, bool `[1, 1, length, length]`: position i may attend to positions ≤ i (§3.2.3)."""
    position = ops.arange(length)
    return (position[None, :] <= position[:, None])[None, None]


def with_heads(mask):
    """Add an axis for the heads to a mask `[batch, query_length, key_length]`. Return other masks and None as is."""
    return mask[:, None] if mask is not None and len(mask.shape) == 3 else mask


def with_padding(mask, *padding_masks):
    """Combine an attention mask and Keras masks with a logical "and". Return None if there is no mask.

    Args:
        mask: bool, `[batch, query_length, key_length]` or a shape that broadcasts to
            `[batch, heads, query_length, key_length]`, or None.
        *padding_masks: Keras masks of the keys, bool `[batch, key_length]`, False on padding, or None.
    """
    mask = with_heads(mask)
    for padding in padding_masks:
        if padding is not None:
            padding = ops.cast(padding, "bool")[:, None, None, :]
            mask = padding if mask is None else ops.logical_and(mask, padding)
    return mask


def head_width(d_model, num_heads):
    """Return d_model / num_heads, the width of the queries, keys and values of a head in the paper (§3.2.2).

    Raises:
        UserError: `d_model` is not divisible by `num_heads`.
    """
    if d_model % num_heads:
        raise UserError(
            f"d_model must be divisible by num_heads, got d_model={d_model} and num_heads={num_heads}. "
            "Change one of them, or set d_k and d_v."
        )
    return d_model // num_heads


def update_cache(cache, position, new):
    """Return a copy of `cache` `[batch, heads, length, d]`, with `new` `[batch, heads, n, d]` written at `position`."""
    batch, heads, length, width = ops.shape(cache)
    # Scatter rows of a matrix, because `ops.slice_update` invokes XLA on TensorFlow.
    rows = ops.arange(batch * heads)[:, None] * length + position + ops.arange(ops.shape(new)[2])[None]
    flat = ops.scatter_update(
        ops.reshape(cache, (-1, width)), ops.reshape(rows, (-1, 1)), ops.reshape(new, (-1, width))
    )
    return ops.reshape(flat, ops.shape(cache))


def scaled_dot_product_attention(query, key, value, mask=None, dropout=None):
    """Compute softmax(QKᵀ/√d_k)V, equation 1 (§3.2.1).

    Args:
        query: `[batch, heads, query_length, d_k]`.
        key: `[batch, heads, key_length, d_k]`.
        value: `[batch, heads, key_length, d_v]`.
        mask: bool, `[batch, query_length, key_length]` or a shape that broadcasts to
            `[batch, heads, query_length, key_length]`. False hides a key from a query.
        dropout: Function applied to the attention weights, or None.

    Returns:
        The attended values `[batch, heads, query_length, d_v]`, and the weights
        `[batch, heads, query_length, key_length]`, float32.
    """
    # Scale the query, [..., T, d_k], because it is smaller than the logits, [..., T, T].
    query = query * ops.cast(query.shape[-1] ** -0.5, query.dtype)
    return weighted_values(ops.matmul(query, ops.swapaxes(key, -1, -2)), value, with_heads(mask), dropout)


def weighted_values(logits, value, mask=None, dropout=None):
    """Compute softmax(logits)V.

    Args:
        logits: `[..., query_length, key_length]`.
        value, dropout: As in `scaled_dot_product_attention`.
        mask: bool, broadcasts to `logits`, or None.

    Returns:
        Same as `scaled_dot_product_attention`.
    """
    weights = masked_softmax(logits, mask)
    dropped = dropout(weights) if dropout else weights
    return ops.matmul(ops.cast(dropped, value.dtype), value), weights


def masked_softmax(logits, mask=None):
    """Return the softmax in float32 over the unmasked positions of the last axis.

    Args:
        logits: `[..., length]`.
        mask: bool, broadcasts to `logits`, or None. A row that is False everywhere has a uniform softmax.
    """
    logits = ops.cast(logits, "float32")
    if logits.shape[-1] == 1:  # Keras warns about a softmax over a single element
        return ops.ones_like(logits)
    if mask is not None:
        # Do not add the mask: TensorFlow would fuse the sum with the matrix product into a much slower operation.
        logits = ops.where(mask, logits, MASKED_LOGIT)
    return ops.softmax(logits, axis=-1)


@keras.saving.register_keras_serializable("keras_transformer")
class MultiHeadAttention(keras.layers.Layer):
    """Multi-head attention (§3.2.2).

    Computes Concat(head_1, …, head_h)W^O with head_i = Attention(QW_i^Q, KW_i^K, VW_i^V).

    Args:
        d_model: Width of the output.
        num_heads: Number of heads, h in the paper.
        d_k: Width of the queries and keys of a head (default: d_model / num_heads).
        d_v: Width of the values of a head (default: d_model / num_heads).
        dropout: Dropout rate of the attention weights (0 in the paper).
        seed: Seed for the initial weights and dropout.
        use_bias: Whether the four projections have biases (False in the paper).

    Call arguments:
        query: `[batch, query_length, d_model]`.
        memory: `[batch, key_length, d_model]`, from which keys and values are computed.
        attention_mask: The mask of `scaled_dot_product_attention`.
        training: Whether to apply dropout.
        memory_mask: bool `[batch, key_length]`, False on padding, combined with `attention_mask` and with the Keras
            mask of `memory`, such as that of `keras.layers.Embedding(…, mask_zero=True)`.

    Returns:
        `[batch, query_length, d_model]`, with the Keras mask of `query`.

    Raises:
        UserError: `d_k` or `d_v` is missing, and `d_model` is not divisible by `num_heads`.
    """

    def __init__(self, d_model, num_heads, d_k=None, d_v=None, dropout=0.0, seed=None, use_bias=False, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.d_model, self.num_heads, self.seed, self.use_bias = d_model, num_heads, seed, use_bias
        self.d_k = head_width(d_model, num_heads) if d_k is None else d_k
        self.d_v = head_width(d_model, num_heads) if d_v is None else d_v
        self.dropout = Dropout(dropout, seed, dtype=self.dtype_policy, name="dropout")
        self.on_weights = None  # function to call with the attention weights, or None

    def build(self, query_shape=None, memory_shape=None):
        def kernel(name, rows, columns, initializer):
            return self.add_weight(name=name, shape=(rows, columns), initializer=initializer(self.seed, name))

        keys, values = self.num_heads * self.d_k, self.num_heads * self.d_v
        self.query_kernel = kernel("query", self.d_model, keys, query_key_value)
        self.key_kernel = kernel("key", self.d_model, keys, query_key_value)
        self.value_kernel = kernel("value", self.d_model, values, query_key_value)
        self.output_kernel = kernel("output", values, self.d_model, projection)
        if self.use_bias:
            widths = {"query": keys, "key": keys, "value": values, "output": self.d_model}
            self.biases = {
                name: self.add_weight(name=f"{name}_bias", shape=(width,), initializer="zeros")
                for name, width in widths.items()
            }
        self.dropout.build()

    def call(self, query, memory, attention_mask=None, training=False, memory_mask=None):
        attention_mask = with_padding(attention_mask, memory_mask, get_keras_mask(memory))
        if query is memory:
            query, keys, values = self.project_fused(memory, self.fused_kernel(), training)
        else:
            query, (keys, values) = self.project_query(query, training), self.project_memory(memory, training)
        attended, weights = self.attend(query, keys, values, attention_mask, training)
        if self.on_weights:
            self.on_weights(self.to_dense_weights(weights, ops.shape(memory)[1]))
        return attended

    def project_query(self, query, training=False):
        """Project `query` to queries `[batch, heads, length, d_k]`."""
        return self._split_heads(self._add_biases(matmul(query, self.query_kernel, training), "query"))

    def project_memory(self, memory, training=False):
        """Project `memory` to keys `[batch, heads, length, d_k]` and values `[batch, heads, length, d_v]`."""
        kernel = self._concatenate(self.key_kernel, self.value_kernel)
        projected = self._add_biases(matmul(memory, kernel, training), "key", "value")
        return self._split_projection(projected, self.num_heads * self.d_k)

    def fused_kernel(self):
        """Return the concatenated kernels of queries, keys and values, `[d_model, heads * (2 d_k + d_v)]`."""
        return self._concatenate(self.query_kernel, self.key_kernel, self.value_kernel)

    def project_fused(self, x, fused_kernel, training=False):
        """Project `x` to queries, keys and values `[batch, heads, length, d]` with a single matrix product."""
        keys = self.num_heads * self.d_k
        projected = self._add_biases(matmul(x, fused_kernel, training), "query", "key", "value")
        return self._split_projection(projected, keys, 2 * keys)

    def attend(self, query, keys, values, attention_mask=None, training=False):
        """Attend from projected queries `[batch, heads, query_length, d_k]` to projected keys and values.

        Returns:
            The output `[batch, query_length, d_model]`, and the weights
            `[batch, heads, query_length, key_length]`, float32.
        """
        heads, weights = self.attend_heads(
            query, keys, values, with_heads(attention_mask), lambda weights: self.dropout(weights, training=training)
        )
        return self._join_heads(heads, training), weights

    def attend_to_parts(self, query, parts, attention_mask):
        """Attend to keys and values that are split over several arrays, without copying the arrays.

        Args:
            query: Projected queries, `[batch, heads, query_length, d_k]`.
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
        """Compute attention between the projections. Subclasses override this method with other kinds of attention."""
        return scaled_dot_product_attention(query, keys, values, mask, dropout)

    def to_dense_weights(self, weights, key_length):
        """Return the attention weights from `attend` as an array `[batch, heads, query_length, key_length]`."""
        return weights

    def flops(self, rows, query_length, key_length):
        """Return the number of floating-point operations in a call's matrix products. A multiply-add counts as two.

        Padding and masked positions count like all others.
        """
        widths = self.num_heads * (self.d_k + self.d_v)
        # Each query and each key needs two projections. Each pair needs a logit and a weighted value.
        products = (query_length + key_length) * self.d_model + self.pairs(query_length, key_length)
        return 2 * rows * products * widths

    def pairs(self, query_length, key_length):
        """Return the number of (query, key) pairs per row for which one head computes a logit."""
        return query_length * key_length

    def _concatenate(self, *kernels):
        return ops.concatenate([ops.cast(kernel, self.compute_dtype) for kernel in kernels], axis=1)

    def _add_biases(self, projected, *names):
        """Add the biases of projections whose results are concatenated along the last axis."""
        if not self.use_bias:
            return projected
        return projected + ops.cast(ops.concatenate([self.biases[name] for name in names]), projected.dtype)

    def _split_projection(self, projected, *borders):
        """Split `[batch, length, columns]` at the column indices `borders` into arrays `[batch, heads, length, d]`."""
        # Use `ops.split`, because the gradient of a slice would be a full-size array of mostly zeros.
        return [self._split_heads(part) for part in ops.split(projected, borders, axis=-1)]

    def _split_heads(self, x):
        """Reshape `[batch, length, heads * d]` to `[batch, heads, length, d]`."""
        batch, length, width = ops.shape(x)
        x = ops.reshape(x, (batch, length, self.num_heads, width // self.num_heads))
        return ops.transpose(x, (0, 2, 1, 3))

    def _join_heads(self, heads, training=False):
        """Compute Concat(head_1, …, head_h)W^O, `[batch, length, d_model]`, from `[batch, heads, length, d_v]`."""
        batch, _, length, _ = ops.shape(heads)
        joined = ops.reshape(ops.transpose(heads, (0, 2, 1, 3)), (batch, length, self.num_heads * self.d_v))
        return self._add_biases(matmul(joined, self.output_kernel, training), "output")

    def compute_output_shape(self, query_shape, memory_shape=None):
        return (*query_shape[:-1], self.d_model)

    def get_config(self):
        own = {name: getattr(self, name) for name in ("d_model", "num_heads", "d_k", "d_v", "seed", "use_bias")}
        return {**super().get_config(), **own, "dropout": self.dropout.rate}
