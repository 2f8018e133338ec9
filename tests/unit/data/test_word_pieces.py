"""Tests of word pieces: round trips, greedy longest match, vocabulary size, and equal ids in a TensorFlow graph."""

import pickle
import re
import sys

import pytest
from helpers.errors import complaint
from helpers.stores import new_store
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data.corpus import read_lines
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, UNK
from keras_transformer.data.tokenizers.loading import load_tokenizer
from keras_transformer.data.tokenizers.word_pieces import ALWAYS, WordPieceTokenizer, count_words

SENTENCES = [
    "Il a dit : « non » ! Vraiment ? Oui ; c'est l'homme de 1 234 ans.",
    "L’été, les élèves étudient l'histoire : « la Révolution », les rois, les villes.",
    "She said: “no”! Really? Yes; it's the 1,234-year-old man.",
    "In summer, the students study history: “the Revolution”, the kings, the cities.",
] * 5
SIZE = 100
AWKWARD = [
    "", " ", "▁", "▁▁ a▁b", "\\", "\\65;", "\\\\ \\9; \\1114112;", "a\u00a0b\u202fc\u2028d\x85e\x1cf\ng\u3000",
    "日本 😀!", "<s> </s> <pad> <unk>", "x" * 3000, "é e\u0301 \u0301", "\x00a\x01", "-]^[a .* $",
    "\ud7ff\ue000\uffff\U0010ffff⁇", "İstanbul ǅ ß ﬁ", "«non»", "« non »", "1,5 l'eau aujourd'hui",
]  # fmt: skip
texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("aelnt12 ;▁\\«»'’!\u00a0\u202f\u0301é"))


def normalised(text):
    return " ".join(text.split())


@pytest.fixture(scope="module")
def tokenizer():
    pytest.importorskip("tensorflow_text")
    return WordPieceTokenizer.train(SENTENCES, SIZE)


@pytest.fixture(scope="module")
def captions(test_data):
    """French captions of Multi30k."""
    return list(read_lines(test_data / "multi30k" / "raw" / "train.fr.gz"))


@pytest.fixture(scope="module")
def of_captions(captions):
    pytest.importorskip("tensorflow_text")
    return WordPieceTokenizer.train(captions[:6000], 3000)


# Round trips


@given(text=texts)
def test_word_pieces_restore_any_text(tokenizer, text):
    ids = tokenizer.encode([text])
    assert tokenizer.decode(ids) == [normalised(text)]
    assert not {PAD, EOS, BOS, UNK} & set(ids[0]) and all(0 <= i < tokenizer.vocab_size for i in ids[0])


@pytest.mark.parametrize("text", AWKWARD + SENTENCES[:4])
def test_word_pieces_restore_awkward_texts(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode([text])) == [normalised(text)]


def test_word_pieces_keep_french_spacing(tokenizer):
    apart, joined = "dit : « non » ! Oui ; non ?", "dit: «non»! Oui; non?"
    assert tokenizer.decode(tokenizer.encode([apart, joined])) == [apart, joined]
    assert tokenizer.encode([apart]) != tokenizer.encode([joined])
    assert tokenizer.encode([apart.replace(" ", "\u00a0")]) == tokenizer.encode([apart])


def test_word_pieces_restore_multi30k(of_captions, captions):
    assert of_captions.decode(of_captions.encode(captions)) == [normalised(text) for text in captions]


@given(ids=st.lists(st.integers(0, SIZE - 1)))
def test_word_pieces_decode_any_ids_to_one_line(tokenizer, ids):
    (text,) = tokenizer.decode([ids])
    assert text == normalised(text)


@pytest.mark.parametrize("made_up", ["\\32;", "\\10;", "\\55296;", "\\9999999;", "\\1114112;", "\\;", "\\65"])
def test_word_pieces_keep_invalid_escapes(made_up):
    tokenizer = WordPieceTokenizer(ALWAYS)
    ids = [4 + ALWAYS.index(char) for char in made_up]
    assert tokenizer.decode([ids]) == [made_up]


# Pieces


def test_word_pieces_match_longest_first():
    tokenizer = WordPieceTokenizer([*ALWAYS, *"abc«,", "▁ab", "▁abc", "bc", "ab", "ca", "a,"])

    def pieces(text):
        return tokenizer.pieces(tokenizer.encode([text])[0])

    assert pieces("abcabc ca") == ["▁abc", "ab", "c", "▁", "ca"]
    assert pieces("a,ab « 1b") == [
        "▁",
        "a",
        ",",
        "ab",
        "▁",
        "«",
        "▁",
        "1",
        "b",
    ]  # "a," is not a piece, because no piece contains both letters and punctuation
    assert pieces("d") == ["▁", "\\", *"100", ";"]


