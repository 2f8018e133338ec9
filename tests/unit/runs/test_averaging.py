"""Tests of checkpoint averaging: which checkpoints it selects, and the warning about an outdated average."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.runs.run import Run
from keras_transformer.utils.files import write_json


@pytest.fixture
def make_run(tmp_path):
    """Return a function that writes a run in which all weights of the checkpoint at step n are n."""

    def make_run(steps, best=None, **hparams):
        problem = kt.problem("reverse", data_dir=tmp_path / "data")
        run = Run.configure(tmp_path / "run", problem, "toy", kt.HParams(**hparams))
        write_json(run.path / "config.json", run.config)
        for step in steps:
            save(run, step)
        if best is not None:
            run.checkpoints.mark_best(best, {"score": 50.0, "nll": 1.0, "loss": 1.0})
        run.checkpoints.prune(hparams["keep_checkpoints"])
        return Run.open(run.path)

    return make_run


def save(run, step):
    weights = {"table": np.full(3, step, "float32"), "seed": np.array([step, 0], "uint32")}
    run.checkpoints.save(step, {"weights": weights}, {})


def averaged(run):
    """Return the weights, the seed state and the source steps of the checkpoint `averaged`."""
    arrays, state = run.checkpoints.load("averaged")
    return arrays["weights"]["table"].tolist(), arrays["weights"]["seed"].tolist(), state["steps"]


def test_average_excludes_older_best(make_run, caplog):
    run = make_run([4, 8, 10, 12], best=4, keep_checkpoints=2, average_last=3)
    assert run.checkpoints.steps() == [4, 10, 12]
    assert kt.average_checkpoints(run.path) == [10, 12]
    assert averaged(run) == ([11.0] * 3, [12, 0], [10, 12])
    (line,) = caplog.messages
    assert "averaged 2 of 3 checkpoints" in line and "keep_checkpoints=2" in line


def test_average_includes_recent_best(make_run, caplog):
    run = make_run([4, 8, 10, 12], best=10, keep_checkpoints=3, average_last=3)
    assert kt.average_checkpoints(run.path) == [8, 10, 12]
    assert averaged(run) == ([10.0] * 3, [12, 0], [8, 10, 12])
    assert kt.average_checkpoints(run.path, last=2) == [10, 12]
    assert averaged(run) == ([11.0] * 3, [12, 0], [10, 12])
    assert not caplog.messages


@pytest.mark.parametrize("last", [None, 5, 9])
def test_average_warns_of_fewer_checkpoints(make_run, caplog, last):
    run = make_run([2, 6], best=2, keep_checkpoints=5, average_last=5)
    assert kt.average_checkpoints(run.path, last) == [2, 6]
    assert averaged(run) == ([4.0] * 3, [6, 0], [2, 6])
    (line,) = caplog.messages
    assert f"averaged 2 of {last or 5} checkpoints" in line and "there are no more in" in line


def test_average_removes_files_of_killed_process(make_run):
    run = make_run([2], keep_checkpoints=1)
    (run.checkpoints.path / ".averaged.0123abcd").mkdir()
    (run.checkpoints.path / ".averaged.0123abcd" / "weights.npz").touch()
    kt.average_checkpoints(run.path)
    assert {entry.name for entry in run.checkpoints.path.iterdir()} == {"step-000000002", "averaged"}


def test_averaged_warns_once_training_has_continued(make_run, caplog):
    run = make_run([2, 4], keep_checkpoints=2, average_last=2)
    kt.average_checkpoints(run.path)
    run.checkpoints.load("averaged")
    assert not caplog.messages
    save(run, 6)
    assert averaged(run) == ([3.0] * 3, [4, 0], [2, 4])
    (line,) = caplog.messages
    assert "the last checkpoint is from step 6" in line
    assert line.endswith(f"python -m keras_transformer.average --run={run.path}")
    caplog.clear()
    run.checkpoints.load("averaged", parts=())  # no warning, because the call loads no weights
    kt.average_checkpoints(run.path)
    assert averaged(run) == ([5.0] * 3, [6, 0], [4, 6])
    assert not caplog.messages
