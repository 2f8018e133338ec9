"""Options of a search (§6.1), checked once for `Translator`, evaluation, exports and the server."""

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_transformer.config.hparams import HParams, upper_bound
from keras_transformer.utils.errors import UserError


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Options for drawing tokens at random instead of searching for the best ones.

    Attributes:
        temperature: Divisor of the logits. A small one is nearly greedy.
        top_k: Number of most probable tokens to draw from; 0 for all.
        top_p: Draw from the most probable tokens whose probabilities add up to p.
        seed: Seed of the draws. The same text gets the same draws.

    Raises:
        UserError: A value is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1

    def __post_init__(self):
        if not (self.temperature > 0 and 0 < self.top_p <= 1 and self.top_k >= 0 and self.seed >= 0):
            raise UserError(
                f"{self}: temperature and top_p must be above 0, top_p at most 1, top_k and seed at least 0"
            )


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """Search options shared by all sentences.

    Attributes:
        beam_size: K, beams per sentence; 1 for greedy search; None for the hparams' value.
        alpha: Exponent of the length penalty; None for the hparams' value.
        nbest: Hypotheses per sentence, at most `beam_size`.
        extra_length: Maximum number of tokens beyond the source length; None for the hparams' value.
        min_length: Minimum number of tokens without EOS, as far as `extra_length` allows.
        max_source_length: Maximum number of source tokens with EOS; None for no limit.
        sampling: `Sampling`, which makes `beam_size` draws per sentence, or None for beam search.
        constraint: Function of (tokens int32 [B, K, L], their number so far, `SearchInputs`) that returns which tokens
            may come next, bool [B, K, V], computed by `keras.ops`. At a sentence's limit EOS is always possible. In the
            first step of a beam search K is 1. "grammar" is the tokenizer's constraint, if it has one; None allows all
            tokens.

    Raises:
        UserError: A value is out of range.
    """

    beam_size: int | None = None
    alpha: float | None = None
    nbest: int = 1
    extra_length: int | None = None
    min_length: int = 0
    max_source_length: int | None = None
    sampling: Sampling | None = None
    constraint: Callable | str | None = "grammar"

    def __post_init__(self):
        most = self.nbest if self.beam_size is None else self.beam_size
        if not 1 <= self.nbest <= most:
            raise UserError(f"beam_size={self.beam_size} and nbest={self.nbest}: nbest must be from 1 to beam_size")
        if self.alpha is not None and not self.alpha >= 0:
            raise UserError(f"alpha={self.alpha}: the length penalty's exponent must be at least 0")
        if self.extra_length is not None and self.extra_length < 0:
            raise UserError(f"extra_length must be at least 0, got {self.extra_length}")
        if self.min_length < 0:
            raise UserError(f"min_length must be at least 0, got {self.min_length}")
        if self.max_source_length is not None and self.max_source_length < 2:
            raise UserError(f"max_source_length must be at least 2, for a token and EOS, got {self.max_source_length}")
        for name in ("beam_size", "alpha", "extra_length"):
            if (value := getattr(self, name)) is not None and value > (most := upper_bound(name)):
                raise UserError(f"{name} must be at most {most:,}, got {value}")

    def complete(self, hparams: HParams, grammar: Callable | None = None) -> "SearchOptions":
        """Return the options with values for all that is None or "grammar".

        Args:
            hparams: `HParams`, whose `beam_size`, `alpha` and `extra_length` are the defaults.
            grammar: The tokenizer's `constraint`.

        Raises:
            UserError: `nbest` exceeds the beam size; or `min_length` is given for a grammar, which decides the length.
        """
        defaults: dict[str, Any] = {
            "beam_size": hparams.beam_size,
            "alpha": hparams.alpha,
            "extra_length": hparams.extra_length,
        }
        given = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        constraint = grammar if self.constraint == "grammar" else self.constraint
        if self.min_length and constraint is grammar is not None:
            raise UserError("min_length is for translations: how long a tree is follows from its sentence")
        return dataclasses.replace(self, **given, constraint=constraint)

    def static(self) -> "SearchOptions":
        """Return what a compiled search depends on. It gets all other options as arrays in `SearchInputs`."""
        sampling = self.sampling and dataclasses.replace(self.sampling, seed=0)
        return SearchOptions(self.beam_size, min_length=self.min_length, sampling=sampling, constraint=self.constraint)
