"""Base classes of the encoder and decoder (§3.1), stacks of layers with residual connections."""

import keras

from keras_transformer.config import registry
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.normalization import LayerNormalization
from keras_transformer.layers.remat import rematerialized
from keras_transformer.layers.residual import EPSILON


def offset_seed(seed, offset):
    """Return seed + offset, or None for a random seed if `seed` is None."""
    return None if seed is None else seed + offset


class StackLayer(keras.layers.Layer):
    """Base class of `EncoderLayer` and `DecoderLayer`, which combine attention and a feed-forward network (§3.1).

    A subclass creates its sublayers in `__init__`, in the order in which it calls them.

    Args:
        d_model, d_ff, num_heads: Sizes, as in the paper.
        d_k, d_v: Widths of the keys and values of a head (default: d_model / num_heads).
        dropout, attention_dropout, activation_dropout: Dropout rates of the sublayers' outputs, of the attention
            weights and inside the feed-forward network.
        activation: Name of the feed-forward network's activation.
        norm: Registered name of the residual connection.
        use_bias: Whether the attention projections have biases.
        seed: Seed for the initial weights and dropout, or None for a random seed. Each sublayer and each residual adds
            its own offset.

    Raises:
        UserError: `d_k` or `d_v` is missing, and `d_model` is not divisible by `num_heads`.
    """

    def __init__(
        self, d_model, d_ff, num_heads, d_k=None, d_v=None, *, dropout=0.0, attention_dropout=0.0,
        activation_dropout=0.0, activation="relu", norm="post", use_bias=False, seed=None, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        self.supports_masking = True
        self._arguments = {
            "d_model": d_model, "d_ff": d_ff, "num_heads": num_heads, "d_k": d_k, "d_v": d_v, "dropout": dropout,
            "attention_dropout": attention_dropout, "activation_dropout": activation_dropout,
            "activation": activation, "norm": norm, "use_bias": use_bias, "seed": seed,
        }  # fmt: skip
        self._sublayers = []  # names of the attributes that contain the sublayers and their residuals

    def add_attention(self, name, attention_class, **arguments):
        """Return a new attention layer and its residual connection."""
        sizes = [self._arguments[argument] for argument in ("d_model", "num_heads", "d_k", "d_v", "attention_dropout")]
        if self._arguments["use_bias"]:  # some attention classes do not accept `use_bias`
            arguments["use_bias"] = True
        return self._add(name, attention_class, *sizes, **arguments)

    def add_feed_forward(self):
        """Return a new feed-forward network and its residual connection."""
        sizes = [self._arguments[argument] for argument in ("d_model", "d_ff", "activation_dropout")]
        return self._add("feed_forward", FeedForward, *sizes, activation=self._arguments["activation"])

    def _add(self, name, layer_class, *args, **arguments):
        seeds = [offset_seed(self._arguments["seed"], len(self._sublayers) + i) for i in range(2)]
        policy = self.dtype_policy
        layer = layer_class(*args, seed=seeds[0], dtype=policy, name=name, **arguments)
        residual_class = registry.norms.get(self._arguments["norm"])
        residual = residual_class(self._arguments["dropout"], seeds[1], dtype=policy, name=f"{name}_residual")
        self._sublayers += [layer.name, residual.name]
        return layer, residual

    def build(self, input_shape):
        for name in self._sublayers:
            layer = getattr(self, name)
            if type(layer).build is not keras.layers.Layer.build:  # if it is, the first call builds the layer
                layer.build(input_shape)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), **self._arguments}


class Stack(keras.layers.Layer):
    """Base class of `Encoder` and `Decoder`, with a final normalization if `norm` requires one, as pre-norm does.

    Args:
        num_layers: Number of layers, N.
        **arguments: Arguments of each layer. Layer i adds 10 · i to the seed.
    """

    layer_class: type[StackLayer]
    remat = False
    """Whether training recomputes each layer in the backward pass instead of keeping its activations."""

    def __init__(
        self, num_layers, d_model, d_ff, num_heads, d_k=None, d_v=None, *, norm="post", seed=None, **arguments
    ):
        base = {name: arguments.pop(name) for name in ("name", "dtype", "trainable") if name in arguments}
        super().__init__(**base)
        self.supports_masking = True
        arguments |= {"d_model": d_model, "d_ff": d_ff, "num_heads": num_heads, "d_k": d_k, "d_v": d_v, "norm": norm}
        self._arguments = {"num_layers": num_layers, "seed": seed, **arguments}
        self.layers = [
            self.layer_class(
                **arguments, seed=offset_seed(seed, 10 * i), dtype=self.dtype_policy, name=f"layer_{i + 1}"
            )
            for i in range(num_layers)
        ]
        self.final_norm = None
        if registry.norms.get(norm).normalizes_stack:
            self.final_norm = LayerNormalization(epsilon=EPSILON, dtype=self.dtype_policy, name="final_norm")

    def build(self, input_shape):
        for layer in self.layers:
            layer.build(input_shape)
        if self.final_norm:
            self.final_norm.build(input_shape)

    def layers_for(self, training):
        """Return the layers as functions, rematerialized in training if `remat` is set."""
        return map(rematerialized, self.layers) if self.remat and training else self.layers

    def normalize(self, x):
        """Apply the final normalization, if there is one, to `[batch, length, d_model]`."""
        return self.final_norm(x) if self.final_norm else x

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), **self._arguments}
