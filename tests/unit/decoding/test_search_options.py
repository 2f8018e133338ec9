"""Tests that compare the results of search options with exhaustive search and with the model's probabilities."""

import re

import numpy as np
import oracles
import pytest
from helpers.exhaustive_search import (
    HPARAMS,
    LIMITS,
    NARROW,
    SOURCES,
    SYMBOLS,
    WIDE,
    A,
    B,
    are_best,
    are_best_of_all,
    array,
    close,
    exhaustive,
    is_same,
    is_what_score_says,
    new_translator,
    randomize,
    source_ids,
)
from keras import ops

import keras_transformer as kt
from keras_transformer.backend.compilation import COMPILES_EACH_SHAPE
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, UNK
from keras_transformer.decoding import batched_search
from keras_transformer.decoding.search_options import Sampling

pytestmark = pytest.mark.usefixtures("segments")


@pytest.fixture(scope="module")
def compiled_translator():
    return new_translator(1)


@pytest.fixture
def translator(compiled_translator):
    return randomize(compiled_translator, 1)


@pytest.fixture(scope="module")
def every(compiled_translator):
    """All possible output sequences for each source in `SOURCES`, with log-probabilities."""
    return exhaustive(randomize(compiled_translator, 1).models)


def beam_search(found, limit, beam_size):
    """Run a simple beam search in Python. Return the finished hypotheses as {tokens: log-probability}."""
    living, finished = {(): 0.0}, {}
    for i in range(limit):
        extended = {}
        for tokens, log_p in living.items():
            for symbol in (*SYMBOLS, EOS) if i + 1 < limit else (EOS,):
                end = () if symbol == EOS else (EOS,)
                extended[*tokens, symbol] = log_p + found[*tokens, symbol, *end][i]
        best = sorted(extended, key=extended.get, reverse=True)[: 2 * beam_size]
        finished.update({tokens: extended[tokens] for tokens in best if tokens[-1] == EOS})
        living = {tokens: extended[tokens] for tokens in [t for t in best if t[-1] != EOS][:beam_size]}
    return finished


# Segments


@pytest.mark.skipif(COMPILES_EACH_SHAPE, reason="JAX compiles each shape")
@pytest.mark.parametrize("segment", [1, 100])
def test_search_is_independent_of_segments(translator, monkeypatch, segment):
    texts = ["b", "a b a", "", "b b a x a b", "x", "a a", "b a"]
    asked = {**NARROW, "extra_length": 6, "prefixes": [None, "b a", "a", None, [A, A, B], "", [B]]}
    expected = translator.translate(texts, **asked)
    assert {len(h.tokens) for hypotheses in expected for h in hypotheses} >= {0, *range(2, 11)}
    monkeypatch.setattr(batched_search, "SEGMENT", segment)
    for share in (0, 0.5, 1):
        monkeypatch.setattr(batched_search, "SHRINK", share)
        is_same(translator.translate(texts, **asked), expected)


@pytest.mark.parametrize("weights", range(3))
def test_narrow_beam_matches_plain_beam_search(compiled_translator, weights):
    found = exhaustive(randomize(compiled_translator, weights).models)
    for every, limit, hypotheses in zip(found, LIMITS, compiled_translator.translate(SOURCES, **NARROW)):
        are_best(hypotheses, beam_search(every, limit, NARROW["beam_size"]), NARROW["nbest"])


# Minimum length, prefixes, constraints


def test_min_length_is_respected_within_limit(translator, every):
    results = translator.translate(SOURCES, **WIDE, min_length=3)
    are_best_of_all(every, results, lambda i, tokens: len(tokens) >= min(4, LIMITS[i]))


@pytest.mark.backend
def test_hypotheses_start_with_prefix(translator, every):
    prefixes = [(A,), (), (B, UNK)]
    results = translator.translate(SOURCES, **WIDE, prefixes=prefixes)
    are_best_of_all(every, results, lambda i, tokens: tokens[: len(prefixes[i])] == prefixes[i])


