"""The bracket in which each symbol of a tree stands, told to the decoder; not the paper's.

For targets that are trees in brackets. In which constituent a symbol stands is certain from the symbols before it, and
hard to see for self-attention, which would have to pair brackets over any distance. Parsers that keep a stack are told
its top (Dyer et al. 2016, "Recurrent Neural Network Grammars"); Astudillo et al. 2020, "Transition-based Parsing with
Stack-Transformers", let heads see the stack alone. Here that bracket is a summand of the decoder's input, beside the
symbol and its position: one more product of matrices a symbol, and nothing that a search has to keep.
"""

import keras
from keras import ops

from keras_transformer.data.tokenizer import PAD
from keras_transformer.layers.initializers import projection


def parents(tokens, changes):
    """Returns the bracket in which each symbol stands, int32, shaped as `tokens`; PAD where it stands in none.

    A bracket's own is the one around its constituent, of `)NP` in `(S (NP PRP )NP` it is `(S`, as of `(NP`.

    Args:
        tokens: int `[…, length]`.
        changes: `[vocab_size]`: 1 for brackets that open, −1 for those that close, 0 for other tokens.
    """
    opens, depths = _opens_and_depths(tokens, changes)
    around = depths - ops.cast(opens, "int32")
    place = ops.arange(ops.shape(tokens)[-1])
    candidates = _led_to(around[..., :, None], opens[..., None, :], depths[..., None, :]) & (place <= place[:, None])
    return _last(ops.expand_dims(tokens, -2), candidates)


def parent_of_last(tokens, changes):
    """Returns the bracket in which the last symbol stands, int32 `[…]`; see `parents`.

    Args:
        tokens: int `[…, length]`: symbols, then padding.
        changes: As of `parents`.
    """
    opens, depths = _opens_and_depths(tokens, changes)
    count = ops.sum(ops.cast(tokens != PAD, "int32"), axis=-1, keepdims=True)
    is_last = ops.arange(1, ops.shape(tokens)[-1] + 1, dtype="int32") == count
    around = depths[..., -1:] - ops.sum(ops.cast(opens & is_last, "int32"), axis=-1, keepdims=True)
    return _last(tokens, _led_to(around, opens, depths))


def _opens_and_depths(tokens, changes):
    """Which tokens open a bracket, and how many brackets are open behind each."""
    change = ops.cast(ops.take(changes, tokens), "int32")
    return change > 0, ops.cumsum(change, axis=-1)


def _led_to(depth, opens, depths):
    """Which tokens opened a bracket of this depth. The last one is open still: after its end none is so deep."""
    return opens & (depths == depth)


def _last(tokens, candidates):
    """The last candidate of `[…, length]` tokens, int32 `[…]`; PAD where there is none."""
    place = ops.arange(1, ops.shape(candidates)[-1] + 1, dtype="int32")
    last = ops.max(ops.where(candidates, place, 0), axis=-1, keepdims=True)
    return ops.sum(ops.where(candidates & (place == last), ops.cast(tokens, "int32"), PAD), axis=-1)


@keras.saving.register_keras_serializable("keras_transformer")
class ParentEmbedding(keras.layers.Layer):
    """Projects the embeddings of symbols' parents: EW, zero where there is no parent.

    Args:
        d_model: Width of an embedding.
        seed: Seed of the initial weights.

    Call arguments:
        parents: int `[…]`, as `parents` returns them.
        vectors: `[…, d_model]`, their embeddings.

    Returns:
        `[…, d_model]`.
    """

    def __init__(self, d_model, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.d_model, self.seed = d_model, seed

    def build(self, input_shape=None):
        self.kernel = self.add_weight(
            name="kernel", shape=(self.d_model, self.d_model), initializer=projection(self.seed, "kernel")
        )

    def call(self, parents, vectors):
        vectors = vectors * ops.cast(parents != PAD, vectors.dtype)[..., None]
        return ops.matmul(vectors, ops.cast(self.kernel, vectors.dtype))

    def compute_output_shape(self, parents_shape, vectors_shape=None):
        return (*parents_shape, self.d_model)

    def get_config(self):
        return {**super().get_config(), "d_model": self.d_model, "seed": self.seed}
