"""Tests of beam search (§6.1): comparison with exhaustive and greedy search, and invariants of hypotheses."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import keras_transformer as kt
from keras_transformer.backend.compilation import COMPILES_EACH_SHAPE
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, UNK
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.decoding.beam_search import (
    SearchInputs,
    beams_at_first,
    search,
    start,
    step,
)
from keras_transformer.decoding.search_options import SearchOptions
from keras_transformer.models.transformer import last_tokens

LETTERS = "abc"
SYMBOLS = (UNK, 4, 5, 6)  # possible tokens before EOS
SOURCES = ["b", "a c", "c c a", "a b c"]
EXTRA = 1  # limits the outputs for SOURCES to 3 to 5 tokens, including EOS
EVERY = sum(len(SYMBOLS) ** n for n in range(5))  # number of sequences of at most 5 tokens, including EOS
ALPHAS = (0.0, 0.6, 1.0)


@pytest.fixture(scope="module")
def translator():
    hparams = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, dropout=0)
    tokenizer = SymbolTokenizer(LETTERS)
    return kt.Translator(kt.Transformer(tokenizer.vocab_size, hparams), tokenizer, hparams)


def randomize(translator, seed):
    """Assign random weights that are large enough for peaked and varied distributions. Return the translator."""
    rng = np.random.default_rng(seed)
    for variable in translator.model.trainable_variables:
        variable.assign(rng.normal(scale=0.7, size=variable.shape))
    return translator


def length_penalty(length, alpha):
    return ((5 + length) / 6) ** alpha


def padded(sequences, length):
    return np.array([[*ids, *[PAD] * (length - len(ids))] for ids in sequences])


def next_log_probabilities(translator, texts, sequences, length):
    """Return the log-probabilities of the next tokens, computed without a cache: `[sequences, length, vocab]`."""
    sources = padded([[*ids, EOS] for ids in translator.tokenizer.encode(texts)], 4)
    inputs = padded([[BOS, *sequence[: length - 1]] for sequence in sequences], length)
    return ops.convert_to_numpy(ops.log_softmax(translator.model((sources, inputs), training=False))).astype("float64")


def exhaustive(translator):
    """Return a list with {tokens: log-probability} of all sequences within the length limit for each source."""
    prefixes = list(itertools.product(SYMBOLS, repeat=4))
    texts = [text for text in SOURCES for _ in prefixes]
    log_p = next_log_probabilities(translator, texts, prefixes * len(SOURCES), 5)
    every = [{} for _ in SOURCES]
    for text, found, rows in zip(SOURCES, every, np.split(log_p, len(SOURCES)), strict=True):
        for prefix, row in zip(prefixes, rows):
            for length in range(len(text.split()) + EXTRA + 1):
                tokens = (*prefix[:length], EOS)
                found[tokens] = sum(row[i, symbol] for i, symbol in enumerate(tokens))
    return every


def are_greedy(translator, sequences, extra_length):
    """Return one bool per source: True if greedy search would produce the given sequence for this source."""
    log_p = next_log_probabilities(translator, SOURCES, sequences, 11)
    log_p[:, :, [PAD, BOS]] = -np.inf
    found = []
    for text, tokens, row in zip(SOURCES, sequences, log_p, strict=True):
        free = tokens[: len(text.split()) + extra_length]  # without an EOS forced by the length limit
        found.append(tokens[-1] == EOS and list(free) == row.argmax(axis=1)[: len(free)].tolist())
    return found


@pytest.mark.backend
def test_wide_beam_equals_exhaustive_search(translator):
    best, improved = [], 0
    for seed in range(3):
        every = exhaustive(randomize(translator, seed))
        for alpha in ALPHAS:
            results = translator.translate(SOURCES, EVERY, alpha, 20, EXTRA)
            for log_p, hypotheses in zip(every, results, strict=True):
                scores = {tokens: log_p[tokens] / length_penalty(len(tokens), alpha) for tokens in log_p}
                expected = sorted(scores, key=scores.get, reverse=True)[:20]
                assert hypotheses[0].tokens == expected[0]
                assert {h.tokens for h in hypotheses} == set(expected)
                found = [h.score for h in hypotheses]
                np.testing.assert_allclose(found, [scores[tokens] for tokens in expected], rtol=1e-4)
            best += [hypotheses[0].tokens for hypotheses in results]
            improved += are_greedy(translator, best[-len(SOURCES) :], EXTRA).count(False)
    # The comparison is useful only if the best sequences differ from each other and from those of greedy search.
    assert improved >= 6 and len({*best}) >= 6 and len({len(tokens) for tokens in best}) >= 3


@pytest.mark.backend
@pytest.mark.parametrize("seed", range(2))
def test_beam_size_1_is_greedy_search(translator, seed):
    randomize(translator, seed)
    found = [hypothesis.tokens for (hypothesis,) in translator.translate(SOURCES, beam_size=1, extra_length=6)]
    assert all(len(tokens) <= len(text.split()) + 7 for text, tokens in zip(SOURCES, found, strict=True))
    assert all(are_greedy(translator, found, 6))


def assert_same(found, expected):
    """Assert that two lists of hypotheses are equal up to rounding."""
    assert [h.tokens for h in found] == [h.tokens for h in expected]
    for name in ("log_probability", "score"):
        numbers = ([getattr(h, name) for h in hypotheses] for hypotheses in (found, expected))
        np.testing.assert_allclose(*numbers, rtol=1e-4, atol=1e-5)


# Use only two source lengths, because JAX compiles the search for each maximum length.
one_or_four = st.sampled_from([1, 4]).flatmap(lambda length: st.text("abx", min_size=length, max_size=length))


@pytest.mark.backend
@settings(max_examples=3 if COMPILES_EACH_SHAPE else 8)  # each example runs a dozen searches
@given(
    texts=st.lists(one_or_four, min_size=1, max_size=4),
    sizes=st.sampled_from([(1, 1), (4, 4)]),
    alpha=st.sampled_from(ALPHAS),
    extra_length=st.sampled_from([0, 3]),
    weights=st.integers(0, 2**31),
    random=st.randoms(use_true_random=False),
)  # fmt: skip
def test_hypotheses_depend_on_their_text_only(translator, texts, sizes, alpha, extra_length, weights, random):
    randomize(translator, weights)
    texts, order = [" ".join(text) for text in texts], list(range(len(texts)))
    random.shuffle(order)

    def translate(chosen):
        return translator.translate(chosen, sizes[0], alpha, sizes[1], extra_length)

    together = translate(texts)
    for found, number in zip(translate([texts[i] for i in order]), order, strict=True):
        assert_same(found, together[number])
    for text, hypotheses in zip(texts, together):
        (alone,) = translate([text])
        assert_same(alone, hypotheses)
        scores = [h.score for h in hypotheses]
        assert 1 <= len(scores) <= sizes[1] and scores == sorted(scores, reverse=True)
        for h in hypotheses:
            assert len(h.tokens) <= len(text.split()) + 1 + extra_length
            assert h.tokens[-1] == EOS and set(h.tokens[:-1]) <= set(SYMBOLS)
        scored = translator.score([text] * len(hypotheses), [h.tokens for h in hypotheses], alpha)
        assert_same(scored, hypotheses)


# Searches with a table instead of a model


class Table:
    """Substitute for a model. Its logits depend on the sentence, the position and all earlier tokens."""

    def __init__(self, seed, batch=5, length=9, vocab_size=8, scale=2.0, raised=()):
        rng = np.random.default_rng(seed)
        self.by_position = rng.normal(scale=scale, size=(batch, length, vocab_size)).astype("float32")
        self.by_symbol = rng.normal(scale=scale, size=(length, vocab_size, vocab_size)).astype("float32")
        for symbol, logit in raised:
            self.by_position[:, :, symbol] += logit
        self.batch, self.length, self.vocab_size = batch, length, vocab_size

    def log_probability(self, sentence, tokens):
        """Return the log-probability of `tokens`, computed in NumPy."""
        total, logits = 0.0, np.zeros(self.vocab_size)
        for index, token in enumerate(tokens):
            now = self.by_position[sentence, index] + logits
            total += now[token] - np.logaddexp.reduce(now)
            logits += self.by_symbol[index, token]
        return total

    def decode(self, tokens, index, path, cache):
        """Decode one step. Instead of keys and values, `path` contains what the earlier tokens add to the logits."""
        effect = ops.take(ops.convert_to_tensor(self.by_symbol), ops.maximum(index - 1, 0), axis=0)
        path = path + ops.take(effect, last_tokens(tokens, index), axis=0) * ops.cast(index > 0, "float32")
        return ops.take(ops.convert_to_tensor(self.by_position), index, axis=1)[:, None] + path, path, cache

    def start(self, limits, options):
        path = ops.zeros((self.batch, beams_at_first(options), self.vocab_size))
        return start(self.batch, max(limits), options, path, cache=())

    def inputs(self, limits, alpha, beams, nbest):
        """Return `SearchInputs`. `alpha`, `beams` and `nbest` are numbers, or lists with a number for each sentence."""
        limits, words = np.array(limits, "int32"), np.zeros(self.batch, "int32")
        prefix, chances = np.zeros((self.batch, 1), "int32"), np.zeros((self.batch, 0, 0), "float32")
        asked = [
            np.broadcast_to(np.array(value, kind), self.batch)
            for value, kind in ((alpha, "float32"), (beams, "int32"), (nbest, "int32"))
        ]
        return SearchInputs(*map(ops.convert_to_tensor, (limits, prefix, chances, words, *asked)))

    def search(self, limits, beam_size=4, alpha=0.6, nbest=4, beams=None):
        options = SearchOptions(beam_size, constraint=None)
        inputs = self.inputs(limits, alpha, beams or beam_size, nbest)
        first = step(self.start(limits, options), self.decode, inputs, options)
        return search(first, self.decode, inputs, options, max(limits))

    def states(self, limits, beam_size=4, alpha=0.6):
        """Yield the state after each step, without early stopping."""
        options, inputs = SearchOptions(beam_size, constraint=None), self.inputs(limits, alpha, beam_size, beam_size)
        state = self.start(limits, options)
        for _ in range(max(limits)):
            state = step(state, self.decode, inputs, options)
            yield state


LIMITS = [9, 1, 5, 3, 9]


def hypotheses(state, nbest=None):
    """Return the finished hypotheses of each sentence as tuples (tokens, log-probability, score).

    Assert that only PAD follows EOS.
    """
    fields = (state.finished_tokens, state.finished_log_probabilities, state.finished_scores)
    result = []
    for rows in zip(*map(ops.convert_to_numpy, fields)):
        finished = [(tokens.tolist(), *numbers) for tokens, *numbers in zip(*rows) if numbers[-1] > -1e8]
        ends = [tokens.index(EOS) + 1 for tokens, _, _ in finished]
        assert all(set(tokens[end:]) <= {PAD} for end, (tokens, _, _) in zip(ends, finished))
        result.append([(tuple(tokens[:end]), *numbers) for end, (tokens, *numbers) in zip(ends, finished)][:nbest])
    return result


EACH_ALPHA = [0.0, 0.6, 1.0, 0.3, 2.0]  # one value for each sentence


@pytest.mark.parametrize("seed", range(2))
def test_hypotheses_have_correct_log_probability_and_score(seed):
    table = Table(seed)
    for sentence, finished in enumerate(hypotheses(table.search(LIMITS, alpha=EACH_ALPHA))):
        for tokens, log_probability, score in finished:
            assert log_probability == pytest.approx(table.log_probability(sentence, tokens), rel=1e-4)
            assert score == pytest.approx(log_probability / length_penalty(len(tokens), EACH_ALPHA[sentence]), rel=1e-5)
        scores = [score for _, _, score in finished]
        assert scores == sorted(scores, reverse=True)
        assert len({tokens for tokens, _, _ in finished}) == len(finished) >= 1


@pytest.mark.parametrize("raised", [(), [(EOS, -9.0)], [(EOS, 3.0)]])
def test_hypotheses_end_with_single_eos_within_limit(raised):
    for limit, finished in zip(LIMITS, hypotheses(Table(2, raised=raised).search(LIMITS))):
        assert finished and all(len(tokens) <= limit for tokens, _, _ in finished)


def test_probable_eos_leaves_no_beam_empty():
    *states, _ = Table(2, raised=[(EOS, 9.0)]).states([9] * 5)
    for state in states:
        assert ops.convert_to_numpy(state.log_probabilities).min() > -1e8


def test_improbable_eos_is_forced_at_limit():
    for limit, finished in zip(LIMITS, hypotheses(Table(2, raised=[(EOS, -50.0)]).search(LIMITS))):
        assert {len(tokens) for tokens, _, _ in finished} == {limit}


@pytest.mark.parametrize("symbol", (PAD, BOS))
def test_pad_and_bos_are_never_output(symbol):
    for finished in hypotheses(Table(3, raised=[(symbol, 20.0)]).search(LIMITS)):
        assert all(symbol not in tokens for tokens, _, _ in finished)


def test_finished_hypotheses_never_change():
    known = [{} for _ in LIMITS]
    for index, state in enumerate(Table(4).states(LIMITS)):
        for old, finished in zip(known, hypotheses(state)):
            new = {tokens: numbers for tokens, *numbers in finished}
            assert all(len(tokens) == index + 1 or old[tokens] == numbers for tokens, numbers in new.items())
            old.update(new)


@pytest.mark.parametrize("nbest", (1, 3))
@pytest.mark.parametrize("raised", [(), [(EOS, 2.0)]])
def test_early_stopping_loses_no_hypothesis(nbest, raised):
    table = Table(seed=nbest, raised=raised)
    *_, last = table.states(LIMITS, alpha=EACH_ALPHA)
    found = hypotheses(table.search(LIMITS, alpha=EACH_ALPHA, nbest=nbest), nbest)
    for early, late in zip(found, hypotheses(last, nbest), strict=True):
        assert [tokens for tokens, *_ in early] == [tokens for tokens, *_ in late]
        # Rounding may differ between the compiled search and single steps.
        np.testing.assert_allclose([h[1:] for h in early], [h[1:] for h in late], rtol=1e-6)


def test_search_takes_options_per_sentence():
    table, beams, alphas, nbest = Table(7), [4, 1, 2, 3, 1], [0.0, 0.6, 1.0, 0.6, 2.0], [4, 1, 2, 1, 1]
    found = hypotheses(table.search(LIMITS, 4, alphas, nbest, beams))
    for row, options in enumerate(zip(beams, alphas, nbest)):
        alone = hypotheses(table.search(LIMITS, *options))[row][: nbest[row]]
        assert [tokens for tokens, *_ in found[row][: nbest[row]]] == [tokens for tokens, *_ in alone]
        np.testing.assert_allclose([h[1:] for h in found[row][: nbest[row]]], [h[1:] for h in alone], rtol=1e-6)


def test_search_stops_when_no_beam_can_improve():
    state = Table(5, raised=[(EOS, 15.0)]).search([9] * 5, nbest=1)
    assert int(state.index) < 9


@pytest.mark.parametrize(("value", "index"), [(np.nan, 0), (np.inf, 3)])
def test_search_flags_nonfinite_sentences(value, index):
    table = Table(seed=2, raised=[(EOS, -9.0)])
    table.by_position[[1, 4], index, 5] = value
    state = table.search([9, 9, 9, 2, 2], nbest=1)
    # The last sentence has a limit of 2 tokens, so its search ends before the non-finite value at index 3.
    assert ops.convert_to_numpy(state.finite).tolist() == [True, False, True, True, index > 0]


def test_search_flags_a_single_nonfinite_hypothesis():
    table = Table(seed=2)
    table.by_symbol[1, 4, 5] = np.nan
    state = table.search([9] * 5)
    assert not ops.convert_to_numpy(state.finite).any()
    # The search must report the non-finite hypothesis even though finite hypotheses finished earlier.
    assert (ops.convert_to_numpy(state.finished_scores) > -1e8).any()
