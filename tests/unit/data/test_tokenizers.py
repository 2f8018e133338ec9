"""Tokenizers: texts to ids and back, sizes of vocabularies, saved and damaged files."""

import random
import re

import pytest
from helpers.errors import complaint
from helpers.sample_text import SYMBOLS, sentences

from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, UNK
from keras_transformer.data.tokenizers.loading import load_tokenizer
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(sentences(200), 60)


def test_subwords_come_back_as_text(tokenizer):
    texts = [*sentences(20, seed=2), "", "ein  Haus"]
    assert tokenizer.decode(tokenizer.encode(texts)) == [" ".join(text.split()) for text in texts]


def test_special_ids_are_fixed(tokenizer):
    for each in (tokenizer, SYMBOLS):
        assert each.pieces([PAD, EOS, BOS, UNK]) == ["<pad>", "</s>", "<s>", "<unk>"]
        assert UNK in each.encode(["日本"])[0]
        ids = each.encode([each.decode([[10, 11]])[0]])[0]
        assert not {PAD, EOS, BOS, UNK} & set(ids)
        assert each.decode([[BOS, *ids, EOS, PAD]]) == each.decode([ids])


def test_the_vocabulary_has_the_size_that_was_asked_for(tokenizer):
    assert tokenizer.vocab_size == 60
    assert max(max(ids) for ids in tokenizer.encode(sentences(200))) < 60


@pytest.mark.parametrize("kind", ["subwords", "symbols"])
def test_a_saved_tokenizer_is_the_same(tmp_path, tokenizer, kind):
    saved = tokenizer if kind == "subwords" else SYMBOLS
    saved.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    texts = [*sentences(20), "s1 s7 unknown"]
    assert (loaded.fingerprint, loaded.vocab_size) == (saved.fingerprint, saved.vocab_size)
    assert loaded.encode(texts) == saved.encode(texts)


def test_other_vocabularies_have_other_fingerprints(tokenizer):
    assert len({tokenizer.fingerprint, SYMBOLS.fingerprint, SymbolTokenizer(["s0"]).fingerprint}) == 3


def test_a_vocabulary_too_large_names_the_largest():
    said = complaint(SentencePieceTokenizer.train, sentences(50), 100_000)
    largest = int(re.search(r"vocabulary of 100000 pieces, at most (\d+)", said)[1])
    assert SentencePieceTokenizer.train(sentences(50), largest).vocab_size == largest
    assert f"at most {largest}" in complaint(SentencePieceTokenizer.train, sentences(50), largest + 1)


def test_a_vocabulary_too_small_names_the_smallest():
    said = complaint(SentencePieceTokenizer.train, sentences(50), 8)
    smallest = int(re.search(r"at least (\d+); change it with --set problem.vocab_size", said)[1])
    assert SentencePieceTokenizer.train(sentences(50), smallest).vocab_size == smallest
    assert f"at least {smallest}" in complaint(SentencePieceTokenizer.train, sentences(50), smallest - 1)


def test_blank_text_gives_no_vocabulary():
    assert "blank lines" in complaint(SentencePieceTokenizer.train, ["", "  "], 60)


@pytest.mark.parametrize("content", [b"", b"no model", "half"])
def test_a_damaged_model_file_is_named(tmp_path, tokenizer, content, capfd):
    whole = tokenizer.to_bytes()
    (tmp_path / "tokenizer.model").write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    assert complaint(load_tokenizer, tmp_path).startswith(f"{tmp_path}/tokenizer.model is damaged")
    assert capfd.readouterr().err == ""


def test_a_damaged_list_of_symbols_is_named(tmp_path):
    (tmp_path / "symbols.txt").write_bytes(b"s0\n\xff\n")
    assert complaint(load_tokenizer, tmp_path).startswith(f"{tmp_path}/symbols.txt is damaged")


def test_a_folder_without_tokenizer_is_named(tmp_path):
    assert complaint(load_tokenizer, tmp_path).startswith(f"{tmp_path} holds no tokenizer")


def test_a_vocabulary_is_learned_from_long_lines_too():
    """SentencePiece leaves lines of more than 4,192 bytes out, unless it is told otherwise."""
    long = " ".join(["zażółć gęślą jaźń"] * 400)
    tokenizer = SentencePieceTokenizer.train([long], 40)
    assert tokenizer.decode(tokenizer.encode(["jaźń żółć"])) == ["jaźń żółć"]
    word = "".join(random.Random(1).choices("abcdefgh", k=70_000))
    assert SentencePieceTokenizer.train([word], 40).vocab_size == 40
