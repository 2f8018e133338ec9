"""Tests of `train_model`: resumed runs are identical to uninterrupted ones, and run directories are complete."""

import dataclasses
import hashlib
import json
import shutil

import keras
import numpy as np
import pytest
from helpers.logs import logged_lines
from helpers.quick import quick_runs
from helpers.sharing import shared_folder

import keras_transformer as kt
from keras_transformer.data.token_batches import TokenBatches
from keras_transformer.runs.checkpoint import assign_training
from keras_transformer.runs.run import Run
from keras_transformer.runs.totals import lines_by_step, training_summary
from keras_transformer.training.callbacks import CheckpointCallback
from keras_transformer.training.collapse import collapse_warning
from keras_transformer.training.model_building import build_model
from keras_transformer.training.trainer import train_model
from keras_transformer.visualization.curves import draw_curves

PROBLEM = {"num_symbols": 5, "longest": 6, "train_pairs": 27}
HPARAMS = {
    "num_layers": 1, "d_model": 16, "d_ff": 16, "num_heads": 2, "dropout": 0.3, "attention_dropout": 0.1,
    "batch_tokens": 32, "warmup_steps": 10, "train_steps": 12, "checkpoint_steps": 2, "keep_checkpoints": 4,
    "eval_steps": 8, "beam_size": 1, "extra_length": 2, "average_last": 3,
    "ema_decay": 0.9,
}  # fmt: skip
hparams = kt.HParams(**HPARAMS)


@pytest.fixture(scope="module", autouse=True)
def quick():
    with quick_runs():
        yield


@pytest.fixture(scope="module")
def folder(quick, tmp_path_factory):
    """Return a folder with a prepared corpus and an uninterrupted run, which all test processes share."""

    def make(path):
        train_model(kt.problem("reverse", data_dir=path, **PROBLEM), hparams, path / "whole")

    return shared_folder(tmp_path_factory, "training", make)


@pytest.fixture(scope="module")
def problem(folder):
    return kt.problem("reverse", data_dir=folder, **PROBLEM)


@pytest.fixture(scope="module")
def whole(folder):
    """Return the uninterrupted run, which tests must not modify."""
    return Run.open(folder / "whole")


@pytest.fixture
def copied(whole, tmp_path):
    """Return a copy of the uninterrupted run, which tests may modify."""
    shutil.copytree(whole.path, tmp_path / "copied")
    return Run.open(tmp_path / "copied")


def assert_ends_like(run, whole):
    """Assert that the last checkpoints of two runs are bit-for-bit identical."""
    (found, state), (expected, expected_state) = run.checkpoints.load("last"), whole.checkpoints.load("last")
    assert state["step"] == expected_state["step"] == 12
    assert found.keys() == expected.keys() == {"weights", "optimizer", "ema"}
    for part in expected:
        assert found[part].keys() == expected[part].keys()
        for path, array in expected[part].items():
            assert array.dtype == found[part][path].dtype
            np.testing.assert_array_equal(found[part][path], array, err_msg=path)


def file_hashes(path):
    return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(path.rglob("*")) if p.is_file()}


# Resuming


def test_run_crosses_an_epoch_between_steps_8_and_12(problem):
    per_epoch = problem.batches("train", hparams).batches_per_epoch
    assert 8 % per_epoch and 12 % per_epoch and 12 // per_epoch > 8 // per_epoch > 0


def test_checkpoint_holds_dropout_states(whole):
    start, end = (whole.checkpoints.load(step)[0]["weights"] for step in (10, 12))
    seeds = [path for path in end if "seed" in path]
    assert len(seeds) > 5 and all(end[path][1] == start[path][1] + 2 for path in seeds)


@pytest.mark.backend
def test_resumed_run_is_bit_identical_after_damage(problem, whole, copied, monkeypatch):
    """Damage the two newest checkpoints. Training must resume from the third newest and repeat updates 9 to 12."""
    newest, before, older = (copied.checkpoints.path / f"step-{step:09d}" for step in (12, 10, 8))
    content = bytearray((newest / "weights.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (newest / "weights.npz").write_bytes(content)
    shutil.copy(older / "optimizer.npz", before)
    seen = []

    def getitem(self, index, original=TokenBatches.__getitem__):
        if self.endless:
            seen.append(self.plan.batch(self.start + index).rows.tolist())
        return original(self, index)

    monkeypatch.setattr(TokenBatches, "__getitem__", getitem)
    with logged_lines() as lines:
        run = train_model(problem, hparams, copied.path)
    for path in (newest / "weights.npz", before / "optimizer.npz"):
        assert any(str(path) in line and "damaged" in line for line in lines)
    assert any("resuming after update 8" in line for line in lines)
    plan = problem.batches("train", hparams).plan
    assert seen[:4] == [plan.batch(step).rows.tolist() for step in range(8, 12)]  # `seen[4:]` was prefetched
    assert_ends_like(run, whole)


def test_training_resumes_in_another_precision(problem, copied):
    """Resume in float16, which needs a loss scale that checkpoints in other precisions lack."""
    assert not [path for path in copied.checkpoints.load("last")[0]["optimizer"] if "scale" in path]
    more = hparams.replace(train_steps=14)
    run = train_model(problem, more, copied.path, kt.TrainOptions(precision="float16"))
    arrays, state = run.checkpoints.load("last")
    assert state["step"] == 14 and all(array.dtype != "float16" for array in arrays["weights"].values())
    assert arrays["optimizer"]["adam/loss_scale"] == 2**15 and arrays["optimizer"]["adam/good_updates"] == 2
    model = build_model(run, problem.tokenizer.vocab_size)[0]
    assign_training(model, arrays, "the checkpoint")
    assert int(model.optimizer.iterations.value) == 14 and not model.optimizer.scales_loss


def test_finished_run_is_left_unchanged(problem, copied):
    def kept():
        hashes = file_hashes(copied.path)
        return {path: value for path, value in hashes.items() if path.name != "manifest.json"}

    before = kept()
    with logged_lines() as lines:
        train_model(problem, hparams, copied.path)
    assert kept() == before
    assert any("nothing to do" in line for line in lines)


@pytest.mark.parametrize(
    "change", [{"dropout": 0.2}, {"seed": 7}, {"batch_tokens": 64}, {"train_steps": 20, "alpha": 1}]
)
def test_training_rejects_changed_hparams(problem, copied, change):
    with pytest.raises(kt.UserError, match=f"{list(change)[-1]}="):
        train_model(problem, hparams.replace(**change), copied.path)


def test_training_rejects_another_problem(problem, copied):
    other = kt.problem("copy", data_dir=problem.data_dir, **PROBLEM)
    with pytest.raises(kt.UserError, match="reverse"):
        train_model(other, hparams, copied.path)


# Contents of a run


def test_train_rows_precede_checkpoints(whole):
    rows = [row for row in whole.metrics() if row["kind"] == "train"]
    assert [row["step"] for row in rows] == [2, 4, 6, 8, 10, 12]  # one row before each checkpoint
    for row in rows:
        assert all(np.isfinite(row[name]) for name in ("loss", "nll", "perplexity", "learning_rate"))
        assert row["tokens_per_second"] > 0
        assert row["perplexity"] == pytest.approx(np.exp(row["nll"]), rel=1e-4)


def test_train_rows_hold_learning_rate_of_update(whole):
    rows = [row for row in whole.metrics() if row["kind"] == "train"]
    schedule = kt.TransformerSchedule(hparams.d_model, hparams.warmup_steps)
    wanted = [float(schedule(row["step"] - 1)) for row in rows]
    assert [row["learning_rate"] for row in rows] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("metric", ["score", "nll", "loss"])
def test_nonfinite_validation_is_never_best(metric):
    checkpointing = object.__new__(CheckpointCallback)
    checkpointing.hparams = dataclasses.replace(hparams, best_metric=metric)
    figures = {"score": 1.0, "nll": 3.0, "loss": 4.0}
    finite = checkpointing.ranking_key(figures)
    for wrong in (np.nan, -np.inf if metric == "score" else np.inf):
        found = checkpointing.ranking_key({**figures, metric: wrong})
        assert finite > found and not found > finite
    if metric == "score":
        assert finite > checkpointing.ranking_key({**figures, "nll": np.nan})
        assert finite < checkpointing.ranking_key({**figures, "score": 1.1, "nll": np.nan})


def test_run_resumes_after_nonfinite_validation(problem, copied):
    """Simulate a log with non-finite metrics, which are null in JSON."""
    path = copied.path / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row["kind"] == "validation":
            row.update(loss=None, nll=None, perplexity=None)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    longer = dataclasses.replace(hparams, train_steps=13)
    assert train_model(problem, longer, copied.path).checkpoints.steps()[-1] == 13


def test_train_rows_count_all_real_tokens(problem, whole):
    batches = problem.batches("train", hparams)
    expected = sum((batches[i][0][0] != 0).sum() + (batches[i][1] != 0).sum() for i in range(12))
    assert sum(row["tokens"] for row in whole.metrics() if row["kind"] == "train") == expected


def test_validation_rows_are_complete(whole):
    rows = [row for row in whole.metrics() if row["kind"] == "validation"]
    assert [row["step"] for row in rows] == [8, 12]
    for row in rows:
        assert row["perplexity"] == pytest.approx(np.exp(row["nll"]), rel=1e-4)
        assert 0 <= row["score"] <= 100 and any("BLEU" in name for name in row)
        assert row["encoder_deviation"] > 0 and row["nll_shuffled"] > 0
        assert not collapse_warning(row)


def test_collapsed_encoder_is_reported(problem, tmp_path):
    """Train with a learning rate of 0.25, which soon makes a post-norm encoder's output equal at all positions."""
    steep = dataclasses.replace(hparams, num_layers=2, dropout=0.1, warmup_steps=1, train_steps=10, eval_steps=10)
    with logged_lines() as lines:
        run = train_model(problem, steep, tmp_path / "steep")
    (row,) = [row for row in run.metrics() if row["kind"] == "validation"]
    (told,) = [line for line in lines if "the encoder has collapsed" in line]
    assert f"(deviation {row['encoder_deviation']:.4f})" in told and "--warmup_steps" in told


def test_validation_rows_match_evaluate(problem, whole):
    model = whole.load_model("last")
    model.compile(**kt.compile_arguments(hparams))
    metrics = model.evaluate(problem.batches("validation", hparams), verbose=0, return_dict=True)
    logged = [row for row in whole.metrics() if row["kind"] == "validation"][-1]
    assert {name: logged[name] for name in metrics} == pytest.approx(metrics, rel=1e-5)


def test_best_checkpoint_has_best_validation(whole):
    rows = [row for row in whole.metrics() if row["kind"] == "validation"]
    best = max(rows, key=lambda row: (row["score"], -row["nll"]))
    assert whole.checkpoints.best() == {name: best[name] for name in ("step", "score", "nll", "loss")}
    assert whole.checkpoints.load()[1]["step"] == best["step"]


def test_average_is_mean_of_last_checkpoints(copied):
    raw = file_hashes(copied.path)
    assert kt.average_checkpoints(copied.path, last=3) == [8, 10, 12]
    arrays = [copied.checkpoints.load(step)[0]["weights"] for step in (8, 10, 12)]
    averaged = copied.checkpoints.load("averaged")[0]["weights"]
    assert averaged.keys() == arrays[0].keys()
    for path, array in averaged.items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(array, np.mean([a[path] for a in arrays], axis=0, dtype="float64"), rtol=1e-6)
    assert raw.items() <= file_hashes(copied.path).items()


def test_moving_average_loads_as_checkpoint_ema(whole, copied):
    arrays, state = whole.checkpoints.load("last")
    average, its_state = whole.checkpoints.load("ema")
    assert its_state == state and average.keys() == {"weights"}
    assert average["weights"].keys() == arrays["weights"].keys()
    table = "transformer/embedding/table"
    assert (average["weights"][table] != arrays["weights"][table]).any()
    model = kt.Translator.load(whole.path, checkpoint="ema").model
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model.embedding.table.value), average["weights"][table])
    arrays.pop("ema")
    copied.checkpoints.save(13, arrays, {})
    with pytest.raises(kt.UserError, match="has no moving average; train with --ema_decay"):
        copied.checkpoints.load("ema")


