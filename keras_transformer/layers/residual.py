"""§3.1 and §5.4: how a sub-layer's output joins the residual stream."""

import keras

from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.normalization import LayerNormalization

EPSILON = 1e-6
"""Layer normalisation's ε; the paper gives none."""


class Residual(keras.layers.Layer):
    """Base of the norms that hparams choose by name: a sub-layer with dropout, residual and normalisation.

    Args:
        dropout: Dropout of the sub-layer's output.
        seed: Seed of that dropout.

    Call arguments:
        x: `[batch, length, d_model]`, the stream.
        sublayer: Function of `[batch, length, d_model]` with the same shape as result.
        training: Whether to drop.

    Returns:
        `[batch, length, d_model]`.
    """

    normalizes_stack = False
    """Whether a stack of layers ends with one more normalisation."""

    def __init__(self, dropout=0.0, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.seed = seed
        self.dropout = Dropout(dropout, seed, dtype=self.dtype_policy, name="dropout")
        self.normalization = LayerNormalization(epsilon=EPSILON, dtype=self.dtype_policy, name="normalization")

    def build(self, input_shape):
        self.dropout.build()
        self.normalization.build(input_shape)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout.rate, "seed": self.seed}


@keras.saving.register_keras_serializable("keras_transformer")
class PostNorm(Residual):
    """LayerNorm(x + Dropout(Sublayer(x))), as in the paper."""

    def call(self, x, sublayer, training=False):
        return self.normalization(x + self.dropout(sublayer(x), training=training))


@keras.saving.register_keras_serializable("keras_transformer")
class PreNorm(Residual):
    """x + Dropout(Sublayer(LayerNorm(x))), tensor2tensor's later order; a stack ends with a normalisation."""

    normalizes_stack = True

    def call(self, x, sublayer, training=False):
        return x + self.dropout(sublayer(self.normalization(x)), training=training)
