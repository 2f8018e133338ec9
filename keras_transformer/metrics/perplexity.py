"""Perplexity and cross-entropy per token, computed from log-probabilities."""

import math


def nats_per_token(log_probabilities, lengths):
    """Return the mean negative log-probability per token, in nats.

    Args:
        log_probabilities: Log-probability of each text, the sum over its tokens, in nats.
        lengths: Number of tokens of each text, EOS included, at least 1.
    """
    return -math.fsum(log_probabilities) / sum(lengths)


def perplexity(nll):
    """Return e^`nll` for `nll` in nats per token, or infinity if the result exceeds the range of float."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf
