"""Tests of `CTranslate2Translator`: agreement with Keras in greedy search, limits, prefixes, samples and errors."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.conversion.ctranslate2 import POSITIONS, convert
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.decoding import ctranslate2_translator
from keras_transformer.decoding.ctranslate2_translator import CTranslate2Translator
from keras_transformer.utils.errors import NonFiniteOutputs

pytest.importorskip("ctranslate2")

SYMBOLS = [f"s{i}" for i in range(12)]
HPARAMS = kt.HParams(
    num_layers=2, d_model=16, d_ff=32, num_heads=2, positions="learned", max_length=40, beam_size=4, alpha=0.6,
    extra_length=8,
)  # fmt: skip
TEXTS = [" ".join(np.random.default_rng(i).choice(SYMBOLS, size=1 + i % 9)) for i in range(30)] + ["", "  ", "unknown"]


@pytest.fixture(scope="module")
def keras():
    """A Keras translator with random weights. Distributions are peaked, and some outputs end before the limit."""
    model, rng = kt.Transformer(len(SYMBOLS) + 4, HPARAMS), np.random.default_rng(1)
    for variable in model.trainable_variables:
        if len(variable.shape) > 1:  # with random biases, one token would always be best
            variable.assign(rng.normal(scale=0.6, size=variable.shape))
    return kt.Translator(model, SymbolTokenizer(SYMBOLS), HPARAMS)


def converted(translator, folder):
    weights = {variable.path.partition("/")[2]: np.asarray(variable.value) for variable in translator.model.variables}
    tokenizer = translator.tokenizer
    convert(weights, translator.hparams, tokenizer.pieces(range(tokenizer.vocab_size)), folder / "model")
    files = {path.name: path.read_bytes() for path in (folder / "model").iterdir()}
    return CTranslate2Translator(lambda: files, tokenizer, translator.hparams, threads=1)


@pytest.fixture(scope="module")
def translator(keras, tmp_path_factory):
    return converted(keras, tmp_path_factory.mktemp("converted"))


def check_hypotheses(translator, texts, results, **search):
    """Check that hypotheses are sorted, end with EOS within the length limit, and have the model's scores."""
    sources = translator.tokenizer.encode(texts)
    for text, source, hypotheses in zip(texts, sources, results):
        assert "sampling" in search or len({one.tokens for one in hypotheses}) == len(hypotheses)
        assert [one.score for one in hypotheses] == sorted((one.score for one in hypotheses), reverse=True)
        for one in hypotheses if source else ():
            assert one.tokens[-1] == EOS and not {PAD, BOS, EOS} & {*one.tokens[:-1]}
            assert len(one.tokens) <= len(source) + 1 + HPARAMS.extra_length
            (scored,) = translator.score([text], [one.tokens], search.get("alpha"))
            assert (one.text, one.tokens) == (scored.text, scored.tokens)
            assert (one.score, one.log_probability) == pytest.approx((scored.score, scored.log_probability), abs=1e-3)


def test_greedy_search_equals_keras(keras, translator):
    found, expected = (one.translate(TEXTS, beam_size=1) for one in (translator, keras))
    assert [best.tokens for (best,) in found] == [best.tokens for (best,) in expected]
    lengths = {len(best.tokens) - len(ids) - 1 for (best,), ids in zip(found, keras.tokenizer.encode(TEXTS)) if ids}
    assert HPARAMS.extra_length in lengths and len(lengths) > 2  # some outputs reach the limit
    check_hypotheses(translator, TEXTS, found)


def test_score_equals_keras_without_pad_and_bos(keras, translator):
    sources, targets = TEXTS[:20], TEXTS[5:25]
    for source, target, one in zip(sources, targets, translator.score(sources, targets)):
        ids = [[*keras.tokenizer.encode([text])[0], EOS] for text in (source, target)]
        logits = np.array(keras.model((np.array([ids[0]]), np.array([[BOS, *ids[1][:-1]]]))))[0].astype("float64")
        logits[:, [PAD, BOS]] = -np.inf
        expected = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))[range(len(ids[1])), ids[1]]
        np.testing.assert_allclose(one.token_log_probabilities, expected, atol=1e-3)
        assert one.tokens == tuple(ids[1]) and one.score == pytest.approx(
            expected.sum() / ((5 + len(ids[1])) / 6) ** 0.6, abs=1e-3
        )


@pytest.mark.parametrize("search", [{}, {"nbest": 4}, {"nbest": 2, "alpha": 0.0}, {"beam_size": 2, "alpha": 1.3}])
def test_beam_search_scores_match_the_model(translator, search):
    results = translator.translate(TEXTS, **search)
    check_hypotheses(translator, TEXTS, results, **search)
    assert max(map(len, results)) == search.get("nbest", 1)
    assert results[30:32] == [[kt.Hypothesis("", (), 0.0, 0.0)]] * 2


def test_result_does_not_depend_on_other_texts(translator):
    together = translator.translate(TEXTS, nbest=2)
    for text, hypotheses in list(zip(TEXTS, together))[::4]:
        (alone,) = translator.translate([text], nbest=2)
        assert [one.tokens for one in alone] == [one.tokens for one in hypotheses]
    assert translator.translate(TEXTS[3]) == together[3][0].text


