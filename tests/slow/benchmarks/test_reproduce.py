"""Tests that benchmarks/reproduce.py adds only the missing result rows."""

import dataclasses
import gzip
import importlib
import json

import pytest
from helpers.commands import SMALL
from helpers.paths import ROOT

from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import lock_file

OVERRIDES = {"train_steps": 3, **dict(flag.lstrip("-").split("=") for flag in SMALL)}
OVERRIDES = {field: int(value) for field, value in OVERRIDES.items()}


@pytest.fixture
def reproduce(monkeypatch, tmp_path):
    """Return the module `reproduce` with one experiment, and set the working directory to a temporary folder.

    The list `calls` of the module contains the commands that it has run.
    """
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.chdir(tmp_path)
    program = importlib.import_module("reproduce")
    planned = program.PlannedRun("reverse", "toy", 2, OVERRIDES, {"num_symbols": 7})
    monkeypatch.setattr(program, "EXPERIMENTS", {"small": [planned]})
    program.calls = []

    def python(command, *flags, lock):
        program.calls.append(command)
        importlib.import_module(f"keras_transformer.{command}").main(list(flags))

    monkeypatch.setattr(program, "python", python)
    return program


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_reproduce_makes_missing_rows_once(reproduce, tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    (planned,) = reproduce.EXPERIMENTS["small"]
    several = [reproduce.Evaluation("last", "test", {"beam_size": size}) for size in (1, 3)]
    reproduce.EXPERIMENTS["small"] = [dataclasses.replace(planned, evaluations=several)]
    with lock_file(tmp_path / "runs" / "reproduce" / f"{planned.name}.lock"):
        reproduce.main(["small", f"--json={file}"])
    assert reproduce.calls == [] and capsys.readouterr().out == f"{planned.name}: another process is working on it\n"
    reproduce.main(["small", f"--json={file}"])
    assert reproduce.calls == ["train", "evaluate", "evaluate"]
    first, second = rows(file)
    assert [row["decoding"]["beam_size"] for row in (first, second)] == [1, 3]
    assert (first["checkpoint"]["name"], first["split"], first["seed"]) == ("last", "test", 2)
    assert first["settings"] == {"num_symbols": 7} and first["training"]["steps"] == 3
    del reproduce.calls[:]
    capsys.readouterr()
    reproduce.main(["small", f"--json={file}", "--list"])
    reproduce.main(["small", f"--json={file}"])
    assert reproduce.calls == [] and capsys.readouterr().out.startswith("done  reverse-toy-")
    # Rows with a different seed, hparams, settings or search options do not count as results of the planned run.
    changed, decoding = {**first["hparams"], "dropout": 0.3}, {**first["decoding"], "beam_size": 9}
    for other in ({"seed": 1}, {"hparams": changed}, {"settings": {"a": 1}}, {"decoding": decoding}):
        (tmp_path / "others.jsonl").write_text("".join(json.dumps({**row, **other}) + "\n" for row in rows(file)))
        reproduce.main(["small", f"--json={tmp_path}/others.jsonl", "--list"])
        assert capsys.readouterr().out.startswith("open  ")


def test_reproduce_trains_on_back_translations(reproduce, tmp_path):
    pairs = [(f"a b {k}", f"x y {k}") for k in range(40)]
    (tmp_path / "tok").mkdir()
    for name, part in {"train": pairs, "val": pairs[:5], "test_2016_flickr": pairs[5:9]}.items():
        for language, texts in zip(("en", "de"), zip(*part)):
            (tmp_path / "tok" / f"{name}.lc.norm.tok.{language}").write_text("".join(f"{text}\n" for text in texts))
    back = reproduce.PlannedRun("multi30k_deen_tok", "toy", 1, OVERRIDES, {"vocab_size": 40})
    synthetic = reproduce.Synthetic("runs/reproduce/back", (back,), "best", captions=True, tag="<bt>", copies=2)
    settings = {"vocab_size": 40, "extra_train": synthetic.path}
    planned = reproduce.PlannedRun(
        "multi30k_ende_tok", "toy", 1, OVERRIDES, settings, [reproduce.Evaluation("last", "test")], synthetic
    )
    reproduce.EXPERIMENTS["small"] = [planned]
    flags = ["small", f"--json={tmp_path}/rows.jsonl", f"--raw_dir={tmp_path}"]
    with pytest.raises(UserError, match=r"does not contain the captions of Multi30k's task 2 \(.*\.de\.gz\)"):
        reproduce.main(flags)
    assert reproduce.calls == []
    for number in (1, 2):
        path = tmp_path / "tok" / f"train.lc.norm.tok.{number}.de.gz"
        path.write_bytes(gzip.compress(f"x y {number}\ny\n".encode()))
    reproduce.main(flags)
    assert reproduce.calls == ["train", "translate", "train", "evaluate"]
    sides = [(tmp_path / f"runs/reproduce/back.{language}").read_text().splitlines() for language in ("en", "de")]
    *real, first, second, third, fourth = zip(*sides, strict=True)
    assert real == 2 * pairs and [first[1], second[1], third[1], fourth[1]] == ["x y 1", "y", "x y 2", "y"]
    assert all(source.startswith("<bt>") for source, _ in (first, second, third, fourth))
    (row,) = rows(tmp_path / "rows.jsonl")
    assert row["settings"] == settings and planned.matches(row)
