"""Residual connections with normalization and dropout (§3.1, §5.4)."""

import keras

from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.normalization import LayerNormalization
from keras_transformer.utils.errors import UserError

EPSILON = 1e-6
"""The ε of layer normalization. The paper does not specify it."""


class Residual(keras.layers.Layer):
    """Base class of residual connections with dropout and normalization, selected by the hyperparameter `norm`.

    Args:
        dropout: Dropout rate of the sublayer's output.
        seed: Seed for dropout.

    Call arguments:
        x: `[batch, length, d_model]`.
        sublayer: Function that maps an array `[batch, length, d_model]` to an array of the same shape.
        training: Whether to apply dropout.

    Returns:
        `[batch, length, d_model]`.

    Raises:
        UserError: `x` is a tensor of a functional model, which would not train the layers that `sublayer` calls.
    """

    normalizes_stack = False
    """Whether a stack of layers with this residual connection needs a final normalization."""
    epsilon = EPSILON

    def __init__(self, dropout=0.0, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.seed = seed
        self.dropout = Dropout(dropout, seed, dtype=self.dtype_policy, name="dropout")
        self.normalization = LayerNormalization(epsilon=self.epsilon, dtype=self.dtype_policy, name="normalization")

    def __call__(self, x, sublayer, **arguments):
        if isinstance(x, keras.KerasTensor):
            name = type(self).__name__
            raise UserError(
                f"{name} cannot be called on a tensor of a functional model, which would not train the layers in the "
                f"sublayer. Call {name} in the `call` method of your own layer or model."
            )
        return super().__call__(x, sublayer=sublayer, **arguments)

    def build(self, input_shape):
        self.dropout.build()
        self.normalization.build(input_shape)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout.rate, "seed": self.seed}


@keras.saving.register_keras_serializable("keras_transformer")
class PostNorm(Residual):
    """Post-norm residual LayerNorm(x + Dropout(Sublayer(x))), as in the paper."""

    def call(self, x, sublayer, training=False):
        return self.normalization(x + self.dropout(sublayer(x), training=training))


@keras.saving.register_keras_serializable("keras_transformer")
class PreNorm(Residual):
    """Pre-norm residual x + Dropout(Sublayer(LayerNorm(x))), as in later versions of tensor2tensor."""

    normalizes_stack = True

    def call(self, x, sublayer, training=False):
        return x + self.dropout(sublayer(self.normalization(x)), training=training)
