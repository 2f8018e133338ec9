"""Tests of the conversion to CTranslate2: equal probabilities, and errors for unsupported models."""

import sys

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.config import registry
from keras_transformer.conversion import ctranslate2 as conversion
from keras_transformer.data.tokenizers.base import BOS, PAD, SPECIAL
from keras_transformer.layers.position import SinusoidalPositions

VOCAB = 60
SMALL = dict(num_layers=2, d_model=32, d_ff=64, num_heads=4)
TOKENS = [*SPECIAL, *(f"w{i}" for i in range(len(SPECIAL), VOCAB))]


def test_conversion_uses_constants_of_layers():
    norms = {name: registry.norms.get(name)() for name in conversion.LAYER_NORM_EPSILON}
    assert {name: norm.epsilon for name, norm in norms.items()} == conversion.LAYER_NORM_EPSILON
    layer = SinusoidalPositions(32)
    layer.build()
    np.testing.assert_allclose(conversion.sinusoids(50, 32), np.asarray(layer(np.arange(50))), atol=1e-5)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"encoder_attention": "restricted", "attention_window": 4}, "encoder_attention=full, got restricted"),
        ({"d_k": 4}, "d_k=8, got 4"),
        ({"d_v": 16}, "d_v=8, got 16"),
    ],
)
def test_conversion_rejects_unsupported_models(tmp_path, change, message):
    with pytest.raises(kt.UserError, match=message):
        conversion.convert({}, kt.HParams(**SMALL, **change), ["a", "b", "c", "d"], tmp_path / "new")
    with pytest.raises(kt.UserError, match="a vocabulary for CTranslate2 must not contain the same piece twice"):
        conversion.convert({}, kt.HParams(**SMALL), ["a", "b", "c", "a"], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_conversion_rejects_unknown_quantization(tmp_path):
    with pytest.raises(kt.UserError, match="unknown quantization 'int3': did you mean int"):
        conversion.convert({}, kt.HParams(**SMALL), list("abcd"), tmp_path / "new", "int3")


def test_conversion_names_missing_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(kt.UserError, match=r"needs the package ctranslate2\. Run pip install .*\[ctranslate2\]"):
        conversion.convert({}, kt.HParams(**SMALL), list("abcd"), tmp_path / "new")


def test_conversion_names_missing_weights(tmp_path):
    pytest.importorskip("ctranslate2")
    with pytest.raises(kt.UserError, match="the run has no weight embedding/table"):
        conversion.convert({}, kt.HParams(**SMALL), list("abcd"), tmp_path / "new")


CHANGES = [
    {}, {"norm": "pre", "activation": "swish"}, {"positions": "learned", "max_length": 20, "activation": "gelu"},
    {"num_layers": 3, "num_decoder_layers": 1}, {"model": "marian", "norm": "marian", "activation": "swish"},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_converted_model_gives_same_probabilities(tmp_path, change):
    ctranslate2 = pytest.importorskip("ctranslate2")
    hparams = kt.HParams(**{**SMALL, **change})
    model, rng = kt.Transformer.from_hparams(hparams, vocab_size=VOCAB), np.random.default_rng(2)
    for variable in model.variables:
        if "bias" in variable.path:  # biases of a new model are zero
            variable.assign(rng.normal(size=variable.shape))
    weights = {variable.path.partition("/")[2]: np.asarray(variable.value) for variable in model.variables}
    conversion.convert(weights, hparams, TOKENS, tmp_path / "converted")
    engine = ctranslate2.Translator(str(tmp_path / "converted"), inter_threads=1, intra_threads=1)
    sources = [rng.integers(len(SPECIAL), VOCAB, n) for n in rng.integers(3, 13, 12)]
    targets = [rng.integers(len(SPECIAL), VOCAB, n) for n in range(1, 13)]
    results = engine.score_batch(*([[TOKENS[i] for i in ids] for ids in side] for side in (sources, targets)))
    for source, target, result in zip(sources, targets, results):
        inputs, labels = np.array([[*source, 1]], "int32"), np.array([*target, 1])
        logits = np.asarray(model((inputs, np.array([[2, *target]], "int32"))), "float64")[0]
        logits[:, [PAD, BOS]] = -np.inf
        log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        expected = log_probabilities[np.arange(len(labels)), labels]
        np.testing.assert_allclose(sum(result.log_probs), expected.sum(), rtol=1e-4)
