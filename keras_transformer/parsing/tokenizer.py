"""One vocabulary for sentences and their trees: subwords, and brackets and tags as whole pieces."""

import functools
import unicodedata

import numpy as np

from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, UNK, VocabularyTooLarge, no_byte_pairs
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.vocabulary import VocabularyOptions
from keras_transformer.parsing.constraint import TreeConstraint
from keras_transformer.parsing.grammar import OTHER, TAG, Grammar
from keras_transformer.parsing.linearize import ANY_TAG, is_bracket, linearize, repaired
from keras_transformer.parsing.tree import tree_of, unescaped
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.text import split_words

OPEN, CLOSE = "⟪", "⟫"
"""Around a symbol where it is a piece, so "NN" as a tag is no subword: words are read with << and >> for these."""

AROUND = {OPEN: "<<", CLOSE: ">>"}
ALIKE = {"``": '"', "''": '"'}  # as other treebanks write the Penn Treebank's quotation marks


class TreeTokenizer(SentencePieceTokenizer):
    """Sentences as subwords, trees as `linearize` writes them; a tree comes back with the words of its sentence.

    Attributes:
        symbols: {symbol: id}: brackets and tags.
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
        """Learn subwords; the vocabulary is smaller than asked for where the sentences cannot fill it.

        Args:
            sentences: Iterable of sentences.
            symbols: Set of brackets and tags; each label gets both brackets.
            vocab_size: Most pieces, the special ones and the symbols included.

        Raises:
            UserError: The vocabulary is too small for the characters and symbols, or there is no sentence.
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
        """Whether trees have parts of speech, and not XX for all; XX may be one of several, as of a flat tree."""
        return any(not is_bracket(symbol) and symbol != ANY_TAG for symbol in self.symbols)

    @functools.cached_property
    def grammar(self):
        """The `Grammar` of the symbols: what may come next in a tree."""
        return Grammar(self.symbols, self.vocab_size, EOS)

    @functools.cached_property
    def constraint(self):
        """The `TreeConstraint` of the grammar."""
        return TreeConstraint(self.grammar)

    def resegment(self, ids, rate, seed):
        raise no_byte_pairs(f"a {type(self).__name__}")

    @property
    def word_starts(self):
        """See `Tokenizer`: a tag begins a word, too, the one that it belongs to."""
        return np.maximum(super().word_starts, self.grammar.kinds == TAG).astype("float32")

    @property
    def display_word_starts(self):
        """See `Tokenizer`: each bracket and tag is a word."""
        return np.maximum(super().word_starts, self.grammar.kinds != OTHER).astype("float32")

    def encode(self, texts):
        return super().encode([_plain(text) for text in texts])

    def encode_targets(self, texts):
        """Return the ids of trees, texts in brackets, without BOS and EOS; of an empty text, none.

        Raises:
            UserError: A text is not one tree.
        """
        trees = [tree_of(text) if text.strip() else None for text in texts]
        rows = [linearize(tree, self.tagged) if tree else [] for tree in trees]
        return [[self.symbols.get(symbol, UNK) for symbol in row] for row in rows]

    def encode_prefixes(self, texts):
        """Return the ids of symbols between blanks: `(S (NP PRP`.

        Raises:
            UserError: One is none of the vocabulary's, or no tree begins so.
        """
        return [self._prefix(text) for text in texts]

    def _prefix(self, text):
        ids, many = [], 10_000  # words, and room for symbols
        for symbol in text.split():
            if symbol not in self.symbols:
                raise UserError(f"{symbol!r} is no bracket or tag of this vocabulary; a tree begins as (S (NP PRP")
            if not self.grammar.allowed(ids, many, 4 * many)[self.symbols[symbol]]:
                raise UserError(f"no tree begins with {text!r}: {symbol!r} cannot stand there")
            ids.append(self.symbols[symbol])
        return ids

    def decode(self, ids):
        """Return the text of each sequence: symbols between blanks, and words of what is not one symbol alone."""
        return [
            " ".join(self._names[i] for i in row) if set(row) <= self._names.keys() else words
            for row, words in zip(_without_special(ids), super().decode(ids))
        ]

    def decode_outputs(self, sources, ids):
        """Return the tree of each sequence, in brackets, over the words of its source; "" where there are none.

        What is no tree is made one, see `linearize.repaired`; of no symbols comes a flat one.
        """
        return [
            str(repaired([self._names[i] for i in row if i in self._names], words)) if words else ""
            for row, words in zip(_without_special(ids), map(split_words, sources))
        ]


def _in_order(symbols):
    """Brackets by label, then tags."""
    labels = sorted({symbol[1:] for symbol in symbols if is_bracket(symbol)})
    return [bracket + label for label in labels for bracket in "()"] + sorted(s for s in symbols if not is_bracket(s))


def _plain(text):
    """The words of a sentence as all treebanks are made to write them, so that they share subwords, and as many."""
    words = (unescaped(word).replace("\\/", "/") for word in split_words(text.translate(str.maketrans(AROUND))))
    return " ".join(_visible(ALIKE.get(word, word)) for word in words)


def _visible(word):
    """The word without what would make two of it, or none: blanks, also those of NFKC, and format characters."""
    if word.isascii() and word.isprintable():
        return word
    kept = (c for c in unicodedata.normalize("NFKC", word) if unicodedata.category(c)[0] not in "ZC" and c != "▁")
    return "".join(kept) or "?"


def _without_special(ids):
    return [[int(i) for i in row if i not in (PAD, BOS, EOS)] for row in ids]
