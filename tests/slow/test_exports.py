"""Tests of SavedModels in bfloat16 and with placeholders. The integration tests cover other SavedModels."""

import json

import numpy as np
import pytest
from helpers.commands import SMALL

import keras_transformer as kt
from keras_transformer.server.engines import load_engine

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")


def test_saved_model_in_bfloat16_translates_alike(home, call, tmp_path):
    flags = f"--run={home.run}", "--format=saved_model", "--precision=bfloat16", f"--output_dir={tmp_path}/half"
    call("export", *flags).succeeded_with_warnings()
    texts = ["s1 s2 s3", "s4"]
    answer = tf.saved_model.load(tmp_path / "half").signatures["serving_default"](tf.constant(texts))
    expected = [hypotheses[0] for hypotheses in kt.Translator.load(home.run, precision="bfloat16").translate(texts)]
    assert [text.decode() for text in answer["outputs"].numpy()] == [one.text for one in expected]
    np.testing.assert_allclose(answer["scores"].numpy()[:, 0], [one.score for one in expected], atol=0.05)
    assert json.loads((tmp_path / "half" / "export.json").read_text())["precision"] == "bfloat16"


def test_server_copies_spans_with_a_saved_model(call, tmp_path):
    problem = "--problem=toy_ende", "--set=problem.train_pairs=200", "--set=problem.vocab_size=120"
    placeholders = "--set=problem.placeholders=true", f"--data_dir={tmp_path}/data", f"--output_dir={tmp_path}/run"
    call("train", *problem, *placeholders, "--hparams=toy", *SMALL, "--train_steps=3").succeeded_with_warnings()
    call("export", f"--run={tmp_path}/run", "--format=saved_model", f"--output_dir={tmp_path}/saved", "--nbest=2")
    engine = load_engine(tmp_path / "saved")
    assert engine.placeholders == 8
    for several in engine.translate(["A dog www.x.org/a <ph>B c</ph>."] * 2, 2):
        assert several and all(one.text.count("www.x.org/a") == one.text.count("B c") == 1 for one in several)
    assert all("<ph" not in one.text for one in engine.translate(["A dog."], 1)[0])