def test_prefixes_and_min_length_are_kept(translator):
    prefixes = ["s1 s2", "", None] * 11
    results = translator.translate(TEXTS, nbest=2, prefixes=prefixes)
    ids = translator.tokenizer.encode(["s1 s2"])[0]
    for source, prefix, hypotheses in zip(TEXTS, prefixes, results):
        assert not prefix or not source.strip() or all(one.tokens[:2] == tuple(ids) for one in hypotheses)
    check_hypotheses(translator, TEXTS, results)
    for (best,), source in zip(translator.translate(TEXTS, min_length=7), translator.tokenizer.encode(TEXTS)):
        assert not source or len(best.tokens) >= 8
    (long,) = translator.translate(["s1"], prefixes=[" ".join(SYMBOLS)], nbest=2)  # longer than the length limit
    assert {len(one.tokens) for one in long} == {13}


def test_samples_depend_on_the_seed(translator):
    options = [kt.Sampling(seed=seed, temperature=2.0) for seed in (1, 1, 2)]
    first, again, other = (translator.translate(TEXTS, nbest=3, sampling=sampling) for sampling in options)
    assert first == again and first != other
    check_hypotheses(translator, TEXTS, first, sampling=options[0])
    greedy = [best.tokens for (best,) in translator.translate(TEXTS, beam_size=1)]
    assert [best.tokens for (best,) in translator.translate(TEXTS, 1, sampling=kt.Sampling(top_k=1))] == greedy
    drawn = [translator.translate(TEXTS, 1, sampling=kt.Sampling(top_k=top_k)) for top_k in (0, 10**6)]
    assert drawn[0] == drawn[1]


def test_repeated_samples_are_kept(translator):
    for sampling in (kt.Sampling(top_k=1), kt.Sampling(temperature=1e-4)):
        (samples,) = translator.translate(["s1 s2"], 4, nbest=4, sampling=sampling)
        assert len(samples) == 4 and len({one.tokens for one in samples}) == 1


def test_score_divides_long_lists(translator, monkeypatch):
    """Check that a translator can stop soon after Ctrl-C while it scores."""
    calls, library = [], translator._engine

    class Engine:
        num_translators = 1

        def score_batch(self, sources, targets, **options):
            calls.append(len(sources))
            return library.score_batch(sources, targets, **options)

    expected = translator.score(TEXTS, TEXTS[::-1])
    monkeypatch.setattr(ctranslate2_translator, "BATCH_ROWS", 2)
    monkeypatch.setattr(translator, "_engine", Engine())
    found = translator.score(TEXTS, TEXTS[::-1])
    assert sum(calls) == len(TEXTS) and max(calls) == 16
    assert [one.log_probability for one in found] == pytest.approx([one.log_probability for one in expected], abs=1e-4)


def test_few_batches_are_pending_at_a_time(translator, monkeypatch):
    """Check that a translator can stop soon after Ctrl-C. CTranslate2 cannot cancel pending batches."""
    started, reported, library = [], [], translator._engine

    class Engine:
        num_translators = 1
        score_batch = library.score_batch

        def translate_batch(self, sources, *arguments, **options):
            started.append(len(sources))
            return library.translate_batch(sources, *arguments, **options)

    texts = TEXTS * 2
    expected = translator.translate(texts, nbest=2)
    monkeypatch.setattr(ctranslate2_translator, "BATCH_ROWS", 5)
    monkeypatch.setattr(translator, "_engine", Engine())
    found = translator.translate(texts, nbest=2, report=lambda done, count: reported.append(len(started)))
    assert max(started) == 5 and reported[:3] == [2, 3, 4]
    assert [[one.tokens for one in row] for row in found] == [[one.tokens for one in row] for row in expected]


def test_token_scores_add_up(translator):
    for (best,) in translator.translate(TEXTS, token_scores=True):
        if best.tokens:
            assert best.token_log_probabilities.sum() == pytest.approx(best.log_probability, abs=1e-3)


def test_translator_rejects_unsupported_options_and_lengths(translator):
    with pytest.raises(kt.UserError, match="does not support alignments. Use engine keras"):
        translator.translate(["s1"], alignments=True)
    for options in ({"no_repeat_ngram": 2}, {"repetition_penalty": 2.0}):
        with pytest.raises(kt.UserError, match=f"does not support {next(iter(options))}. Use engine keras"):
            translator.translate(["s1"], **options)
    with pytest.raises(kt.UserError, match="does not support constraints"):
        translator.translate(["s1"], constraint=lambda *_: None)
    with pytest.raises(kt.UserError, match=f"source of text 2 must have at most {POSITIONS:,} tokens"):
        translator.translate(["s1", "s1 " * POSITIONS])
    with pytest.raises(kt.UserError, match="target of text 1 must have at most"):
        translator.score(["s1"], ["s1 " * POSITIONS])
    with pytest.raises(kt.UserError, match=f"prefix of text 2 must have at most {POSITIONS:,} tokens"):
        translator.translate(["s1", "s1"], prefixes=[None, "s1 " * POSITIONS])
    for ids in ([10**6], [-1], [4, PAD, 4], [4, BOS]):
        with pytest.raises(kt.UserError, match="target ids must be less than"):
            translator.score(["s1"], [ids])
    assert len(translator.translate(["s1 " * 2000], max_source_length=9)) == 1


def test_translator_reports_non_finite_outputs(keras, tmp_path):
    model = kt.Transformer(len(SYMBOLS) + 4, HPARAMS)
    broken = kt.Translator(model, keras.tokenizer, HPARAMS)
    variable = next(one for one in model.variables if one.path.endswith("decoder/layer_2/feed_forward/kernel_2"))
    variable.assign(np.full(variable.shape, np.nan))
    translator = converted(broken, tmp_path)
    for call in (lambda: translator.translate(["s1"]), lambda: translator.score(["s1"], ["s2"])):
        with pytest.raises(NonFiniteOutputs, match="text 1"):
            call()
