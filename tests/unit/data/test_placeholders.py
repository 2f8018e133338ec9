"""Tests of placeholders: protected spans of sources, targets and translations, and entries in vocabularies."""

import pytest
from helpers.errors import complaint
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data.placeholders import (
    COUNT,
    SPAN,
    hide_in_target,
    hide_spans,
    placeholder_ids,
    placeholder_names,
    show_spans,
    split_around_spans,
)
from keras_transformer.data.tokenizers.base import UNK
from keras_transformer.data.tokenizers.marian import MarianTokenizer
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.vocabulary import VocabularyOptions, parse_symbols
from keras_transformer.utils.errors import TextError

TEXTS = [f"{word} {number}, ({word}) – «ﬁ½»." for number in range(50) for word in ("a dog", "ein Hund")]


def learn(**options):
    size = 300 if "byte_fallback" in options else 60
    return SentencePieceTokenizer.train(TEXTS, size, VocabularyOptions(symbols=placeholder_names(), **options))


def spans_of(text, count=COUNT):
    return [*hide_spans([text], count)[1][0].values()]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("See https://x.org/wiki/Foo_(bar), or www.x.org.", "https://x.org/wiki/Foo_(bar) www.x.org"),
        ('(http://a.de/b?c=d#e) "HTTP://q.com/it\'s" <ftp://f>!', "http://a.de/b?c=d#e HTTP://q.com/it's ftp://f"),
        ("请看http://x.org/a。联系foo@bar.com吗", "http://x.org/a foo@bar.com"),
        ("https://münchen.de/straße/?q=ä…", "https://münchen.de/straße/?q=ä"),
        ("بhttps://a.com، https://b.com؟ https://c.com। ｢https://d.jp｣", "https://a.com https://b.com https://c.com https://d.jp"),
        ("mailto:a.b+c@d-e.co.uk, a@b", "a.b+c@d-e.co.uk"),
        ("no ahttp://x, http://, www. or x.org", ""),
        ("<ph>1</ph> <ph4> <ph>2<ph>3</ph> <ph></ph> </ph>", "1 <ph4> 3"),
        ("<ph>www.x.org</ph>", "www.x.org"),
    ],
)  # fmt: skip
def test_hide_spans_finds_protected_spans(text, spans):
    assert spans_of(text) == spans.split()


def test_hide_spans_numbers_spans_in_order():
    (hidden, blank), (spans, none) = hide_spans(["<ph>a b</ph>: www.x.org, <ph1>. www.x.org", " "], 8)
    assert hidden == "<ph1>: <ph2>, <ph3>. <ph4>"
    assert spans == {"<ph1>": "a b", "<ph2>": "www.x.org", "<ph3>": "<ph1>", "<ph4>": "www.x.org"}
    assert (blank, none) == (" ", {})


def test_hide_spans_changes_nothing_without_placeholders():
    texts = ["<ph>a</ph> www.x.org <ph1>", ""]
    assert hide_spans(texts, 0) == (texts, [{}, {}])


def test_hide_spans_prefers_marked_spans():
    text = "www.a.org www.b.org <ph>c</ph> www.d.org <ph2>"
    assert hide_spans([text], 3)[0] == ["<ph1> www.b.org <ph2> www.d.org <ph3>"]
    assert hide_spans([text], 2)[0] == ["www.a.org www.b.org <ph1> www.d.org <ph2>"]
    with pytest.raises(TextError) as error:
        hide_spans(["www.a.org www.b.org", text], 1)
    assert error.value.index == 1
    assert str(error.value) == (
        "text 2 must have at most 1 spans in <ph>…</ph>, got 2. Mark fewer spans, or split the text."
    )


WORDS = st.sampled_from(
    ["www.x.org/a", "ftp://b.org?c=(d)", "me@x.org", "<ph>", "</ph>", "<ph>a b</ph>", "<ph3>", "<ph12>", "dog", " "]
)  # fmt: skip


