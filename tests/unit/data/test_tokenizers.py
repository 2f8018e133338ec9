"""Tests of tokenizers: round trips, vocabulary sizes, saved files and damaged files."""

import random
import re

import pytest
from helpers.errors import complaint
from helpers.sample_text import SYMBOLS, sentences

from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, UNK
from keras_transformer.data.tokenizers.loading import load_tokenizer
from keras_transformer.data.tokenizers.sentencepiece import THREADED, SentencePieceTokenizer
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.data.tokenizers.word_pieces import WordPieceTokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(sentences(200), 60)


def test_sentencepiece_round_trip(tokenizer):
    texts = [*sentences(20, seed=2), "", "ein  Haus"]
    assert tokenizer.decode(tokenizer.encode(texts)) == [" ".join(text.split()) for text in texts]


@pytest.mark.parametrize("count", [1, THREADED - 1, THREADED, 2 * THREADED])
def test_sentencepiece_results_do_not_depend_on_count(tokenizer, count):
    texts = ["", *sentences(count - 1, seed=3)]
    ids = tokenizer.encode(texts)
    assert ids == [tokenizer.encode([text])[0] for text in texts]
    assert tokenizer.decode(ids) == [tokenizer.decode([row])[0] for row in ids] == texts


@pytest.fixture(params=[SentencePieceTokenizer, WordPieceTokenizer])
def learned_class(request):
    if request.param is WordPieceTokenizer:
        pytest.importorskip("tensorflow_text")
    return request.param


def test_tokenizer_special_ids_are_fixed(learned_class):
    learned = learned_class.train(sentences(50), 60)
    for each in (learned, SYMBOLS):
        assert each.pieces([PAD, EOS, BOS, UNK]) == ["<pad>", "</s>", "<s>", "<unk>"]
        ids = each.encode([each.decode([[10, 11]])[0]])[0]
        assert not {PAD, EOS, BOS, UNK} & set(ids)
        assert each.decode([[BOS, *ids, EOS, PAD]]) == each.decode([ids])
    assert UNK in SYMBOLS.encode(["日本"])[0]
    # Unlike SentencePiece, the other learned tokenizers escape unknown characters.
    assert (UNK in learned.encode(["日本"])[0]) == (learned_class is SentencePieceTokenizer)


def test_vocabulary_size_bounds_are_named(learned_class):
    texts = sentences(50)
    largest = int(re.search(r"at most (\d+) pieces", complaint(learned_class.train, texts, 100_000))[1])
    smallest = int(re.search(r"at least (\d+) pieces", complaint(learned_class.train, texts, 8))[1])
    for size in (smallest, largest):
        assert learned_class.train(texts, size).vocab_size == size
    assert f"at least {smallest}" in complaint(learned_class.train, texts, smallest - 1)
    assert f"at most {largest}" in complaint(learned_class.train, texts, largest + 1)


def test_vocabulary_of_blank_text_is_rejected(learned_class):
    assert "blank lines" in complaint(learned_class.train, ["", " \n"], 60)


def test_vocabulary_has_requested_size(tokenizer):
    assert tokenizer.vocab_size == 60
    assert max(max(ids) for ids in tokenizer.encode(sentences(200))) < 60


@pytest.mark.parametrize("kind", ["subwords", "symbols"])
def test_tokenizer_saves_and_loads(tmp_path, tokenizer, kind):
    saved = tokenizer if kind == "subwords" else SYMBOLS
    saved.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    texts = [*sentences(20), "s1 s7 unknown"]
    assert (loaded.fingerprint, loaded.vocab_size) == (saved.fingerprint, saved.vocab_size)
    assert loaded.encode(texts) == saved.encode(texts)


def test_fingerprint_depends_on_vocabulary(tokenizer):
    assert len({tokenizer.fingerprint, SYMBOLS.fingerprint, SymbolTokenizer(["s0"]).fingerprint}) == 3


@pytest.mark.parametrize("content", [b"", b"no model", "half"])
def test_damaged_model_file_is_named(tmp_path, tokenizer, content, capfd):
    whole = tokenizer.to_bytes()
    (tmp_path / "tokenizer.model").write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    assert complaint(load_tokenizer, tmp_path).startswith(f"{tmp_path}/tokenizer.model is damaged")
    assert capfd.readouterr().err == ""


def test_damaged_symbols_file_is_named(tmp_path):
    (tmp_path / "symbols.txt").write_bytes(b"s0\n\xff\n")
    assert complaint(load_tokenizer, tmp_path).startswith(f"{tmp_path}/symbols.txt is damaged")


def test_folder_without_tokenizer_is_named(tmp_path):
    assert complaint(load_tokenizer, tmp_path).startswith(f"{tmp_path} contains no tokenizer")


def test_vocabulary_includes_long_lines():
    """Learn from lines that SentencePiece ignores by default because they have more than 4,192 bytes."""
    long = " ".join(["zażółć gęślą jaźń"] * 400)
    tokenizer = SentencePieceTokenizer.train([long], 40)
    assert tokenizer.decode(tokenizer.encode(["jaźń żółć"])) == ["jaźń żółć"]
    word = "".join(random.Random(1).choices("abcdefgh", k=70_000))
    assert SentencePieceTokenizer.train([word], 40).vocab_size == 40
