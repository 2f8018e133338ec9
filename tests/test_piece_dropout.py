"""BPE-dropout: other pieces, the same text; without dropout the tokenizer's own; the same again for the same pair."""

import collections
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.data import encoding
from keras_transformer.data.token_store import TokenStore
from keras_transformer.data.tokenizer import UNK, SentencePieceTokenizer, SymbolTokenizer
from keras_transformer.errors import UserError
from keras_transformer.tasks import load_problem

TEXTS = [pair[side] for pair in load_problem("toy_ende").pairs("validation") for side in (0, 1)]


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(TEXTS, 400)


def anew(tokenizer, texts, rate, seed=1):
    return tokenizer.cut_anew(tokenizer.encode(texts), rate, seed)


def test_without_dropout_the_pieces_are_the_tokenizers(tokenizer):
    assert anew(tokenizer, TEXTS, 0.0) == tokenizer.encode(TEXTS)


@settings(deadline=None, max_examples=200)
@given(
    text=st.lists(st.sampled_from(" ".join(TEXTS).split()) | st.text("aeinrst ▁ß日\u00a0", max_size=9)).map(" ".join),
    rate=st.floats(0, 0.9),
)
def test_whatever_the_text_it_stays(tokenizer, text, rate):
    (before,), (after,) = tokenizer.encode([text]), anew(tokenizer, [text], rate)
    assert tokenizer.decode([after]) == tokenizer.decode([before]) and after.count(UNK) == before.count(UNK)
    assert anew(tokenizer, [text], 0.0) == [before]


def test_real_text_stays_and_without_dropout_its_pieces(test_data):
    with open(test_data / "multi30k" / "tok" / "val.lc.norm.tok.de", encoding="utf-8") as file:
        lines = file.read().splitlines()
    tokenizer = SentencePieceTokenizer.train(lines, 3000)
    assert anew(tokenizer, lines, 0.0) == tokenizer.encode(lines)
    assert tokenizer.decode(anew(tokenizer, lines, 0.3)) == tokenizer.decode(tokenizer.encode(lines))


def test_a_joint_is_left_out_as_often_as_said():
    """A word of one joint, so that it is one piece but for the dropout."""
    tokenizer = SentencePieceTokenizer.train(["a a a"], 7)
    assert set(tokenizer.pieces([4, 5, 6])) == {"▁a", "▁", "a"}
    rows = anew(tokenizer, ["a"] * 4000, 0.3)
    lengths = collections.Counter(map(len, rows))
    assert set(lengths) == {1, 2} and abs(lengths[2] / 4000 - 0.3) < 0.04


def stored(folder, tokenizer, pairs, **options):
    TokenStore.write(folder, {"train": pairs, "test": pairs}, tokenizer, {}, piece_dropout={"train": 0.2}, **options)
    return TokenStore(folder)


def test_what_is_stored_depends_on_the_pair_s_number_alone(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK_PAIRS", 7)
    monkeypatch.setattr(encoding, "SERIAL_PAIRS", 20)
    pairs = list(zip(TEXTS[::2], TEXTS[1::2]))[:100]
    stores = [stored(tmp_path / str(workers), tokenizer, pairs, workers=workers) for workers in (0, 2)]
    trains = [store.split("train") for store in stores]
    for side in ("source", "target"):
        first, second = ([getattr(split, side)[i].tolist() for i in range(100)] for split in trains)
        assert first == second
    test = stores[0].split("test").source
    assert [test[i].tolist()[:-1] for i in range(100)] == tokenizer.encode([source for source, _ in pairs])


def test_a_training_pair_is_stored_in_several_segmentations(tmp_path):
    arguments = {"data_dir": tmp_path, "train_pairs": 200, "vocab_size": 300}
    problem = load_problem("toy_ende", piece_dropout=0.1, segmentations=3, **arguments)
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


def test_a_preparation_that_was_killed_goes_on_to_the_same(tokenizer, tmp_path, monkeypatch):
    from keras_transformer.files import work_directory

    monkeypatch.setattr(encoding, "CHUNK_PAIRS", 7)
    monkeypatch.setattr("keras_transformer.data.preparation.SERIAL_PAIRS", 20)
    pairs = list(zip(TEXTS[::2], TEXTS[1::2]))[:100]

    def broken_off():
        yield from pairs[:60]
        raise ConnectionError

    def fill(texts):
        with work_directory(tmp_path / "resumed", "identity", lambda line: None) as work:
            TokenStore.fill(
                work, {"train": texts}, tokenizer, {}, expected={"train": 100}, piece_dropout={"train": 0.2}
            )
            work.finish()

    with pytest.raises(ConnectionError):
        fill(broken_off())
    fill(pairs)
    TokenStore.write(tmp_path / "whole", {"train": pairs}, tokenizer, {}, piece_dropout={"train": 0.2})
    for name in ("train.source.ids", "train.target.ids", "train.source.lengths"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_cannot_be_is_told(tmp_path):
    with pytest.raises(UserError, match="segmentations=4 would all be the same; add --set problem.piece_dropout=0.1"):
        load_problem("toy_ende", segmentations=4)
    with pytest.raises(UserError, match="drop_duplicates would leave one of segmentations=4"):
        load_problem("toy_ende", segmentations=4, piece_dropout=0.1, drop_duplicates=True)
    with pytest.raises(UserError, match="piece_dropout is of byte-pair encoding, which a SymbolTokenizer does not do"):
        SymbolTokenizer(["a"]).cut_anew([[4]], 0.1, seed=1)
    with pytest.raises(UserError, match="piece_dropout"):
        load_problem("reverse", data_dir=tmp_path, piece_dropout=0.1, train_pairs=20).prepare()


def test_the_draw_is_by_seed(tokenizer):
    assert anew(tokenizer, TEXTS, 0.2, seed=3) == anew(tokenizer, TEXTS, 0.2, seed=3)
    assert anew(tokenizer, TEXTS, 0.2, seed=3) != anew(tokenizer, TEXTS, 0.2, seed=4)
    rng = random.Random(0)
    (row,) = tokenizer.encode([rng.choice(TEXTS)])
    assert len({tuple(tokenizer.cut_anew([row], 0.3, seed)[0]) for seed in range(50)}) > 10