@given(st.one_of(st.text(), st.lists(WORDS).map("".join), st.lists(WORDS).map(" ".join)))
def test_show_spans_inverts_hide_spans(text):
    marked = sum(match.lastgroup is not None for match in SPAN.finditer(text))
    (hidden,), (spans,) = hide_spans([text], max(COUNT, marked))
    assert show_spans(hidden, spans) == SPAN.sub(lambda match: match["marked"] or match[0], text)


@given(st.permutations([f"word{i}" for i in range(3)] + [*placeholder_names(3), *placeholder_names(4)]))
def test_show_spans_shows_each_span_once(words):
    spans = {"<ph1>": "A", "<ph2>": "B", "<ph3>": "C", "<ph5>": "<ph1>"}
    shown = show_spans(" ".join(words), spans).split()
    assert sorted(shown) == sorted([*spans.values(), "word0", "word1", "word2"]) and shown[-1] == "<ph1>"
    first = {name: words.index(name) for name in placeholder_names(3)}
    assert [word for word in shown if word in "ABC"] == [spans[name] for name in sorted(first, key=first.get)]


def test_show_spans_keeps_spaces():
    assert show_spans("(<ph2>), <ph1>.", {"<ph1>": "a b", "<ph2>": "c"}) == "(c), a b."
    assert show_spans("x <ph1>. <ph1>y", {"<ph1>": "a"}) == "x a.y"
    assert show_spans("", {"<ph1>": "a"}) == "a"
    assert show_spans("x <ph7>.", {}) == "x."


def test_hide_in_target_replaces_whole_spans():
    spans = {"<ph1>": "www.x.org", "<ph2>": "art", "<ph3>": "www.x.org/a", "<ph4>": "www.x.org"}
    target = "art, Partner, www.x.org/a (www.x.org) www.x.org."
    assert hide_in_target(target, spans) == "<ph2>, Partner, <ph3> (<ph1>) <ph4>."
    assert hide_in_target(target, {}) == target


def test_hide_in_target_needs_no_spaces_in_chinese():
    spans = {"<ph1>": "https://x.org/a", "<ph2>": "iPhone"}
    target = "请访问https://x.org/a查看。这iPhone是新的, iPhones"
    assert hide_in_target(target, spans) == "请访问<ph1>查看。这<ph2>是新的, iPhones"


def test_split_around_spans_keeps_spans_whole():
    def split(text):
        return [part + "." for part in text.split(".") if part]

    parts = split_around_spans("See <ph>A. B</ph> at x@y.z. <ph1>.", split)
    assert parts == ["See <ph>A. B</ph> at x@y.z.", " <ph1>."]


def test_placeholder_ids_end_before_a_gap():
    assert placeholder_ids(["<unk>", "<ph2>", "a", "<ph1>", "<ph4>", "<ph>"]) == (3, 1)
    assert placeholder_ids(["a", "<ph2>"]) == ()


@pytest.mark.parametrize(
    "options",
    [{}, {"kind": "unigram", "byte_fallback": True}, {"normalization": "nfkc_cf"}, {"split_digits": True}],
    ids=lambda options: "-".join(options) or "default",
)
def test_placeholders_are_whole_pieces(options):
    tokenizer = learn(**options)
    assert tokenizer.pieces(tokenizer.placeholders) == [*placeholder_names(8)]
    text = "(<ph1>), <ph8>. dog<ph2>"
    (ids,) = tokenizer.encode([text])
    assert UNK not in ids and tokenizer.decode([ids]) == [text]
    assert [i for i in ids if i in tokenizer.placeholders] == [tokenizer.placeholders[k] for k in (0, 7, 1)]


def test_word_dropout_keeps_placeholders():
    for tokenizer in (learn(), MarianTokenizer.join(learn(), learn())):
        ids = [*tokenizer.placeholders]
        assert len(ids) == 8 and tokenizer.hidden_ids[ids].tolist() == ids


def test_user_symbols_reject_placeholders():
    assert complaint(parse_symbols, "<br>,<ph2>") == (
        "problem.user_symbols must not contain the placeholder <ph2>. Set problem.placeholders=true instead."
    )
