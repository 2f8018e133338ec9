"""The encoder (§3.1), a stack of self-attention and feed-forward layers."""

import keras

from keras_transformer.config import registry
from keras_transformer.layers.attention import with_padding
from keras_transformer.layers.stack import Stack, StackLayer


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderLayer(StackLayer):
    """Self-attention and feed-forward network, each with a residual connection (§3.1).

    Args:
        d_model, d_ff, num_heads: Sizes, as in the paper.
        d_k, d_v: Widths of the keys and values of a head (default: d_model / num_heads).
        attention: Registered name of the self-attention.
        attention_window: Number of positions that each position attends to. Only for self-attention classes with an
            argument `window`.
        **arguments: Other arguments of `StackLayer`.

    Call arguments:
        x: `[batch, source_length, d_model]`.
        attention_mask: bool, `[batch, source_length, source_length]` or a shape that broadcasts to
            `[batch, heads, source_length, source_length]`. False hides a key, on the last axis, from a query.
        training: Whether to apply dropout.
        mask, x_mask: bool `[batch, source_length]`, False on padding, combined with `attention_mask`. Keras passes the
            mask of `x` as `x_mask` if `attention_mask` is given, and as `mask` otherwise.

    Returns:
        `[batch, source_length, d_model]`, with the Keras mask of `x`.

    Raises:
        UserError: `d_k` or `d_v` is missing, and `d_model` is not divisible by `num_heads`.
    """

    def __init__(
        self, d_model, d_ff, num_heads, d_k=None, d_v=None, *, attention="full", attention_window=None, **arguments
    ):
        super().__init__(d_model, d_ff, num_heads, d_k, d_v, **arguments)
        self._arguments |= {"attention": attention, "attention_window": attention_window}
        # Pass the window only if it is set, because attention classes without a window reject the argument.
        window = {} if attention_window is None else {"window": attention_window}
        self.self_attention, self.self_attention_residual = self.add_attention(
            "self_attention", registry.attentions.get(attention), **window
        )
        self.feed_forward, self.feed_forward_residual = self.add_feed_forward()

    def call(self, x, attention_mask=None, training=False, mask=None, x_mask=None):
        attention_mask = with_padding(attention_mask, mask, x_mask)
        x = self.self_attention_residual(
            x,
            sublayer=lambda y: self.self_attention(y, y, attention_mask=attention_mask, training=training),
            training=training,
        )
        return self.feed_forward_residual(
            x, sublayer=lambda y: self.feed_forward(y, training=training), training=training
        )


@keras.saving.register_keras_serializable("keras_transformer")
class Encoder(Stack):
    """Stack of encoder layers, with a final normalization if `norm` requires one, as pre-norm does.

    Args:
        num_layers: Number of layers, N.
        **arguments: Arguments of `EncoderLayer`.

    The call arguments and result are the same as for `EncoderLayer`.
    """

    layer_class = EncoderLayer

    def call(self, x, attention_mask=None, training=False, mask=None, x_mask=None):
        # Pass the masks explicitly, because the inputs of rematerialized layers have no Keras masks.
        attention_mask = with_padding(attention_mask, mask, x_mask)
        for layer in self.layers_for(training):
            x = layer(x, attention_mask=attention_mask, training=training)
        return self.normalize(x)
