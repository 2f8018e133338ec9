"""Problems with sequences of symbols, which a small model learns in a minute. Tests use them."""

import dataclasses
import hashlib
import random

from keras_transformer.config.registry import register_problem
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.metrics.bleu import exact_match, tokenized_bleu
from keras_transformer.tasks.problem import Problem, setting
from keras_transformer.utils.errors import UserError

PAIRS = {"train": None, "validation": 200, "test": 500}
# Maximum number of attempts to draw a random sequence that belongs to the split. With default settings, at least one
# attempt in ten succeeds.
DRAWS = 1000


@dataclasses.dataclass(kw_only=True)
class SymbolProblem(Problem):
    """Problem whose sources are random sequences of symbols and whose targets are a function of the sources.

    A hash of the source determines its split, so no source is in two splits. Sequences of length 1 are always in the
    training split.
    """

    num_symbols: int = setting(20, "number of different symbols", low=2, high=1000)
    longest: int = setting(10, "maximum number of symbols in a sequence", low=2)
    train_pairs: int = setting(20_000, "number of training pairs", low=1)

    def transform(self, symbols):
        """Return the target of a list of symbols."""
        raise NotImplementedError

    def pairs(self, split):
        rng = random.Random(f"{self.corpus} {split}")
        for _ in range(PAIRS[split] or self.train_pairs):
            sequence = self.draw(rng, split)
            yield " ".join(sequence), " ".join(self.transform(sequence))

    def draw(self, rng, split):
        """Return a random sequence of a split as a list of symbols.

        Raises:
            UserError: The settings allow too few sequences.
        """
        symbols = self.symbols()
        for _ in range(DRAWS):
            sequence = rng.choices(symbols, k=rng.randint(1, self.longest))
            if split_of(sequence) == split:
                return sequence
        raise UserError(
            f"{self.name}: num_symbols={self.num_symbols} and longest={self.longest} leave no sequences for the "
            f"{split} split; raise problem.num_symbols or problem.longest"
        )

    def symbols(self):
        """Return the list of symbols: s0, s1, …"""
        return [f"s{i}" for i in range(self.num_symbols)]

    def make_tokenizer(self):
        return SymbolTokenizer(self.symbols())

    def score(self, hypotheses, references):
        return [tokenized_bleu(hypotheses, references), exact_match(hypotheses, references)]


def split_of(sequence):
    """Return the split of a sequence. One sequence in eight belongs to validation, and one in eight to test."""
    if len(sequence) == 1:
        return "train"
    return {0: "validation", 1: "test"}.get(hashlib.sha256(" ".join(sequence).encode()).digest()[0] % 8, "train")


@register_problem("copy")
class Copy(SymbolProblem):
    """Copying of sequences of symbols."""

    def transform(self, symbols):
        return symbols


@register_problem("reverse")
class Reverse(SymbolProblem):
    """Reversal of sequences of symbols."""

    def transform(self, symbols):
        return symbols[::-1]


@register_problem("sort")
class Sort(SymbolProblem):
    """Sorting of symbols by number: s2 comes before s10."""

    def transform(self, symbols):
        return sorted(symbols, key=lambda symbol: int(symbol.removeprefix("s")))
