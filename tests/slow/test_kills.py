"""A training that is stopped by signals, killed, or out of disk goes on to the same weights, byte for byte."""

import builtins
import contextlib
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers import commands

from keras_transformer.runs.directory import Run

STEPS = 40
FLAGS = (*commands.REVERSE, "--dropout=0.2", "--checkpoint_steps=10", "--keep_checkpoints=4", "--eval_steps=10")

# Each is run before the command, in its process.
WHILE_WRITING = """
import numpy as np
savez, count = np.savez, 4  # the second file of the second checkpoint, the optimizer's
def savez_and_die(file, **arrays):
    global count
    savez(file, **arrays)
    count -= 1
    if count == 0:
        file.flush()
        file.truncate(file.tell() // 2)
        os.kill(os.getpid(), signal.SIGKILL)
np.savez = savez_and_die
"""
BEFORE_THE_BEST_IS_MARKED = """
replace = os.replace
def replace_or_die(old, new):
    if str(new).endswith("best.json"):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(old, new)
os.replace = replace_or_die
"""
IN_AN_EVALUATION = """
from keras_transformer.decoding.translator import Translator
translate = Translator.translate
def translate_and_signal(self, texts, *arguments, **options):
    os.kill(os.getpid(), signal.SIGTERM)
    return translate(self, texts, *arguments, **options)
Translator.translate = translate_and_signal
"""
AFTER_UPDATE_25 = """
from keras_transformer.training.callbacks import Progress
on_step = Progress.on_step
def on_step_and_signal(self, step):
    if step == 25:
        os.kill(os.getpid(), signal.SIGTERM)
    on_step(self, step)
Progress.on_step = on_step_and_signal
"""
COMMAND = """
from keras_transformer.flags import run_command
from keras_transformer.train import main
run_command(main)
"""


def patched(patch, folder, cwd):
    """Trains in `cwd`, after other code; returns the exit status."""
    code = f"import os, signal\nfrom keras_transformer.startup import load_keras\nload_keras()\n{patch}{COMMAND}"
    return subprocess.run(
        [sys.executable, "-c", code, *flags(folder)], cwd=cwd, env=commands.environment(cwd), capture_output=True
    ).returncode


def flags(folder, steps=STEPS):
    return *FLAGS, f"--train_steps={steps}", "--output_dir=run", f"--data_dir={folder}/data"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def whole(folder):
    """The undisturbed run."""
    (folder / "whole").mkdir()
    commands.start("train", *flags(folder), cwd=folder / "whole")
    return Run.open(folder / "whole" / "run")


def final(run, steps=STEPS):
    """{(part, path): array} of the last checkpoint, the best, and the steps that were evaluated."""
    arrays, state = run.checkpoints.load("last")
    assert state["step"] == steps
    evaluated = sorted({row["step"] for row in run.metrics() if row["kind"] == "validation"})
    flat = {(part, path): array for part, values in arrays.items() for path, array in values.items()}
    return flat, run.checkpoints.best(), evaluated


def goes_on_to_the_same(whole, folder, cwd):
    """Repeats the command in `cwd` and compares what comes out; returns what the command said."""
    outcome = commands.start("train", *flags(folder), cwd=cwd)
    assert outcome.status == 0, outcome.err
    (expected, best, evaluated), (arrays, own_best, own_evaluated) = final(whole), final(Run.open(cwd / "run"))
    assert arrays.keys() == expected.keys() and (own_best, own_evaluated) == (best, evaluated)
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array)
    assert Run.open(cwd / "run").checkpoints.steps() == whole.checkpoints.steps()  # so that `average` takes the same
    assert not [path for path in (cwd / "run" / "checkpoints").iterdir() if path.name.startswith(".")]
    return outcome.out


