"""Position-wise feed-forward network (§3.3)."""

import keras

from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.initializers import projection
from keras_transformer.layers.matmul import matmul


@keras.saving.register_keras_serializable("keras_transformer")
class FeedForward(keras.layers.Layer):
    """Position-wise feed-forward network FFN(x) = max(0, xW₁ + b₁)W₂ + b₂, equation 2.

    Args:
        d_model: Width of the input and output.
        d_ff: Width of the hidden layer.
        dropout: Dropout rate after the activation (0 in the paper).
        seed: Seed for the initial weights and dropout.
        activation: Name of a Keras activation (ReLU in the paper).

    Call arguments:
        x: `[..., d_model]`.
        training: Whether to apply dropout.

    Returns:
        `[..., d_model]`.
    """

    def __init__(self, d_model, d_ff, dropout=0.0, seed=None, activation="relu", **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.d_model, self.d_ff, self.seed, self.activation = d_model, d_ff, seed, activation
        self._activate = keras.activations.get(activation)
        self.dropout = Dropout(dropout, seed, dtype=self.dtype_policy, name="dropout")

    def build(self, input_shape=None):
        def kernel(name, rows, columns):
            return self.add_weight(name=name, shape=(rows, columns), initializer=projection(self.seed, name))

        self.kernel_1 = kernel("kernel_1", self.d_model, self.d_ff)
        self.bias_1 = self.add_weight(name="bias_1", shape=(self.d_ff,), initializer="zeros")
        self.kernel_2 = kernel("kernel_2", self.d_ff, self.d_model)
        self.bias_2 = self.add_weight(name="bias_2", shape=(self.d_model,), initializer="zeros")
        self.dropout.build()

    def call(self, x, training=False):
        hidden = self._activate(matmul(x, self.kernel_1, training) + self.bias_1)
        hidden = self.dropout(hidden, training=training)
        return matmul(hidden, self.kernel_2, training) + self.bias_2

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        own = {name: getattr(self, name) for name in ("d_model", "d_ff", "seed", "activation")}
        return {**super().get_config(), **own, "dropout": self.dropout.rate}
