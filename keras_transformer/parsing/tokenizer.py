"""Tokenizer with one vocabulary for sentences and trees: subwords, brackets and tags."""

import functools
import unicodedata

import numpy as np

from keras_transformer.data.tokenizers.base import EOS, UNK, no_byte_pairs, text_ids
from keras_transformer.data.tokenizers.errors import VocabularyTooLarge
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.vocabulary import VocabularyOptions
from keras_transformer.parsing.constraint import TreeConstraint
from keras_transformer.parsing.grammar import OTHER, TAG, Grammar
from keras_transformer.parsing.linearize import ANY_TAG, is_bracket, linearize, repaired
from keras_transformer.parsing.tree import tree_of, unescaped
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.text import split_words

OPEN, CLOSE = "⟪", "⟫"
"""Delimiters of brackets and tags in the vocabulary: ⟪NN⟫ is a tag, NN a subword. In sentences, << >> replace ⟪ ⟫."""

AROUND = {OPEN: "<<", CLOSE: ">>"}
BLANK = "▁\ufffd"  # SentencePiece treats these characters as spaces
ALIKE = {"``": '"', "''": '"'}  # {quotation mark in the Penn Treebank: its form in other treebanks}


class TreeTokenizer(SentencePieceTokenizer):
    """Tokenizer that encodes sentences as subwords, and trees as the symbols of `linearize`.

    Decoding a tree requires its sentence, which provides the words.

    Attributes:
        symbols: {symbol: id} for brackets and tags.
    """

    file_name = "tree_tokenizer.model"

    def __init__(self, model):
        super().__init__(model)
        pieces = enumerate(self.pieces(range(self.vocab_size)))
        self.symbols = {piece[1:-1]: i for i, piece in pieces if piece[0] == OPEN and piece[-1] == CLOSE}
        self._names = {i: symbol for symbol, i in self.symbols.items()}
        if not self.symbols:
            raise RuntimeError("the model file has no brackets and tags")

    @classmethod
    def train(cls, sentences, symbols, vocab_size):
        """Learn subwords and return a tokenizer. With few sentences, the vocabulary is smaller than `vocab_size`.

        Args:
            sentences: Iterable of sentences.
            symbols: Set of brackets and tags. The vocabulary contains both brackets of each label.
            vocab_size: Maximum number of tokens, including special tokens and symbols.

        Raises:
            UserError: The vocabulary is too small for the characters and symbols, or there are no sentences.
        """
        texts = [_plain(sentence) for sentence in sentences]
        pieces = [f"{OPEN}{symbol}{CLOSE}" for symbol in _in_order(symbols)]
        options = VocabularyOptions(normalization="nfkc", symbols=tuple(pieces))
        try:
            return super().train(iter(texts), vocab_size, options)
        except VocabularyTooLarge as error:
            return super().train(iter(texts), error.largest, options)

    @property
    def tagged(self):
        """True if trees have tags other than XX."""
        return any(not is_bracket(symbol) and symbol != ANY_TAG for symbol in self.symbols)

    @functools.cached_property
    def grammar(self):
        """The `Grammar` of the symbols."""
        return Grammar(self.symbols, self.vocab_size, EOS)

    @functools.cached_property
    def constraint(self):
        """The `TreeConstraint` of the grammar."""
        return TreeConstraint(self.grammar)

    def resegment(self, ids, rate, seed):
        raise no_byte_pairs(f"a {type(self).__name__}")

    @property
    def word_starts(self):
        """See `Tokenizer`. Each tag also begins a word."""
        return np.maximum(super().word_starts, self.grammar.kinds == TAG).astype("float32")

    @property
    def display_word_starts(self):
        """See `Tokenizer`. Each bracket and each tag also begins a word."""
        return np.maximum(super().word_starts, self.grammar.kinds != OTHER).astype("float32")

    def encode(self, texts):
        return super().encode([_plain(text) for text in texts])

    def encode_targets(self, texts):
        """Return the ids of bracketed trees, without BOS and EOS. An empty text has no ids.

        Raises:
            UserError: A text is not exactly one tree.
        """
        trees = [tree_of(text) if text.strip() else None for text in texts]
        rows = [linearize(tree, self.tagged) if tree else [] for tree in trees]
        return [[self.symbols.get(symbol, UNK) for symbol in row] for row in rows]

    def encode_prefixes(self, texts):
        """Return the ids of prefixes such as `(S (NP PRP`, in which spaces separate the symbols.

        Raises:
            UserError: A symbol is not in the vocabulary, no tree begins with the prefix, or the prefix is a whole tree.
        """
        return [self._prefix(text) for text in texts]

    def _prefix(self, text):
        ids, many = [], 10_000  # assume a very long sentence, because its length is unknown here
        for symbol in text.split():
            if symbol not in self.symbols:
                raise UserError(
                    f"{symbol!r} is not a bracket or tag in the vocabulary. Write a prefix such as (S (NP PRP."
                )
            if not self.grammar.allowed(ids, many, 4 * many)[self.symbols[symbol]]:
                raise UserError(
                    f"no unfinished tree begins with {text!r}, because {symbol!r} is not allowed as symbol "
                    f"{len(ids) + 1}. Change the prefix."
                )
            ids.append(self.symbols[symbol])
        return ids

    def decode(self, ids):
        """Return a text for each sequence: its symbols separated by spaces, or a sentence if any id is a subword."""
        return [
            " ".join(self._names[i] for i in row) if set(row) <= self._names.keys() else words
            for row, words in zip(map(text_ids, ids), super().decode(ids))
        ]

    def decode_outputs(self, sources, ids):
        """Return each sequence as a bracketed tree over the words of its source, or "" for a source without words.

        `linearize.repaired` converts any sequence to a tree. An empty sequence becomes a flat tree.
        """
        return [
            str(repaired([self._names[i] for i in row if i in self._names], words)) if words else ""
            for row, words in zip(map(text_ids, ids), map(split_words, sources))
        ]


def _in_order(symbols):
    """Return the brackets sorted by label, followed by the sorted tags."""
    labels = sorted({symbol[1:] for symbol in symbols if is_bracket(symbol)})
    return [bracket + label for label in labels for bracket in "()"] + sorted(s for s in symbols if not is_bracket(s))


def _plain(text):
    """Normalize words, and unify the treebanks' spellings of brackets, quotes and slashes. Keep the number of words."""
    words = (unescaped(word).replace("\\/", "/") for word in split_words(text.translate(str.maketrans(AROUND))))
    return " ".join(_visible(ALIKE.get(word, word)) for word in words)


def _visible(word):
    """Normalize a word to NFKC without spaces, control and format characters, or return "?" if nothing remains."""
    if word.isascii() and word.isprintable():
        return word
    kept = (c for c in unicodedata.normalize("NFKC", word) if unicodedata.category(c)[0] not in "ZC" and c not in BLANK)
    return "".join(kept) or "?"
