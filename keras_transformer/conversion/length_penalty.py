"""Conversion of the beam search's length penalty (§6.1) for other engines."""

import math


def length_exponent(run):
    """Return the exponent β for engines that divide log-probabilities by length^β.

    This project divides by ((5 + length) / 6)^α instead (§6.1). Let L be the mean number of tokens in the training
    outputs. With β = α · L / (5 + L), both penalties grow at the same relative rate at length L. For a pretrained
    model, L is unknown, and the function returns α.

    Args:
        run: `Run`.
    """
    train = run.manifest()["corpus"].get("splits", {}).get("train")
    side = "source" if run.problem.reversed else "target"  # the manifest describes the corpus before it is reversed
    length = train[f"{side}_tokens"] / train["pairs"] if train else math.inf
    return round(run.hparams.alpha / (5 / length + 1), 3)