def test_manifest_names_corpus_and_parameters(problem, whole):
    manifest = json.loads((whole.path / "manifest.json").read_text())
    assert manifest["corpus"]["splits"]["train"]["pairs"] == 27
    assert manifest["seed"] == hparams.seed
    weights = whole.checkpoints.load("last")[0]["weights"]
    shapes = {path: list(array.shape) for path, array in weights.items() if "seed" not in path}
    assert manifest["parameters"]["by_variable"] == shapes
    assert manifest["parameters"]["total"] == sum(np.prod(shape) for shape in shapes.values())


# Plain Keras


def test_fit_works_as_in_a_notebook(problem):
    model = kt.Transformer.from_hparams(hparams, problem)
    model.compile(**kt.compile_arguments(hparams))
    batches = problem.batches("train", hparams)
    fitted = model.fit(batches, validation_data=problem.batches("validation", hparams), epochs=2, verbose=0)
    assert {"loss", "nll", "perplexity", "val_loss", "val_nll", "val_perplexity"} <= fitted.history.keys()
    assert all(len(values) == 2 for values in fitted.history.values())
    assert int(keras.ops.convert_to_numpy(model.optimizer.iterations.value)) == 2 * batches.batches_per_epoch


def test_fit_again_continues_with_the_next_batch(problem, monkeypatch):
    def train_step(model, data):
        model.optimizer.iterations.assign_add(1)
        return {"loss": 0.0}

    read, getitem = [], TokenBatches.__getitem__
    monkeypatch.setattr(TokenBatches, "__getitem__", lambda self, i: read.append(self.start + i) or getitem(self, i))
    if keras.backend.backend() == "tensorflow":  # to save time, only count updates
        monkeypatch.setattr(kt.Transformer, "train_step", train_step)
    batches, first = problem.batches("train", hparams, start=3), []
    for model in (kt.Transformer.from_hparams(hparams, problem) for _ in range(2)):
        model.compile(**kt.compile_arguments(hparams))
        for epochs in (1, 2):
            model.fit(batches, steps_per_epoch=2, epochs=epochs, verbose=0)
            first.append(min(read))
            read.clear()
    assert first == [3, 5, 3, 5] and batches.start == 3


