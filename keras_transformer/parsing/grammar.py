"""Grammar of linearized trees, which determines the symbols that may follow a prefix.

A tree over n words is a single constituent. Its brackets are properly nested, not empty, and contain n tags in total.
At most `LONGEST_CHAIN` brackets may open in a row without a tag or closing bracket in between. The maximum in the Penn
Treebank, GUM and IcePaHC is 6. A bracket may open only if the length limit leaves room for all remaining tags and
closing brackets.
"""

import numpy as np

from keras_transformer.parsing.linearize import is_bracket
from keras_transformer.parsing.tree import DEEPEST

OTHER, OPEN, CLOSE, TAG = range(4)
"""Kinds of symbols. Subwords are OTHER."""

LONGEST_CHAIN = 10


class Grammar:
    """Grammar of linearized trees, over the ids of a vocabulary.

    Args:
        symbols: {symbol: id} for brackets and tags.
        vocab_size: Number of ids in the vocabulary, V.
        eos: Id that ends a sequence.

    Attributes:
        kinds: int32 `[V]`, OPEN, CLOSE, TAG or OTHER.
        labels: int32 `[V]`, the index of each bracket's label, or -1 for other ids.
        eos: Id that ends a sequence.
    """

    def __init__(self, symbols, vocab_size, eos):
        self.eos = eos
        self.kinds = np.full(vocab_size, OTHER, "int32")
        self.labels = np.full(vocab_size, -1, "int32")
        numbers = {label: i for i, label in enumerate(sorted({s[1:] for s in symbols if is_bracket(s)}))}
        for symbol, i in symbols.items():
            self.kinds[i] = TAG if not is_bracket(symbol) else OPEN if symbol[0] == "(" else CLOSE
            if is_bracket(symbol):
                self.labels[i] = numbers[symbol[1:]]

    def allowed(self, prefix, words, limit):
        """Return a mask of the ids that may come next, bool `[V]`. `TreeConstraint` applies the same rules to a batch.

        Args:
            prefix: List of ids so far, a valid prefix.
            words: Number of words in the sentence.
            limit: Maximum number of ids, including EOS.
        """
        kinds = self.kinds[np.asarray(prefix, int)]
        open_labels, chain = [], 0
        for i, kind in zip(prefix, kinds):
            chain = chain + 1 if kind == OPEN else 0
            if kind == OPEN:
                open_labels.append(self.labels[i])
            elif kind == CLOSE:
                open_labels.pop()
        depth, left, room = len(open_labels), words - int((kinds == TAG).sum()), limit - len(prefix)
        allowed = np.zeros(len(self.kinds), bool)
        if not depth and len(prefix):
            allowed[self.eos] = True
            return allowed
        room_for_more = room >= left + depth + 3  # 3: both brackets of the new constituent, and EOS
        if left and chain < LONGEST_CHAIN and depth < DEEPEST - 2 and room_for_more:
            allowed |= self.kinds == OPEN
        if left and depth:
            allowed |= self.kinds == TAG
        if depth and not chain and (depth > 1 or not left):
            allowed |= (self.kinds == CLOSE) & (self.labels == open_labels[-1])
        return allowed
