"""Tests of saving, loading, exporting and further training of a model, as in a notebook."""

import keras
import numpy as np
import pytest
from helpers.commands import REVERSE
from helpers.quick import quick_runs
from helpers.small_transformer import INPUTS, logits, make_model

import keras_transformer as kt


@pytest.fixture(autouse=True)
def quick():
    with quick_runs():
        yield


def test_saved_run_model_loads_and_trains_in_notebook(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call("train", *REVERSE, "--train_steps=2", "--eval_steps=2", "--checkpoint_steps=2").succeeded_with_warnings()
    model, lines = kt.Translator.load("runs/reverse-toy").model, []
    model.summary(print_fn=lines.append)
    assert "decoder (Decoder)" in "\n".join(lines)
    model.save("x.keras")
    loaded = keras.saving.load_model("x.keras")
    problem = kt.problem("reverse", train_pairs=500)
    batches = problem.batches("train", loaded.hparams, start=2)
    with pytest.raises(kt.UserError, match=r"model\.compile\(\*\*keras_transformer\.compile_arguments"):
        loaded.fit(batches)
    loaded.compile(**kt.compile_arguments(loaded.hparams))
    history = loaded.fit(batches, steps_per_epoch=2, verbose=0).history
    assert np.isfinite(history["loss"]).all() and int(loaded.optimizer.iterations.value) == 2
    assert not np.array_equal(loaded.embedding.table, model.embedding.table)
    assert isinstance(kt.Translator(loaded, problem).translate("s1 s2", beam_size=1, extra_length=1), str)


def test_keras_export_computes_logits(tmp_path):
    import tensorflow as tf

    model = make_model()
    model.export(tmp_path / "logits", verbose=False)
    exported = tf.saved_model.load(tmp_path / "logits")
    inputs = tuple(tf.constant(tokens, "int32") for tokens in INPUTS)
    np.testing.assert_allclose(exported.serve(inputs), logits(model), rtol=1e-5, atol=1e-5)
    assert exported.serve(tuple(tokens[:1, :1] for tokens in inputs)).shape == (1, 1, model.vocab_size)
