"""Tests of batches of token ids: contents, order, and conversion to a TensorFlow dataset."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_transformer.config.hparams import HParams
from keras_transformer.data.batch_plan import BatchPlan
from keras_transformer.data.length_index import LengthIndex
from keras_transformer.data.token_batches import TokenBatches
from keras_transformer.tasks.problem import load_problem

PAD, EOS, BOS, UNK = 0, 1, 2, 3


@pytest.fixture(scope="module")
def reverse(tmp_path_factory):
    return load_problem("reverse", data_dir=tmp_path_factory.mktemp("data"), train_pairs=300).prepare()


HPARAMS = HParams(batch_tokens=200, max_length=20, seed=3)


def test_batches_shapes_match_next_batches(reverse):
    batches = reverse.batches("train", HPARAMS).replace(few_shapes=True, start=3)
    assert batches.shapes(2) == list(dict.fromkeys([batches.shape(0), batches.shape(1)]))
    assert len(batches.shapes(2)) < len(batches.plan.shapes) == len(batches.shapes(10**9))


def test_batches_hold_shifted_targets_and_token_weights(reverse):
    split, batches = reverse.store.split("train"), reverse.batches("train", HPARAMS)
    for index in range(batches.batches_per_epoch):
        (source, decoder_input), labels, weights = batches[index]
        rows = batches.plan.batch(index).rows
        assert max(source.size, labels.size) <= 200
        assert {array.dtype.name for array in (source, decoder_input, labels)} == {"int32"}
        assert weights.dtype == "float32" and weights.shape == labels.shape == decoder_input.shape
        for place, row in enumerate(rows):
            for array, sequences in ((source, split.source), (labels, split.target)):
                assert array[place].tolist() == [*sequences[row], *[PAD] * (array.shape[1] - len(sequences[row]))]
        assert (decoder_input[:, 0] == BOS).all() and (decoder_input[:, 1:] == labels[:, :-1]).all()
        assert len(set(weights[labels != PAD])) == 1 and not weights[labels == PAD].any()
        assert weights.sum() == pytest.approx(1, rel=1e-5)
        assert batches.tokens(index) == (source != PAD).sum() + (labels != PAD).sum()


@pytest.mark.parametrize("multiple", [1, 3, 8])
def test_batches_fill_rows_with_weight_0(reverse, multiple):
    plain = reverse.batches("train", HPARAMS)
    filled = TokenBatches(plain.split, plain.plan, row_multiple=multiple)
    for index in range(plain.batches_per_epoch):
        (source, _), labels, weights = plain[index]
        (filled_source, filled_input), filled_labels, filled_weights = filled[index]
        count = len(source)
        assert len(filled_source) % multiple == 0 and len(filled_source) - count < multiple
        assert (filled_source[:count] == source).all() and (filled_labels[:count] == labels).all()
        assert (filled_weights[:count] == weights).all()
        assert not filled_source[count:].any() and not filled_labels[count:].any() and not filled_weights[count:].any()


@pytest.mark.parametrize("start", [1, 17, 1000])
def test_batches_start_at_any_index(reverse, start):
    whole, resumed = reverse.batches("train", HPARAMS), reverse.batches("train", HPARAMS, start=start)
    for index in range(3):
        for a, b in zip(flat(whole[start + index]), flat(resumed[index])):
            np.testing.assert_array_equal(a, b)
        assert resumed.tokens(index) == whole.tokens(start + index)


def flat(batch):
    (source, decoder_input), labels, weights = batch
    return source, decoder_input, labels, weights


def test_batches_are_endless_in_training_only(reverse):
    training, validation = reverse.batches("train", HPARAMS), reverse.batches("validation", HPARAMS)
    assert training.num_batches is None
    assert training[5 * training.batches_per_epoch + 2]
    assert validation.num_batches == validation.batches_per_epoch
    rows = [validation.plan.batch(index).rows for index in range(validation.num_batches)]
    assert sorted(np.concatenate(rows)) == list(range(200))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="requires TensorFlow")
def test_dataset_disables_autotune(reverse):
    dataset = reverse.batches("train", HPARAMS).as_dataset()
    # Autotuning can delay the deletion of an iterator by 10 s (see docs/upstream.md).
    assert dataset.options().autotune.enabled is False


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="requires TensorFlow")
@pytest.mark.parametrize("split, replicas", [("validation", 1), ("validation", 3), ("train", 2)])
def test_dataset_splits_batches_into_replica_blocks(reverse, split, replicas):
    batches = reverse.batches(split, HPARAMS).replace(row_multiple=replicas, few_shapes=False)
    endless = batches.num_batches is None
    count = 2 * batches.batches_per_epoch if endless else batches.num_batches
    blocks = [flat(block) for block in batches.as_dataset(replicas).take(replicas * count)]
    assert len(blocks) == replicas * count
    for index in range(count):
        own = blocks[replicas * index : replicas * (index + 1)]
        assert len({len(labels) for _, _, labels, _ in own}) == 1
        for found, expected in zip(zip(*own), flat(batches[index])):
            np.testing.assert_array_equal(np.concatenate(found), expected)
    cardinality = int(batches.as_dataset(replicas).cardinality())
    assert cardinality == (-1 if endless else replicas * count)


def test_batches_drop_long_pairs_in_training_only(reverse):
    short = dataclasses.replace(HPARAMS, max_length=5)
    lengths = reverse.store.split("train").source.lengths
    assert reverse.batches("train", short).plan.num_dropped == (lengths > 5).sum() > 0
    assert reverse.batches("train", short).plan.num_pairs == (lengths <= 5).sum()
    assert reverse.batches("validation", short).plan.num_dropped == 0


def test_batches_prepare_missing_corpus(tmp_path):
    problem = load_problem("copy", data_dir=tmp_path, train_pairs=20)
    assert problem.batches("train", HPARAMS).plan.num_pairs == 20
    assert problem.prepared_dir.is_dir()


def test_batches_plan_uses_stored_lengths(reverse):
    split = reverse.store.split("train")
    index = LengthIndex.from_lengths(split.source.lengths, split.target.lengths)
    plan = BatchPlan(index, 200, seed=3, max_length=20)
    assert plan.batch(7).rows.tolist() == reverse.batches("train", HPARAMS).plan.batch(7).rows.tolist()
