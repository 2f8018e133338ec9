"""Tests of BPE-dropout: its splits of repeated texts differ, but the splits of a training pair are reproducible."""

import collections
import dataclasses
import io
import random

import numpy as np
import pytest
import sentencepiece
from helpers.logs import logged_lines
from helpers.stores import new_store
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data import encoding
from keras_transformer.data.encoding import Noise
from keras_transformer.data.filters import PairFilter
from keras_transformer.data.preparation import write_store
from keras_transformer.data.tokenizers.base import UNK
from keras_transformer.data.tokenizers.bpe_dropout import BPEDropout
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.data.tokenizers.vocabulary import VocabularyOptions
from keras_transformer.parsing.tokenizer import TreeTokenizer
from keras_transformer.tasks.problem import load_problem
from keras_transformer.tasks.translation import TranslationProblem
from keras_transformer.utils.errors import UserError

TEXTS = [pair[side] for pair in load_problem("toy_ende").pairs("validation") for side in (0, 1)]


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(TEXTS, 400)


def anew(tokenizer, texts, rate, seed=1):
    return tokenizer.resegment(tokenizer.encode(texts), rate, seed)


def test_bpe_dropout_0_keeps_the_pieces(tokenizer):
    assert anew(tokenizer, TEXTS, 0.0) == tokenizer.encode(TEXTS)


@given(
    text=st.lists(st.sampled_from(" ".join(TEXTS).split()) | st.text("aeinrst ▁ß日\u00a0", max_size=9)).map(" ".join),
    rate=st.floats(0, 0.9),
)
def test_bpe_dropout_keeps_any_text(tokenizer, text, rate):
    (before,), (after,) = tokenizer.encode([text]), anew(tokenizer, [text], rate)
    assert tokenizer.decode([after]) == tokenizer.decode([before]) and after.count(UNK) == before.count(UNK)
    assert anew(tokenizer, [text], 0.0) == [before]


def test_bpe_dropout_keeps_multi30k(test_data):
    with open(test_data / "multi30k" / "tok" / "val.lc.norm.tok.de", encoding="utf-8") as file:
        lines = file.read().splitlines()
    tokenizer = SentencePieceTokenizer.train(lines, 3000)
    assert anew(tokenizer, lines, 0.0) == tokenizer.encode(lines)
    assert tokenizer.decode(anew(tokenizer, lines, 0.3)) == tokenizer.decode(tokenizer.encode(lines))


def test_bpe_dropout_never_splits_symbols():
    """Check that symbols stay whole, whether or not the vocabulary contains their characters as pieces."""
    tokenizer = SentencePieceTokenizer.train(
        ["the cat sat on the mat", "a dog ate the cat"], 36, VocabularyOptions(symbols=("<x>", "at"))
    )
    texts = ["the cat <x> sat", "on<x>the mat ate"]
    before = tokenizer.encode(texts)
    rows = [tokenizer.resegment(before, 0.9, seed) for seed in range(20)]
    for symbol in ("<x>", "at"):
        number = tokenizer.encode([symbol])[0][-1]
        counts = [row.count(number) for row in before]
        assert sum(counts) and all([row.count(number) for row in cut] == counts for cut in rows), symbol
    assert all(tokenizer.decode(cut) == tokenizer.decode(before) for cut in rows)
    assert len({str(cut) for cut in rows}) > 1  # dropout splits other words, such as "the" and "on"


def test_bpe_dropout_skips_merges_at_its_rate():
    """Use a word that needs a single merge, so it has two pieces only if dropout skips this merge."""
    tokenizer = SentencePieceTokenizer.train(["a a a"], 7)
    assert set(tokenizer.pieces([4, 5, 6])) == {"▁a", "▁", "a"}
    rows = anew(tokenizer, ["a"] * 4000, 0.3)
    lengths = collections.Counter(map(len, rows))
    assert set(lengths) == {1, 2} and abs(lengths[2] / 4000 - 0.3) < 0.04


def test_bpe_dropout_redraws_before_each_merge():
    """Compare with algorithm 1 of Provilkov et al.: before each merge, dropout decides again which merges to skip."""
    pieces = ["<pad>", "</s>", "<s>", "<unk>", "ab", "cd", "a", "b", "c", "d"]
    cut, rng, rate = BPEDropout(pieces, -np.arange(10.0), np.zeros(10), range(4)), random.Random(1), 0.3
    found = collections.Counter(tuple(pieces[i] for i in cut([6, 7, 8, 9], rate, rng)) for _ in range(20_000))
    expected = {
        ("a", "b", "c", "d"): rate**2, ("ab", "c", "d"): (1 - rate) * rate,
        ("a", "b", "cd"): rate * (1 - rate) * rate, ("ab", "cd"): (1 + rate) * (1 - rate) ** 2,
    }  # fmt: skip
    assert found.keys() == expected.keys() and sum(expected.values()) == pytest.approx(1)
    for cuts, share in expected.items():
        assert found[cuts] / 20_000 == pytest.approx(share, abs=0.015), cuts


def test_bpe_dropout_leaves_very_long_words(tokenizer):
    text = "an" * 50_000 + " an Hand"
    (before,), (after,) = tokenizer.encode([text]), anew(tokenizer, [text], 0.9)
    last = len(tokenizer.encode(["an Hand"])[0])
    assert after[: len(before) - last] == before[:-last] and tokenizer.decode([after]) == [text]


def stored(folder, tokenizer, pairs, **options):
    return new_store(folder, {"train": pairs, "test": pairs}, tokenizer, noise={"train": Noise(0.2)}, **options)


def ids_of(store, split, side):
    rows = getattr(store.split(split), side)
    return [rows[i].tolist()[:-1] for i in range(len(rows))]


def test_bpe_dropout_draws_by_chunk_and_side(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK_PAIRS", 100)
    alike = [(text, text) for text in TEXTS[:100]]
    store = stored(tmp_path, tokenizer, 2 * alike)
    sources, targets = (ids_of(store, "train", side) for side in ("source", "target"))
    for one, other in ((sources[:100], sources[100:]), (targets[:100], targets[100:]), (sources, targets)):
        assert np.mean([a != b for a, b in zip(one, other)]) > 0.5


def test_bpe_dropout_does_not_affect_length_filter(tokenizer, tmp_path):
    pairs, options = list(zip(TEXTS[::2], TEXTS[1::2])), {"filters": {"train": PairFilter(max_length_ratio=1.3)}}
    plain = new_store(tmp_path / "plain", {"train": pairs}, tokenizer, **options)
    cut = stored(tmp_path / "cut", tokenizer, pairs, **options)
    for side in ("source", "target"):
        texts, others = (tokenizer.decode(ids_of(store, "train", side)) for store in (plain, cut))
        assert texts == others and 0 < len(texts) < len(pairs)


def test_bpe_dropout_is_independent_of_workers(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK_PAIRS", 7)
    monkeypatch.setattr(encoding, "SERIAL_PAIRS", 20)
    pairs = list(zip(TEXTS[::2], TEXTS[1::2]))[:100]
    here, there = (stored(tmp_path / str(workers), tokenizer, pairs, workers=workers) for workers in (0, 2))
    for side in ("source", "target"):
        assert ids_of(here, "train", side) == ids_of(there, "train", side)
    assert ids_of(here, "test", "source") == tokenizer.encode([source for source, _ in pairs])


def test_training_pairs_are_stored_in_num_segmentations(tmp_path):
    arguments = {"data_dir": tmp_path, "train_pairs": 200, "vocab_size": 300}
    problem = load_problem("toy_ende", bpe_dropout=0.1, num_segmentations=3, **arguments)
    plain = load_problem("toy_ende", **arguments)
    train = problem.prepare().store.split("train")
    sources, targets = map(list, zip(*problem.pairs("train")))
    tokenizer = problem.tokenizer
    assert len(train) == 600 and tokenizer.fingerprint == plain.prepare().tokenizer.fingerprint
    for side, texts in ((train.source, sources), (train.target, targets)):
        rows = [side[i].tolist()[:-1] for i in range(600)]
        assert tokenizer.decode(rows) == 3 * tokenizer.decode(tokenizer.encode(texts))
        assert np.mean([len({tuple(rows[i + 200 * copy]) for copy in range(3)}) for i in range(200)]) > 2
    for split in ("validation", "test"):
        own, other = (one.store.split(split).source for one in (problem, plain))
        assert [own[i].tolist() for i in range(len(own))] == [other[i].tolist() for i in range(len(other))]


def test_interrupted_preparation_resumes_bpe_dropout(tokenizer, tmp_path, monkeypatch):
    from keras_transformer.utils.files import work_directory

    monkeypatch.setattr(encoding, "CHUNK_PAIRS", 7)
    monkeypatch.setattr("keras_transformer.data.preparation.SERIAL_PAIRS", 20)
    pairs = list(zip(TEXTS[::2], TEXTS[1::2]))[:100]

    def broken_off():
        yield from pairs[:60]
        raise ConnectionError

    def fill(texts):
        with work_directory(tmp_path / "resumed", "identity") as work:
            write_store(
                work, {"train": texts}, tokenizer, {}, expected={"train": 100}, noise={"train": Noise(0.2)},
            )  # fmt: skip
            work.finish()

    with pytest.raises(ConnectionError):
        fill(broken_off())
    with logged_lines() as said:
        fill(pairs)
    assert "  train: resuming after 56 pairs" in said
    new_store(tmp_path / "whole", {"train": pairs}, tokenizer, noise={"train": Noise(0.2)})
    for name in ("train.source.ids", "train.target.ids", "train.source.offsets"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_bpe_dropout_rejects_contradictory_settings(tmp_path):
    with pytest.raises(UserError, match="num_segmentations=4 requires BPE-dropout; add --set problem.bpe_dropout=0.1"):
        load_problem("toy_ende", num_segmentations=4)
    with pytest.raises(UserError, match="num_segmentations=4 cannot be combined with drop_duplicates"):
        load_problem("toy_ende", num_segmentations=4, bpe_dropout=0.1, drop_duplicates=True)
    with pytest.raises(UserError, match="the same in every epoch; add --set problem.num_segmentations=10"):
        load_problem("toy_ende", bpe_dropout=0.1)
    said = "bpe_dropout requires plain byte-pair encoding, which the word-piece tokenizer of wmt14_fren does not use"
    with pytest.raises(UserError, match=said):
        load_problem("wmt14_fren", bpe_dropout=0.1, num_segmentations=2)


@pytest.mark.parametrize("model_type", ["unigram", "byte_fallback", "trees", "symbols"])
def test_bpe_dropout_rejects_other_tokenizers(tmp_path, model_type):
    if model_type == "symbols":
        tokenizer, what = SymbolTokenizer([*"abc"]), "a SymbolTokenizer"
    elif model_type == "trees":
        tokenizer, what = TreeTokenizer.train(TEXTS, {"(S", ")S", "NN"}, 300), "a TreeTokenizer"
    else:
        model, options = io.BytesIO(), {"model_type": "unigram"}
        what = "this SentencePiece model"
        if model_type == "byte_fallback":
            options = {"model_type": "bpe", "byte_fallback": True}
            what = "a SentencePiece model with byte fallback"
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=500, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
            minloglevel=2, **options,
        )  # fmt: skip
        tokenizer = SentencePieceTokenizer(model.getvalue())

    @dataclasses.dataclass(kw_only=True)
    class Own(TranslationProblem):
        name, corpus, source, target = "own", "own", "a", "b"

        def pairs(self, split):
            return iter([("a b", "(S (NN a) (NN b))")])

        def make_tokenizer(self):
            return tokenizer

    problem = Own(data_dir=tmp_path, bpe_dropout=0.1, num_segmentations=2)
    with pytest.raises(UserError, match=f"bpe_dropout requires plain byte-pair encoding, which {what} does not use"):
        problem.prepare()
    assert not list(tmp_path.glob("*/manifest.json"))


def test_bpe_dropout_depends_on_seed(tokenizer):
    assert anew(tokenizer, TEXTS, 0.2, seed=3) == anew(tokenizer, TEXTS, 0.2, seed=3)
    assert anew(tokenizer, TEXTS, 0.2, seed=3) != anew(tokenizer, TEXTS, 0.2, seed=4)
    rng = random.Random(0)
    (row,) = tokenizer.encode([rng.choice(TEXTS)])
    assert len({tuple(tokenizer.resegment([row], 0.3, seed)[0]) for seed in range(50)}) > 10
