"""Tokenizer for symbols that are separated by spaces."""

import numpy as np

from keras_transformer.data.tokenizers.base import PAD, UNK, ListTokenizer, text_ids


class SymbolTokenizer(ListTokenizer):
    """Tokenizer for texts that consist of symbols separated by spaces. Each symbol in a fixed list has an id."""

    file_name = "symbols.txt"

    def encode(self, texts):
        return [[self._ids.get(symbol, UNK) for symbol in text.split()] for text in texts]

    def decode(self, ids):
        return [" ".join(self.pieces(text_ids(row))) for row in ids]

    @property
    def word_starts(self):
        return np.array([i != PAD for i in range(self.vocab_size)], "float32")
