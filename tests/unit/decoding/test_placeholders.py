"""Tests of placeholders in `BaseTranslator`, with an engine that copies, repeats or omits placeholders."""

import functools

import numpy as np
import pytest
from helpers.errors import complaint

import keras_transformer as kt
from keras_transformer.data.placeholders import placeholder_names
from keras_transformer.data.tokenizers.base import EOS
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.vocabulary import VocabularyOptions
from keras_transformer.decoding.base_translator import BaseTranslator, Hypothesis
from keras_transformer.utils.errors import TextError

LINES = ["go to the page of a dog.", "see x.org/a and www", "me@x.b, ("]


@functools.cache
def tokenizer(count):
    lines = 20 * [*LINES, *map(str.upper, LINES)]
    return SentencePieceTokenizer.train(lines, 64, VocabularyOptions(symbols=placeholder_names(count)))


class UpperCase(BaseTranslator):
    """Engine whose best translation is the source in upper case. The n-th alternative has n additional dots.

    Args:
        count: Number of placeholders in the vocabulary.
        change: Function applied to the upper-case text of each translation that has no required phrases.

    Attributes:
        searches: List of the arguments (rows, phrases) of each call of `_search`.
    """

    engine = "upper case"

    def __init__(self, count=8, change=lambda text: text):
        super().__init__(tokenizer(count), kt.HParams(beam_size=4))
        self.change, self.searches = change, []

    def _search(self, rows, texts, sources, prefixes, phrases, options):
        self.searches.append((rows, phrases))
        found = self.tokenizer.decode(sources)
        yield {i: [self._hypothesis(found[i], n, phrases[i]) for n in range(options.nbest)] for i in rows}

    def _hypothesis(self, source, number, phrases):
        text = source.upper().replace("<PH", "<ph") + "." * number
        (ids,) = self.tokenizer.encode([text if phrases else self.change(text)])
        return Hypothesis(self.tokenizer.decode([ids])[0], (*ids, EOS), -1.0, -0.5 - number)

    def _scored(self, sources, targets, alignments=False):
        for i, target in enumerate(targets):
            yield i, -np.ones(len(target)), None


def texts(translator, sources, **options):
    return [[one.text for one in several] for several in translator.translate(sources, **options)]


def test_translation_keeps_spans():
    translator = UpperCase()
    sources = ["see www.x.org/a and <ph>a Dog</ph>.", "a dog", "", "go <ph3> me@x.org"]
    assert texts(translator, sources, nbest=2) == [
        ["SEE www.x.org/a AND a Dog.", "SEE www.x.org/a AND a Dog.."],
        ["A DOG", "A DOG."],
        [""],
        ["GO <ph3> me@x.org", "GO <ph3> me@x.org."],
    ]
    assert translator.translate("see www.x.org/a") == "SEE www.x.org/a"
    assert [rows for rows, _ in translator.searches] == [[0, 1, 3], [0]]
    tokens = translator.translate(sources[:1])[0][0].tokens
    assert [i for i in tokens if i in translator.tokenizer.placeholders] == [*translator.tokenizer.placeholders[:2]]


def test_translator_without_placeholders_translates_spans():
    translator = UpperCase(count=0)
    assert translator.translate("see x.org and www.x.org") == "SEE X.ORG AND WWW.X.ORG"
    assert translator.hide_spans(["<ph>a</ph> <ph1>"]) == (["<ph>a</ph> <ph1>"], [{}])


def forget(text):
    return text.replace("<ph2> ", "")


def test_search_forces_missing_placeholders():
    translator = UpperCase(change=forget)
    sources = ["a dog", "go <ph>x y</ph> a www.x.org and"]
    assert texts(translator, sources, nbest=2)[1] == ["GO x y A www.x.org AND", "GO x y A www.x.org AND."]
    assert translator.searches[1] == ([1], {1: translator.tokenizer.encode(["<ph1>", "<ph2>"])})
    translator.translate("go <ph>x y</ph> <ph2> (<ph>z</ph>")
    assert translator.tokenizer.pieces(translator.searches[3][1][0][2]) == ["<ph3>"]


