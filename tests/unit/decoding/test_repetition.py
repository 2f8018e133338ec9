"""Tests of options that reduce repetition: a ban on repeated n-grams, and a penalty for repeated tokens."""

import numpy as np
import pytest
from helpers.exhaustive_search import (
    NARROW,
    SOURCES,
    WIDE,
    A,
    B,
    are_best_of_all,
    distributions,
    exhaustive,
    is_what_score_says,
)
from keras import ops

import keras_transformer as kt
from keras_transformer.data.tokenizers.base import EOS, UNK
from keras_transformer.decoding.repetition import repeated_ngrams
from keras_transformer.decoding.search_options import Sampling

pytestmark = pytest.mark.usefixtures("segments")


def repeats_ngram(tokens, size):
    ngrams = [tokens[i : i + size] for i in range(len(tokens) - size + 1)]
    return len(set(ngrams)) < len(ngrams)


@pytest.mark.backend
@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_repeat_ngram_equals_exhaustive_search(translator, size):
    results = translator.translate(SOURCES, **WIDE, no_repeat_ngram=size)
    are_best_of_all(exhaustive(translator.models), results, lambda i, tokens: not repeats_ngram(tokens, size))
    unlimited = translator.translate(SOURCES, **WIDE)
    assert size > 2 or any(repeats_ngram(h.tokens, size) for found in unlimited for h in found)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_repeated_ngrams_match_their_definition(size):
    tokens = np.random.default_rng(size).integers(3, 6, (4, 3, 9), "int32")
    for index in range(9):
        found = ops.convert_to_numpy(repeated_ngrams(tokens, index, size, 6))
        for hypothesis, banned in zip(tokens.reshape(-1, 9)[:, :index].tolist(), found.reshape(-1, 6)):
            ngrams = {tuple(hypothesis[i : i + size]) for i in range(index - size + 1)}
            end = tuple(hypothesis[index - size + 1 :]) if index >= size - 1 else None
            expected = [end is not None and (*end[: size - 1], token) in ngrams for token in range(6)]
            assert banned.tolist() == expected


def with_penalty(models, penalty):
    """Return {tokens: log-probability} of all possible outputs for each source, with the repetition penalty.

    The function applies the penalty in NumPy.
    """
    every = []
    for found in distributions(models):
        every.append({})
        for prefix, rows in found.items():
            total = 0.0
            for i, p in enumerate(rows):
                p = np.where(np.isin(np.arange(6), prefix[:i]), p**penalty, p)
                log_p = np.log(p / p.sum())
                every[-1][*prefix[:i], EOS] = total + log_p[EOS]
                total += log_p[prefix[i]] if i < len(prefix) else 0
    return every


@pytest.mark.backend
@pytest.mark.parametrize("name", ["translator", "ensemble"])
def test_repetition_penalty_equals_exhaustive_search(name, request):
    translator = request.getfixturevalue(name)
    results, changed = translator.translate(SOURCES, **WIDE, repetition_penalty=3.0), 0
    without = translator.translate(SOURCES, **WIDE)
    for text, found, hypotheses, others in zip(SOURCES, with_penalty(translator.models, 3.0), results, without):
        scores = {tokens: found[tokens] / ((5 + len(tokens)) / 6) ** 0.6 for tokens in found}
        assert [h.tokens for h in hypotheses] == sorted(scores, key=scores.get, reverse=True)[: WIDE["nbest"]]
        is_what_score_says(translator, text, hypotheses)
        changed += [h.tokens for h in hypotheses] != [h.tokens for h in others]
    assert changed == len(SOURCES)


def test_repetition_options_combine_with_other_options(translator):
    options = {"no_repeat_ngram": 1, "repetition_penalty": 2.0, "prefixes": [(A,), (), (B, B)]}
    for text, hypotheses in zip(SOURCES, translator.translate(SOURCES, **NARROW, **options, sampling=Sampling())):
        is_what_score_says(translator, text, hypotheses)
        assert all(not repeats_ngram(h.tokens[text == SOURCES[2] :], 1) for h in hypotheses)
    no_unk = {"constraint": lambda tokens, index, inputs: ops.arange(6)[None, None] != UNK}
    found = translator.translate(SOURCES, **NARROW, **no_unk, no_repeat_ngram=1)
    assert all(not repeats_ngram(h.tokens, 1) and UNK not in h.tokens for hypotheses in found for h in hypotheses)


def test_repetition_options_change_nothing_by_default(translator):
    off = {"no_repeat_ngram": 0, "repetition_penalty": 1.0}
    assert translator.translate(SOURCES, **NARROW, **off) == translator.translate(SOURCES, **NARROW)


@pytest.mark.parametrize("wrong", [{"no_repeat_ngram": -1}, {"no_repeat_ngram": 101}, {"repetition_penalty": 0.9},
                                   {"repetition_penalty": float("nan")}])  # fmt: skip
def test_repetition_options_refuse_wrong_values(wrong):
    with pytest.raises(kt.UserError, match=f"^{next(iter(wrong))} must be from "):
        kt.SearchOptions(**wrong)
