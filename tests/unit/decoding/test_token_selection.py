"""Tests of token selection, gathering and the key-value tree, compared with simple NumPy code."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_transformer.decoding.gather import take, take_rows
from keras_transformer.decoding.kv_tree import compact, extend_path, live_nodes
from keras_transformer.decoding.search_options import Sampling
from keras_transformer.decoding.token_selection import BLOCKS, NEG_INF, blockwise_top_k, sample_tokens, top_k_tokens
from keras_transformer.utils.errors import UserError

TENSORFLOW = keras.backend.backend() == "tensorflow"
FEW, MANY = (40, 150) if TENSORFLOW else (6, 15)  # examples per test; fewer on JAX, which compiles each shape
seeds = st.integers(0, 2**31)
small, counts = st.integers(1, 4), st.integers(1, 24)
# Vocabulary sizes below, at and above the threshold for blockwise top-k, with and without an incomplete last block.
vocab_sizes = st.one_of(st.integers(1, 40), st.integers(4 * BLOCKS[0] - 3, 8 * BLOCKS[0] + 3), st.integers(500, 1500))


def array(values):
    return np.asarray(ops.convert_to_numpy(values))


def in_order(values, count):
    """Return the indices of the `count` largest values in descending order. Ties keep their order."""
    return np.argsort(-values, axis=-1, kind="stable")[..., :count]


def log_softmax(logits):
    logits = logits.astype("float64")
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def of_few_numbers(seed, shape, different):
    """Return random logits with at most `different` distinct values."""
    rng = np.random.default_rng(seed)
    return rng.choice(rng.normal(scale=3, size=different), size=shape).astype("float32")


# Gathering


@settings(max_examples=FEW, deadline=None)
@given(outer=st.lists(small, min_size=0, max_size=3), n=small, m=small, width=small, seed=seeds)
def test_take_matches_numpy(outer, n, m, width, seed):
    rng = np.random.default_rng(seed)
    values, places = rng.normal(size=(*outer, n, width)), rng.integers(n, size=(*outer, m)).astype("int32")
    values = values.astype("float32")
    rows = np.take_along_axis(values, places[..., None], axis=-2)
    np.testing.assert_array_equal(array(take_rows(ops.convert_to_tensor(values), places)), rows)
    first = values[..., 0]
    taken = array(take(ops.convert_to_tensor(first), places))
    np.testing.assert_array_equal(taken, np.take_along_axis(first, places, axis=-1))


# The most probable tokens


@settings(max_examples=MANY, deadline=None)
@given(
    rows=small, beams=small, vocab_size=vocab_sizes, count=counts, different=st.sampled_from((1, 3, 10_000)), seed=seeds
)
def test_blockwise_top_k_is_stable(rows, beams, vocab_size, count, different, seed):
    logits, count = of_few_numbers(seed, (rows, beams, vocab_size), different), min(count, vocab_size)
    best, symbols = blockwise_top_k(ops.convert_to_tensor(logits), count)
    expected = in_order(logits, count)
    np.testing.assert_array_equal(array(best), np.take_along_axis(logits, expected, axis=-1))
    np.testing.assert_array_equal(array(symbols), expected)


@pytest.mark.backend
@pytest.mark.parametrize("vocab_size", [10 * BLOCKS[0], 10 * BLOCKS[0] - 1, 10 * BLOCKS[0] - 15])
def test_blockwise_top_k_takes_first_of_equal_logits(vocab_size):
    first, second = (places.ravel() for places in np.meshgrid(*[np.arange(vocab_size)] * 2, indexing="ij"))
    first, second = first[first < second], second[first < second]
    logits = np.zeros((1, len(first), vocab_size), "float32")
    for places in (first, second):
        logits[0, np.arange(len(first)), places] = 1
    assert array(blockwise_top_k(ops.convert_to_tensor(logits), 1)[1])[0, :, 0].tolist() == first.tolist()


@pytest.mark.parametrize("vocab_size", [10 * BLOCKS[0], 10 * BLOCKS[0] - 1, 10 * BLOCKS[0] - 15, 997])
def test_blockwise_top_k_never_exceeds_vocabulary(vocab_size):
    # All tokens but one are masked. The masked tokens have the same logit as the padding of the last block.
    logits = np.full((1, vocab_size, vocab_size), NEG_INF, "float32")
    logits[0, np.arange(vocab_size), np.arange(vocab_size)] = 0
    symbols = array(blockwise_top_k(ops.convert_to_tensor(logits), 2)[1])[0]
    assert symbols[:, 0].tolist() == list(range(vocab_size))
    assert symbols.max() < vocab_size


@settings(max_examples=FEW, deadline=None)
@given(
    rows=small, beams=small, vocab_size=vocab_sizes, count=st.integers(1, 12), share=st.sampled_from((None, 0.02, 0.5)),
    scale=st.sampled_from((0.1, 3, 80)), seed=seeds,
)  # fmt: skip
def test_top_k_tokens_normalizes_over_all_tokens(rows, beams, vocab_size, count, share, scale, seed):
    rng = np.random.default_rng(seed)
    logits = rng.uniform(-scale, scale, size=(rows, beams, vocab_size)).astype("float32")
    allowed = None if share is None else rng.random(logits.shape) < share
    log_p, symbols, normalizer = map(array, top_k_tokens(ops.convert_to_tensor(logits), allowed, count))
    expected, count = log_softmax(logits), min(count, vocab_size)
    total = logits[:, :, 0].astype("float64") - expected[:, :, 0]
    np.testing.assert_allclose(normalizer, total, rtol=1e-5, atol=1e-5)
    masked = logits if allowed is None else np.where(allowed, logits, -np.inf)
    order = in_order(masked, count)
    possible = np.take_along_axis(masked, order, axis=-1) > -np.inf
    assert log_p.shape == symbols.shape == (rows, beams, count)
    np.testing.assert_array_equal(symbols[possible], order[possible])
    of_order = np.take_along_axis(expected, order, axis=-1)
    np.testing.assert_allclose(log_p[possible], of_order[possible], rtol=1e-5, atol=2e-5)
    assert (log_p[~possible] == NEG_INF).all()


@pytest.mark.parametrize("constrained", [False, True])
def test_top_k_tokens_gives_certain_token_log_probability_0(constrained):
    logits = np.full((1, 1, 900), -80, "float32")
    logits[0, 0, 7] = 80
    allowed = np.ones(logits.shape, bool) if constrained else None
    log_p, symbols, _ = top_k_tokens(ops.convert_to_tensor(logits), allowed, 3)
    assert array(symbols)[0, 0].tolist() == [7, 0, 1]
    np.testing.assert_allclose(array(log_p)[0, 0], [0, -160, -160], rtol=1e-6)


# Sampling


def probabilities(logits, allowed, sampling):
    """Apply temperature, top-k and top-p in this order. Return the probabilities, float64."""
    p = np.exp(log_softmax(np.where(allowed, logits / sampling.temperature, -np.inf)))
    if sampling.top_k:
        p = np.where(p >= np.sort(p)[::-1][: sampling.top_k].min(), p, 0)
        p /= p.sum()
    if sampling.top_p < 1:
        order = in_order(p, len(p))
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= sampling.top_p]] = 0
    return p / p.sum()


def drawn(logits, allowed, chance, sampling):
    """Sample a token for each random number in `chance`. Return the tokens and the log-sum-exps of the logits."""
    chance = np.asarray(chance, "float32")
    shape = (1, len(chance), len(logits))
    logits = ops.convert_to_tensor(np.broadcast_to(logits, shape).astype("float32"))
    symbols, normalizer = sample_tokens(logits, allowed[None, None], ops.convert_to_tensor(chance[None]), sampling)
    return array(symbols)[0], array(normalizer)[0]


def evenly(count):
    return (np.arange(count) + 0.5) / count


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from((0.3, 1.0, 2.5)),
    top_k=st.sampled_from((0, 1, 3, 50)),
    top_p=st.sampled_from((0.03, 0.5, 0.9, 1.0)),
)


@settings(max_examples=FEW, deadline=None)
@given(vocab_size=st.sampled_from((2, 9, 40)), sampling=samplings, share=st.sampled_from((0.4, 1)), seed=seeds)
def test_sample_tokens_inverts_distribution(vocab_size, sampling, share, seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2, size=vocab_size).astype("float32")
    allowed = rng.random(vocab_size) < share
    allowed[rng.integers(vocab_size)] = True
    p, chance = probabilities(logits, allowed, sampling), rng.random(50, "float32")
    symbols, normalizer = drawn(logits, allowed, chance, sampling)
    until = np.cumsum(p)
    assert (p[symbols] > 0).all()
    # Rounding may move a random number across the boundary between two tokens.
    assert (chance <= until[symbols] + 1e-5).all() and (chance >= until[symbols] - p[symbols] - 1e-5).all()
    np.testing.assert_allclose(normalizer, np.log(np.exp(logits.astype("float64")).sum()), rtol=1e-5, atol=1e-5)


@pytest.mark.backend
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.5), Sampling(top_k=3), Sampling(top_p=0.8), Sampling(2.0, 4, 0.7)]
)
def test_sample_tokens_follows_probabilities(sampling):
    logits, count = np.random.default_rng(8).normal(size=8).astype("float32"), 20_000
    allowed = np.arange(8) != 2
    symbols, _ = drawn(logits, allowed, evenly(count), sampling)
    often = np.bincount(symbols, minlength=8) / count
    np.testing.assert_allclose(often, probabilities(logits, allowed, sampling), atol=2 / count)


def test_sample_tokens_top_k_and_top_p():
    logits, every = np.log([0.1, 0.4, 0.05, 0.25, 0.2]), np.ones(5, bool)

    def kept(sampling, allowed=every):
        return set(drawn(logits, allowed, evenly(500), sampling)[0].tolist())

    assert kept(Sampling()) == {0, 1, 2, 3, 4}
    assert kept(Sampling(top_k=2)) == {1, 3}
    assert kept(Sampling(top_p=0.6)) == {1, 3}
    assert kept(Sampling(top_p=0.7)) == {1, 3, 4}
    assert kept(Sampling(top_p=0.01)) == {1}
    assert kept(Sampling(top_k=9)) == {0, 1, 2, 3, 4}
    # top_p applies after top_k. The first token alone suffices, because 0.4 / 0.65 is more than 0.6.
    assert kept(Sampling(top_k=2, top_p=0.6)) == {1}
    assert kept(Sampling(top_k=2), np.arange(5) != 1) == {3, 4}


@pytest.mark.parametrize("temperature", [1e-3, 1e-6])
def test_sample_tokens_is_greedy_at_low_temperature(temperature):
    logits = np.random.default_rng(4).normal(loc=-30, size=50).astype("float32")
    allowed = np.arange(50) != logits.argmax()
    symbols, _ = drawn(logits, allowed, evenly(100), Sampling(temperature))
    assert set(symbols.tolist()) == {int(in_order(logits, 2)[1])}


@pytest.mark.parametrize("vocab_size", [7, 5000])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_k=3), Sampling(top_p=0.2), Sampling(1e-6)])
def test_sample_tokens_never_draws_impossible_tokens(vocab_size, sampling):
    rng = np.random.default_rng(9)
    logits = rng.normal(scale=3, size=vocab_size).astype("float32")
    allowed = rng.random(vocab_size) < 0.4
    allowed[[0, -1]] = False  # even extreme random numbers must not select these tokens
    allowed[3] = True
    chance = np.concatenate([[0, 1e-45, np.nextafter(np.float32(1), np.float32(0)), 1], rng.random(200)])
    symbols, _ = drawn(logits, allowed, chance, sampling)
    assert (probabilities(logits, allowed, sampling)[symbols] > 0).all()


# The key-value tree


class PlainTree:
    """Random search that also records the history of each beam, with its keys and values, in a simple list."""

    def __init__(self, seed, batch, beam_size, heads=2, width=3):
        self.rng, self.batch, self.beam_size, self.heads, self.width = (
            np.random.default_rng(seed), batch, beam_size, heads, width,
        )  # fmt: skip
        self.histories = [[[] for _ in range(beam_size)] for _ in range(batch)]
        self.alive = np.ones((batch, beam_size), bool)
        self.past = [np.zeros((batch, heads, 0, width), "float32")]

    def segment(self, path, steps):
        """Run `steps` steps of the search. Return the new path and a list whose only element is the array of new nodes.

        In each step, every beam adds a node, and the next beams are random copies of live beams. At the end, some beams
        die.
        """
        past_length = self.past[0].shape[2]
        recent = np.zeros((self.batch, self.heads, steps * self.beam_size, self.width), "float32")
        for node in range(0, steps * self.beam_size, self.beam_size):
            path = array(extend_path(ops.convert_to_tensor(path), node, past_length, self.beam_size))
            new = self.rng.normal(size=(self.batch, self.heads, self.beam_size, self.width)).astype("float32")
            recent[:, :, node : node + self.beam_size] = new
            parents = np.array([self.rng.choice(self.parents(row), self.beam_size) for row in range(self.batch)])
            self.alive = np.take_along_axis(self.alive, parents, axis=1)
            path = np.take_along_axis(path, parents[:, :, None], axis=1)
            self.histories = [
                [[*histories[parent], new[row, :, parent]] for parent in chosen]
                for row, (histories, chosen) in enumerate(zip(self.histories, parents))
            ]
        self.alive &= self.rng.random(self.alive.shape) < 0.7
        self.alive[0, 0] = True  # at least one beam must be alive
        return path, [recent]

    def parents(self, row):
        return np.flatnonzero(self.alive[row]) if self.alive[row].any() else np.arange(self.beam_size)

    def check(self, path, nodes):
        """Assert that the path of each live beam leads to the nodes of its own history."""
        for row, beam in np.argwhere(self.alive):
            seen = nodes[row][:, path[row, beam]].swapaxes(0, 1)
            np.testing.assert_array_equal(seen, np.array(self.histories[row][beam]))

    def number_of_nodes(self):
        """Count the distinct nodes in the live beams of each sentence. Return the maximum."""
        living = [
            {key.tobytes() for beam in np.flatnonzero(row_alive) for key in histories[beam]}
            for row_alive, histories in zip(self.alive, self.histories)
        ]
        return max(map(len, living))


@pytest.mark.backend
@settings(max_examples=FEW // 2, deadline=None)
@given(batch=small, beam_size=small, steps=st.lists(small, min_size=2, max_size=4), seed=seeds)
def test_kv_tree_keeps_history_of_each_beam(batch, beam_size, steps, seed):
    tree = PlainTree(seed, batch, beam_size)
    path = np.zeros((batch, beam_size, steps[0] * beam_size), bool)
    for now, then in zip(steps, [*steps[1:], 1]):
        path, recent = tree.segment(path, now)
        tree.check(path, np.concatenate([tree.past[0], recent[0]], axis=2))
        nodes = live_nodes(path, tree.alive)
        kept = nodes.shape[1]
        assert kept == tree.number_of_nodes()
        path, past = compact(ops.convert_to_tensor(path), tree.past, recent, nodes, then, beam_size)
        path, tree.past = array(path), [array(past[0])]
        assert path.shape == (batch, beam_size, kept + then * beam_size) and not path[:, :, kept:].any()
        tree.check(path[:, :, :kept], tree.past[0])


@pytest.mark.parametrize("wrong", [{"temperature": 0}, {"top_p": 0}, {"top_p": 1.5}, {"top_k": -1}, {"seed": -1}])
def test_sampling_rejects_invalid_options(wrong):
    with pytest.raises(UserError, match="must be"):
        Sampling(**wrong)
