"""Test of a SavedModel in bfloat16. The integration tests cover float32."""

import json

import numpy as np
import pytest

import keras_transformer as kt

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