def test_prefixes_may_be_text_or_ids(translator):
    prefixes = [[B, A], [], None]
    together = translator.translate(SOURCES, **NARROW, prefixes=prefixes)
    is_same(translator.translate(SOURCES, **NARROW, prefixes=["b a", "", []]), together)
    is_same(translator.translate(SOURCES[:1], **NARROW, prefixes=prefixes[:1]), together[:1])
    is_same(translator.translate(SOURCES[1:], **NARROW), together[1:])


@pytest.mark.parametrize("length", [2, 8])
def test_prefix_beyond_limit_ends_with_eos(translator, length):
    first, other = translator.translate(["b", "a"], **NARROW, prefixes=[[A] * length, None])
    assert [h.tokens for h in first] == [(*[A] * length, EOS)]
    is_what_score_says(translator, "b", first)
    is_same([other], translator.translate(["a"], **NARROW))


@pytest.mark.parametrize(
    "prefixes", [[[A], [EOS]], [[PAD], None], [None, [A, BOS]], [[-1], None], [[A], [6]], ["a"], ["a"] * 3, "ab"]
)
def test_invalid_prefixes_are_rejected(translator, prefixes):
    with pytest.raises(kt.UserError, match="prefix"):
        translator.translate(["a", "b"], **NARROW, prefixes=prefixes)


def test_prefix_with_unknown_tokens_is_rejected(translator):
    message = (
        "the prefix for text 2 must consist of tokens in the vocabulary, got 'a {}'. Change or remove this prefix."
    )
    with pytest.raises(kt.UserError, match=f"^{re.escape(message)}$"):
        translator.translate(["a", "b"], **NARROW, prefixes=["a", "a {}"])


def nothing_twice(tokens, index, inputs):
    """Constraint that forbids repeating the previous token.

    For the shortest text in `SOURCES`, the constraint also forbids UNK and EOS. The search still outputs EOS at the
    length limit. For texts longer than those in `SOURCES`, the constraint forbids all tokens.
    """
    symbols, limits = ops.arange(6, dtype="int32"), inputs.limits[:, None, None]
    previous = ops.take(tokens, ops.maximum(index - 1, 0), axis=2)[:, :, None]
    letters = (symbols == A) | (symbols == B)
    return (symbols != previous) & (letters | (limits > LIMITS[0])) & (limits <= LIMITS[-1])


def repeats(tokens):
    return any(one == other for one, other in zip(tokens, tokens[1:]))


@pytest.mark.backend
def test_constraint_restricts_next_tokens(translator, every):
    def legal(number, tokens):
        # At the length limit, the search forces EOS.
        return not repeats(tokens) and (number > 0 or len(tokens) == LIMITS[0] and UNK not in tokens)

    are_best_of_all(every, translator.translate(SOURCES, **WIDE, constraint=nothing_twice), legal)
    assert any(repeats(h.tokens) for hypotheses in translator.translate(SOURCES, **WIDE) for h in hypotheses)


@pytest.mark.parametrize("sizes", [WIDE, {**NARROW, "min_length": 2, "sampling": Sampling()}])
def test_constraint_without_solution_raises_error(translator, sizes):
    with pytest.raises(kt.UserError, match=r"^the search options allow no translation of text 2\. Relax"):
        translator.translate(["b", "b b a x", "a"], **sizes, constraint=nothing_twice)


# Sampling


def test_samples_depend_on_text_and_seed_only(translator):
    first = translator.translate(SOURCES, **NARROW, sampling=Sampling(seed=1))
    assert translator.translate(SOURCES, **NARROW, sampling=Sampling(seed=1)) == first
    other = translator.translate(SOURCES, **NARROW, sampling=Sampling(seed=2))
    assert all({h.tokens for h in some} != {h.tokens for h in others} for some, others in zip(first, other))
    is_same(translator.translate(SOURCES[::-1], **NARROW, sampling=Sampling(seed=1)), first[::-1])
    is_same(translator.translate(SOURCES[1:2], **NARROW, sampling=Sampling(seed=1)), first[1:2])