def test_frequent_words_are_single_pieces(of_captions):
    assert of_captions.pieces(of_captions.encode(["Un homme avec un chapeau."])[0]) == [
        "▁Un", "▁homme", "▁avec", "▁un", "▁chapeau", ".",
    ]  # fmt: skip


def test_count_words_splits_like_encode():
    assert count_words(["l'été, l'été", "« été »"]) == {
        "▁l": 2, "'": 2, "été": 2, ",": 1, "▁«": 1, "▁été": 1, "▁»": 1,
    }  # fmt: skip


# The vocabulary's size and file


@pytest.mark.parametrize("size", [SIZE - 10, SIZE, SIZE + 5])
def test_word_piece_vocabulary_has_requested_size(tokenizer, size):
    learned = WordPieceTokenizer.train(iter(SENTENCES), size)
    assert learned.vocab_size == size
    assert (learned.fingerprint == tokenizer.fingerprint) == (size == SIZE)  # learning is deterministic


def test_missing_tensorflow_text_is_named(monkeypatch):
    for name in list(sys.modules):
        if name.partition(".")[0] == "tensorflow_text":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    assert "pip install tensorflow-text" in complaint(WordPieceTokenizer.train, SENTENCES, SIZE)


def test_word_pieces_save_and_pickle(tmp_path, tokenizer):
    tokenizer.save(tmp_path)
    for other in (load_tokenizer(tmp_path), pickle.loads(pickle.dumps(tokenizer))):
        assert (other.fingerprint, other.vocab_size) == (tokenizer.fingerprint, SIZE)
        assert other.encode(AWKWARD) == tokenizer.encode(AWKWARD)


def test_store_keeps_word_pieces(tmp_path, tokenizer):
    store = new_store(tmp_path / "store", {"train": [(SENTENCES[0], AWKWARD[8])]}, tokenizer)
    assert store.tokenizer.fingerprint == store.manifest["tokenizer"] == tokenizer.fingerprint
    assert store.tokenizer.decode([store.split("train").target[0]]) == [AWKWARD[8]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content.replace(b";\n", b"", 1), "the piece ';' is missing"),
        (lambda content: content + b"0\n", "empty or repeated"),
        (lambda content: content + b"\n", "a piece is empty"),
        (lambda content: content + b"\xff\n", "not UTF-8"),
        (lambda content: b"", "is missing"),
    ],
)
def test_damaged_word_piece_file_is_named(tmp_path, tokenizer, change, said):
    (tmp_path / "word_pieces.txt").write_bytes(change(tokenizer.to_bytes()))
    assert re.match(rf"{tmp_path}/word_pieces.txt is damaged: .*{said}", complaint(load_tokenizer, tmp_path))


# In a graph


def graph_of(tokenizer):
    pytest.importorskip("tensorflow_text")
    from keras_transformer.exports.saved_model import graph_tokenizer

    return graph_tokenizer(tokenizer)


@pytest.fixture(scope="module")
def graph(tokenizer):
    return graph_of(tokenizer)


def test_graph_word_pieces_match_on_multi30k(of_captions, captions):
    graph, some = graph_of(of_captions), [*captions[5000:9000], *AWKWARD]
    ids = graph.tokenize(some)
    assert ids.to_list() == of_captions.encode(some)
    assert [text.decode() for text in graph.detokenize(ids).numpy()] == [normalised(text) for text in some]


@given(batch=st.lists(texts, min_size=1, max_size=5))
def test_graph_word_pieces_match_on_any_text(tokenizer, graph, batch):
    ids = graph.tokenize(batch)
    assert ids.to_list() == tokenizer.encode(batch)
    assert [text.decode() for text in graph.detokenize(ids).numpy()] == [normalised(text) for text in batch]


@given(ids=st.lists(st.integers(0, SIZE - 1) | st.integers(4, 16), min_size=1))
def test_graph_word_pieces_decode_any_ids_alike(tokenizer, graph, ids):
    assert graph.detokenize([ids]).numpy()[0].decode() == tokenizer.decode([ids])[0]


def test_graph_word_pieces_are_saved_without_python(tmp_path, tokenizer, graph):
    tf = pytest.importorskip("tensorflow")
    module = tf.Module()
    module.words = graph
    module.tokenize = tf.function(
        lambda texts: graph.tokenize(texts).to_tensor(), input_signature=[tf.TensorSpec([None], tf.string)]
    )
    tf.saved_model.save(module, tmp_path)
    found = tf.saved_model.load(tmp_path).tokenize(tf.constant(AWKWARD)).numpy()
    assert [[i for i in row if i != PAD] for row in found.tolist()] == tokenizer.encode(AWKWARD)
