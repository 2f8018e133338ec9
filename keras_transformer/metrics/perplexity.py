"""Perplexity: how many tokens a model hesitates between, from log-probabilities."""

import math


def nats_per_token(log_probabilities, lengths):
    """Return the mean negative log-probability of a token, in nats.

    Args:
        log_probabilities: log p of each text, the sum over its tokens.
        lengths: Its number of tokens, EOS included, so at least 1.
    """
    return -math.fsum(log_probabilities) / sum(lengths)


def perplexity(nll):
    """Return e^`nll`, of nats a token; infinity where a float does not hold it."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf
