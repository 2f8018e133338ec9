"""Tests of saving, loading and further training of a run's model, as in a notebook."""

import keras
import numpy as np
import pytest
from helpers.commands import REVERSE
from helpers.quick import quick_runs

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
