"""Tests of writing, pruning and loading checkpoints, of the best checkpoint, and of early stopping."""

import signal
import types

import numpy as np
import pytest
from helpers.logs import logged_lines

import keras_transformer as kt
from keras_transformer.distributed.workers import Workers
from keras_transformer.runs.checkpoint import Checkpoints
from keras_transformer.runs.run import Run
from keras_transformer.training import callbacks
from keras_transformer.training.signals import Interrupted, StopRequest

ARRAYS = {"weights": {"table": np.zeros(3, "float32")}, "optimizer": {"step": np.zeros((), "int32")}}


def save(checkpoints, *steps):
    for step in steps:
        checkpoints.save(step, ARRAYS, {})


def damage(checkpoints, step):
    (checkpoints.path / f"step-{step:09}" / "weights.npz").write_bytes(b"damaged")


def found(score, nll=1.0, loss=2.0):
    return {"score": score, "nll": nll, "loss": loss}


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path)


def test_checkpoints_are_in_numerical_order(checkpoints):
    save(checkpoints, 1000, 5, 20)
    assert checkpoints.steps() == [5, 20, 1000]
    assert checkpoints.load("last")[1]["step"] == checkpoints.load()[1]["step"] == 1000
    checkpoints.mark_best(20, found(1.0))
    assert checkpoints.load("best")[1]["step"] == checkpoints.load()[1]["step"] == 20


def test_load_falls_back_to_newest_undamaged(checkpoints):
    save(checkpoints, 5, 10, 15, 20)
    damage(checkpoints, 20)
    assert checkpoints.load("last")[1]["step"] == checkpoints.load_latest()[1]["step"] == 15
    with pytest.raises(kt.UserError, match="--checkpoint=15 is complete"):
        checkpoints.load(20)


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("weights.npz", lambda path: path.write_bytes(path.read_bytes()[:-100])),
        ("weights.npz", lambda path: path.unlink()),
        ("optimizer.npz", flip_a_bit),
        ("state.json", lambda path: path.unlink()),
        ("state.json", lambda path: path.write_text("")),
    ],
    ids=["cut", "missing", "flipped bit", "no state", "empty state"],
)
def test_load_latest_skips_damaged_checkpoints(tmp_path, file, change):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 5, 10)
    change(tmp_path / "step-000000010" / file)
    with logged_lines() as lines:
        assert checkpoints.load_latest()[1]["step"] == 5
    assert sum("using the previous checkpoint" in line for line in lines) == 1


def test_prune_keeps_latest_and_best(checkpoints):
    save(checkpoints, 2, 4, 6, 8, 10)
    checkpoints.prune(5)
    assert checkpoints.steps() == [2, 4, 6, 8, 10]
    checkpoints.mark_best(4, found(1.0))
    checkpoints.prune(3, newest=8)  # step 10 may be damaged, so it does not count as one of the three
    assert checkpoints.steps() == [4, 6, 8, 10]
    checkpoints.prune(2)
    assert checkpoints.steps() == [4, 8, 10]
    checkpoints.prune(1)
    assert checkpoints.steps() == [4, 10]


def test_drop_keeps_the_best(checkpoints):
    save(checkpoints, 2, 4, 6)
    checkpoints.mark_best(4, found(1.0))
    for step in (4, 6):
        checkpoints.drop(step)
    assert checkpoints.steps() == [2, 4]


class Evaluated:
    """Stand-in for `ValidationCallback` that returns the given results, {step: metrics}."""

    latest = None

    def __init__(self, results):
        self.results = results

    def evaluated(self, step):
        self.latest = self.results.get(step, self.latest)
        return step in self.results


@pytest.fixture
def checkpointing(tmp_path, monkeypatch):
    """Return a function that makes a `CheckpointCallback` from validation results, {step: metrics}."""
    monkeypatch.setattr(callbacks.checkpoint, "training_arrays", lambda model: ARRAYS)

    def make(results, start=0, **hparams):
        run = Run(tmp_path, {"hparams": {"checkpoint_minutes": 0, **hparams}})
        progress = types.SimpleNamespace(end_line=lambda step: None)
        return callbacks.CheckpointCallback(start, run, progress, Evaluated(results), StopRequest(), Workers())

    return make


