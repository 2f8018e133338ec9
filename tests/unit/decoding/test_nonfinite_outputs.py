"""Tests of non-finite outputs: all decoding methods report them, and training continues."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from helpers.logs import logged_lines
from helpers.quick import quick_runs

import keras_transformer as kt
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.decoding.search_options import Sampling
from keras_transformer.parsing.tokenizer import TreeTokenizer
from keras_transformer.runs.run import Run
from keras_transformer.training.callbacks import ValidationCallback
from keras_transformer.training.trainer import train_model
from keras_transformer.utils.errors import NonFiniteOutputs

HPARAMS = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, dropout=0, beam_size=2, extra_length=3)
TRAINING = HPARAMS.replace(
    batch_tokens=32, warmup_steps=10, train_steps=6, eval_steps=2, checkpoint_steps=2, keep_checkpoints=4
)


@pytest.fixture(scope="module", autouse=True)
def quick():
    with quick_runs():
        yield


def spoiled(model):
    """Set a weight of the model to NaN. Return the model."""
    variable = model.trainable_variables[-1]
    variable.assign(np.full(variable.shape, np.nan))
    return model


@pytest.fixture(scope="module")
def translator():
    tokenizer = SymbolTokenizer("ab")
    return kt.Translator(spoiled(kt.Transformer(tokenizer.vocab_size, HPARAMS)), tokenizer, HPARAMS)


@pytest.mark.parametrize(
    "options", [{}, {"beam_size": 1}, {"sampling": Sampling()}, {"prefixes": ["", "a"]}, {"min_length": 2}]
)
def test_translate_reports_nonfinite_outputs(translator, options):
    with pytest.raises(NonFiniteOutputs, match="^outputs for text 2 must be finite, got NaN or infinity"):
        translator.translate(["", "a b"], **options)


def test_ensemble_reports_nonfinite_outputs(translator):
    sound = kt.Transformer(translator.tokenizer.vocab_size, HPARAMS)
    ensemble = kt.Translator([sound, translator.model], translator.tokenizer, HPARAMS)
    with pytest.raises(NonFiniteOutputs):
        ensemble.translate(["a b"])
    with pytest.raises(NonFiniteOutputs, match="text 1 "):
        ensemble.score(["a b"], ["b"])


@pytest.mark.backend
def test_score_reports_nonfinite_outputs(translator):
    with pytest.raises(NonFiniteOutputs, match="text 1 "):
        translator.score(["a b"], ["b"])


def test_parser_reports_nonfinite_outputs():
    hparams = HPARAMS.replace(model="word_aligned_transformer", extra_length=20)
    tokenizer = TreeTokenizer.train(["a b"] * 3, {"(S", ")S", "T"}, 300)
    model = kt.Transformer.from_hparams(hparams, vocab_size=tokenizer.vocab_size)
    parser = kt.Translator(model, tokenizer, hparams)
    # The length limit leaves no room for brackets, so the output is a flat tree.
    assert parser.translate(["a b"], extra_length=0)[0][0].tokens == ()
    spoiled(model)
    with pytest.raises(NonFiniteOutputs):
        parser.translate(["a b"])


# Training


def no_constant(name):
    raise AssertionError(f"JSON holds {name}")


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("data")
    return kt.problem("reverse", data_dir=data_dir, num_symbols=5, longest=6, train_pairs=27)


@pytest.fixture
def trained(problem, tmp_path, monkeypatch):
    """Return a function that trains a model. A weight of the model is NaN during evaluations at the given steps."""

    def trained(*steps, **changes):
        def evaluate(self, step, original=ValidationCallback.evaluate):
            weights = self.model.get_weights()
            if step in steps:
                spoiled(self.model)
            original(self, step)
            self.model.set_weights(weights)

        with monkeypatch.context() as patch:
            patch.setattr(ValidationCallback, "evaluate", evaluate)
            with logged_lines() as lines:
                run = train_model(problem, dataclasses.replace(TRAINING, **changes), tmp_path / "run")
        return run, lines

    return trained


def evaluations(run):
    return {row["step"]: row for row in run.metrics() if row["kind"] == "validation"}


def test_train_logs_evaluation_without_score(trained):
    run, lines = trained(2, 4)
    rows = evaluations(run)
    assert {step for step, row in rows.items() if "score" in row} == {6} and run.checkpoints.steps() == [2, 4, 6]
    assert rows[2]["loss"] is rows[2]["nll"] is None and rows[6]["loss"] > 0
    assert run.checkpoints.best_step() == 6
    (said,) = [line for line in lines if line.startswith("validation at step 2")]
    assert "loss nan" in said and "no score: the model's outputs are not finite" in said
    for path in [run.path / "metrics.jsonl", *run.path.rglob("*.json")]:
        texts = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        for text in texts:
            json.loads(text, parse_constant=no_constant)


def test_train_resumes_after_evaluation_without_score(trained):
    run, lines = trained(2, 4, train_steps=4)
    assert run.checkpoints.best_step() == 2 and "score" not in run.checkpoints.best()
    assert any(line == "best validation without a finite score at step 2" for line in lines)
    assert trained(4, train_steps=6)[0].checkpoints.best_step() == 6


def test_train_counts_missing_score_as_no_improvement(trained):
    run, _ = trained(4, 6, train_steps=20, patience=2)
    assert run.checkpoints.best_step() == 2 and run.checkpoints.steps()[-1] == 6


# Commands


@pytest.fixture
def run(home, tmp_path):
    """A copy of a run in which the weights of checkpoint 7 contain NaN."""
    shutil.copytree(home.run, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    arrays = run.checkpoints.load("last")[0]
    weights = {path: np.full_like(a, np.nan) if a.dtype.kind == "f" else a for path, a in arrays["weights"].items()}
    run.checkpoints.save(7, {**arrays, "weights": weights}, {})
    return run.path


def test_commands_report_nonfinite_outputs(call, run, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("\n" * 1100 + "s1 s2\n")  # the only nonblank line is in the second chunk
    told = " must be finite, got NaN or infinity. Choose another checkpoint"
    of_run = f"--run={run}", "--checkpoint=7"
    call("translate", *of_run, f"--input={lines}").refused(f"outputs for line 1101{told}")
    call("score", *of_run, f"--source={lines}", f"--target={lines}").refused(f"outputs for line 1{told}")
    call("evaluate", *of_run).refused(told)


def test_server_reports_nonfinite_outputs(run):
    pytest.importorskip("fastapi")
    from helpers.served import ask, serving

    from keras_transformer.server.application import application
    from keras_transformer.server.engines import load_engine

    with serving(application(load_engine(run, checkpoint="7"))) as url:
        ask(url, body={"texts": ["", "s1 s2"]}).refused(500, "outputs for texts[1] must be finite")
