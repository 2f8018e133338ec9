"""Tests of required phrases in translations: exhaustive search, narrow beams, banks of hypotheses, invalid values."""

import itertools

import numpy as np
import pytest
from helpers.exhaustive_search import (
    NARROW,
    SOURCES,
    WIDE,
    A,
    B,
    are_best_of_all,
    exhaustive,
    is_same,
    is_what_score_says,
)
from keras import ops

import keras_transformer as kt
from keras_transformer.data.tokenizers.base import EOS, PAD, UNK
from keras_transformer.decoding import search_batches
from keras_transformer.decoding.phrases import (
    contains_all,
    extend_matches,
    needed_tokens,
    phrase_array,
    phrase_tokens,
    select_from_banks,
    start_matches,
)
from keras_transformer.decoding.search_options import Sampling

PHRASES = [[[A]], [[A, B], [B, UNK]], [[UNK, UNK], [B]]]
"""Phrases for each source in SOURCES. The phrases fit into the length limit of the translation."""


pytestmark = pytest.mark.usefixtures("segments")


def contains(tokens, phrase):
    return any(list(tokens[i : i + len(phrase)]) == phrase for i in range(len(tokens)))


def contain_phrases(results, phrases=PHRASES):
    return all(
        found and all(contains(h.tokens, phrase) for h in found for phrase in several)
        for found, several in zip(results, phrases, strict=True)
    )


@pytest.fixture
def limited(monkeypatch):
    """Prevent phrases from raising the length limits of a search, because `exhaustive` uses the original limits."""
    monkeypatch.setattr(search_batches, "room_for", lambda phrases: 0)


@pytest.mark.backend
def test_phrases_equal_exhaustive_search(translator, limited):
    results, every = translator.translate(SOURCES, **WIDE, phrases=PHRASES), exhaustive(translator.models)
    are_best_of_all(every, results, lambda i, tokens: all(contains(tokens, phrase) for phrase in PHRASES[i]))
    assert not contain_phrases(translator.translate(SOURCES, **WIDE))


def test_phrases_of_an_ensemble_equal_exhaustive_search(ensemble, limited):
    phrases = [None, [[UNK], [UNK, A]], []]
    results, every = ensemble.translate(SOURCES, **WIDE, phrases=phrases), exhaustive(ensemble.models)
    are_best_of_all(every, results, lambda i, tokens: i != 1 or contains(tokens, [UNK, A]))


@pytest.mark.backend
@pytest.mark.parametrize("beam_size", [1, 2, 4])
@pytest.mark.parametrize("extra_length", [0, 9])
def test_narrow_beams_contain_all_phrases(translator, beam_size, extra_length, fresh_seed):
    rng = np.random.default_rng(fresh_seed)
    phrases = [[rng.integers(3, 6, rng.integers(1, 4)).tolist() for _ in range(rng.integers(1, 4))] for _ in SOURCES]
    options = {"beam_size": beam_size, "nbest": 1, "extra_length": extra_length}
    results = translator.translate(SOURCES, **options, phrases=phrases)
    assert contain_phrases(results, phrases)
    for text, hypotheses in zip(SOURCES, results):
        is_what_score_says(translator, text, hypotheses, translator.hparams.alpha)


def test_phrases_do_not_affect_other_texts(translator):
    mixed = translator.translate(SOURCES, **NARROW, phrases=[None, PHRASES[1], []])
    alone = [translator.translate([text], **NARROW)[0] for text in SOURCES]
    is_same([mixed[0], mixed[2]], [alone[0], alone[2]])
    is_same([mixed[1]], translator.translate([SOURCES[1]], **NARROW, phrases=[PHRASES[1]]))


def test_phrases_combine_with_other_options(translator):
    options = {"prefixes": ["b a", "", "a"], "no_repeat_ngram": 2, "min_length": 3, "repetition_penalty": 1.5}
    phrases = [["a a"], ["a b", "b b"], ["", "b a", "b a"]]
    results = translator.translate(SOURCES, **NARROW, phrases=phrases, **options)
    assert contain_phrases(results, [[[A, A]], [[A, B], [B, B]], [[B, A]]])
    for text, prefix, hypotheses in zip(SOURCES, ([B, A], [], [A]), results):
        is_what_score_says(translator, text, hypotheses)
        assert all(list(h.tokens[: len(prefix)]) == prefix and len(h.tokens) > 3 for h in hypotheses)
        assert all(len(set(pairs)) == len(pairs) for pairs in (list(itertools.pairwise(h.tokens)) for h in hypotheses))


