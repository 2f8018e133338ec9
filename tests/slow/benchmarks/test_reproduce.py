"""benchmarks/reproduce.py: it makes the rows that are missing, and no others."""

import dataclasses
import importlib
import json

import pytest
from helpers.commands import SMALL
from helpers.paths import ROOT

from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.files import lock_file

OVERRIDES = {"train_steps": 3, **dict(flag.lstrip("-").split("=") for flag in SMALL)}
OVERRIDES = {field: int(value) for field, value in OVERRIDES.items()}


@pytest.fixture
def reproduce(monkeypatch, tmp_path):
    """The program with an experiment of one run, in a folder of its own; `calls` lists the commands that it runs."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.chdir(tmp_path)
    program = importlib.import_module("reproduce")
    training = program.Training("reverse", "toy", 2, OVERRIDES, {"num_symbols": 7})
    monkeypatch.setattr(program, "EXPERIMENTS", {"small": [training]})
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
    (training,) = reproduce.EXPERIMENTS["small"]
    several = [reproduce.Evaluation("last", "test", {"beam_size": size}) for size in (1, 3)]
    reproduce.EXPERIMENTS["small"] = [dataclasses.replace(training, evaluations=several)]
    with lock_file(tmp_path / "runs" / "reproduce" / f"{training.name}.lock"):
        reproduce.main(["small", f"--json={file}"])
    assert reproduce.calls == [] and capsys.readouterr().out == f"{training.name}: another process is at it\n"
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
    # Rows of other runs do not count.
    changed, decoding = {**first["hparams"], "dropout": 0.3}, {**first["decoding"], "beam_size": 9}
    for other in ({"seed": 1}, {"hparams": changed}, {"settings": {"a": 1}}, {"decoding": decoding}):
        (tmp_path / "others.jsonl").write_text("".join(json.dumps({**row, **other}) + "\n" for row in rows(file)))
        reproduce.main(["small", f"--json={tmp_path}/others.jsonl", "--list"])
        assert capsys.readouterr().out.startswith("open  ")


def test_teachers_translate_the_training_text_once(reproduce, tmp_path, monkeypatch, capsys):
    """Once, whatever is stopped; another process that is at it is not disturbed."""
    teachers, done = tuple(reproduce.Training("toy_ende", "toy", seed) for seed in (1, 2)), []
    taught = {"extra_train": reproduce.TAUGHT}
    pupil = reproduce.Training("toy_ende", "toy", 3, {}, taught, [reproduce.Evaluation("best", "test")], teachers)

    def python(command, *flags, lock):
        done.append((command, *flags))
        if command == "translate":
            (tmp_path / f"{reproduce.TAUGHT}.de").write_text("ja\n")

    monkeypatch.setattr(reproduce, "python", python)
    reproduce.EXPERIMENTS["small"] = [pupil]
    (tmp_path / reproduce.TAUGHT).parent.mkdir(parents=True)
    with lock_file(tmp_path / f"{reproduce.TAUGHT}.lock"):
        reproduce.main(["small"])
    assert not done and capsys.readouterr().out.endswith("another process is at it\n")
    with lock_file(tmp_path / "runs" / "reproduce" / f"{teachers[1].name}.lock"):
        reproduce.main(["small"])  # the first one is trained
    assert len(done) == 2 and capsys.readouterr().out.endswith(f"{teachers[1].name}: another process is at it\n")
    del done[:]
    reproduce.main(["small"])
    assert [command for command, *_ in done] == 2 * ["train", "average"] + ["translate", "train", "evaluate"]
    first, second = (f"runs/reproduce/{teacher.name}" for teacher in teachers)
    files = [f"--input={reproduce.TAUGHT}.en", f"--output={reproduce.TAUGHT}.de"]
    assert done[4] == ("translate", f"--run={first}", f"--ensemble={second}", "--checkpoint=averaged", *files)
    assert f"problem.extra_train={reproduce.TAUGHT}" in done[5] and "--seed=3" in done[5]
    lines = (tmp_path / f"{reproduce.TAUGHT}.en").read_text().splitlines()
    assert lines == [source for source, _ in load_problem("toy_ende").examples("train")]
    del done[:]
    reproduce.main(["small"])
    assert [command for command, *_ in done] == ["train", "evaluate"]