def test_samples_are_sorted_with_model_probabilities(translator):
    results = translator.translate(SOURCES, **NARROW, sampling=Sampling(seed=1))
    for text, limit, hypotheses in zip(SOURCES, LIMITS, results):
        is_what_score_says(translator, text, hypotheses)
        scores = [h.score for h in hypotheses if len(h.tokens) <= limit and h.tokens[-1] == EOS]
        assert len(scores) == 8 and scores == sorted(scores, reverse=True)
    best = translator.translate(SOURCES, **{**NARROW, "nbest": 2}, sampling=Sampling(seed=1))
    is_same(best, [hypotheses[:2] for hypotheses in results])


@pytest.mark.parametrize("sampling", [Sampling(temperature=1e-4), Sampling(top_k=1)])
def test_samples_are_greedy_at_low_temperature_or_top_k_1(translator, sampling):
    greedy = translator.translate(SOURCES, beam_size=1, extra_length=1)
    is_same(translator.translate(SOURCES, beam_size=1, extra_length=1, sampling=sampling), greedy)


def test_samples_follow_sequence_probabilities(translator, every):
    count, text, limit = 1000, SOURCES[1], LIMITS[1]
    (draws,) = translator.translate([text], count, 0, count, extra_length=1, sampling=Sampling(temperature=2.0))
    found, drawn = every[1], [h.tokens for h in draws]
    ends = {EOS: (EOS,), **{symbol: (symbol, EOS) for symbol in SYMBOLS}}
    for tokens in found:
        p = 1.0
        for i in range(min(len(tokens), limit - 1)):
            weights = {symbol: np.exp(found[*tokens[:i], *end][i] / 2) for symbol, end in ends.items()}
            p *= weights[tokens[i]] / sum(weights.values())
        assert abs(drawn.count(tokens) / count - p) <= 4.5 * np.sqrt(p * (1 - p) / count) + 1e-4


def test_samples_obey_prefix_min_length_and_constraint(translator):
    prefixes, rules = [(A,), (), (B,)], {"sampling": Sampling(), "min_length": 2, "constraint": nothing_twice}
    results = translator.translate(SOURCES, **NARROW, **rules, prefixes=prefixes)
    for text, prefix, hypotheses in zip(SOURCES, prefixes, results):
        for h in hypotheses:
            assert len(h.tokens) >= 3 and not repeats(h.tokens) and h.tokens[: len(prefix)] == prefix
        is_what_score_says(translator, text, hypotheses)


# Token scores and alignments


def test_token_scores_are_model_log_probabilities(translator, every):
    plain = translator.translate(SOURCES, **NARROW)
    results = translator.translate(["", *SOURCES], **NARROW, token_scores=True)[1:]
    assert results == plain and plain[0][0].token_log_probabilities is None
    for found, hypotheses in zip(every, results):
        for h in hypotheses:
            assert h.token_log_probabilities.dtype == "float32" and h.alignment is None
            close(h.token_log_probabilities, found[h.tokens])
            assert h.token_log_probabilities.sum() == pytest.approx(h.log_probability, rel=1e-4)


