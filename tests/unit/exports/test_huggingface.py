"""Tests of the export for Hugging Face Transformers."""

import json
import sys
import types

import numpy as np
import pytest
from helpers.marian import marian_logits

import keras_transformer as kt
from keras_transformer.exports import huggingface
from keras_transformer.exports.argos import export_argos
from keras_transformer.exports.huggingface import export_huggingface, marian_config, marian_weights
from keras_transformer.exports.model_card import model_card
from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError

VOCABULARY = 20


@pytest.fixture(scope="module")
def hparams():
    return kt.HParams(num_layers=2, num_decoder_layers=1, d_model=8, d_ff=16, num_heads=2, activation="swish")


@pytest.fixture(scope="module")
def model(hparams):
    model = kt.Transformer(VOCABULARY, hparams)
    model.build([(None, None), (None, None)])
    for index, variable in enumerate(model.variables):  # initial biases and norms would be constant
        variable.assign(np.random.default_rng(index).normal(size=variable.shape, scale=0.3))
    return model


def test_marian_weights_give_same_logits(model, hparams, fresh_seed):
    weights = {variable.path.partition("/")[2]: np.asarray(variable) for variable in model.variables}
    rng = np.random.default_rng(fresh_seed)
    source, target = rng.integers(4, VOCABULARY, size=7), rng.integers(4, VOCABULARY, size=5)
    expected = np.asarray(model((source[None], target[None])))[0]
    config = marian_config(hparams, VOCABULARY)
    assert (config["encoder_layers"], config["decoder_layers"]) == (2, 1)
    found = marian_logits(marian_weights(weights, hparams), config, source, target)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_export_writes_all_files(trained_run, tmp_path):
    from safetensors.numpy import load_file

    run = Run.open(trained_run)
    export_huggingface(run, tmp_path / "exported")
    names = {path.name for path in (tmp_path / "exported").iterdir()}
    assert names == {
        "README.md", "config.json", "export.json", "generation_config.json", "model.safetensors", "source.spm",
        "target.spm", "tokenizer.json", "tokenizer_config.json", "vocab.json",
    }  # fmt: skip
    vocabulary = json.loads((tmp_path / "exported" / "vocab.json").read_text())
    assert [vocabulary[piece] for piece in ("<pad>", "</s>", "<s>", "<unk>")] == [0, 1, 2, 3]
    weights = load_file(tmp_path / "exported" / "model.safetensors")
    assert weights["model.shared.weight"].shape == (len(vocabulary), run.hparams.d_model)
    card = (tmp_path / "exported" / "README.md").read_text()
    assert run.problem.name in card and 'language:\n- "en"\n- "tr"\n' in card


def test_model_card_escapes_and_omits_rows(trained_run, monkeypatch):
    run = Run.open(trained_run)
    manifest = {**run.manifest(), "command": ["train.py", "--hparams_set=a|b"]}
    scores = [
        {"kind": "validation", "step": step, "BLEU": 20.0 + step, "signatures": {"BLEU": "nrefs:1|case:mixed"}}
        for step in (1, 2)
    ]
    monkeypatch.setattr(Run, "manifest", lambda run: manifest)
    monkeypatch.setattr(Run, "metrics", lambda run: scores)
    monkeypatch.setitem(run.config["hparams"], "num_decoder_layers", 7)
    monkeypatch.setattr(type(run.problem), "output_language", "no")  # YAML would read an unquoted "no" as false
    card = model_card(run, {"run": "run", "checkpoint": "best", "steps": [2]})
    assert '- "no"\n' in card and f"heads | {run.hparams.num_layers} + 7, " in card
    assert "| validation scores | BLEU 22.00 (`nrefs:1\\|case:mixed`) |" in card
    assert "| training command | `python -m keras_transformer.train '--hparams_set=a\\|b'` |" in card
    for other in ({"checkpoint": "averaged", "steps": [1, 2]}, {"checkpoint": "ema", "steps": [2]}):
        assert "validation scores" not in model_card(run, {"run": "run", **other})
    for command in ("notebook.py", "convert.py"):
        manifest["command"] = [command]
        card = model_card(run, {"run": "run", "checkpoint": "best", "steps": [2]})
        assert "training command" not in card and "trained with" not in card


def test_export_rejects_models_unlike_marian(trained_run, tmp_path, monkeypatch):
    run = Run.open(trained_run)
    for change, words in (
        ({"norm": "pre"}, "norm=post or marian, got pre"),
        ({"positions": "learned"}, "positions=sinusoidal, got learned"),
        ({"d_k": 3}, "d_k="),
        ({"num_heads": 3, "d_k": 2, "d_v": 2}, "d_model % num_heads=0, got 2"),
    ):
        monkeypatch.setattr(Run, "hparams", run.hparams.replace(**change))
        with pytest.raises(UserError, match=words):
            export_huggingface(run, tmp_path / "exported")
        monkeypatch.undo()
    assert not list(tmp_path.iterdir())


def test_export_rejects_problem_without_languages(trained_run, tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "problem", types.SimpleNamespace(name="summaries"))
    for export in (export_huggingface, export_argos):
        with pytest.raises(UserError, match="TranslationProblem, and summaries is another kind of problem"):
            export(Run.open(trained_run), tmp_path / "exported")
    assert not list(tmp_path.iterdir())


def test_export_names_missing_package(trained_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(UserError, match=r"pip install 'keras-transformer-toolkit\[huggingface\]'"):
        huggingface.export_huggingface(Run.open(trained_run), tmp_path / "exported")
