"""Tied embedding (§3.4): one matrix for the source embedding, the target embedding and the projection to logits."""

import keras
from keras import ops

from keras_transformer.layers.initializers import embedding


@keras.saving.register_keras_serializable("keras_transformer")
class TiedEmbedding(keras.layers.Layer):
    """Token embedding, scaled by √d_model, whose matrix also projects states to logits.

    Args:
        vocab_size: Number of tokens.
        d_model: Width of an embedding.
        seed: Seed for the initial weights.
        mask_zero: Whether token 0 is padding. If so, the embeddings have a Keras mask, as with
            `keras.layers.Embedding`.

    Call arguments:
        inputs: int `[batch, length]`, or with `reverse=True` floating point `[..., d_model]`.
        reverse: Whether to project states to logits instead of embedding tokens.

    Returns:
        `[batch, length, d_model]`, or with `reverse=True` `[..., vocab_size]`, with the Keras mask of `inputs`.
    """

    def __init__(self, vocab_size, d_model, seed=None, mask_zero=False, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.vocab_size, self.d_model, self.seed, self.mask_zero = vocab_size, d_model, seed, mask_zero

    def build(self, input_shape=None):
        self.table = self.add_weight(
            name="table", shape=(self.vocab_size, self.d_model), initializer=embedding(self.seed, "table")
        )

    def call(self, inputs, reverse=False):
        if reverse:
            return self._project(inputs)
        vectors = ops.take(self.table, inputs, axis=0)
        return ops.cast(vectors, self.compute_dtype) * self.d_model**0.5

    def logits(self, states):
        """Project states `[..., d_model]` to logits `[..., vocab_size]` in the layer's compute dtype.

        The logits keep the Keras mask of the states.
        """
        return self(states, reverse=True)  # a call of the layer, so that Keras keeps the mask and tracks the weights

    def _project(self, states):
        # TensorFlow multiplies by a transposed array without copying it only if both arrays are matrices.
        rows = ops.reshape(states, (-1, self.d_model))
        logits = ops.matmul(rows, ops.transpose(ops.cast(self.table, states.dtype)))
        return ops.reshape(logits, (*ops.shape(states)[:-1], self.vocab_size))

    def compute_mask(self, inputs, previous_mask=None):
        is_tokens = "int" in keras.backend.standardize_dtype(inputs.dtype)
        return ops.not_equal(inputs, 0) if self.mask_zero and is_tokens else previous_mask

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.d_model)

    def compute_output_spec(self, inputs, reverse=False):
        shape = (*inputs.shape[:-1], self.vocab_size) if reverse else self.compute_output_shape(inputs.shape)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self):
        own = {name: getattr(self, name) for name in ("vocab_size", "d_model", "seed", "mask_zero")}
        return {**super().get_config(), **own}
