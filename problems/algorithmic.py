"""Problems over symbols that a small model learns in a minute: what learning tests are made of."""

import dataclasses
import random

from keras_transformer.registry import register_problem
from keras_transformer.tasks import Problem, setting

PAIRS = {"train": None, "validation": 200, "test": 500}


@dataclasses.dataclass(kw_only=True)
class SymbolProblem(Problem):
    """A random sequence of symbols to a function of it."""

    num_symbols: int = setting(20, "different symbols", low=2, high=1000)
    longest: int = setting(10, "most symbols a sequence", low=1)
    train_pairs: int = setting(20_000, "training pairs", low=1)

    def transform(self, symbols):
        """Returns the target of a list of symbols."""
        raise NotImplementedError

    def pairs(self, split):
        rng = random.Random(f"{self.corpus} {split}")
        symbols = self.symbols()
        for _ in range(PAIRS[split] or self.train_pairs):
            sequence = rng.choices(symbols, k=rng.randint(1, self.longest))
            yield " ".join(sequence), " ".join(self.transform(sequence))

    def symbols(self):
        """Returns the symbols: s0, s1, …"""
        return [f"s{i}" for i in range(self.num_symbols)]

    def make_tokenizer(self):
        from keras_transformer.data.tokenizer import SymbolTokenizer

        return SymbolTokenizer(self.symbols())

    def score(self, hypotheses, references):
        from keras_transformer.metrics.bleu import exact_match, tokenized_bleu

        return [tokenized_bleu(hypotheses, references), exact_match(hypotheses, references)]


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
