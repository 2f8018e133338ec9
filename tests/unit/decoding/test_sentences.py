"""Tests of translation sentence by sentence: splitting of texts, joining of sentences, `Translator.translate`."""

import sys

import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.data.language_tags import leading_tag
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.decoding.sentences import join_hypotheses, split_texts
from keras_transformer.decoding.translator import Hypothesis
from keras_transformer.utils.errors import NonFiniteOutputs

HPARAMS = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, dropout=0, extra_length=3)
TEXTS = ["a xx. Yy a b.", "", "b a"]


@pytest.fixture(scope="module")
def translator():
    tokenizer = SymbolTokenizer("ab")
    return kt.Translator(kt.Transformer(tokenizer.vocab_size, HPARAMS), tokenizer, HPARAMS)


def test_split_texts_keeps_abbreviations_and_empty_texts():
    pytest.importorskip("sentencex")
    sentences, owners = split_texts(["Dr. Smith paid $3.50.  He slept!", "", " ", "One.\nTwo."], "en")
    assert sentences == ["Dr. Smith paid $3.50.", "He slept!", "", "", "One.", "Two."]
    assert owners == [0, 0, 1, 2, 3, 3]


def test_split_texts_repeats_the_language_tag():
    pytest.importorskip("sentencex")
    texts = ["<2de> One. Two.", "One. Two.", " <2de>", "<2fr> One. Two. <2de> Three."]
    assert split_texts(texts, "en", prefix_of=lambda text: leading_tag(text, {"de": "<2de>"}))[0] == [
        "<2de> One.", "<2de> Two.", "One.", "Two.", "<2de>", "<2fr> One.", "Two.", "<2de> Three."
    ]  # fmt: skip
    assert split_texts(texts[:1], "en")[0] == ["<2de> One.", "Two."]


@pytest.mark.parametrize(
    "language, text, count",
    [
        ("de", "Das ist z. B. gut. Am 3. Oktober kam er.", 2),
        ("zh", "你好。我是学生！", 2),
        ("hi", "यह एक वाक्य है। दूसरा।", 2),
        ("a language without rules", "One. Two.", 2),
    ],
)
def test_split_texts_follows_the_language(language, text, count):
    pytest.importorskip("sentencex")
    sentences, owners = split_texts([text], language)
    assert len(sentences) == len(owners) == count
    assert "".join(sentences).replace(" ", "") == text.replace(" ", "")


def test_split_texts_keeps_a_text_that_sentencex_cannot_split():
    pytest.importorskip("sentencex")
    assert split_texts(["Typ B\u2009. Es geht.", "One. Two."], "de") == (
        ["Typ B\u2009. Es geht.", "One.", "Two."],
        [0, 1, 1],
    )


def test_split_texts_names_the_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(kt.UserError, match=r"^split_sentences needs the package sentencex\. Run .*\[sentences\]"):
        split_texts(["One. Two."], "en")


@pytest.mark.parametrize(
    "parts, joined",
    [
        (["One."], "One."),
        (["One.", "Two."], "One. Two."),
        (["你好。", "我是学生！"], "你好。我是学生！"),
        (["他说“好”", "我走了。"], "他说“好”我走了。"),
        (["สวัสดี", "ครับ"], "สวัสดี ครับ"),
        (["안녕.", "네."], "안녕. 네."),
        (["One.", "", "Two."], "One. Two."),
        (["", "Two."], "Two."),
        (["“你好。”", "“再见。”", "好……", "“走。”"], "“你好。”“再见。”好……“走。”"),
        (["“One.”", "“Two…”"], "“One.” “Two…”"),
        (["ﾊｲ｡", "｢ｲｲｴ｣", "ﾊｲ｡"], "ﾊｲ｡｢ｲｲｴ｣ﾊｲ｡"),
    ],
)
def test_join_hypotheses_adds_spaces_by_script(parts, joined):
    (found,) = join_hypotheses([Hypothesis(text, (5, 1), -2.0, -1.0) for text in parts], [0] * len(parts))
    assert found.text == joined


def test_join_hypotheses_adds_tokens_and_log_probabilities():
    hypotheses = [
        Hypothesis("x", (4, 1), -2.0, -1.0),
        Hypothesis("y", (5, 1), -3.0, -2.0),
        Hypothesis("", (), 0.0, 0.0),
    ]
    joined, blank = join_hypotheses(hypotheses, [0, 0, 1])
    assert (joined.tokens, joined.log_probability, joined.score) == ((4, 1, 5, 1), -5.0, -1.5)
    assert blank is hypotheses[2]


def test_translate_joins_translations_of_sentences(translator):
    pytest.importorskip("sentencex")
    (first,), (second,), (whole,) = translator.translate(["a xx.", "Yy a b.", "b a"])
    (joined,), (blank,), (same,) = translator.translate(TEXTS, split_sentences="en")
    assert joined.text == " ".join(filter(None, (first.text, second.text)))
    assert joined.tokens == first.tokens + second.tokens
    assert joined.log_probability == pytest.approx(first.log_probability + second.log_probability, rel=1e-4)
    assert blank == translator.translate([""])[0][0] and same.tokens == whole.tokens
    assert translator.translate(TEXTS[0], split_sentences="en") == joined.text


def test_translate_reports_the_text_of_a_long_sentence(translator):
    pytest.importorskip("sentencex")
    cut = []
    translator.translate([*TEXTS, "a xx. Yy a b a."], split_sentences="en", max_source_length=4,
                         cut=lambda number, tokens: cut.append((number, tokens)))  # fmt: skip
    assert cut == [(3, 5)]


def test_translate_names_the_text_of_a_failing_sentence(translator):
    pytest.importorskip("sentencex")
    nothing = {"constraint": lambda tokens, index, inputs: ops.zeros((*ops.shape(tokens)[:2], 6), "bool")}
    with pytest.raises(kt.UserError, match=r"^the search options allow no translation of text 2\. Relax"):
        translator.translate(["", "a xx. Yy a b."], split_sentences="en", **nothing)


def test_translate_names_the_text_of_a_failing_hypothesis(translator, monkeypatch):
    def scored(sources, targets, alignments):
        raise NonFiniteOutputs(len(sources) - 1)
        yield

    monkeypatch.setattr(translator, "_scored", scored)
    with pytest.raises(NonFiniteOutputs, match="^outputs for text 3 must be finite"):
        translator.translate(["a", "", "b", ""], beam_size=2, nbest=2, token_scores=True)


@pytest.mark.parametrize(
    "options", [{"nbest": 2}, {"prefixes": ["a", "", ""]}, {"token_scores": True}, {"alignments": True}]
)
def test_translate_rejects_options_for_whole_texts(translator, options):
    with pytest.raises(kt.UserError, match="split_sentences cannot be combined with"):
        translator.translate(TEXTS, split_sentences="en", **options)
