"""Conversion of the length penalty of beam search (§6.1) for other engines."""

import math


def length_exponent(run):
    """Return the exponent β of the length penalty for engines that divide log-probabilities by length^β.

    This project divides by ((5 + length) / 6)^α (§6.1). With β = α · L / (5 + L), both penalties grow at the same rate
    at length L, the mean number of tokens of the training targets. For a pretrained model, this length is unknown, and
    the result is α.

    Args:
        run: `Run`.
    """
    train = run.manifest()["corpus"].get("splits", {}).get("train")
    length = train["target_tokens"] / train["pairs"] if train else math.inf
    return round(run.hparams.alpha / (5 / length + 1), 3)
