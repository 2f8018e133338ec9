"""Paired bootstrap test (Koehn 2004) of the difference between two systems' scores on the same text."""

import dataclasses
import functools
import os
from unittest import mock

import numpy as np

from keras_transformer.metrics.bleu import EXACT_MATCH, SACREBLEU, sacrebleu_metric
from keras_transformer.utils.errors import UserError

RESAMPLES = 1000
SEED = 12345


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Score of a system, its mean over the resamples, and half the width of its 95% confidence interval."""

    score: float
    mean: float
    interval: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Result of `paired_bootstrap`.

    Attributes:
        metric: Name of the score.
        system: `Estimate` of the system.
        other: `Estimate` of the other system.
        p_value: Probability of a difference at least as large as the observed one if the systems were equally good.
        signature: Signature of the test, with the metric, the number of resamples and the seed.
    """

    metric: str
    system: Estimate
    other: Estimate
    p_value: float
    signature: str

    @property
    def difference(self):
        """The system's score minus the other system's score."""
        return self.system.score - self.other.score

    def figures(self):
        """Return all attributes and the difference as a dictionary."""
        return {**dataclasses.asdict(self), "difference": self.difference}


def check_comparable(metric):
    """Raise a `UserError` unless `paired_bootstrap` supports the score named `metric`."""
    if metric not in COMPARISONS:
        known = ", ".join(COMPARISONS)
        raise UserError(f"the score for --compare must be one of {known}, got {metric!r}. Omit --compare.")


def paired_bootstrap(metric, outputs, others, references, tokenize="13a"):
    """Compare two systems' outputs on 1,000 resamples of the lines, drawn with a fixed seed.

    The resamples are the same for both systems. BLEU and chrF use sacreBLEU's `PairedTest`, like
    `sacrebleu --paired-bs`. The p-value of `PairedTest` is one-sided, but either system can be ahead, so about one in
    ten pairs of equally good systems gets a p-value below 0.05. The p-value of exact match and F1 is two-sided.

    With n lines, there are 2ⁿ ways to exchange the outputs of the two systems on some lines. At least two of them give
    a difference as large as the observed one. No p-value is therefore below 2 / 2ⁿ.

    Args:
        metric: Name of the score: "sacreBLEU", "tokenized BLEU", "lowercase BLEU", "chrF", "exact match", or another
            key of `COMPARISONS`, such as the F1 of parses.
        outputs, others: Outputs of the system and of the other system, lists of texts.
        references: References, a list of the same length.
        tokenize: sacreBLEU's tokenizer, as in `metrics.bleu.sacre_bleu`.

    Returns:
        `Comparison`.

    Raises:
        UserError: The score is unknown.
    """
    check_comparable(metric)
    compare = COMPARISONS[metric]
    if metric in SACREBLEU:
        compare = functools.partial(compare, tokenize=tokenize)
    return compare(metric, list(outputs), list(others), list(references))


def _by_sacrebleu(metric, outputs, others, references, tokenize):
    from sacrebleu.significance import PairedTest

    systems = [("other", others), ("system", outputs)]
    with mock.patch.dict(os.environ, SACREBLEU_SEED=str(SEED)):  # the only way to set sacreBLEU's seed
        test = PairedTest(systems, {metric: sacrebleu_metric(metric, tokenize)}, [references], "bs", RESAMPLES)
        signatures, results = test()
    (signature,) = signatures.values()
    (found,) = (results[name] for name in signatures)
    other, system = (Estimate(*map(float, (result.score, result.mean, result.ci))) for result in found)
    # sacreBLEU reports p = 0.001 if both systems have the same outputs.
    p_value = 1.0 if system.score == other.score else found[1].p_value
    return Comparison(metric, system, other, max(p_value, _smallest_p_value(len(references))), str(signature))


def _smallest_p_value(lines):
    return 2.0 ** (1 - max(lines, 1))


def _by_exact_match(metric, outputs, others, references):
    right = 100.0 * (np.array([outputs, others], dtype=object) == np.array(references, dtype=object))
    return by_resampling(metric, right, lambda right: right.mean(axis=1), "share of equal lines, %")


def by_resampling(metric, lines, score, signature):
    """Compare two systems with a paired bootstrap and a two-sided p-value.

    Args:
        metric: Name of the score.
        lines: Array `[2, lines, …]` of both systems' results per line.
        score: Function that maps an array of resampled lines, with the shape of `lines`, to the two scores `[2]`.
        signature: Signature of the score.
    """
    from sacrebleu.significance import estimate_ci

    rng, count = np.random.default_rng(SEED), lines.shape[1]
    samples = np.array([score(lines[:, rng.integers(count, size=count)]) for _ in range(RESAMPLES)]).T
    system, other = (
        Estimate(float(score), *map(float, estimate_ci(of_one))) for score, of_one in zip(score(lines), samples)
    )
    # Shift the resampled differences to a mean of 0 to estimate their distribution under the null hypothesis.
    differences = samples[0] - samples[1]
    as_far = np.abs(differences - differences.mean()) >= abs(system.score - other.score) - 1e-9
    p_value = max((float(as_far.sum()) + 1) / (RESAMPLES + 1), _smallest_p_value(count))
    return Comparison(metric, system, other, p_value, f"{signature}|bs:{RESAMPLES}|seed:{SEED}")


COMPARISONS = {**dict.fromkeys(SACREBLEU, _by_sacrebleu), EXACT_MATCH: _by_exact_match}
"""{name of a score: function that maps (name, outputs, others, references) to a `Comparison`}. Other modules add
entries."""
