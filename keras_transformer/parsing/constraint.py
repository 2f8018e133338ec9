"""Search constraint that allows only valid trees, evaluated for all hypotheses at once."""

import dataclasses

from keras import ops

from keras_transformer.parsing.grammar import CLOSE, LONGEST_CHAIN, OPEN, TAG, Grammar
from keras_transformer.parsing.tree import DEEPEST


@dataclasses.dataclass(frozen=True)
class TreeConstraint:
    """Value for `SearchOptions.constraint` that restricts a search to trees over all words of the sentence.

    For each new token, the constraint evaluates the rules of `Grammar.allowed` on the whole hypothesis. It stores no
    intermediate results, because hypotheses move between beams.

    Attributes:
        grammar: `Grammar`.
    """

    grammar: Grammar

    def __call__(self, tokens, index, inputs):
        """Return the allowed next tokens, bool `[B, K, V]`. See `SearchOptions` for the arguments."""
        kinds_table, labels_table = self.grammar.kinds, self.grammar.labels
        place = ops.arange(ops.shape(tokens)[2], dtype="int32")
        kinds = ops.take(kinds_table, tokens, axis=0)  # [B, K, L]; PAD has the kind OTHER
        opens, closes = kinds == OPEN, kinds == CLOSE
        change = ops.cast(opens, "int32") - ops.cast(closes, "int32")
        depths = ops.cumsum(change, axis=2)
        depth = depths[:, :, -1]
        left = inputs.words[:, None] - _count(kinds == TAG)
        room = inputs.limits[:, None] - index
        chain = index - ops.max(ops.where(~opens & (place < index), place + 1, 0), axis=2)
        # The innermost open bracket is the last bracket opened at the current depth. All brackets after it are closed.
        innermost = ops.max(ops.where(opens & (depths == depth[:, :, None]), place + 1, 0), axis=2) - 1
        bracket = ops.take_along_axis(tokens, ops.maximum(innermost, 0)[:, :, None], axis=2)[:, :, 0]
        label = ops.take(labels_table, bracket, axis=0)

        inside, words_left = depth > 0, left > 0
        ends = ~inside & (index > 0)
        may_open = words_left & ~ends & (chain < LONGEST_CHAIN) & (depth < DEEPEST - 2) & (room >= left + depth + 3)
        may_close = inside & (chain == 0) & ((depth > 1) | ~words_left)
        may_tag = words_left & inside

        def rows(flags):
            return flags[:, :, None]

        vocab = ops.arange(len(kinds_table), dtype="int32")
        return (
            (rows(may_open) & (kinds_table == OPEN))
            | (rows(may_tag) & (kinds_table == TAG))
            | (rows(may_close) & (kinds_table == CLOSE) & (labels_table == rows(label)))
            | (rows(ends) & (vocab == self.grammar.eos))
        )


def _count(flags):
    return ops.sum(ops.cast(flags, "int32"), axis=2)
