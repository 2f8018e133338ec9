"""Tests of the guarantees of `BatchPlan`: budget, coverage, shapes, padding and a reproducible order."""

import pickle
import time
from collections import Counter

import numpy as np
import pytest
from helpers.paths import DATA
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data.batch_plan import POOL, BatchPlan
from keras_transformer.data.length_index import LengthIndex
from keras_transformer.utils.errors import UserError

LONGEST = 60


@st.composite
def corpora(draw):
    """Draw source and target lengths of 1 to 400 pairs: equal, similar or very different lengths on the two sides."""
    count = draw(st.one_of(st.integers(1, 5), st.integers(1, 400)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    longest = draw(st.integers(1, LONGEST))
    source = random.integers(1, longest + 1, count)
    spread = draw(st.sampled_from([0, 2, LONGEST]))
    target = np.clip(source + random.integers(-spread, spread + 1, count), 1, LONGEST)
    dtype = draw(st.sampled_from([np.int64, np.int32, np.uint16]))
    return source.astype(dtype), target.astype(dtype)


budgets = st.one_of(st.integers(LONGEST, 5 * LONGEST), st.integers(LONGEST, 10_000))


def plan_of(source, target, *args, **kwargs):
    """Return a `BatchPlan` for pairs with these lengths."""
    return BatchPlan(LengthIndex.from_lengths(source, target), *args, **kwargs)


def epoch_of(plan, epoch):
    first = epoch * plan.batches_per_epoch
    return [plan.batch(index) for index in range(first, first + plan.batches_per_epoch)]


@given(
    lengths=corpora(),
    batch_tokens=budgets,
    seed=st.integers(0, 2**40),
    epoch=st.sampled_from([0, 1, 123_456_789]),
    max_length=st.one_of(st.none(), st.integers(1, LONGEST)),
    max_shapes=st.one_of(st.just(24), st.integers(1, 24)),
    shuffle=st.booleans(),
)
def test_batch_plan_epoch_keeps_contract(lengths, batch_tokens, seed, epoch, max_length, max_shapes, shuffle):
    source, target = lengths
    kept = np.flatnonzero(np.maximum(source, target) <= (max_length or LONGEST))
    if not len(kept):
        return
    plan = plan_of(
        source, target, batch_tokens, seed=seed, max_length=max_length, max_shapes=max_shapes, shuffle=shuffle
    )
    batches = epoch_of(plan, epoch)

    assert plan.num_pairs == len(kept) and plan.num_dropped == len(source) - len(kept)
    assert sorted(np.concatenate([batch.rows for batch in batches])) == kept.tolist()
    assert len(set(plan.shapes)) == len(plan.shapes) <= max_shapes
    assert {batch.shape for batch in batches} == set(plan.shapes)
    assert sum(len(batch.rows) < batch.shape[0] for batch in batches) <= 1
    for batch in batches:
        rows, longest_source, longest_target = batch.shape
        assert rows * max(longest_source, longest_target) <= batch_tokens
        assert batch.rows.dtype == np.int64 and 1 <= len(batch.rows) <= rows
        assert batch.source_length == source[batch.rows].max() <= longest_source
        assert batch.target_length == target[batch.rows].max() <= longest_target

        assert batch.source_tokens == source[batch.rows].sum() and batch.target_tokens == target[batch.rows].sum()
    first = epoch * plan.batches_per_epoch
    assert [plan.shape(first + i) for i in range(len(batches))] == [batch.shape for batch in batches]
    assert plan.shapes_of(first, len(batches)) == list(dict.fromkeys(batch.shape for batch in batches))

    real = source[kept].sum() + target[kept].sum()
    to_longest = sum(len(batch.rows) * (batch.source_length + batch.target_length) for batch in batches)
    to_shape = sum(rows * (source + target) for rows, source, target in (batch.shape for batch in batches))
    assert plan.real_share("shape") == pytest.approx(real / to_shape)
    assert real / to_shape * (1 - 1e-9) <= plan.real_share() == plan.real_share("longest")
    if shuffle and plan.batches_per_epoch < 2 * POOL:  # so few batches form the same pools in all epochs
        assert plan.real_share() <= real / to_longest * (1 + 1e-9)


@given(lengths=corpora(), batch_tokens=budgets, seed=st.integers(0, 2**40), index=st.integers(0, 10**12))
def test_batch_depends_on_its_index_only(lengths, batch_tokens, seed, index):
    used, fresh = (plan_of(*lengths, batch_tokens, seed=seed) for _ in range(2))
    for other in (0, index + used.batches_per_epoch, index + 3 * used.batches_per_epoch, 1):
        used.batch(other)
    assert_same(used.batch(index), fresh.batch(index))
    assert_same(pickle.loads(pickle.dumps(used)).batch(index), fresh.batch(index))


def assert_same(batch, other):
    assert batch.rows.tolist() == other.rows.tolist() and batch.shape == other.shape
    assert (batch.source_length, batch.target_length) == (other.source_length, other.target_length)


@given(lengths=corpora(), batch_tokens=budgets, shuffle=st.booleans(), seed=st.integers(0, 2**32))
def test_batch_plan_is_independent_of_file_order(lengths, batch_tokens, shuffle, seed):
    def signatures(source, target):
        plan = plan_of(source, target, batch_tokens, shuffle=shuffle)
        pairs = [sorted(zip(source[b.rows], target[b.rows], strict=True)) for b in epoch_of(plan, 0)]
        return pairs, plan.shapes

    order = np.random.default_rng(seed).permutation(len(lengths[0]))
    assert signatures(*lengths) == signatures(*(side[order] for side in lengths))


def test_epochs_share_batch_shapes_but_not_rows():
    source, target = wmt_like(3_000)
    plan = plan_of(source, target, 2_048, seed=3)
    first, second = epoch_of(plan, 0), epoch_of(plan, 1)

    def lengths(batches):
        return [(batch.shape, len(batch.rows)) for batch in batches]

    def compositions(batches):
        return {frozenset(batch.rows.tolist()) for batch in batches}

    assert Counter(lengths(first)) == Counter(lengths(second))
    assert lengths(first) != lengths(second)
    assert len(compositions(first) & compositions(second)) < len(first) / 2
    assert compositions(first) != compositions(epoch_of(plan_of(source, target, 2_048, seed=4), 0))


def test_unshuffled_epochs_keep_file_order():
    plan = plan_of([5] * 100, [7] * 100, 70, shuffle=False)
    for epoch in (0, 1):
        assert np.concatenate([batch.rows for batch in epoch_of(plan, epoch)]).tolist() == list(range(100))


def test_batch_plan_order_is_fixed():
    """Compare with stored batches, because runs must see the same order after an upgrade of the package."""
    plan = plan_of([3, 3, 3, 4, 4, 4, 9, 9], [4, 4, 4, 4, 4, 4, 8, 8], 18, seed=1, max_shapes=2)
    assert plan.shapes == [(4, 4, 4), (2, 9, 8)]
    assert [plan.batch(index).rows.tolist() for index in (0, 1, 2, 3, 300)] == [
        [6, 7], [0, 3, 2, 1], [4, 5], [2, 3, 1, 0], [7, 5],
    ]  # fmt: skip


def wmt_like(count):
    """Return log-normal sentence lengths. Targets are typically up to 16% longer or shorter than sources."""
    random = np.random.default_rng(0)
    source = np.clip(np.exp(np.log(24) + 0.62 * random.normal(size=count)), 3, 250).astype(int)
    target = np.clip(source * np.exp(random.normal(0.03, 0.16, count)), 3, 250).astype(int)
    return source, target


@pytest.fixture(scope="module")
def multi30k(tmp_path_factory):
    """Lengths of the training pairs of Multi30k in joint BPE subwords, including EOS."""
    spm = pytest.importorskip("sentencepiece")
    files = [DATA / "multi30k" / "tok" / f"train.lc.norm.tok.{language}" for language in ("en", "de")]
    if not all(file.is_file() for file in files):
        pytest.skip(f"Multi30k is missing in {DATA}; set KERAS_TRANSFORMER_TEST_DATA")
    prefix = str(tmp_path_factory.mktemp("bpe") / "multi30k")
    spm.SentencePieceTrainer.train(
        input=[str(file) for file in files], model_prefix=prefix, vocab_size=9_712, model_type="bpe",
        pad_id=0, eos_id=1, bos_id=2, unk_id=3, num_threads=1, minloglevel=2,
    )  # fmt: skip
    encode = spm.SentencePieceProcessor(model_file=f"{prefix}.model").encode
    corpora = [file.read_text("utf8").strip().split("\n") for file in files]
    return [np.array([len(ids) + 1 for ids in encode(lines)]) for lines in corpora]


def assert_little_padding(plan, longest, shape, used):
    """Assert that the batches of a plan have little padding and nearly reach the token budget.

    Args:
        plan: `BatchPlan`.
        longest, shape: Minimum of `plan.real_share("longest")` and of `plan.real_share("shape")`.
        used: Minimum mean size of a batch on its longer side, with padding, as a share of `batch_tokens`.
    """
    assert plan.real_share("longest") >= longest, plan
    assert plan.real_share("shape") >= shape, plan
    budget = [len(b.rows) * max(b.source_length, b.target_length) / plan.batch_tokens for b in epoch_of(plan, 0)]
    assert np.mean(budget) >= used, plan
    assert len(plan.shapes) <= 24


def share_that_meets_again(plan):
    """Return the probability that two pairs in one batch of the first epoch also share a batch in the second epoch."""
    first, second = (np.empty(plan.num_pairs, np.int64) for _ in range(2))
    for epoch, places in enumerate((first, second)):
        for number, batch in enumerate(epoch_of(plan, epoch)):
            places[batch.rows] = number
    companions = [np.unique(key, return_counts=True)[1] for key in (first * plan.batches_per_epoch + second, first)]
    again, all_ = (float(counts @ (counts - 1)) for counts in companions)
    return again / all_


@pytest.mark.parametrize(
    "batch_tokens, longest, shape",
    [
        (1_024, 0.93, 0.93),
        (2_048, 0.93, 0.93),
        (4_096, 0.93, 0.93),
        (8_192, 0.925, 0.92),
        (25_000, 0.91, 0.91),
    ],
)
def test_batch_plan_pads_little_on_multi30k(multi30k, batch_tokens, longest, shape):
    assert_little_padding(plan_of(*multi30k, batch_tokens), longest, shape, used=0.95)


@pytest.mark.parametrize("batch_tokens, longest", [(4_096, 0.91), (25_000, 0.88)])
def test_batch_plan_pads_little_on_wmt_like_lengths(batch_tokens, longest):
    assert_little_padding(plan_of(*wmt_like(300_000), batch_tokens), longest, shape=0.88, used=0.93)


def test_segments_mix_their_pairs(multi30k):
    plan = plan_of(*multi30k, 8_192)
    # With the default shapes, the plan has only 24 segments for 59 batches, so this probability is about 24 / 59.
    assert plan.batches_per_epoch == 59 and share_that_meets_again(plan) < 0.45
    assert share_that_meets_again(plan_of(*multi30k, 8_192, max_shapes=6)) < 0.1


def test_pools_mix_like_a_shuffle_at_the_padding_of_segments():
    plan = plan_of(*wmt_like(250_000), 2_048)
    assert plan.batches_per_epoch > 4_000 and share_that_meets_again(plan) < 0.022


def test_reversed_index_gives_the_same_plan_with_sides_swapped():
    lengths = wmt_like(500)
    index = LengthIndex.from_lengths(*lengths)
    plan, swapped = BatchPlan(index, 2_048, seed=1), BatchPlan(index.reversed(), 2_048, seed=1)
    for batch, other in zip(epoch_of(plan, 1), epoch_of(swapped, 1)):
        assert batch.rows.tolist() == other.rows.tolist() and batch.source_length == other.target_length


def test_batch_plan_pads_more_with_fewer_shapes():
    lengths = wmt_like(20_000)
    plans = [plan_of(*lengths, 8_192, max_shapes=shapes) for shapes in (1, 2, 4, 8, 16, 24)]
    shares = [plan.real_share("shape") for plan in plans]
    assert shares == sorted(shares)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_pairs_make_one_batch_of_their_shape(count):
    plan = plan_of([4] * count, [6] * count, 25_000)
    assert plan.batches_per_epoch == 1 and plan.shapes == [(count, 4, 6)]
    assert sorted(plan.batch(7).rows) == list(range(count))


def test_batch_tokens_for_one_row():
    plan = plan_of([50, 51, 52], [50, 50, 50], 52)
    assert [len(batch.rows) for batch in epoch_of(plan, 2)] == [1, 1, 1]


def test_equal_lengths_make_even_batches():
    plan = plan_of([10] * 100, [10] * 100, 300)
    assert sorted(len(batch.rows) for batch in epoch_of(plan, 0)) == [25] * 4
    assert plan.real_share("shape") == 1


def test_batch_plan_with_more_than_65536_length_pairs():
    source, target = np.divmod(np.arange(300 * 300), 300)
    plan = plan_of(source + 1, target + 1, 10_000)
    rows = np.concatenate([batch.rows for batch in epoch_of(plan, 1)])
    assert np.array_equal(np.sort(rows), np.arange(300 * 300))


def test_batch_takes_constant_time():
    lengths = np.random.default_rng(1).integers(1, 50, 50_000)
    seconds = {10: [], 1_000_000: []}
    for _ in range(5):
        for index, taken in seconds.items():
            plan = plan_of(lengths, lengths, 4096)
            began = time.perf_counter()
            plan.batch(index)
            taken.append(time.perf_counter() - began)
    assert min(seconds[1_000_000]) < 3 * min(seconds[10])


def test_batch_plan_raises_user_errors():
    with pytest.raises(UserError, match=r"batch_tokens=64 .* pair 2, .* 65 tokens .* at least 65,.* max_length to 64"):
        plan_of([3, 3, 4], [4, 65, 4], 64, max_length=100)
    with pytest.raises(UserError, match=r"batch_tokens=64 .* pair 2, .* 65 tokens .* at least 65,.* from the corpus"):
        plan_of([3, 3, 4], [4, 65, 4], 64)
    assert plan_of([3, 3, 4], [4, 65, 4], 64, max_length=64).num_dropped == 1
    with pytest.raises(UserError, match=r"max_length=3 drops all 2 .* raise max_length to at least 4 "):
        plan_of([1, 5], [4, 5], 64, max_length=3)
    with pytest.raises(UserError, match="at least one sentence pair"):
        plan_of([], [], 64)


def test_batch_plan_raises_value_errors():
    for arguments in (([1, 2], [1], 8), ([[1]], [[1]], 8), ([0], [1], 8)):
        with pytest.raises(ValueError):
            plan_of(*arguments)
    with pytest.raises(ValueError):
        plan_of([1], [1], 8, max_shapes=0)
    plan = plan_of([1], [1], 8)
    with pytest.raises(ValueError, match="nearest"):
        plan.real_share("nearest")
    with pytest.raises(IndexError):
        plan.batch(-1)
