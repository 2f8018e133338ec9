"""Problems over symbols that a small model learns in a minute: what learning tests are made of."""

import dataclasses
import hashlib
import random

from keras_transformer.config.registry import register_problem
from keras_transformer.tasks.problem import Problem, setting
from keras_transformer.utils.errors import UserError

PAIRS = {"train": None, "validation": 200, "test": 500}
DRAWS = 1000  # to find a sequence of a split, of which about every eighth or more is one


@dataclasses.dataclass(kw_only=True)
class SymbolProblem(Problem):
    """A random sequence of symbols to a function of it.

    The splits have no source in common: a hash of the source decides which split it may be in. All sequences of one
    symbol are for training.
    """

    num_symbols: int = setting(20, "different symbols", low=2, high=1000)
    longest: int = setting(10, "maximum number of symbols in a sequence", low=2)
    train_pairs: int = setting(20_000, "training pairs", low=1)

    def transform(self, symbols):
        """Returns the target of a list of symbols."""
        raise NotImplementedError

    def pairs(self, split):
        rng = random.Random(f"{self.corpus} {split}")
        for _ in range(PAIRS[split] or self.train_pairs):
            sequence = self.draw(rng, split)
            yield " ".join(sequence), " ".join(self.transform(sequence))

    def draw(self, rng, split):
        """Return a random sequence of a split, a list of symbols.

        Raises:
            UserError: There are too few sequences.
        """
        symbols = self.symbols()
        for _ in range(DRAWS):
            sequence = rng.choices(symbols, k=rng.randint(1, self.longest))
            if split_of(sequence) == split:
                return sequence
        raise UserError(
            f"{self.name}: num_symbols={self.num_symbols} and longest={self.longest} must leave sequences for the "
            f"{split} split, got none; raise problem.num_symbols or problem.longest"
        )

    def symbols(self):
        """Returns the symbols: s0, s1, …"""
        return [f"s{i}" for i in range(self.num_symbols)]

    def make_tokenizer(self):
        from keras_transformer.data.tokenizers.symbols import SymbolTokenizer

        return SymbolTokenizer(self.symbols())

    def score(self, hypotheses, references):
        from keras_transformer.metrics.bleu import exact_match, tokenized_bleu

        return [tokenized_bleu(hypotheses, references), exact_match(hypotheses, references)]


def split_of(sequence):
    """Return the split that a sequence of symbols belongs to: an eighth is for validation, an eighth for test."""
    if len(sequence) == 1:
        return "train"
    return {0: "validation", 1: "test"}.get(hashlib.sha256(" ".join(sequence).encode()).digest()[0] % 8, "train")


@register_problem("copy")
class Copy(SymbolProblem):
    """A sequence of symbols to itself."""

    def transform(self, symbols):
        return symbols


@register_problem("reverse")
class Reverse(SymbolProblem):
    """A sequence of symbols to the same backwards."""

    def transform(self, symbols):
        return symbols[::-1]


@register_problem("sort")
class Sort(SymbolProblem):
    """A sequence of symbols to the same in order: s2 before s10."""

    def transform(self, symbols):
        return sorted(symbols, key=lambda symbol: int(symbol.removeprefix("s")))
