"""What may follow a prefix of a tree's symbols, so that only trees come out.

A tree over n words is one constituent: brackets that close in the order in which they opened, each with a word
inside, and n tags among them. Constituents that begin at the same word are at most `LONGEST_CHAIN` inside of each other
in a row, which bounds chains of constituents with one child; no tree of the Penn Treebank, GUM or IcePaHC has more
than 6. What is opened must fit: a prefix after which the limit does not suffice for all tags and closing brackets is
never reached.
"""

import numpy as np

from keras_transformer.parsing.linearize import is_bracket
from keras_transformer.parsing.tree import DEEPEST

OTHER, OPEN, CLOSE, TAG = range(4)
"""Kinds of symbols; a subword is another."""

LONGEST_CHAIN = 10


class Grammar:
    """The symbols of a vocabulary, in tables.

    Args:
        symbols: {symbol: id}: brackets and tags.
        vocab_size: V, ids of the vocabulary.
        eos: The id that ends a sequence.

    Attributes:
        kinds: int32 `[V]`: OPEN, CLOSE, TAG or OTHER.
        labels: int32 `[V]`: which label a bracket has; -1 for what is no bracket.
        eos: See above.
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
        """Return bool `[V]`: the ids that may come next. `decoding.constraints` computes the same for many at once.

        Args:
            prefix: Ids so far, all of which were allowed.
            words: Words of the sentence.
            limit: Most ids, EOS included.
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
        room_for_more = room >= left + depth + 3  # with its closing bracket, and EOS
        if left and chain < LONGEST_CHAIN and depth < DEEPEST - 2 and room_for_more:
            allowed |= self.kinds == OPEN
        if left and depth:
            allowed |= self.kinds == TAG
        if depth and not chain and (depth > 1 or not left):
            allowed |= (self.kinds == CLOSE) & (self.labels == open_labels[-1])
        return allowed
