"""Subword tokenizer with a SentencePiece model, by default byte-pair encoding (§5.1)."""

import functools
import random

import numpy as np

from keras_transformer.data.language_tags import vocabulary_tags
from keras_transformer.data.placeholders import placeholder_ids
from keras_transformer.data.tokenizers.base import BOS, EOS, SPECIAL, Tokenizer, no_byte_pairs, text_ids
from keras_transformer.data.tokenizers.vocabulary import VocabularyOptions, learn_model

THREADED = 32
"""Minimum number of items for which to start threads. Starting them takes longer than processing fewer items."""


class SentencePieceTokenizer(Tokenizer):
    """Subword tokenizer with a SentencePiece model.

    Args:
        model: Bytes of the model file.
    """

    file_name = "tokenizer.model"

    def __init__(self, model):
        import sentencepiece

        if not model:  # SentencePiece would treat empty bytes as a missing argument
            raise RuntimeError("the model file is empty")
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.vocab_size = self._processor.get_piece_size()
        pieces = self.pieces(range(self.vocab_size))
        self.tags, self.placeholders = vocabulary_tags(pieces), placeholder_ids(pieces)

    @classmethod
    def train(cls, texts, vocab_size, options=None):
        """Learn a vocabulary, by default with byte-pair encoding (§5.1).

        Args:
            texts: Iterable of sentences. For a joint vocabulary, they must include both sides.
            vocab_size: Number of pieces, including the four special ones.
            options: `VocabularyOptions` in which no value is None.

        Raises:
            UserError: The vocabulary is too large or too small for the texts.
            Exception: Any exception from the iteration over `texts`.
        """
        return cls(learn_model(texts, vocab_size, options or VocabularyOptions()))

    def encode(self, texts):
        return self._each(self._processor.encode, list(texts))

    def resegment(self, ids, rate, seed):
        rng = random.Random(seed)
        return [self._dropout(row, rate, rng) for row in ids]

    @functools.cached_property
    def _dropout(self):
        from keras_transformer.data.tokenizers.bpe_dropout import BPEDropout

        numbers = range(self.vocab_size)
        scores = [self._processor.get_score(i) for i in numbers]
        if not all(map(float.is_integer, scores)):  # the scores of BPE are integer ranks
            raise no_byte_pairs("this SentencePiece model")
        if any(map(self._processor.is_byte, numbers)):
            raise no_byte_pairs("a SentencePiece model with byte fallback")
        # Pieces that were not learned, such as `symbols`, have score 0, and so does the first learned piece after them.
        given = [i for i in numbers if not scores[i]][:-1]
        return BPEDropout(self.pieces(numbers), scores, self.word_starts, {*range(len(SPECIAL)), *given})

    def decode(self, ids):
        return self._each(self._processor.decode, [*map(text_ids, ids)])

    @staticmethod
    def _each(function, items):
        """Apply a function of SentencePiece to each item, and return the list of results."""
        if len(items) >= THREADED:
            return function(items)
        return [function(item) for item in items]

    def pieces(self, ids):
        return [self._processor.id_to_piece(int(i)) for i in ids]

    @classmethod
    def from_bytes(cls, content):
        return cls(content)

    def to_bytes(self):
        return self._model

    @property
    def word_starts(self):
        pieces = self.pieces(range(self.vocab_size))
        return np.array([i in (BOS, EOS) or piece[0] == "▁" for i, piece in enumerate(pieces)], "float32")

    @property
    def hidden_ids(self):
        """Replacement ids for word dropout (see `Tokenizer.hidden_ids`).

        Pieces that begin a word become "▁" instead of UNK, because the pieces of an unknown word begin with "▁". Word
        dropout does not change language tags.
        """
        ids, blank = super().hidden_ids, self._processor.piece_to_id("▁")
        begins = self.word_starts == 1
        begins[[BOS, EOS]] = False
        ids[begins] = blank
        tags = [self._processor.piece_to_id(tag) for tag in self.tags.values()]
        ids[tags] = tags
        return ids
