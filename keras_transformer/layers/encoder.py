"""§3.1: the encoder, a stack of self-attention and feed-forward layers."""

import keras

from keras_transformer.config import registry
from keras_transformer.layers.attention import with_padding
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.normalization import LayerNormalization
from keras_transformer.layers.remat import rematerialized
from keras_transformer.layers.residual import EPSILON


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderLayer(keras.layers.Layer):
    """Self-attention, then the feed-forward network, each in a residual (§3.1).

    Args:
        d_model, d_ff, num_heads: Sizes, as in the paper.
        d_k, d_v: Widths of one head's keys and values (default: d_model / num_heads).
        dropout, attention_dropout, activation_dropout: Of sub-layer outputs, attention weights, ReLUs.
        norm: Registered name of the residual.
        attention: Registered name of the self-attention.
        attention_window: Positions that one attends to, of a self-attention that takes a `window`; else None.
        seed: Seed of the dropouts; each one in the layer adds its own number.

    Call arguments:
        x: `[batch, source_length, d_model]`.
        attention_mask: bool `[batch, 1, 1, source_length]`, False on padding.
        training: Whether to drop.
        mask, x_mask: bool `[batch, source_length]`, False on padding, combined with `attention_mask`. Keras passes the
            mask of `x` as one of the two: as `x_mask` if `attention_mask` is given.

    Returns:
        `[batch, source_length, d_model]`, with the Keras mask of `x`.

    Raises:
        UserError: `d_k` or `d_v` is missing, and `d_model` is not divisible by `num_heads`.
    """

    def __init__(
        self, d_model, d_ff, num_heads, d_k=None, d_v=None, *, dropout=0.0, attention_dropout=0.0,
        activation_dropout=0.0, norm="post", attention="full", attention_window=None, seed=0, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        self.supports_masking = True
        self._arguments = {
            "d_model": d_model, "d_ff": d_ff, "num_heads": num_heads, "d_k": d_k, "d_v": d_v, "dropout": dropout,
            "attention_dropout": attention_dropout, "activation_dropout": activation_dropout, "norm": norm,
            "attention": attention, "attention_window": attention_window, "seed": seed,
        }  # fmt: skip
        residual, policy = registry.norms.get(norm), self.dtype_policy
        # Passed only where it is given: an attention without a window, built-in or plugged in, need not know of any,
        # and one that is given a window in vain raises.
        window = {} if attention_window is None else {"window": attention_window}
        self.self_attention = registry.attentions.get(attention)(
            d_model, num_heads, d_k, d_v, attention_dropout, seed, dtype=policy, name="self_attention", **window
        )
        self.self_attention_residual = residual(dropout, seed + 1, dtype=policy, name="self_attention_residual")
        self.feed_forward = FeedForward(d_model, d_ff, activation_dropout, seed + 2, dtype=policy, name="feed_forward")
        self.feed_forward_residual = residual(dropout, seed + 3, dtype=policy, name="feed_forward_residual")

    def build(self, input_shape):
        for layer in (self.self_attention, self.self_attention_residual, self.feed_forward, self.feed_forward_residual):
            layer.build(input_shape)

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

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), **self._arguments}


@keras.saving.register_keras_serializable("keras_transformer")
class Encoder(keras.layers.Layer):
    """`num_layers` encoder layers, with a final normalisation where the norm asks for one.

    Args:
        num_layers: N.
        **arguments: `EncoderLayer`'s.

    Call arguments and result: `EncoderLayer`'s.
    """

    layer_class = EncoderLayer
    remat = False
    """Whether training keeps only the inputs of each layer, and computes it once more in the backward pass."""

    def __init__(self, num_layers, d_model, d_ff, num_heads, d_k=None, d_v=None, *, norm="post", seed=0, **arguments):
        base = {name: arguments.pop(name) for name in ("name", "dtype", "trainable") if name in arguments}
        super().__init__(**base)
        self.supports_masking = True
        self._arguments = {
            "num_layers": num_layers, "d_model": d_model, "d_ff": d_ff, "num_heads": num_heads, "d_k": d_k,
            "d_v": d_v, "norm": norm, "seed": seed, **arguments,
        }  # fmt: skip
        self.layers = [
            self.layer_class(
                d_model, d_ff, num_heads, d_k, d_v, norm=norm, seed=seed + 10 * i, dtype=self.dtype_policy,
                name=f"layer_{i + 1}", **arguments,
            )
            for i in range(num_layers)
        ]  # fmt: skip
        self.final_norm = None
        if registry.norms.get(norm).normalizes_stack:
            self.final_norm = LayerNormalization(epsilon=EPSILON, dtype=self.dtype_policy, name="final_norm")

    def build(self, input_shape):
        for layer in self.layers:
            layer.build(input_shape)
        if self.final_norm:
            self.final_norm.build(input_shape)

    def call(self, x, attention_mask=None, training=False, mask=None, x_mask=None):
        # Passed on explicitly: inputs of rematerialized layers carry no Keras masks.
        attention_mask = with_padding(attention_mask, mask, x_mask)
        for layer in self.layers_for(training):
            x = layer(x, attention_mask=attention_mask, training=training)
        return self.normalize(x)

    def layers_for(self, training):
        """Returns what to call, one after the other."""
        return map(rematerialized, self.layers) if self.remat and training else self.layers

    def normalize(self, x):
        """The final normalisation of `[batch, length, d_model]`, where the norm asks for one."""
        return self.final_norm(x) if self.final_norm else x

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), **self._arguments}
