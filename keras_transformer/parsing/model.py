"""Transformer with word-aligned cross-attention heads, which are not in the paper."""

import keras
from keras import ops

from keras_transformer.data.tokenizers.base import PAD
from keras_transformer.models.transformer import Transformer
from keras_transformer.utils.errors import UserError


@keras.saving.register_keras_serializable("keras_transformer")
class WordAlignedTransformer(Transformer):
    """Transformer whose first cross-attention heads see only the current source word.

    The model is for targets with one special token per source word, such as linearized trees with one tag per word. The
    number of special tokens so far is the index of the current word. The other heads see the whole source. The model
    has no additional trainable weights.

    The arguments, call arguments and result are the same as for `Transformer`. Call `adopt` with the tokenizer before
    training. `from_hparams`, `Translator` and `train` call it automatically.

    Attributes:
        word_heads: Number of word-aligned heads in each decoder layer.

    Raises:
        UserError: There are fewer than `word_heads` heads. See also `Transformer`.

    References:
        Ma et al., "Deterministic Attention for Sequence-to-Sequence Constituent Parsing" (2017), whose decoder also
        moves from word to word.
    """

    word_heads = 1

    def build(self, input_shape=None):
        if self.built:
            return
        if (heads := self.hparams.num_heads) < self.word_heads:
            raise UserError(f"num_heads must be at least {self.word_heads} in a {type(self).__name__}, got {heads}")
        self.word_starts = self.add_weight(
            name="word_starts", shape=(self.vocab_size,), initializer="zeros", trainable=False, dtype="float32"
        )
        super().build(input_shape)

    @property
    def vocabulary_tables(self):
        return [self.word_starts]

    def adopt(self, tokenizer):
        """Store the tokenizer's table of tokens that begin a word. Checkpoints include this table.

        Raises:
            UserError: The tokenizer does not provide this table.
        """
        if (starts := tokenizer.word_starts) is None:
            raise UserError(
                f"{type(self).__name__} needs a tokenizer with word_starts, got a {type(tokenizer).__name__}. "
                "Use --model=transformer."
            )
        self.word_starts.assign(starts)

    def memory_mask(self, source, decoder_input):
        return self._mask(source, self._word_indices(decoder_input))

    def step_memory_mask(self, source, tokens):
        return self._mask(source, ops.sum(self._begun(tokens), axis=2))

    def _mask(self, source, current):
        """Return a memory mask, bool `[batch, heads, targets, source_length]`.

        Args:
            source: int `[batch, source_length]`.
            current: int `[batch, targets]`, the index of the current word. Indices past the end select the last word.
        """
        words = ops.where(source != PAD, self._word_indices(source), -1)
        current = ops.minimum(current, ops.max(words, axis=1, keepdims=True))
        same = ops.equal(current[:, :, None], words[:, None, :])[:, None]  # `==` on symbolic tensors compares identity
        free = (ops.arange(self.hparams.num_heads) >= self.word_heads)[:, None, None]
        return (words >= 0)[:, None, None] & (same | free)

    def _word_indices(self, tokens):
        """Return the index of each token's word, int32 `[batch, length]`. The first token always belongs to word 0."""
        numbers = ops.cumsum(self._begun(tokens), axis=1)
        return numbers - numbers[:, :1]

    def _begun(self, tokens):
        """Return an int32 array of the shape of `tokens`, 1 for tokens that begin a word and 0 for others."""
        return ops.cast(ops.take(self.word_starts, tokens), "int32")
