"""Tests of `Translator`: order, blank lines, scores and errors."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.backend.compilation import COMPILES_EACH_SHAPE
from keras_transformer.data.tokenizers.base import BOS, EOS, UNK
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.decoding import search_batches

TEXTS = ["a", "a b c d", "", "d c", "b b b b b b", "   ", "c", "a"]


@pytest.fixture(scope="module")
def translator():
    hparams = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, beam_size=3, extra_length=4)
    tokenizer = SymbolTokenizer("abcd")
    return kt.Translator(kt.Transformer(tokenizer.vocab_size, hparams), tokenizer, hparams)


@pytest.fixture(scope="module")
def results(translator):
    return translator.translate(TEXTS, nbest=2)


@pytest.mark.backend
def test_translate_keeps_order_of_texts(translator, results):
    for text, hypotheses in zip(TEXTS, results, strict=True):
        alone = translator.translate([text], nbest=2)[0]
        assert [h.tokens for h in hypotheses] == [h.tokens for h in alone]
    assert len({hypotheses[0].tokens for hypotheses in results}) > 1


def test_translate_keeps_order_across_batches(translator, results, monkeypatch):
    monkeypatch.setattr(search_batches, "BATCH_ROWS", 2)
    done = []
    in_pairs = translator.translate(TEXTS, nbest=2, report=lambda *progress: done.append(progress))
    assert [[h.tokens for h in pair] for pair in in_pairs] == [[h.tokens for h in pair] for pair in results]
    assert done == [(4, 8), (6, 8), (8, 8)]  # two texts are blank


@pytest.mark.backend
@pytest.mark.parametrize("blank", ["", " ", " \t ", "\n", "\u3000"])
def test_translate_gives_blank_line_empty_output(translator, blank):
    before, (hypothesis,), after = translator.translate(["a", blank, "a"])
    assert (hypothesis.text, hypothesis.tokens) == ("", ())
    assert before[0].tokens == after[0].tokens


def test_translate_and_score_of_no_texts(translator):
    assert translator.translate([]) == [] and translator.score([], []) == []


def test_translate_text_matches_tokens(translator, results):
    for hypotheses in results:
        for hypothesis in hypotheses:
            assert hypothesis.text == translator.tokenizer.decode([hypothesis.tokens])[0]


def test_translate_takes_generators(translator, results):
    assert translator.translate((text for text in TEXTS), nbest=2) == results


@pytest.mark.skipif(COMPILES_EACH_SHAPE, reason="JAX compiles each shape")
def test_translate_is_traced_once_for_all_lengths(translator, monkeypatch):
    fresh = kt.Translator(translator.model, translator.tokenizer, translator.hparams)
    traces = {"encode": 0, "decode_step": 0}
    for name in traces:
        method = getattr(fresh.model, name)

        def counted(*arguments, name=name, method=method):
            traces[name] += 1
            return method(*arguments)

        monkeypatch.setattr(fresh.model, name, counted)
    for text in ("a", "a b", "c d a b c", "b b b b b b b b b"):
        fresh.translate([text, "a"])
    assert traces == {"encode": 1, "decode_step": 2}  # one trace for the first step, one for all later steps


def test_translate_defaults_to_hparams(translator):
    explicit = translator.translate(TEXTS, beam_size=3, alpha=0.6, nbest=1, extra_length=4)
    assert translator.translate(TEXTS) == explicit


def test_translate_searches_at_least_nbest_beams(translator):
    assert translator.translate(TEXTS, nbest=5) == translator.translate(TEXTS, beam_size=5, nbest=5)


def test_translate_arguments_override_hparams(translator):
    longer = translator.translate(["b b b b b b"], beam_size=1, alpha=2.0, extra_length=0)[0][0]
    assert len(longer.tokens) <= 7
    assert longer.score == pytest.approx(longer.log_probability / ((5 + len(longer.tokens)) / 6) ** 2, rel=1e-5)


def test_translate_handles_unknown_tokens(translator):
    assert translator.tokenizer.encode(["x"]) == [[UNK]]
    assert translator.translate(["x"])[0][0].tokens[-1] == EOS


def test_translator_rejects_other_vocabulary_size(translator):
    with pytest.raises(kt.UserError, match="got 8 and 6"):
        kt.Translator(translator.model, SymbolTokenizer("ab"), translator.hparams)


@pytest.mark.parametrize("sizes", [{"beam_size": 2, "nbest": 3}, {"beam_size": 0}, {"beam_size": 2, "nbest": 0}])
def test_translate_rejects_invalid_sizes(translator, sizes):
    with pytest.raises(kt.UserError, match="nbest"):
        translator.translate(["a"], **sizes)


def test_translate_rejects_negative_numbers(translator):
    with pytest.raises(kt.UserError, match="alpha must be at least 0, got -1"):
        translator.translate(["a"], alpha=-1)
    with pytest.raises(kt.UserError, match="extra_length must be at least 0, got -1"):
        translator.translate(["a"], extra_length=-1)


def test_translate_returns_a_str_for_one_text(translator):
    ((expected,),) = translator.translate(["a b c d"], beam_size=2)
    assert expected.text and translator.translate("a b c d", beam_size=2) == expected.text
    assert translator.translate(" ") == ""


@pytest.mark.parametrize("options", [{"nbest": 2}, {"token_scores": True}, {"alignments": True}])
def test_translate_needs_a_list_for_details(translator, options):
    with pytest.raises(kt.UserError, match=r"need a list of texts: translate\(\[text\]"):
        translator.translate("a b", **options)


def test_score_takes_text_or_ids(translator):
    ids = translator.tokenizer.encode(["b a"])[0]
    by_text, by_ids, by_ids_with_eos = translator.score(["a b"] * 3, ["b a", ids, (*ids, EOS)])
    assert by_text.tokens == by_ids.tokens == by_ids_with_eos.tokens == (*ids, EOS)
    assert by_text.text == by_ids.text == by_ids_with_eos.text == "b a"
    assert by_text.log_probability == pytest.approx(by_ids.log_probability)


def test_score_takes_generators(translator):
    pairs = [("a b", "b a"), ("c", "d d d")]
    listed = translator.score(["a b", "c"], ["b a", "d d d"])
    assert translator.score((s for s, _ in pairs), (t for _, t in pairs)) == listed


def test_score_does_not_depend_on_batch_mates(translator):
    sources, targets = ["a b c d", "a", "d d"], ["a", "b c d a b", ""]
    together = translator.score(sources, targets)
    for source, target, expected in zip(sources, targets, together):
        alone = translator.score([source], [target])[0]
        assert alone.log_probability == pytest.approx(expected.log_probability, rel=1e-4)


@pytest.mark.backend
def test_score_sums_model_log_probabilities(translator):
    source, labels = [[4, 5, EOS]], [7, 6, 6, EOS]
    logits = translator.model((np.array(source), np.array([[BOS, *labels[:-1]]])), training=False)
    log_p = np.array(keras.ops.log_softmax(logits))[0]
    (hypothesis,) = translator.score(["a b"], [labels], alpha=0)
    expected = sum(log_p[i, label] for i, label in enumerate(labels))
    assert hypothesis.log_probability == hypothesis.score == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("alpha", [0.6, 2.0])
def test_score_applies_paper_length_penalty(translator, alpha):
    for hypothesis in translator.score(["a b", "c"], ["b a", ""], alpha):
        penalty = ((5 + len(hypothesis.tokens)) / 6) ** alpha  # the length includes EOS
        assert hypothesis.score == pytest.approx(hypothesis.log_probability / penalty)


@pytest.mark.parametrize("ids", [[10**6], [-1], [4, 0, 4], [4, EOS, 4]])
def test_score_rejects_invalid_ids(translator, ids):
    with pytest.raises(kt.UserError, match="target ids must be less than the vocabulary size"):
        translator.score(["a"], [ids])


def test_score_rejects_lists_of_unequal_lengths(translator):
    with pytest.raises(kt.UserError, match="same length, got 2 and 1"):
        translator.score(["a", "b"], ["a"])
