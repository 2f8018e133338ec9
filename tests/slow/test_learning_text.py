"""Tests that models learn real text and a toy grammar with any random seed.

`tests/integration/test_learning.py` has a shorter test.
"""

import itertools

import keras
import pytest

import keras_transformer as kt
from keras_transformer.data.corpus import read_pairs
from keras_transformer.runs.run import Run
from keras_transformer.training.trainer import train_model


def learn(problem, hparams, **arguments):
    """Train a model for `train_steps` updates in four epochs. Return the model and the metrics of each epoch."""
    model = kt.Transformer.from_hparams(hparams, problem, **arguments)
    model.compile(**kt.compile_arguments(hparams))
    batches = problem.batches("train", hparams)
    fitted = model.fit(batches, steps_per_epoch=hparams.train_steps // 4, epochs=4, verbose=0)
    return model, fitted.history


def translate(model, problem, hparams, sources):
    return [hypotheses[0].text for hypotheses in kt.Translator(model, problem, hparams).translate(sources)]


@pytest.fixture
def captions(test_data, tmp_path):
    """Return a function that creates a problem from the first `count` pairs of Multi30k."""

    def make(count, vocab_size):
        folder = test_data / "multi30k" / "raw"
        pairs = list(itertools.islice(read_pairs(folder / "train.en.gz", folder / "train.de.gz"), count))
        for language, lines in zip(("en", "de"), zip(*pairs)):
            for split in ("train", "validation"):
                (tmp_path / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return kt.problem("parallel_text", raw_dir=tmp_path, data_dir=tmp_path / "data", vocab_size=vocab_size)

    return make


def test_model_memorizes_real_captions(captions, fresh_seed):
    problem = captions(64, vocab_size=600)
    hparams = kt.HParams(
        num_layers=2, d_model=64, d_ff=128, num_heads=4, dropout=0, label_smoothing=0, learning_rate_scale=0.3,
        warmup_steps=50, batch_tokens=1024, train_steps=240, extra_length=10, seed=fresh_seed,
    )  # fmt: skip
    model, history = learn(problem, hparams)
    print(history["nll"])
    assert history["nll"][0] > 1 and history["nll"][-1] < 0.05
    sources, references = zip(*problem.examples("validation"))  # the same pairs as in training
    outputs = translate(model, problem, hparams, sources)
    assert sum(output == reference for output, reference in zip(outputs, references)) >= 60


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_loss_falls_on_real_captions(captions, fresh_seed, precision):
    problem = captions(300, vocab_size=1000)
    hparams = kt.HParams(
        num_layers=1, d_model=64, d_ff=128, num_heads=4, learning_rate_scale=0.3, warmup_steps=50,
        batch_tokens=1024, train_steps=80, seed=fresh_seed,
    )  # fmt: skip
    model, history = learn(problem, hparams, dtype=precision)
    assert history["nll"] == sorted(history["nll"], reverse=True)
    assert history["nll"][-1] < history["nll"][0] - 0.5
    assert model.compute_dtype == precision.removeprefix("mixed_") and model.variable_dtype == "float32"
    # In float16, an overflow counts as a non-finite update only if the loss scale is 1.
    assert model.optimizer.watched()[1] == 0 and model.optimizer.scales_loss == (precision == "mixed_float16")


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="one backend is enough")
def test_model_learns_toy_grammar(tmp_path, fresh_seed):
    problem = kt.problem("toy_parsing", data_dir=tmp_path / "data", train_pairs=6000)
    hparams = kt.hparams("parsing_toy", seed=fresh_seed, train_steps=350, eval_steps=350, beam_size=1)
    run = train_model(problem, hparams, tmp_path / "run")
    (score,) = [row["score"] for row in Run.open(run.path).metrics() if row["kind"] == "validation"]
    assert score >= 80