def wait_for(process, condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "this takes too long"
        time.sleep(0.02)


def first_checkpoint(cwd):
    return lambda: list((cwd / "run" / "checkpoints").glob("step-*"))


@contextlib.contextmanager
def largest_file(size):
    """Lets this process write no larger file, as on a disk that is full."""
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_run_is_one_training_s_and_sigterm_ends_it_with_a_checkpoint_of_the_last_update(folder, call, tmp_path):
    process = commands.spawn("train", *flags(folder, 10_000), cwd=tmp_path)
    wait_for(process, first_checkpoint(tmp_path))
    config = (tmp_path / "run" / "config.json").read_bytes()
    call("train", *flags(folder, 9_000), f"--output_dir={tmp_path}/run").refused("another process trains in")
    assert (tmp_path / "run" / "config.json").read_bytes() == config
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 30 and process.returncode == 128 + signal.SIGTERM and err == ""
    said = out.splitlines()[-1]
    assert said.startswith("SIGTERM: stopped after update ")
    step = int(said.split("stopped after update ")[1].split(",")[0])
    assert Run.open(tmp_path / "run").checkpoints.load("last")[1]["step"] == step


@pytest.mark.soak
def test_ctrl_c_writes_a_checkpoint_also_where_nobody_reads_any_more(folder, tmp_path):
    process = commands.spawn("train", *flags(folder, 10_000), cwd=tmp_path)
    wait_for(process, first_checkpoint(tmp_path))
    process.stdout.close()  # `train | tee log`: the signal ends both
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 128 + signal.SIGINT
    assert Run.open(tmp_path / "run").checkpoints.steps()[-1] > 10
    process.stderr.close()


def test_another_signal_ends_it_at_once():
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


def test_one_fault_after_another_is_made_up_for(whole, folder, call, tmp_path):
    """A kill inside a write, a signal in an evaluation, a kill before the best is marked, a full disk, and a signal."""
    assert patched(WHILE_WRITING, folder, tmp_path) == -signal.SIGKILL
    checkpoints = Run.open(tmp_path / "run").checkpoints
    assert checkpoints.steps() == [10]
    assert patched(IN_AN_EVALUATION, folder, tmp_path) == 128 + signal.SIGTERM
    assert checkpoints.steps() == [10, 20] and checkpoints.best_step() == 10
    assert patched(BEFORE_THE_BEST_IS_MARKED, folder, tmp_path) == -signal.SIGKILL
    assert checkpoints.best_step() == 10

    # All files of a checkpoint but the optimizer's, the largest, have room.
    largest = max(path.stat().st_size for path in (whole.path / "checkpoints" / "step-000000010").iterdir())

    before = checkpoints.steps()
    with largest_file(largest - 1):
        outcome = call("train", *flags(folder), f"--output_dir={tmp_path}/run")
    assert outcome.status == 2 and "cannot write checkpoint" in outcome.err and "File too large" in outcome.err
    assert checkpoints.steps() == before
    assert patched(AFTER_UPDATE_25, folder, tmp_path) == 128 + signal.SIGTERM
    assert checkpoints.steps() == [10, 20, 25]
    goes_on_to_the_same(whole, folder, tmp_path)


def test_a_read_only_directory_is_told_and_nothing_is_lost(whole, folder, call, tmp_path, monkeypatch):
    # As root may write anywhere, the system calls that make and open files say what they would say to others.
    shutil.copytree(whole.path, tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}

    def read_only(function, writes):
        def call_or_fail(path, *arguments, **options):
            if str(path).startswith(str(tmp_path)) and writes(*arguments, **options):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return function(path, *arguments, **options)

        return call_or_fail

    def for_writing(mode="r", *arguments, **options):
        return mode not in ("r", "rb")

    monkeypatch.setattr(builtins, "open", read_only(open, for_writing))
    monkeypatch.setattr(os, "mkdir", read_only(os.mkdir, lambda *_: True))
    monkeypatch.setattr(os, "open", read_only(os.open, lambda flags, *_, **__: flags & (os.O_WRONLY | os.O_RDWR)))
    for name in ("run", "new"):
        settings = (*flags(folder, 50), f"--output_dir={tmp_path}/{name}")
        call("train", *settings).refused("cannot write", "Read-only file system")
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def cut(checkpoint):
    path = checkpoint / "weights.npz"
    path.write_bytes(path.read_bytes()[:-100])


def flip(checkpoint):
    path = checkpoint / "optimizer.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def half_remove(checkpoint):
    (checkpoint / "weights.npz").unlink()


def without_state(checkpoint):
    (checkpoint / "state.json").unlink()


def with_empty_state(checkpoint):
    (checkpoint / "state.json").write_text("")


@pytest.mark.soak  # test_training.py has damaged checkpoints, too, without a process for each
@pytest.mark.parametrize("damages", [(cut, flip, half_remove), (without_state, with_empty_state)])
def test_damaged_newest_checkpoints_are_passed_over(whole, folder, tmp_path, damages):
    shutil.copytree(whole.path, tmp_path / "run")
    for step, damage in zip((40, 30, 20), damages):
        damage(tmp_path / "run" / "checkpoints" / f"step-{step:09d}")
    said = goes_on_to_the_same(whole, folder, tmp_path)
    assert said.count("using the one before it") == len(damages)
    assert f"resuming after update {40 - 10 * len(damages)}" in said


def test_without_a_whole_checkpoint_it_does_not_begin_anew(whole, call, folder, tmp_path):
    shutil.copytree(whole.path, tmp_path / "run")
    again = (*flags(folder), f"--output_dir={tmp_path}/run")
    newest = tmp_path / "run" / "checkpoints" / "step-000000040" / "state.json"
    state = newest.read_text()
    newest.write_text(state.replace('"version": 1', '"version": 2'))
    call("train", *again).refused("is of format version 2")
    newest.write_text(state)
    for step in (10, 20, 30, 40):
        cut(tmp_path / "run" / "checkpoints" / f"step-{step:09d}")
    outcome = call("train", *again)
    assert outcome.status == 2 and "whole; remove them to begin anew" in outcome.err.splitlines()[-1]


def test_a_corpus_that_has_changed_is_refused(call, tmp_path):
    text = commands.write_text(tmp_path / "text", commands.TEXT)
    settings = (*text, "--set=problem.vocab_size=40", *commands.SMALL, "--hparams=toy")
    settings = (*settings, f"--output_dir={tmp_path}/run", f"--data_dir={tmp_path}/data")
    call("train", *settings, "--train_steps=3").succeeded_with_warnings()
    # The same pieces, of which the vocabulary is made, on other lines.
    lines = {language: content.splitlines(keepends=True)[::-1] for language, content in commands.TEXT.items()}
    commands.write_text(tmp_path / "text", {language: "".join(content) for language, content in lines.items()})
    before = Run.open(tmp_path / "run").checkpoints.load("last")[1]
    call("train", *settings, "--train_steps=6").refused("corpus has changed since")
    assert Run.open(tmp_path / "run").checkpoints.load("last")[1] == before


def test_too_little_room_is_told_before_the_first_update(call, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 2000))
    new = (*flags(folder), f"--output_dir={tmp_path}/run")
    call("train", *new).refused("6 more checkpoints", "make room, or keep fewer: --keep_checkpoints=4 now")
    call("train", *new, "--keep_checkpoints=2").refused("4 more checkpoints")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 10**9))
    call("train", *new, "--keep_checkpoints=3", "--train_steps=3").succeeded_with_warnings()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 2000))
    outcome = call("train", *new, "--keep_checkpoints=3")
    outcome.refused("more checkpoint", "free; make room")
    assert "fewer" not in outcome.err  # of a run that has begun they are what they are
