"""The decoder (§3.1), for complete target sequences and for decoding step by step."""

import keras
from keras import ops

from keras_transformer.layers.attention import MultiHeadAttention, causal_mask, update_cache, with_padding
from keras_transformer.layers.stack import Stack, StackLayer


@keras.saving.register_keras_serializable("keras_transformer")
class DecoderLayer(StackLayer):
    """Masked self-attention, cross-attention and feed-forward network, each with a residual connection (§3.1).

    Args:
        d_model, d_ff, num_heads: Sizes, as in the paper.
        d_k, d_v: Widths of the keys and values of a head (default: d_model / num_heads).
        **arguments: Other arguments of `StackLayer`.

    Call arguments:
        x: `[batch, target_length, d_model]`.
        memory: `[batch, source_length, d_model]`, the encoder's output.
        self_mask: bool, `[batch, target_length, target_length]` or a shape that broadcasts to
            `[batch, heads, target_length, target_length]` (default: the causal mask, which `self_mask` replaces).
        cross_mask: bool, `[batch, target_length, source_length]` or a shape that broadcasts to
            `[batch, heads, target_length, source_length]`; False on padding.
        training: Whether to apply dropout.
        x_mask: bool `[batch, target_length]`, False on padding, combined with `self_mask`. Keras passes the mask of
            `x`.
        memory_mask: bool `[batch, source_length]`, False on padding, combined with `cross_mask`. Keras passes the mask
            of `memory`.

    Returns:
        `[batch, target_length, d_model]`, with the Keras mask of `x`.

    Raises:
        UserError: `d_k` or `d_v` is missing, and `d_model` is not divisible by `num_heads`.
    """

    def __init__(self, d_model, d_ff, num_heads, d_k=None, d_v=None, **arguments):
        super().__init__(d_model, d_ff, num_heads, d_k, d_v, **arguments)
        self.self_attention, self.self_attention_residual = self.add_attention("self_attention", MultiHeadAttention)
        self.cross_attention, self.cross_attention_residual = self.add_attention("cross_attention", MultiHeadAttention)
        self.feed_forward, self.feed_forward_residual = self.add_feed_forward()

    def build(self, x_shape, memory_shape=None):
        super().build(x_shape)

    def compute_output_shape(self, x_shape, memory_shape=None):
        return x_shape

    def call(self, x, memory, self_mask=None, cross_mask=None, training=False, x_mask=None, memory_mask=None):
        if self_mask is None:
            self_mask = causal_mask(ops.shape(x)[1])
        self_mask, cross_mask = with_padding(self_mask, x_mask), with_padding(cross_mask, memory_mask)
        x = self.self_attention_residual(
            x,
            sublayer=lambda y: self.self_attention(y, y, attention_mask=self_mask, training=training),
            training=training,
        )
        x = self.cross_attention_residual(
            x,
            sublayer=lambda y: self.cross_attention(y, memory, attention_mask=cross_mask, training=training),
            training=training,
        )
        return self.feed_forward_residual(
            x, sublayer=lambda y: self.feed_forward(y, training=training), training=training
        )

    def step(self, x, node, kernel, past, recent, memory, past_mask, memory_mask):
        """Compute one target position for every beam of a search, using cached keys and values.

        Args:
            x: `[batch, beams, d_model]`.
            node: Scalar int, the index in `recent` at which the step writes the keys and values of all beams.
            kernel: Result of `fused_kernel` of the self-attention.
            past: (keys, values) `[batch, heads, past_length, d]`, not modified.
            recent: (keys, values) `[batch, heads, recent_length, d]`, filled at the indices below `node`.
            memory: (keys, values) of the cross-attention, `[batch, heads, source_length, d]`, shared by the beams of a
                sentence.
            past_mask: bool `[batch, 1, beams, past_length + recent_length]`, True for the preceding positions of each
                beam and for this position.
            memory_mask: bool, broadcasts to `[batch, heads, beams, source_length]`; False on padding.

        Returns:
            `[batch, beams, d_model]`, and `recent` with the keys and values of this position.
        """

        def attend_to_past(y):
            query, *new = self.self_attention.project_fused(y, kernel)
            caches.extend(update_cache(old, node, part) for old, part in zip(recent, new))
            return self.self_attention.attend_to_parts(query, [past, caches], past_mask)

        def attend_to_memory(y):
            # Use the position axis for the beams, because cross-attention treats positions independently.
            query = self.cross_attention.project_query(y)
            return self.cross_attention.attend(query, *memory, memory_mask)[0]

        caches = []
        x = self.self_attention_residual(x, sublayer=attend_to_past)
        x = self.cross_attention_residual(x, sublayer=attend_to_memory)
        return self.feed_forward_residual(x, sublayer=self.feed_forward), tuple(caches)


@keras.saving.register_keras_serializable("keras_transformer")
class Decoder(Stack):
    """Stack of decoder layers, with a final normalization if `norm` requires one, as pre-norm does.

    Args:
        num_layers: Number of layers, N.
        **arguments: Arguments of `DecoderLayer`.

    The call arguments and result are the same as for `DecoderLayer`, but without `self_mask`, because the decoder
    applies the causal mask itself.
    """

    layer_class = DecoderLayer

    def build(self, x_shape, memory_shape=None):
        super().build(x_shape)

    def compute_output_shape(self, x_shape, memory_shape=None):
        return x_shape

    def call(self, x, memory, cross_mask=None, training=False, x_mask=None, memory_mask=None):
        self_mask = with_padding(causal_mask(ops.shape(x)[1]), x_mask)
        cross_mask = with_padding(cross_mask, memory_mask)
        for layer in self.layers_for(training):
            x = layer(x, memory, self_mask=self_mask, cross_mask=cross_mask, training=training)
        return self.normalize(x)
