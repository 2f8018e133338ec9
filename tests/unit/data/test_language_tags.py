"""Tests of the tags of target languages in texts, vocabularies and filters."""

import numpy as np
import pytest
from helpers.errors import complaint

from keras_transformer.data.filters import PairFilter, TaggedPairFilter
from keras_transformer.data.language_tags import is_blank, tag_texts, vocabulary_tags, without_tag
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, SPECIAL, UNK
from keras_transformer.data.tokenizers.marian import MarianTokenizer
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.vocabulary import VocabularyOptions

TEXTS = [f"{word} {number} <2de>" for number in range(50) for word in ("A dog", "Ein Hund", "a2de")]
TAGS = ("<2de>", "<2pt_BR>")
GERMAN, FRENCH = {"de": "<2de>"}, {"fr": "<2fr>"}
CODES = {"deu": ">>deu<<", "fra": ">>fra<<"}


def learn(**options):
    size = 285 if "byte_fallback" in options else 50
    return SentencePieceTokenizer.train(TEXTS, size, VocabularyOptions(symbols=TAGS, **options))


def test_tag_texts_adds_one_tag():
    texts = ["A dog", "", " \t", "<2fr> A dog", "  <2de>A dog", "<2xx> A dog"]
    tagged = ["<2de> A dog", "", " \t", "<2fr> A dog", "  <2de>A dog", "<2de> <2xx> A dog"]
    assert tag_texts(texts, "de", GERMAN | FRENCH) == tagged
    assert tag_texts(["A dog"], None, GERMAN) == ["<2de> A dog"]
    assert tag_texts(texts, None, {}) == texts


def test_tag_texts_adds_language_codes():
    texts = ["A dog", " >>fra<<  A dog"]
    assert tag_texts(texts, "deu", CODES) == [">>deu<< A dog", " >>fra<<  A dog"]
    assert tag_texts(["A dog"], None, {"deu": ">>deu<<"}) == ["A dog"]
    assert tag_texts(["A dog"], "deu", {"deu": ">>deu<<"}) == [">>deu<< A dog"]


def test_tag_texts_makes_a_tag_alone_blank():
    assert tag_texts(["<2de> ", " <2de>", ">>fra<< "], None, GERMAN | CODES) == ["", "", ""]
    assert is_blank(" <2de> ", GERMAN) and is_blank(" ", {}) and not is_blank("<2fr>", GERMAN)


@pytest.mark.parametrize(
    ("language", "tags", "message"),
    [
        ("ge", GERMAN | FRENCH, "unknown target language 'ge': did you mean de?"),
        ("de", {}, "this model has no language tags, so it does not support to='de'. Omit `to`."),
        (
            None,
            GERMAN | FRENCH,
            "text 2 must begin with the tag of its target language, such as <2de>, got 'A dog'. Add",
        ),
        ("fr", CODES, "unknown target language 'fr': did you mean fra?"),
    ],
)
def test_tag_texts_rejects_language(language, tags, message):
    assert complaint(tag_texts, ["<2de> A dog", "A dog"], language, tags).startswith(message)


def test_tag_texts_rejects_unknown_language_code():
    message = "text 2 begins with an unknown language code 'fr': did you mean fra?"
    assert complaint(tag_texts, ["", " >>fr<< A dog"], None, CODES) == message
    assert tag_texts([">>No<<, he said."], None, CODES) == [">>No<<, he said."]
    assert tag_texts([">>no<<, he said."], "deu", CODES) == [">>deu<< >>no<<, he said."]
    assert tag_texts([">>fr<< A dog"], None, {}) == [">>fr<< A dog"]


@pytest.mark.parametrize("text", ["A dog", ">>> print(a << 2)", ">> deu << A dog"])
def test_language_codes_are_optional(text):
    assert tag_texts([text], None, CODES) == [text]
    assert tag_texts([text], "deu", CODES) == [f">>deu<< {text}"]


def test_without_tag_removes_only_the_first_tag():
    assert without_tag(" <2de>  A <2de> dog") == "A <2de> dog"
    assert without_tag(" A <2de> dog") == " A <2de> dog"


@pytest.mark.parametrize(
    "options",
    [{}, {"kind": "unigram", "byte_fallback": True}, {"normalization": "nfkc_cf"}, {"split_digits": True}],
    ids=lambda options: "-".join(options) or "default",
)
def test_tags_are_whole_pieces(options):
    tokenizer = learn(**options)
    assert tokenizer.languages == ("de", "pt_BR")
    for tag in TAGS:
        (ids,) = tokenizer.encode([f"{tag} A dog 2"])
        assert tokenizer.pieces(ids)[:2] == ["▁", tag]
        assert UNK not in ids


def test_word_dropout_keeps_tags():
    tokenizer = learn()
    ids = tokenizer.encode(["<2de> A dog"])[0]
    assert [index for index in ids if tokenizer.hidden_ids[index] == index] == ids[:2]  # "▁" and tag


def test_word_dropout_keeps_tags_of_two_models():
    source, target = (learn().to_bytes(), learn().to_bytes())
    tokenizer = MarianTokenizer([*SPECIAL, "▁A", "<2de>", ">>de<<"], source, target)
    assert tokenizer.hidden_ids.tolist() == [PAD, EOS, BOS, UNK, UNK, 5, 6]


def test_source_prefix_contains_tag_or_language_code():
    model = learn().to_bytes()
    tokenizer = MarianTokenizer([*SPECIAL, "▁A", "<2de>", ">>fra<<"], model, model)
    assert tokenizer.tags == {"de": "<2de>", "fra": ">>fra<<"} and tokenizer.languages == ("de", "fra")
    texts = {"<2de> A": "<2de> ", " >>fra<<  A >>fra<<": " >>fra<<  ", ">>fra<<": ">>fra<<", ">>ita<< A": "", "A": ""}
    assert {text: tokenizer.source_prefix(text) for text in texts} == texts


def test_separate_vocabularies_have_tags():
    joined = MarianTokenizer.join(learn(), SentencePieceTokenizer.train(TEXTS, 60))
    assert joined.languages == ("de", "pt_BR")
    assert joined.pieces(joined.encode(["<2pt_BR> A dog"])[0])[:2] == ["▁", "<2pt_BR>"]
    assert vocabulary_tags(["<2>", "a<2de>", "2de", "<2fr>"]) == FRENCH


def test_filter_ignores_tags():
    pairs = [("<2de> New York", "New York"), ("<2de> 12a", "12b"), ("<2de> A dog", "Ein Hund")]
    lengths = np.full((2, 3), 5)
    rules = {"drop_copies": True, "min_letters": 0.3, "source_script": "Latin"}
    dropped = TaggedPairFilter(**rules).by_pair(pairs, lengths)
    assert [rows.tolist() for rows in dropped.values()] == [[True, False, False], [False] * 3, [False] * 3]
    assert not PairFilter(**rules).by_pair(pairs, lengths)["dropped_as_copies"].any()
