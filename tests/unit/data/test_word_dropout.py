"""Tests of word dropout: its rate, and that the hidden tokens depend only on the seed and the batch."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, UNK
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    return kt.problem("reverse", data_dir=tmp_path_factory.mktemp("data"), train_pairs=3000).prepare()


def sources(problem, split="train", start=0, count=10, **changes):
    hparams = kt.HParams(batch_tokens=1024, **{"word_dropout": 0.3, **changes})
    batches = problem.batches(split, hparams, start=start)
    return [batches[i][0][0] for i in range(count)], [batches[i][1] for i in range(count)]


def test_word_dropout_hides_its_rate_of_words(problem):
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


def test_word_dropout_is_the_same_after_resuming(problem):
    whole, _ = sources(problem)
    resumed, _ = sources(problem, start=4, count=6)
    for source, other in zip(whole[4:], resumed):
        np.testing.assert_array_equal(source, other)


def test_word_dropout_depends_on_batch_and_seed(problem):
    def hidden(seed, number):
        batches = problem.batches("train", kt.HParams(batch_tokens=1024, word_dropout=0.3, seed=seed))
        batch = batches.plan.batch(number)
        source = np.full((len(batch.rows), batch.source_length), 7, "int32")
        batches._hide_words(source, number, batch)
        return source[:9, :3]

    assert np.array_equal(hidden(1, 0), hidden(1, 0))
    assert not np.array_equal(hidden(1, 0), hidden(2, 0))
    assert not np.array_equal(hidden(1, 0), hidden(1, problem.batches("train", kt.HParams()).batches_per_epoch))


def test_word_dropout_does_not_reuse_plan_randomness(problem):
    batches = problem.batches("train", kt.HParams(batch_tokens=1024, word_dropout=0.3))
    batch = batches.plan.batch(0)
    source = np.full((len(batch.rows), batch.source_length), 7, "int32")
    order = np.random.default_rng((batches.plan.seed, 0)).random(source.shape)
    batches._hide_words(source, 0, batch)
    assert not np.array_equal(source != 7, order < 0.3)


def test_word_dropout_is_independent_of_padding(problem):
    hparams = kt.HParams(batch_tokens=1024, word_dropout=0.3)
    batches = problem.batches("train", hparams)
    own, padded = (batches.replace(few_shapes=few_shapes) for few_shapes in (False, True))
    for i in range(5):
        (source, _), *_ = own[i]
        (wide, _), *_ = padded[i]
        np.testing.assert_array_equal(wide[: len(source), : source.shape[1]], source)


def test_word_dropout_keeps_word_starts():
    tokenizer = SentencePieceTokenizer.train(["some words and others which are longer"] * 9, 40)
    ids = np.array(tokenizer.encode(["some others are words"])[0])
    hidden = tokenizer.hidden_ids[ids]
    assert tokenizer.pieces(hidden)[0] == "▁" and UNK in hidden
    np.testing.assert_array_equal(tokenizer.word_starts[hidden], tokenizer.word_starts[ids])
    np.testing.assert_array_equal(tokenizer.hidden_ids[[PAD, EOS, BOS]], [PAD, EOS, BOS])


def test_word_dropout_is_off_in_validation(problem):
    assert not any((source == UNK).any() for source in sources(problem, "validation", count=1)[0])
