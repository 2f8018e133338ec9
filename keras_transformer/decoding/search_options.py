"""Search options (§6.1) and their validation for `Translator`, evaluation, exports and the server."""

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_transformer.config.hparams import HParams, upper_bound
from keras_transformer.utils.errors import UserError

MOST_NGRAM = 100
"""Maximum `no_repeat_ngram`. The number of operations in the compiled search grows with the n-gram size."""
MOST_PENALTY = 100
"""Maximum `repetition_penalty`. At much larger values, rounding in float32 would change the ranking of tokens."""


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Options for random sampling, which replaces beam search.

    Attributes:
        temperature: Divisor of the logits. With small values, almost all samples are the most probable token.
        top_k: Sample only from the k most probable tokens; 0 for all tokens.
        top_p: Sample only from the smallest set of most probable tokens whose probabilities add up to at least p; 1 for
            all tokens.
        seed: Random seed. The samples for a text depend only on the seed and on the text.

    Raises:
        UserError: A value is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1

    def __post_init__(self):
        for name, valid, rule in (
            ("temperature", self.temperature >= 1e-6, "at least 1e-6"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("top_p", 1e-6 <= self.top_p <= 1, "at least 1e-6 and at most 1"),
            ("seed", self.seed >= 0, "at least 0"),
        ):
            if not valid:
                raise UserError(f"{name} must be {rule}, got {getattr(self, name)}")


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """Search options shared by all sentences.

    Attributes:
        beam_size: K, the number of beams per sentence; 1 for greedy search, None for the larger of `nbest` and the
            value of the hparams.
        alpha: Exponent of the length penalty; None for the value of the hparams.
        nbest: Number of hypotheses per sentence, at most `beam_size`.
        extra_length: Maximum number of target tokens beyond the source length; None for the value of the hparams.
        min_length: Minimum number of target tokens, not counting EOS. The limit set by `extra_length` takes precedence.
        max_source_length: Maximum number of source tokens, including EOS; None for no limit.
        no_repeat_ngram: Size in tokens of n-grams that a translation may contain only once; 0 for no limit.
        repetition_penalty: Factor, at least 1, by which to multiply the log-probability of tokens that a hypothesis
            already contains; 1 for no penalty. Probabilities are then renormalized (see `decoding.repetition`).
        sampling: `Sampling`, which draws `beam_size` translations per sentence, or None for beam search.
        constraint: "grammar" for the tokenizer's constraint, if it has one, None to allow all tokens, or a function.
            The function takes the tokens, int32 [B, K, L], the number of tokens so far, and `SearchInputs`. It must
            return the allowed next tokens, bool [B, K, V], and use only `keras.ops`. In the first step of a beam
            search, K is 1. At the length limit of a sentence, EOS is allowed even if the function forbids it.

    Raises:
        UserError: A value is out of range.
    """

    beam_size: int | None = None
    alpha: float | None = None
    nbest: int = 1
    extra_length: int | None = None
    min_length: int = 0
    max_source_length: int | None = None
    no_repeat_ngram: int = 0
    repetition_penalty: float = 1.0
    sampling: Sampling | None = None
    constraint: Callable | str | None = "grammar"

    def __post_init__(self):
        most = self.nbest if self.beam_size is None else self.beam_size
        if not 1 <= self.nbest <= most:
            raise UserError(f"nbest must be from 1 to beam_size, got beam_size={self.beam_size} and nbest={self.nbest}")
        if self.alpha is not None and not self.alpha >= 0:
            raise UserError(f"alpha must be at least 0, got {self.alpha}")
        if self.extra_length is not None and self.extra_length < 0:
            raise UserError(f"extra_length must be at least 0, got {self.extra_length}")
        if self.min_length < 0:
            raise UserError(f"min_length must be at least 0, got {self.min_length}")
        if self.max_source_length is not None and self.max_source_length < 2:
            raise UserError(f"max_source_length must be at least 2 (one token and EOS), got {self.max_source_length}")
        if not 0 <= self.no_repeat_ngram <= MOST_NGRAM:
            raise UserError(f"no_repeat_ngram must be from 0 to {MOST_NGRAM}, got {self.no_repeat_ngram}")
        if not 1 <= self.repetition_penalty <= MOST_PENALTY:
            raise UserError(f"repetition_penalty must be from 1 to {MOST_PENALTY}, got {self.repetition_penalty}")
        for name in ("beam_size", "alpha", "extra_length"):
            if (value := getattr(self, name)) is not None and value > (most := upper_bound(name)):
                raise UserError(f"{name} must be at most {most:,}, got {value}")

    def changed(self, *names: str) -> dict[str, Any]:
        """Return the options among `names` that differ from their defaults, {name: value}."""
        return {name: value for name in names if (value := getattr(self, name)) != getattr(SearchOptions, name)}

    @property
    def against_repetition(self) -> dict[str, Any]:
        """The options `no_repeat_ngram` and `repetition_penalty` that differ from their defaults, {name: value}."""
        return self.changed("no_repeat_ngram", "repetition_penalty")

    def complete(self, hparams: HParams, grammar: Callable | None = None) -> "SearchOptions":
        """Return the options with all defaults filled in.

        Args:
            hparams: `HParams` with the default `beam_size`, `alpha` and `extra_length`.
            grammar: The tokenizer's `constraint`, or None.

        Raises:
            UserError: `min_length`, `no_repeat_ngram` or `repetition_penalty` is combined with a grammar, or `nbest`
                exceeds the maximum beam size.
        """
        defaults: dict[str, Any] = {
            "beam_size": max(hparams.beam_size, self.nbest),
            "alpha": hparams.alpha,
            "extra_length": hparams.extra_length,
        }
        unset = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        constraint = grammar if self.constraint == "grammar" else self.constraint
        if constraint is grammar is not None:
            for name, value in self.changed("min_length", "no_repeat_ngram", "repetition_penalty").items():
                default = getattr(SearchOptions, name)
                raise UserError(f"{name} must be {default:g} for a parser, got {value}. Omit it.")
        return dataclasses.replace(self, **unset, constraint=constraint)

    def static(self) -> "SearchOptions":
        """Return a copy with only the options that are constants of a compiled search, and defaults for all others."""
        sampling = self.sampling and dataclasses.replace(self.sampling, seed=0)
        return SearchOptions(
            self.beam_size, min_length=self.min_length, no_repeat_ngram=self.no_repeat_ngram,
            repetition_penalty=self.repetition_penalty, sampling=sampling, constraint=self.constraint,
        )  # fmt: skip
