"""Tests that two worker processes make the same updates as one process and stop together."""

import shutil
import signal
import time

import numpy as np
import pytest
from helpers.training_alike import small
from helpers.workers import DEVICES, outcomes, spawn_workers

import keras_transformer as kt
from keras_transformer.distributed.workers import WorkerLost
from keras_transformer.runs.checkpoint import Checkpoints
from keras_transformer.runs.run import Run
from keras_transformer.training.options import TrainOptions
from keras_transformer.training.signals import MEET_EVERY
from keras_transformer.training.trainer import train_model

PARAMETERS = {"num_symbols": 4, "longest": 5, "train_pairs": 30}
PATIENCE = 240
"""Maximum number of seconds for a few updates, including compilation on a busy machine."""
CHANGES = {
    "batch_tokens": 32, "beam_size": 1, "extra_length": 2, "checkpoint_minutes": 0, "eval_steps": MEET_EVERY,
    "checkpoint_steps": MEET_EVERY, "keep_checkpoints": 10_000,
}  # fmt: skip


def flags(steps=100_000):
    """Return the flags of a run with batches of different sizes. By default, the run is too long to complete."""
    changes = {**CHANGES, "train_steps": steps}
    names = ("num_layers", "d_model", "d_ff", "num_heads", "dropout", "warmup_steps", *changes)
    given = [f"--{name}={getattr(small(**changes), name)}" for name in names]
    given += [argument for name, value in PARAMETERS.items() for argument in ("--set", f"problem.{name}={value}")]
    return ["--problem=reverse", "--hparams=base", "--output_dir=run", *given]


def trained_alone(folder, run, steps):
    """Start or resume a training run in this process, without other workers. Return the `Run`."""
    problem = kt.problem("reverse", data_dir=folder / "data", **PARAMETERS)
    hparams = small(**CHANGES, train_steps=steps)
    options = TrainOptions(strategy="one")
    return train_model(problem, hparams, folder / run, options, preset="base")


def interrupt(processes, steps, interrupt_one):
    """Interrupt the second of two processes after a new checkpoint.

    Args:
        processes: The two worker processes.
        steps: Function that returns the steps of the checkpoints.
        interrupt_one: Function that interrupts a process.

    Returns:
        The outcomes of both processes, and the seconds until both ended.
    """
    before, deadline = len(steps()), time.monotonic() + PATIENCE
    try:
        while len(steps()) == before and processes[0].poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        interrupt_one(processes[1])
        began = time.monotonic()
        return *outcomes(processes, PATIENCE), time.monotonic() - began
    finally:
        for process in processes:
            process.kill()


@pytest.mark.backend
def test_multiworker_trains_as_one_and_stops_together(tmp_path):
    """Stop a job of two workers, resume it, kill one worker, and resume again.

    SIGTERM to one worker stops both. Their updates must equal those of a single worker. After the loss of a worker,
    the other one must end with an error, and the job must resume and finish.
    """
    arguments, steps = flags(), Checkpoints(tmp_path / "run" / "checkpoints").steps
    first, second, _ = interrupt(
        spawn_workers(2, *arguments, cwd=tmp_path), steps, lambda process: process.send_signal(signal.SIGTERM)
    )
    assert [first[0], second[0]] == [128 + signal.SIGTERM] * 2, first[2] + second[2]
    stopped = steps()[-1]
    assert f"SIGTERM: stopped after update {stopped:,}" in first[1]
    assert f"  devices   {2 * DEVICES} devices of 2 workers; " in first[1]
    assert f"validation at step {MEET_EVERY}" in first[1] and f"step {MEET_EVERY}" not in second[1]
    assert "worker 1 of 2 has joined the run; worker 0 logs the progress" in second[1].splitlines()
    assert_equals_one_worker(tmp_path)

    first, _, seconds = interrupt(spawn_workers(2, *arguments, cwd=tmp_path), steps, lambda process: process.kill())
    assert first[0] == WorkerLost.status, first[2]
    assert first[2].splitlines()[-1].startswith("error: another worker is lost") and "to resume from" in first[2]
    assert f"  resuming after update {stopped:,}" in first[1].splitlines()
    assert seconds < 60

    last = steps()[-1] + MEET_EVERY
    first, second = outcomes(spawn_workers(2, *flags(last), cwd=tmp_path), PATIENCE)
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert steps()[-1] == last and f"validation at step {last:,}" in first[1]


def assert_equals_one_worker(folder):
    """Assert that two workers make the same first updates as one worker, and that one worker can resume their run."""
    shutil.copytree(folder / "run", folder / "resumed")
    for step in Checkpoints(folder / "resumed" / "checkpoints").steps()[1:]:
        shutil.rmtree(folder / "resumed" / "checkpoints" / f"step-{step:09d}")
    Checkpoints(folder / "resumed" / "checkpoints").mark_best(MEET_EVERY, {"score": 0.0})
    runs = [trained_alone(folder, name, MEET_EVERY + 2) for name in ("resumed", "alone")]
    for step in (MEET_EVERY, MEET_EVERY + 2):
        (found, _), (expected, _) = (run.checkpoints.load(step) for run in runs)
        for part in expected:
            assert found[part].keys() == expected[part].keys()
            for path, value in expected[part].items():
                np.testing.assert_allclose(found[part][path], value, rtol=0, atol=1e-5, err_msg=path)
    two, alone = (
        [row for row in Run.open(folder / name).metrics() if row["step"] == MEET_EVERY] for name in ("run", "alone")
    )
    names = {"train": ("loss", "nll", "gradient_norm"), "validation": ("loss", "nll", "score")}
    for kind, compared in names.items():
        (row,), (expected,) = ([row for row in rows if row["kind"] == kind] for rows in (two, alone))
        for name in compared:
            assert row[name] == pytest.approx(expected[name], rel=1e-4), (kind, name)


@pytest.mark.backend
def test_worker_exits_if_the_other_does_not_start(tmp_path):
    processes = spawn_workers(2, *flags(), "--worker_patience=3", cwd=tmp_path)
    processes[1].kill()
    (status, _, err), _ = outcomes(processes, PATIENCE)
    assert status == 2 and "use --worker_patience=SECONDS to wait longer" in err
