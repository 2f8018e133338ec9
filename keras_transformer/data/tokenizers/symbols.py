"""Tokenizer for symbols that are separated by spaces."""

from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, SPECIAL, UNK, Tokenizer, flags, read_list


class SymbolTokenizer(Tokenizer):
    """Tokenizer for texts that consist of symbols separated by spaces. Each symbol in a fixed list has an id."""

    file_name = "symbols.txt"

    def __init__(self, symbols):
        self._symbols = [*SPECIAL, *symbols]
        self._ids = {symbol: i for i, symbol in enumerate(self._symbols) if i >= len(SPECIAL)}
        self.vocab_size = len(self._symbols)

    def encode(self, texts):
        return [[self._ids.get(symbol, UNK) for symbol in text.split()] for text in texts]

    def decode(self, ids):
        return [" ".join(self._symbols[i] for i in row if i not in (PAD, BOS, EOS)) for row in ids]

    def pieces(self, ids):
        return [self._symbols[i] for i in ids]

    @property
    def word_starts(self):
        return flags([i != PAD for i in range(self.vocab_size)])

    @classmethod
    def from_bytes(cls, content):
        return cls(read_list(content))

    def to_bytes(self):
        return "".join(f"{symbol}\n" for symbol in self._symbols[len(SPECIAL) :]).encode()
