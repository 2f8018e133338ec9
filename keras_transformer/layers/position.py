"""Positional encodings (§3.5)."""

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.initializers import embedding
from keras_transformer.utils.errors import UserError


class Positions(keras.layers.Layer):
    """Base class of positional encodings. Subclasses implement `encode(positions)`.

    Args:
        d_model: Width of an encoding.
        max_length: Number of different encodings, for subclasses that limit this number.
        seed: Seed for the initial weights, if the subclass has any.

    Call arguments:
        inputs: Positions, int `[length]`, counted from 0; or embeddings `[batch, length, d_model]`.

    Returns:
        For positions, their encodings `[length, d_model]`. For embeddings, the sum of embeddings and encodings
        `[batch, length, d_model]`, with the Keras mask of the embeddings.

    Raises:
        UserError: The inputs have neither of the two shapes.
    """

    def __init__(self, d_model, max_length=None, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.d_model, self.max_length, self.seed = d_model, max_length, seed

    def call(self, inputs):
        if _are_positions(inputs.shape):
            return self.encode(inputs)
        return inputs + self.encode(ops.arange(ops.shape(inputs)[1]))

    def encode(self, positions):
        """Return the encodings `[length, d_model]` of positions, int `[length]`."""
        raise NotImplementedError

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.d_model) if _are_positions(input_shape) else tuple(input_shape)

    def get_config(self):
        own = {"d_model": self.d_model, "max_length": self.max_length, "seed": self.seed}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable("keras_transformer")
class SinusoidalPositions(Positions):
    """Sinusoidal positional encoding, interleaved and computed in float32 (§3.5).

    PE(pos, 2i) = sin(pos / 10000^(2i/d_model)) and PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model)). The encoding is
    also defined for positions beyond the longest training sequence.

    Args:
        d_model: Width of an encoding. Must be even.
        max_length, seed: Unused.

    The call arguments and result are the same as for `Positions`.

    Raises:
        UserError: `d_model` is odd.
    """

    def build(self, input_shape=None):
        if self.d_model % 2:
            raise UserError(f"sinusoidal positions need an even d_model, got {self.d_model}. Change d_model.")
        self.frequencies = (10000.0 ** (-np.arange(0, self.d_model, 2) / self.d_model)).astype("float32")

    def encode(self, positions):
        angles = ops.cast(positions, "float32")[:, None] * self.frequencies
        pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
        return ops.cast(ops.reshape(pairs, (-1, self.d_model)), self.compute_dtype)


@keras.saving.register_keras_serializable("keras_transformer")
class LearnedPositions(Positions):
    """Learned positional embedding (Table 3, row E).

    Args:
        d_model: Width of an embedding.
        max_length: Number of embeddings. All positions ≥ `max_length` share the last embedding.
        seed: Seed for the initial weights.

    The call arguments and result are the same as for `Positions`.
    """

    def __init__(self, d_model, max_length, seed=None, **kwargs):
        super().__init__(d_model, max_length, seed, **kwargs)

    def build(self, input_shape=None):
        self.table = self.add_weight(
            name="table", shape=(self.max_length, self.d_model), initializer=embedding(self.seed, "positions")
        )

    def encode(self, positions):
        rows = ops.take(self.table, ops.minimum(positions, self.max_length - 1), axis=0)
        # Scaled like the token embeddings (§3.4).
        return ops.cast(rows, self.compute_dtype) * self.d_model**0.5


def _are_positions(shape):
    """Return True if inputs of this shape are positions, and False if they are embeddings."""
    if len(shape) not in (1, 3):
        raise UserError(
            "the input must be integer positions of shape [length] or embeddings of shape [batch, length, d_model], "
            f"got shape {tuple(shape)}. "
            "Embed the tokens first."
        )
    return len(shape) == 1
