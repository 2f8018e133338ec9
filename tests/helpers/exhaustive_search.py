"""Exhaustive search in NumPy, which computes the probability of every sequence that a small model can output."""

import contextlib
import itertools

import numpy as np
import oracles
import pytest
from keras import ops

import keras_transformer as kt
from helpers.quick import eager_functions
from keras_transformer.data.tokenizers.base import BOS, EOS, UNK
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.decoding import batched_search

A, B = 4, 5
SYMBOLS = (UNK, A, B)  # all tokens that may precede EOS
SOURCES = ["b", "a b", "b b a"]
LIMITS = [3, 4, 5]  # maximum target lengths: source lengths plus 1 (both include EOS)
EVERY = sum(len(SYMBOLS) ** n for n in range(5))  # number of sequences of at most 5 tokens, including EOS
WIDE = {"beam_size": EVERY, "nbest": 10, "alpha": 0.6, "extra_length": 1}
NARROW = {"beam_size": 8, "nbest": 8, "alpha": 0.6, "extra_length": 1}
HPARAMS = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, dropout=0)


@contextlib.contextmanager
def short_segments():
    """Use segments of two steps, so that even short searches have several segments.

    Run TensorFlow eagerly, because tracing is slow.
    """
    with pytest.MonkeyPatch.context() as patch, eager_functions():
        patch.setattr(batched_search, "SEGMENT", 2)
        yield


def new_translator(*num_layers, dtype="float32"):
    models = [kt.Transformer(6, HPARAMS.replace(num_layers=n), dtype=dtype) for n in num_layers]
    return kt.Translator(models, SymbolTokenizer("ab"), HPARAMS)


def randomize(translator, seed):
    """Assign random weights, so large that next-token distributions are peaked and depend on all earlier tokens."""
    rng, scales = np.random.default_rng(seed), {"table": 0.7, "query": 0.2, "key": 0.2}
    for model in translator.models:
        for variable in model.trainable_variables:
            if len(variable.shape) > 1:
                variable.assign(rng.normal(scale=scales.get(variable.name, 0.4), size=variable.shape))
    return translator


def array(values):
    return np.asarray(ops.convert_to_numpy(values), "float64")


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def source_ids(text):
    return [*SymbolTokenizer("ab").encode([text])[0], EOS]


def distributions(models):
    """Yield a dictionary {prefix: probabilities `[limit, 6]`} for each source in `SOURCES`.

    `limit` is the maximum target length from `LIMITS`. The keys are all prefixes of `limit - 1` tokens. The values are
    next-token probabilities at each position, averaged over the models.
    """
    for text, limit in zip(SOURCES, LIMITS):
        prefixes = list(itertools.product(SYMBOLS, repeat=limit - 1))
        inputs = np.tile(source_ids(text), (len(prefixes), 1)), np.array([[BOS, *prefix] for prefix in prefixes])
        yield dict(
            zip(prefixes, np.mean([oracles.softmax(array(model(inputs, training=False))) for model in models], axis=0))
        )


def exhaustive(models):
    """Return one dictionary per source: {tokens: log-probability of each token} for all possible sequences."""
    return [
        {
            (*prefix[:n], EOS): np.log(p[np.arange(n + 1), [*prefix[:n], EOS]])
            for prefix, p in found.items()
            for n in range(len(p))
        }
        for found in distributions(models)
    ]


def are_best(hypotheses, log_p, nbest):
    """Assert that the hypotheses are the `nbest` sequences with the highest scores for α = 0.6.

    Args:
        hypotheses: Results of the search, best first.
        log_p: {tokens: log-probability} of all sequences.
        nbest: Number of hypotheses.
    """
    scores = {tokens: log_p[tokens] / ((5 + len(tokens)) / 6) ** 0.6 for tokens in log_p}
    best = sorted(scores, key=scores.get, reverse=True)[:nbest]
    assert [h.tokens for h in hypotheses] == best
    close([h.log_probability for h in hypotheses], [log_p[tokens] for tokens in best])
    close([h.score for h in hypotheses], [scores[tokens] for tokens in best])


def are_best_of_all(every, results, legal=lambda number, tokens: True):
    """Assert that the search found the best sequences for each source in `SOURCES`.

    Args:
        every: Return value of `exhaustive`.
        results: Hypotheses of the search for each source.
        legal: Function that takes the index of a source and a sequence of tokens, and returns whether the search may
            output the sequence.
    """
    for number, (found, hypotheses) in enumerate(zip(every, results, strict=True)):
        log_p = {tokens: values.sum() for tokens, values in found.items() if legal(number, tokens)}
        are_best(hypotheses, log_p, WIDE["nbest"])


def is_same(actual, expected):
    """Assert that two searches found the same hypotheses for each text, with equal scores up to rounding."""
    for some, others in zip(actual, expected, strict=True):
        assert [(h.text, h.tokens) for h in some] == [(h.text, h.tokens) for h in others]
        close([(h.log_probability, h.score) for h in some], [(h.log_probability, h.score) for h in others])


def is_what_score_says(translator, text, hypotheses, alpha=0.6):
    is_same([translator.score([text] * len(hypotheses), [h.tokens for h in hypotheses], alpha)], [hypotheses])
