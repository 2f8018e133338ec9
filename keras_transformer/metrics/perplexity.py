"""Perplexity and cross-entropy per token, computed from log-probabilities."""

import math


def nats_per_token(log_probabilities, lengths):
    """Return the mean negative log-probability per token, in nats.

    Args:
        log_probabilities: Log-probability of each text in nats, summed over its tokens.
        lengths: Number of tokens in each text, including EOS.
    """
    return -math.fsum(log_probabilities) / sum(lengths)


def perplexity(nll):
    """Return exp(`nll`) for `nll` in nats per token, or infinity if the result overflows."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf
