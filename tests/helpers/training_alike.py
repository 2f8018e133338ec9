"""A small training run on batches of different sizes, and assertions that two runs give the same result."""

import contextlib
import dataclasses
import random
import shutil
from typing import ClassVar

import keras
import numpy as np
import pytest

import keras_transformer as kt
from helpers.quick import quick_runs
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.runs.run import Run
from keras_transformer.training.trainer import train_model

UPDATES = 8


@dataclasses.dataclass(kw_only=True)
class EverySecond(kt.Problem):
    """Problem whose target is every second letter of the source, so that source and target differ in length."""

    name: ClassVar[str] = "every_second"
    corpus: ClassVar[str] = "every_second"

    def pairs(self, split):
        rng = random.Random(split)
        for length in [1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 12]:
            letters = rng.choices("abcdef", k=length)
            yield " ".join(letters), " ".join(letters[::2])

    def make_tokenizer(self):
        return SymbolTokenizer("abcdef")


def small(**changes):
    hparams = kt.HParams(num_layers=1, d_model=16, d_ff=32, num_heads=2, dropout=0, batch_tokens=16, warmup_steps=20)
    return hparams.replace(**changes)


def fit(problem, strategy=None, accumulate=1, remat=False, hparams=None, dtype=None, r_drop=None):
    """Train a model for `UPDATES` updates in two epochs. Return the model and the metrics of each epoch."""
    hparams = hparams or small()
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = kt.Transformer.from_hparams(hparams, problem, dtype=dtype)
        # Adam would hide wrong scales of gradients and amplify rounding errors.
        optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
        arguments = kt.compile_arguments(hparams, accumulate, remat=remat) | {"optimizer": optimizer}
        if r_drop is not None:  # `HParams` would reject R-Drop without dropout
            arguments["loss"] = kt.SmoothedCrossEntropy(hparams.label_smoothing, r_drop=r_drop)
        model.compile(**arguments)
    history = model.fit(
        problem.batches("train", hparams),
        validation_data=problem.batches("validation", hparams),
        steps_per_epoch=UPDATES // 2,
        epochs=2,
        verbose=0,
    )
    return model, history.history


def fit_without_weights(strategy=None, **changes):
    """Make one update on rows of different lengths, without sample weights. Return the model and its metrics."""
    labels = np.where(np.arange(6) < np.arange(1, 9)[:, None], np.arange(6) % 5 + 1, 0).astype("int32")
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = kt.Transformer(9, small())
        model.compile(**kt.compile_arguments(small()) | {"optimizer": keras.optimizers.SGD(0.5)} | changes)
    history = model.fit((labels, np.roll(labels, 1, axis=1)), labels, batch_size=8, shuffle=False, verbose=0)
    return model, history.history


def updates(model):
    return int(keras.ops.convert_to_numpy(model.optimizer.iterations.value))


def assert_same_training(trained, expected, number=UPDATES, names=("val_nll", "val_perplexity")):
    (model, history), (expected_model, expected_history) = trained, expected
    for variable, wanted in zip(model.trainable_variables, expected_model.trainable_variables, strict=True):
        value, wanted = map(keras.ops.convert_to_numpy, (variable.value, wanted.value))
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-5, err_msg=variable.path)
    assert updates(model) == updates(expected_model) == number
    assert history.keys() == expected_history.keys() >= {"loss", "nll", "perplexity", *names}
    for name, values in history.items():
        np.testing.assert_allclose(values, expected_history[name], rtol=1e-5, err_msg=name)


def assert_train_resumes_and_ends_alike(strategy, folder):
    """Assert that a run that resumes on two devices gives the same result as an uninterrupted run on one device."""
    with quick_runs():
        problem = kt.problem("reverse", data_dir=folder / "data", num_symbols=4, longest=5, train_pairs=30)
        hparams = small(train_steps=6, checkpoint_steps=4, eval_steps=6, beam_size=1, extra_length=2)
        whole = train_model(problem, hparams, folder / "one", kt.TrainOptions(strategy="one", devices=1))
    shutil.copytree(whole.path, folder / strategy)
    resumed = Run.open(folder / strategy)
    shutil.rmtree(resumed.checkpoints.path / "step-000000006")
    (resumed.checkpoints.path / "best.json").unlink()
    (resumed.path / "metrics.jsonl").unlink()
    with quick_runs(eager=False):
        train_model(problem, hparams, resumed.path, kt.TrainOptions(strategy=strategy, devices=2))
    (found, state), (expected, _) = (run.checkpoints.load("last") for run in (resumed, whole))
    assert state["step"] == 6 and found["weights"].keys() == expected["weights"].keys()
    for path, value in expected["weights"].items():
        np.testing.assert_allclose(found["weights"][path], value, rtol=0, atol=1e-5, err_msg=path)
    found, expected = ([row for row in run.metrics() if row["kind"] == "validation"][-1] for run in (resumed, whole))
    for name in ("loss", "nll", "perplexity", "score"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4)
