"""Tests that interruptions, kills and full disks do not change the final weights of a run."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers import commands

from keras_transformer.decoding.translator import Translator
from keras_transformer.runs.checkpoint import Checkpoints
from keras_transformer.runs.run import Run
from keras_transformer.training.callbacks import ProgressLogger

STEPS = 40
FLAGS = (*commands.REVERSE, "--dropout=0.2", "--checkpoint_steps=10", "--keep_checkpoints=4", "--eval_steps=10",
         "--best_metric=nll", f"--decode_steps={STEPS}")  # fmt: skip

KILLED_WHILE_WRITING = """
import os, signal
from keras_transformer.backend.loading import load_keras
load_keras()
import numpy as np
savez, count = np.savez, 2  # the second file of a checkpoint, the optimizer's
def savez_and_die(file, **arrays):
    global count
    savez(file, **arrays)
    count -= 1
    if count == 0:
        file.flush()
        file.truncate(file.tell() // 2)
        os.kill(os.getpid(), signal.SIGKILL)
np.savez = savez_and_die
from keras_transformer.cli.arguments import run_command
from keras_transformer.train import main
run_command(main)
"""


class Killed(BaseException):
    """Exception that simulates a kill. No code of the package catches this exception."""


def flags(folder, steps=STEPS):
    return *FLAGS, f"--train_steps={steps}", f"--output_dir={folder}/run", f"--data_dir={folder}/data"


def final(run):
    """Return ({(part, path): array} of the last checkpoint, record of the best checkpoint, steps of evaluations)."""
    arrays, state = run.checkpoints.load("last")
    assert state["step"] == STEPS
    evaluated = sorted({row["step"] for row in run.metrics() if row["kind"] == "validation"})
    flat = {(part, path): array for part, values in arrays.items() for path, array in values.items()}
    return flat, run.checkpoints.best(), evaluated


def assert_ends_like(run, whole):
    (arrays, *others), (expected, *expected_others) = final(run), final(whole)
    assert arrays.keys() == expected.keys() and others == expected_others
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array)
    assert run.checkpoints.steps() == whole.checkpoints.steps()  # `average` uses these checkpoints
    assert not [path for path in (run.path / "checkpoints").iterdir() if path.name.startswith(".")]


@contextlib.contextmanager
def largest_file(size):
    """Limit the size of the files that this process writes, to simulate a full disk."""
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_train_recovers_from_successive_faults(call, tmp_path, monkeypatch):
    """Interrupt a run five times before it ends.

    The faults are a kill before the run marks the best checkpoint, a kill during a checkpoint write, a full disk, a
    signal during an update, and a signal during an evaluation.
    """
    call("train", *flags(tmp_path), f"--output_dir={tmp_path}/whole").succeeded()
    whole, checkpoints = Run.open(tmp_path / "whole"), Checkpoints(tmp_path / "run" / "checkpoints")

    def mark_best(*_):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Checkpoints, "mark_best", mark_best)
        call("train", *flags(tmp_path))
    assert checkpoints.steps() == [10] and checkpoints.best_step() is None

    program = [sys.executable, "-c", KILLED_WHILE_WRITING, *flags(tmp_path)]
    done = subprocess.run(program, cwd=tmp_path, env=commands.environment(tmp_path), capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert checkpoints.steps() == [10] and checkpoints.best_step() == 10

    # The size limit lets the run write all files of a checkpoint except the largest, the optimizer state.
    largest = max(path.stat().st_size for path in (whole.path / "checkpoints" / "step-000000010").iterdir())
    with largest_file(largest - 1):
        outcome = call("train", *flags(tmp_path))
    assert outcome.status == 2 and "cannot write checkpoint" in outcome.err and "File too large" in outcome.err
    assert checkpoints.steps() == [10]

    def signal_after_update_25(self, step, on_step=ProgressLogger.on_step):
        if step == 25:
            os.kill(os.getpid(), signal.SIGTERM)
        on_step(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(ProgressLogger, "on_step", signal_after_update_25)
        outcome = call("train", *flags(tmp_path))
    assert outcome.status == 128 + signal.SIGTERM and outcome.err == ""
    assert outcome.out.splitlines()[-1].startswith("SIGTERM: stopped after update 25 and ")
    assert checkpoints.steps() == [10, 20, 25]

    def signal_and_translate(*arguments, translate=Translator.translate, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return translate(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Translator, "translate", signal_and_translate)
        assert call("train", *flags(tmp_path)).status == 128 + signal.SIGTERM
    assert checkpoints.steps() == whole.checkpoints.steps()
    call("train", *flags(tmp_path)).succeeded()
    assert_ends_like(Run.open(tmp_path / "run"), whole)


def test_train_stops_at_ctrl_c_when_nobody_reads(call, tmp_path):
    """Interrupt a run after the reader of its stdout has exited, as when Ctrl-C stops both parts of `train | tee log`.

    Also check that no second process can train in the run's directory at the same time.
    """
    process = commands.spawn("train", *flags(tmp_path, 10_000), cwd=tmp_path)
    checkpoints, deadline = Checkpoints(tmp_path / "run" / "checkpoints"), time.monotonic() + 240
    while not checkpoints.path.is_dir() or not checkpoints.steps():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    config = (tmp_path / "run" / "config.json").read_bytes()
    call("train", *flags(tmp_path, 9_000)).refused("another process is training in")
    assert (tmp_path / "run" / "config.json").read_bytes() == config
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 128 + signal.SIGINT
    assert process.stderr.read() == ""
    process.stderr.close()
    trained = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert checkpoints.steps()[-1] >= max(row["step"] for row in trained if row["kind"] == "train") > 9


def test_train_exits_at_second_signal():
    code = """
import os, signal, time
from keras_transformer.training.signals import TOGETHER, stop_request
with stop_request() as request:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    assert request.received is signal.SIGTERM
    time.sleep(1.1 * TOGETHER)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", code], env=commands.environment("/"), timeout=60)
    assert done.returncode == -signal.SIGTERM