def test_fit_counts_batches_whose_gradients_keras_accumulates(problem):
    model, batches = kt.Transformer.from_hparams(hparams, problem), problem.batches("train", hparams)
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    model.compile(**{**kt.compile_arguments(hparams), "optimizer": optimizer})
    model.fit(batches, steps_per_epoch=5, verbose=0)
    assert model.batches_read[batches] == 5 and int(optimizer.iterations) == 2


@pytest.mark.backend
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="only JAX deletes the state of a failed update")
@pytest.mark.parametrize("updates", [0, 1])
def test_fit_keeps_error_and_batch_count_on_failure(problem, updates):
    model, batches = kt.Transformer.from_hparams(hparams, problem), problem.batches("train", hparams)
    model.compile(**kt.compile_arguments(hparams))
    model.fit(batches, steps_per_epoch=1, verbose=0)
    original, calls = model.train_function, []

    def interrupted(*arguments):
        result = original(*arguments)
        calls.append(1)
        if len(calls) > updates:
            raise KeyboardInterrupt
        return result

    model.train_function = interrupted
    with pytest.raises(KeyboardInterrupt):
        model.fit(batches, steps_per_epoch=2, verbose=0)
    assert model.batches_read[batches] == 1


def test_validation_decodes_at_interval_and_end(problem, tmp_path):
    changes = {"best_metric": "nll", "eval_steps": 2, "decode_steps": 3, "checkpoint_steps": 2}
    seldom = dataclasses.replace(hparams, **changes, train_steps=6)
    with logged_lines() as lines:
        run = train_model(problem, seldom, tmp_path / "run")
    rows = {row["step"]: row for row in run.metrics() if row["kind"] == "validation"}
    assert list(rows) == [2, 4, 6] and {step for step, row in rows.items() if "score" in row} == {4, 6}
    best = min(rows.values(), key=lambda row: row["nll"])
    assert run.checkpoints.best()["step"] == best["step"]
    assert sum("BLEU" in line for line in lines if line.startswith("validation at")) == 2
    assert any(line.startswith("best validation ") for line in lines)
    assert [point["step"] for point in training_summary(run.metrics())["curve"]] == [4, 6]
    draw_curves({"run": lines_by_step(run.metrics())}, "step")


def test_run_that_ended_early_without_score_stays_ended(problem, tmp_path):
    changes = {"best_metric": "nll", "eval_steps": 2, "decode_steps": 5, "checkpoint_steps": 2, "train_steps": 100}
    ended = dataclasses.replace(hparams, **changes, patience=1, learning_rate_scale=1e-30, ema_decay=0.0)
    run = train_model(problem, ended, tmp_path / "ended")
    rows = [row for row in run.metrics() if row["kind"] == "validation"]
    assert [row["step"] for row in rows] == [2, 4] and not any("score" in row for row in rows)
    manifest, before = run.path / "manifest.json", run.metrics()
    changed = manifest.read_text().replace('"git_revision": ', '"git_revision": "of another day", "was": ', 1)
    manifest.write_text(changed)
    assert train_model(problem, ended, tmp_path / "ended").metrics() == before
    assert manifest.read_text() == changed  # the second call made no updates, so it wrote no manifest


def test_early_stopping_counts_across_resumes(problem, tmp_path):
    # With a tiny learning rate, the metrics do not improve after the first evaluation.
    unchanging = dataclasses.replace(
        hparams, patience=2, best_metric="nll", learning_rate_scale=1e-30, dropout=0.0, attention_dropout=0.0,
        eval_steps=2, decode_steps=100, checkpoint_steps=2, ema_decay=0.0, train_steps=100,
    )  # fmt: skip

    def trained(**changes):
        with logged_lines() as lines:
            run = train_model(problem, dataclasses.replace(unchanging, **changes), tmp_path / "run")
        return run.checkpoints, lines

    checkpoints, lines = trained()
    assert any("no improvement in 2 evaluations" in line for line in lines)
    assert checkpoints.steps()[-1] == 6 and checkpoints.best_step() == 2
    checkpoints, lines = trained()
    assert "stopped early after 6 updates" in lines[-1] and checkpoints.steps()[-1] == 6
    assert trained(patience=3)[0].steps()[-1] == 8
