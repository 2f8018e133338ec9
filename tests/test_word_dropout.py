"""Words that training hides: which ones depends on seed and batch alone."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.data.tokenizer import EOS, PAD, UNK


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    return kt.problem("reverse", data_dir=tmp_path_factory.mktemp("data"), train_pairs=3000).prepare()


def sources(problem, split="train", start=0, count=10, **changes):
    hparams = kt.HParams(batch_tokens=1024, **{"word_dropout": 0.3, **changes})
    batches = problem.batches(split, hparams, start=start)
    return [batches[i][0][0] for i in range(count)], [batches[i][1] for i in range(count)]


def test_the_share_that_was_asked_for_is_unknown(problem):
    whole, labels = sources(problem, word_dropout=0.0)
    hidden, same_labels = sources(problem)
    tokens = unknown = 0
    for source, other in zip(whole, hidden):
        np.testing.assert_array_equal(other[other != UNK], source[other != UNK])
        kept = (source == EOS) | (source == PAD)
        np.testing.assert_array_equal(other[kept], source[kept])
        tokens, unknown = tokens + (~kept).sum(), unknown + (other == UNK).sum()
    assert unknown / tokens == pytest.approx(0.3, abs=0.03)
    for label, other in zip(labels, same_labels):
        np.testing.assert_array_equal(label, other)


def test_a_resumed_training_hides_the_same(problem):
    whole, _ = sources(problem)
    resumed, _ = sources(problem, start=4, count=6)
    for source, other in zip(whole[4:], resumed):
        np.testing.assert_array_equal(source, other)


def test_another_epoch_or_seed_hides_others(problem):
    first, second = sources(problem, count=2)[0]
    assert not np.array_equal(first[:5, :3] == UNK, second[:5, :3] == UNK)
    assert any((a == UNK).sum() != (b == UNK).sum() for a, b in zip(sources(problem)[0], sources(problem, seed=2)[0]))


def test_validation_hides_nothing(problem):
    assert not any((source == UNK).any() for source in sources(problem, "validation", count=1)[0])