def cross_attention(model, text, tokens):
    """Return the cross-attention weights of the last layer, averaged over heads: `[tokens, source tokens]`."""
    memory = model.encode(np.array([source_ids(text)]))
    decoder_input = np.array([[BOS, *tokens[:-1]]])
    x = model.embedding(decoder_input) + model.positions(np.arange(len(tokens)))
    hidden = np.tril(np.ones((len(tokens), len(tokens)), bool))[None, None]
    *earlier, last = model.decoder.layers
    for layer in earlier:
        x = layer(x, memory, self_mask=hidden)
    x = last.self_attention_residual(x, sublayer=lambda y: last.self_attention(y, y, attention_mask=hidden))
    kernels, heads = (last.cross_attention.query_kernel, last.cross_attention.key_kernel), HPARAMS.num_heads
    products = (array(states)[0] @ array(kernel) for states, kernel in zip((x, memory), kernels))
    query, key = (np.stack(np.split(product, heads, axis=-1)) for product in products)
    return oracles.attention(query, key, key)[1].mean(axis=0)


@pytest.mark.parametrize("name", ["translator", "ensemble"])
def test_alignments_are_last_layer_cross_attention(name, request):
    translator = request.getfixturevalue(name)
    for text, hypotheses in zip(SOURCES, translator.translate(SOURCES, **WIDE, alignments=True)):
        for h in hypotheses:
            assert h.alignment.shape == (len(h.tokens), len(source_ids(text))) and h.token_log_probabilities is None
            close(h.alignment.sum(axis=1), 1)
        longest = max(hypotheses, key=lambda h: len(h.tokens))
        expected = [cross_attention(model, text, longest.tokens) for model in translator.models]
        close(longest.alignment, np.mean(expected, axis=0))


# Ensembles, long sources, precision


def test_ensemble_averages_probabilities(ensemble):
    results = ensemble.translate(SOURCES, **WIDE)
    every = exhaustive(ensemble.models)
    are_best_of_all(every, results)
    for text, hypotheses in zip(SOURCES, results):
        is_what_score_says(ensemble, text, hypotheses)
    (scored,) = ensemble.score(SOURCES[:1], [(B, UNK, EOS)])
    close(scored.token_log_probabilities, every[0][scored.tokens])


def test_ensemble_of_equal_models_is_the_model(translator):
    twice, texts = kt.Translator([translator.model] * 2, translator.tokenizer, HPARAMS), SOURCES[:1]
    is_same(twice.translate(texts, **NARROW), translator.translate(texts, **NARROW))


def test_ensemble_rejects_different_vocabularies(translator):
    other = kt.Transformer(7, HPARAMS)
    with pytest.raises(kt.UserError, match="got 7 and 6"):
        kt.Translator([translator.model, other], translator.tokenizer, HPARAMS)


def test_long_source_is_truncated(translator):
    texts, by_hand, told = ["b", "b b a a", "a b", "x a b x"], ["b", "b b", "a b", "x a"], []
    cut = translator.translate(texts, **NARROW, max_source_length=3, cut=lambda *source: told.append(source))
    assert told == [(1, 5), (3, 5)]
    is_same(cut, translator.translate(by_hand, **NARROW))
    whole = translator.translate(texts, **NARROW, max_source_length=5, cut=lambda *source: told.append(source))
    assert len(told) == 2
    is_same(whole, translator.translate(texts, **NARROW))
    (aligned, *_), *_ = translator.translate(texts[1:2], **NARROW, max_source_length=3, alignments=True)
    assert aligned.alignment.shape == (len(aligned.tokens), 3)


@pytest.mark.parametrize("wrong", [{"max_source_length": 1}, {"min_length": -1}])
def test_invalid_lengths_are_rejected(translator, wrong):
    with pytest.raises(kt.UserError, match=next(iter(wrong))):
        translator.translate(["a"], **NARROW, **wrong)


def test_translate_in_bfloat16(translator):
    half = randomize(new_translator(1, dtype="bfloat16"), 1)
    for text, hypotheses in zip(SOURCES, half.translate(SOURCES, **NARROW, token_scores=True)):
        exact = translator.score([text] * len(hypotheses), [h.tokens for h in hypotheses])
        np.testing.assert_allclose([h.score for h in hypotheses], [h.score for h in exact], rtol=0.05)
        assert all(h.token_log_probabilities.dtype == "float32" for h in hypotheses)