def test_impossible_phrases_are_reported(translator):
    with pytest.raises(kt.UserError, match=r"^the search options allow no translation of text 2\. Relax"):
        translator.translate(["b", "a"], **NARROW, phrases=[[], ["b b b b"]], no_repeat_ngram=1)


# The arrays


@pytest.mark.parametrize("seed", range(3))
def test_matches_follow_their_definition(seed):
    rng = np.random.default_rng(seed)
    phrases = [[rng.integers(4, 6, rng.integers(1, 5)).tolist() for _ in range(3)], [[5, 4, 5]]]
    array = phrase_array(phrases, int)
    assert array.shape[:2] == (2, 3) and phrase_array([[], []], int) == ()
    beams, tokens = 4, rng.integers(4, 6, (2, 4, 12), "int32")
    matched = start_matches(array, beams)
    for index in range(13):
        needed, banks = (np.array(f(matched, array[:, None] if f is phrase_tokens else array))
                         for f in (needed_tokens, phrase_tokens))  # fmt: skip
        complete = np.array(contains_all(matched))
        for b, k in itertools.product(range(2), range(beams)):
            known = tokens[b, k, :index].tolist()
            begun, total = 0, 0
            for phrase, following in zip(phrases[b], needed[b, k]):
                done = contains(known, phrase)
                ends = [n for n in range(len(phrase)) if n <= len(known) and known[len(known) - n :] == phrase[:n]]
                assert following == (PAD if done else phrase[max(ends)])
                begun, total = max(begun, 0 if done else max(ends)), total + len(phrase) * done
            assert banks[b, k] == total + begun
            assert complete[b, k] == all(contains(known, phrase) for phrase in phrases[b])
        if index < 12:
            matched = extend_matches(matched, array[:, None], ops.convert_to_tensor(tokens[:, :, index]))


def test_banks_share_the_beams():
    log_p = np.array([[-1.0, -2, -3, -4, -5, -6, -7, -1e9]], "float32")
    banks = np.array([[0, 0, 0, 0, 1, 2, 2, 3]], "int32")
    best, chosen = (np.array(one)[0].tolist() for one in select_from_banks(log_p, banks, 4, 8))
    assert chosen == [5, 4, 0, 6, 1, 2, 3, 7] and best[:4] == [-6, -5, -1, -7]
    _, chosen = select_from_banks(log_p, np.zeros_like(banks), 1, 5)
    assert np.array(chosen)[0].tolist() == [0, 1, 2, 3, 4]


# Wrong values


@pytest.mark.parametrize(
    "phrases, said",
    [
        ("a b", "phrases must be a list of length 3, with one list of phrases for each text"),
        ([["a"], ["b"]], "phrases must be a list of length 3, with one list of phrases for each text"),
        (["a", "b", "a"], "phrases must be a list of length 3, with one list of phrases for each text"),
        (
            [[], [[A, EOS]], []],
            "phrase ids must be less than the vocabulary size (6) and must not include PAD, BOS or EOS, got [4, 1]",
        ),
        (
            [[], ["a {} c"], []],
            "phrases for text 2 must consist of tokens in the vocabulary, got 'a {} c'. Change or remove this phrase.",
        ),
        (
            [[], [], [[A] * 60, [B] * 41]],
            "phrases for text 3 must have at most 100 tokens, got 101. Use fewer or shorter phrases.",
        ),
    ],
)
def test_wrong_phrases_are_explained(translator, phrases, said):
    with pytest.raises(kt.UserError) as caught:
        translator.translate(SOURCES, phrases=phrases)
    assert str(caught.value) == said


@pytest.mark.parametrize("options", [{"sampling": Sampling()}, {"split_sentences": "en"}])
def test_phrases_exclude_some_options(translator, options):
    with pytest.raises(kt.UserError, match="cannot be combined with .*(sampling|phrases)"):
        translator.translate(SOURCES, phrases=PHRASES, **options)