def test_phrases_may_contain_spans():
    translator = UpperCase(change=forget)
    found = texts(translator, ["go <ph>x y</ph> a www.x.org and"], phrases=[["see", "www.x.org"]])
    assert found == [["GO x y A www.x.org AND"]]
    assert translator.searches == [([0], [translator.tokenizer.encode(["see", "<ph2>"])])]


@pytest.mark.parametrize(
    "options", [{}, {"sampling": kt.Sampling()}, {"no_repeat_ngram": 1}, {"constraint": lambda *_: None}]
)
def test_missing_spans_are_appended_without_phrases(options):
    translator = UpperCase(change=forget)
    translator.supports_phrases = bool(options)
    found = texts(translator, ["go <ph>x y</ph> a www.x.org and"], **options)
    assert found == [["GO x y A AND www.x.org"]] and len(translator.searches) == 1


def test_repeated_and_unknown_placeholders_are_removed():
    translator = UpperCase(change=lambda text: f"{text} <ph1> <ph5>.")
    assert translator.translate("go www.x.org and") == "GO www.x.org AND."
    assert translator.translate("a dog") == "A DOG."
    assert len(translator.searches) == 2


def test_addresses_beyond_the_placeholders_are_translated():
    translator = UpperCase(count=2)
    found = translator.translate("www.a.org <ph>a</ph> www.b.org www.d.org")
    assert found == "www.a.org a WWW.B.ORG WWW.D.ORG"


def test_too_many_marked_spans_name_the_text():
    translator = UpperCase(count=2)
    message = "text 2 must have at most 2 spans in <ph>…</ph>, got 3. Mark fewer spans, or split the text."
    sources = ["a", "<ph>a</ph> <ph1> <ph2>"]
    assert complaint(translator.translate, sources) == message
    assert complaint(translator.score, sources, ["", ""]) == message
    assert not translator.searches


def test_split_sentences_keeps_spans_whole():
    pytest.importorskip("sentencex")
    translator = UpperCase(count=2)
    text = "see <ph>a dog. A dog</ph>. Go to www.a.org. www.b.org, www.c.org."
    (joined,) = texts(translator, [text], split_sentences="en")
    assert joined == ["SEE a dog. A dog. GO TO www.a.org. www.b.org, www.c.org."]
    assert len(translator.searches[0][0]) == 3
    with pytest.raises(TextError, match="^text 2 must have"):
        translator.translate(["a dog", "a dog. <ph>a</ph> <ph>a</ph> <ph>a</ph>"], split_sentences="en")


def test_spans_of_truncated_parts_are_not_appended():
    translator = UpperCase(change=forget)
    source = "go www.x.org to www.y.org of a dog www.z.org"
    length = len(translator.tokenizer.encode(["go <ph1> to <ph2> of"])[0]) + 1
    for translator.supports_phrases, expected in (
        (True, "GO www.x.org TO www.y.org OF"), (False, "GO www.x.org TO OF www.y.org")
    ):  # fmt: skip
        assert texts(translator, [source], max_source_length=length) == [[expected]]


def test_score_hides_spans_on_both_sides():
    translator = UpperCase()
    source, target = "see www.x.org", "SEE www.x.org"
    (given,) = translator.score([source], [target])
    assert given.text == target and given.tokens == translator.translate([source])[0][0].tokens
    (scored,) = translator.score([source], [given.tokens])
    assert (scored.text, scored.tokens) == (target, given.tokens)
    assert "must have the same length, got 1 and 0" in complaint(translator.score, [source], [])


def test_prefixes_may_contain_spans():
    class WithPrefix(UpperCase):
        def _search(self, rows, texts, sources, prefixes, phrases, options):
            self.prefixes = prefixes
            yield from super()._search(rows, texts, sources, prefixes, phrases, options)

    translator = WithPrefix()
    translator.translate(["see www.x.org"], prefixes=["SEE www.x.org"])
    assert translator.prefixes == translator.tokenizer.encode(["SEE <ph1>"])