@pytest.mark.parametrize(
    ("metric", "results", "best"),
    [
        ("score", [found(5.0), found(9.0), found(7.0)], 2),
        ("score", [found(5.0, nll=3.0), found(5.0, nll=2.0), found(5.0, nll=2.5)], 2),
        ("score", [found(5.0), found(5.0), found(5.0)], 1),
        ("nll", [found(9.0, nll=3.0), found(8.0, nll=2.0), found(7.0, nll=2.5)], 2),
        ("loss", [found(9.0, loss=3.0), found(8.0, loss=2.5), found(7.0, loss=2.0)], 3),
        ("chrf", [{**found(9.0), "chrF": 4.0}, {**found(8.0), "chrF": 5.0}], 2),
        ("chrf", [{**found(8.0), "chrF": 5.0}, {**found(9.0), "chrF": 5.0}], 1),
        ("bleu", [{**found(9.0, nll=2.0), "sacreBLEU": 4.0}, {**found(8.0), "sacreBLEU": 4.0}], 2),
    ],
)
def test_best_checkpoint_is_first_with_best_result(checkpointing, metric, results, best):
    results = {step: {"step": step, **result} for step, result in enumerate(results, start=1)}
    callback = checkpointing(results, best_metric=metric, checkpoint_steps=100)
    for step in results:
        callback.on_step(step)
    assert callback.run.checkpoints.best() == results[best]


def test_checkpoints_are_saved_at_steps_and_best(checkpointing):
    results = {3: found(5.0), 6: found(9.0), 9: found(7.0)}
    callback = checkpointing(results, checkpoint_steps=4, keep_checkpoints=2)
    steps = []
    for step in range(1, 14):
        callback.on_step(step)
        steps.append(callback.run.checkpoints.steps())
    callback.on_end(13)
    steps.append(callback.run.checkpoints.steps())
    assert steps[:9] == [[], [], [3], [3, 4], [3, 4], [4, 6], [4, 6], [6, 8], [6, 8]]
    assert steps[11:] == [[6, 8, 12], [6, 8, 12], [6, 12, 13]]
    logged = [row["step"] for row in callback.run.metrics() if row["kind"] == "checkpoint"]
    assert logged == [3, 4, 6, 8, 12, 13]


def test_checkpoint_from_signal_gives_way_to_next(checkpointing):
    callback = checkpointing({}, checkpoint_steps=4)
    callback.save(4)
    callback.save(6, from_signal=True)
    assert callback.run.checkpoints.load("last")[1]["from_signal"]
    callback = checkpointing({}, start=6, checkpoint_steps=4)
    callback.on_step(7)
    assert callback.run.checkpoints.steps() == [4, 6]
    callback.on_step(8)
    assert callback.run.checkpoints.steps() == [4, 8]


def test_checkpoint_from_signal_gives_way_after_a_kill(checkpointing):
    """Kill the process after it has written the next checkpoint, and before it removes the previous one."""
    callback = checkpointing({}, start=8, checkpoint_steps=4)
    for step in (4, 6, 8):
        callback.run.checkpoints.save(step, ARRAYS, {"from_signal": step == 6})
    callback.on_end(8)
    assert callback.run.checkpoints.steps() == [4, 8]


def test_best_checkpoint_from_signal_stays(checkpointing):
    callback = checkpointing({6: found(9.0), 8: found(10.0)}, start=6, checkpoint_steps=4)
    callback.run.checkpoints.save(6, ARRAYS, {"from_signal": True})
    callback.on_end(6)  # the run evaluates when it resumes
    callback.on_step(8)
    assert callback.run.checkpoints.steps() == [6, 8] and callback.run.checkpoints.best_step() == 8


@pytest.mark.parametrize("train_steps, steps", [(6, [6, 8]), (9, [8])])
def test_last_checkpoint_stays_despite_a_signal(checkpointing, train_steps, steps):
    callback = checkpointing({}, checkpoint_steps=4, train_steps=train_steps)
    callback.stop, callback.step = types.SimpleNamespace(look=lambda step: signal.SIGTERM), 6
    with pytest.raises(Interrupted):
        callback.on_step(6)
    callback = checkpointing({}, start=6, checkpoint_steps=4, train_steps=9)
    callback.on_step(8)
    assert callback.run.checkpoints.steps() == steps


