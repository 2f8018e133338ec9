"""Tests of exported packages for Argos Translate."""

import json
import zipfile

import pytest

from keras_transformer import export
from keras_transformer.exports.argos import export_argos
from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError

ctranslate2 = pytest.importorskip("ctranslate2")


def test_argos_package_holds_model_and_tokenizer(trained_run, tmp_path, capsys):
    run = Run.open(trained_run)
    export.main(
        [f"--run={trained_run}", "--format=argos", "--quantization=float32", f"--output_dir={tmp_path / 'out'}"]
    )
    path = tmp_path / "out" / "translate-en_tr.argosmodel"
    assert str(path) in capsys.readouterr().out
    assert {file.name for file in (tmp_path / "out").iterdir()} == {path.name, "export.json"}
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / "translate-en_tr"
    assert (folder / "sentencepiece.model").read_bytes() == run.tokenizer.to_bytes()
    metadata = json.loads((folder / "metadata.json").read_text("utf-8"))
    assert (metadata["from_code"], metadata["to_code"], metadata["type"]) == ("en", "tr", "translate")
    engine = ctranslate2.Translator(str(folder / "model"), inter_threads=1, intra_threads=1)
    source = run.tokenizer.pieces(run.tokenizer.encode(["The red dog sees the house."])[0])
    (found,) = engine.score_batch([source], [source])
    assert len(found.log_probs) == len(source) + 1


def test_argos_refuses_other_models(trained_run, tmp_path, monkeypatch):
    run = Run.open(trained_run)
    monkeypatch.setattr(Run, "hparams", run.hparams.replace(model="marian"))
    with pytest.raises(UserError, match="requires --model=transformer and one SentencePiece model, got marian"):
        export_argos(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_argos_refuses_language_tags(trained_run, tmp_path):
    run = Run.open(trained_run)
    run.tokenizer.tags = {"de": "<2de>", "fr": "<2fr>"}
    with pytest.raises(UserError, match=r"cannot contain a model with language tags \(de, fr\)"):
        export_argos(run, tmp_path / "out")
