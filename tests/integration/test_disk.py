"""Tests of `train` with full and read-only disks, damaged checkpoints and changed corpora."""

import builtins
import errno
import os
import shutil

from helpers import commands

from keras_transformer.runs.run import Run


def test_train_in_read_only_directory_changes_nothing(home, copied, call, tmp_path, monkeypatch):
    # Permissions do not stop root, so patched functions raise the error.
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}

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
    for run in (copied, tmp_path / "new"):
        call("train", *home.again(run), "--train_steps=50").refused("cannot write", "Read-only file system")
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before


def test_train_does_not_restart_without_valid_checkpoint(home, copied, call):
    newest = copied / "checkpoints" / "step-000000006" / "state.json"
    state = newest.read_text()
    newest.write_text(state.replace('"version": 1', '"version": 2'))
    call("train", *home.again(copied), "--train_steps=9").refused("must have format version 1, got 2")
    newest.write_text(state)
    for step in (3, 6):
        weights = copied / "checkpoints" / f"step-{step:09d}" / "weights.npz"
        weights.write_bytes(weights.read_bytes()[:-100])
    outcome = call("train", *home.again(copied), "--train_steps=9")
    assert outcome.status == 2 and "is complete; remove the directory to start again" in outcome.err.splitlines()[-1]


def test_train_rejects_changed_corpus(call, tmp_path, eager):
    text = commands.write_text(tmp_path / "text", commands.TEXT)
    settings = (*text, "--set=problem.vocab_size=40", *commands.SMALL, "--hparams=toy", "--beam_size=1")
    settings = (*settings, f"--output_dir={tmp_path}/run", f"--data_dir={tmp_path}/data")
    call("train", *settings, "--train_steps=1", "--eval_steps=1").succeeded_with_warnings()
    # Reversed lines are a different corpus with the same vocabulary.
    lines = {language: content.splitlines(keepends=True)[::-1] for language, content in commands.TEXT.items()}
    commands.write_text(tmp_path / "text", {language: "".join(content) for language, content in lines.items()})
    before = Run.open(tmp_path / "run").checkpoints.load("last")[1]
    call("train", *settings, "--train_steps=6", "--eval_steps=1").refused("corpus has changed since")
    assert Run.open(tmp_path / "run").checkpoints.load("last")[1] == before


def test_train_reports_too_little_disk_space_first(home, copied, call, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 2000))
    new = (*home.again(tmp_path / "new"), "--train_steps=50", "--keep_checkpoints=4")
    call("train", *new).refused("6 more checkpoints", "or keep fewer than --keep_checkpoints=4")
    call("train", *new, "--keep_checkpoints=2").refused("4 more checkpoints")
    outcome = call("train", *home.again(copied), "--train_steps=50")
    outcome.refused("more checkpoint", "free; free some space and run the command again")
    assert "fewer" not in outcome.err  # an existing run cannot change keep_checkpoints