def test_last_checkpoint_stays_if_its_evaluation_is_interrupted(checkpointing):
    """The evaluation after the last update ends the run early. A resumed run repeats this evaluation."""
    settings = {"checkpoint_steps": 4, "eval_steps": 3, "patience": 1, "train_steps": 9}
    callback = checkpointing({3: found(9.0)}, **settings)
    callback.on_step(3)
    callback.run.checkpoints.save(6, ARRAYS, {"from_signal": True})
    callback.run.log(kind="validation", step=6)
    checkpointing({6: found(8.0)}, start=6, **settings).on_end(6)
    checkpointing({}, start=6, **settings).on_step(8)
    assert callback.run.checkpoints.steps() == [3, 6, 8]


@pytest.mark.parametrize("steps", [[4, 8, 10], [4, 8, 10, 12, 14]])
def test_first_save_removes_skipped_checkpoints(checkpointing, steps):
    callback = checkpointing({}, start=8, checkpoint_steps=4)
    save(callback.run.checkpoints, *steps)
    callback.on_step(12)
    assert callback.run.checkpoints.steps() == [4, 8, 12]


def test_save_removes_a_skipped_best_checkpoint_after_a_new_best(checkpointing):
    callback = checkpointing({}, start=8, checkpoint_steps=4)
    checkpoints = callback.run.checkpoints
    save(checkpoints, 4, 8, 20)
    checkpoints.mark_best(20, {"loss": 1.0})
    callback.on_step(12)
    assert checkpoints.steps() == [4, 8, 12, 20]  # the best checkpoint stays
    checkpoints.mark_best(12, {"loss": 0.9})
    callback.on_step(16)
    assert checkpoints.steps() == [4, 8, 12, 16]


def test_patience_counts_evaluations_after_best(tmp_path):
    run = Run(tmp_path, {"hparams": {"patience": 2, "eval_steps": 5}})
    evaluation = types.SimpleNamespace(evaluated=lambda step: step % 5 == 0)
    stopping = callbacks.EarlyStopping(0, run, evaluation)
    stopping.set_model(types.SimpleNamespace(stop_training=False))
    for step in (5, 10, 13, 15, 20):  # the run first ended at step 13 and was then extended
        run.log(kind="validation", step=step)
    assert not callbacks.ended_early(run, 20)  # there is no best checkpoint yet
    run.checkpoints.path.mkdir()
    run.checkpoints.mark_best(5, found(1.0))
    run.log(kind="validation", step=10)  # a resumed run evaluates step 10 again
    ended = [callbacks.ended_early(run, step) for step in (5, 10, 13, 14, 15, 20)]
    assert ended == [False] * 4 + [True] * 2
    with logged_lines() as lines:
        for step in (10, 14, 15):
            stopping.on_step(step)
            assert stopping.model.stop_training == (step == 15)
    assert len(lines) == 1 and "2 evaluations" in lines[0]


@pytest.mark.parametrize(
    ("metric", "eval_steps", "decode_steps", "decoding"),
    [
        ("nll", 2, 5, [6, 10, 11]), ("nll", 2, 2, [2, 4, 6, 8, 10, 11]), ("nll", 3, 6, [6, 11]), ("nll", 5, 100, [11]),
        ("score", 5, 100, [5, 10, 11]), ("chrf", 5, 100, [5, 10, 11]),
    ],
)  # fmt: skip
def test_validation_decodes_at_multiples(metric, eval_steps, decode_steps, decoding):
    callback = object.__new__(callbacks.ValidationCallback)
    callback.hparams = kt.HParams(best_metric=metric, eval_steps=eval_steps, decode_steps=decode_steps, train_steps=11)
    steps = [step for step in range(1, 12) if step % eval_steps == 0 or step == 11]
    assert [step for step in steps if callback.should_decode(step)] == decoding


def test_validation_resumes_with_last_logged_result(tmp_path):
    callback = object.__new__(callbacks.ValidationCallback)
    callback.run, callback.hparams = Run(tmp_path, {}), kt.HParams(eval_steps=5)
    for step, score in ((5, 1.0), (10, 2.0), (10, 3.0), (15, 4.0)):
        callback.run.log(kind="validation", step=step, score=score, nll=1.0)
    callback.evaluate_if_missing(10)
    assert callback.latest == {"step": 10, "score": 3.0, "nll": 1.0}
