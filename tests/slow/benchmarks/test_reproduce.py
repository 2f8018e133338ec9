"""The experiments: what is open is done, what was stopped goes on, what is done is left."""

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from helpers.commands import SMALL
from helpers.paths import ROOT

from keras_transformer.files import lock_file
from keras_transformer.flags import run_command
from keras_transformer.hyperparameters import load_hparams
from keras_transformer.tasks import load_problem

OVERRIDES = {"train_steps": 6, "average_last": 2, **dict(flag.lstrip("-").split("=") for flag in SMALL)}
OVERRIDES = {**{field: int(value) for field, value in OVERRIDES.items()}, "ema_decay": 0.9}


@pytest.fixture
def reproduce(monkeypatch, tmp_path):
    """The program, with an experiment of one training, in a folder of its own; `calls` tells what it runs, here."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.chdir(tmp_path)
    program = importlib.import_module("reproduce")
    training = program.Training("reverse", "toy", 2, OVERRIDES, {"num_symbols": 7})
    monkeypatch.setattr(program, "EXPERIMENTS", {"small": [training]})
    monkeypatch.setattr(program, "real_python", program.python, raising=False)
    program.calls = []

    def python(command, *flags, lock):
        program.calls.append(command)
        importlib.import_module(f"keras_transformer.{command}").main(list(flags))

    monkeypatch.setattr(program, "python", python)
    return program


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_what_is_taught_is_tiny_plus(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmarks = importlib.import_module("reproduce")
    taught = [training for training in benchmarks.EXPERIMENTS["tiny_plus"] if training.teachers]
    assert [training.seed for training in taught] == [1, 2, 3]
    for training in taught:
        assert load_hparams(training.preset, **training.overrides) == load_hparams("tiny_plus")


def test_the_open_rows_are_made_once(reproduce, tmp_path, monkeypatch, capsys):
    file, python = tmp_path / "rows.jsonl", reproduce.python

    def stopped(command, *flags, lock):
        python(command, *flags, lock=lock)
        if reproduce.calls.count("evaluate") == 5:
            raise SystemExit(143)

    monkeypatch.setattr(reproduce, "python", stopped)
    with pytest.raises(SystemExit):
        reproduce.main(["small", f"--json={file}", "--precision=bfloat16"])
    names = ("best", "averaged", "ema")
    wanted = [(name, split) for name in names for split in ("validation", "test")]
    assert [(row["checkpoint"]["name"], row["split"]) for row in rows(file)] == wanted[:5]
    monkeypatch.setattr(reproduce, "python", python)
    del reproduce.calls[:]
    reproduce.main(["small", f"--json={file}"])
    assert reproduce.calls == ["train", "evaluate"]
    assert [(row["checkpoint"]["name"], row["split"]) for row in rows(file)] == wanted
    trainings = [row["training"] for row in rows(file)]
    assert all((training["steps"], training["precision"]) == (6, "bfloat16") for training in trainings)
    assert all(row["seed"] == 2 and row["settings"] == {"num_symbols": 7} for row in rows(file))
    del reproduce.calls[:]
    capsys.readouterr()
    reproduce.main(["small", f"--json={file}", "--list"])
    reproduce.main(["small", f"--json={file}"])
    assert reproduce.calls == [] and capsys.readouterr().out.startswith("done  reverse-toy-")
    # A row of another training is not its.
    changed, decoding = {**rows(file)[0]["hparams"], "dropout": 0.3}, {**rows(file)[0]["decoding"], "beam_size": 9}
    for other in ({"seed": 1}, {"hparams": changed}, {"settings": {"a": 1}}, {"decoding": decoding}):
        (tmp_path / "others.jsonl").write_text("".join(json.dumps({**row, **other}) + "\n" for row in rows(file)))
        reproduce.main(["small", f"--json={tmp_path}/others.jsonl", "--list"])
        assert capsys.readouterr().out.startswith("open  ")


def test_what_another_process_is_at_is_left_to_it(reproduce, tmp_path, capsys):
    [training] = reproduce.EXPERIMENTS["small"]
    with lock_file(tmp_path / "runs" / "reproduce" / f"{training.name}.lock") as alone:
        assert alone
        reproduce.main(["small", f"--json={tmp_path}/rows.jsonl"])
    assert reproduce.calls == [] and capsys.readouterr().out == f"{training.name}: another process is at it\n"
    reproduce.EXPERIMENTS["small"] = [dataclasses.replace(training, evaluations=[reproduce.Evaluation("last", "test")])]
    reproduce.main(["small", f"--json={tmp_path}/rows.jsonl"])
    assert reproduce.calls == ["train", "evaluate"]


@pytest.mark.parametrize("status", [143, 0])  # 0: it came when the command was about to end anyway
def test_a_signal_is_the_command_s_and_ends_both(reproduce, tmp_path, monkeypatch, status):
    command = tmp_path / "python"
    trap = f"trap 'echo \"$2\" > ended; exit {status}' TERM"
    command.write_text(f"#!/bin/sh\n{trap}\ntouch begun\nsleep 60 & wait\n")
    command.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(command))

    def signal_when_begun():
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=signal_when_begun).start()
    with pytest.raises(SystemExit) as ended, lock_file(tmp_path / "lock") as lock:
        reproduce.real_python("train", "--seed=1", lock=lock)
    assert ended.value.code == 143 and (tmp_path / "ended").read_text() == "keras_transformer.train\n"
    assert signal.getsignal(signal.SIGTERM) is before


KILLED = """
import sys
from pathlib import Path
from keras_transformer.files import lock_file
import reproduce
sys.executable = "./command"
with lock_file(Path("lock")) as lock:
    reproduce.python("train", lock=lock)
"""


def test_a_command_that_outlives_the_program_keeps_its_training_to_itself(tmp_path, monkeypatch):
    command, begun = tmp_path / "command", tmp_path / "begun"
    command.write_text("#!/bin/sh\necho $$ > begun.new && mv begun.new begun\nexec sleep 60\n")
    command.chmod(0o755)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    with subprocess.Popen([sys.executable, "-c", KILLED], cwd=tmp_path, env={"PYTHONPATH": paths}) as program:
        while not begun.exists() and program.poll() is None:
            time.sleep(0.01)
        program.kill()
    with lock_file(tmp_path / "lock") as lock:
        assert not lock
    os.kill(int(begun.read_text()), signal.SIGKILL)
    deadline = time.monotonic() + 10
    while not lock and time.monotonic() < deadline:
        with lock_file(tmp_path / "lock") as lock:
            time.sleep(0.01)
    assert lock


def test_table_3_in_small_has_a_line_for_each_variation(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from pages.in_small import table3

    def row(split, name="last", seed=1, **changes):
        worse = len(changes) + seed / 4 - 0.25
        return {
            "split": split, "checkpoint": {"name": name}, "seed": seed, "parameters": 2_562_048,
            "perplexity": 5.678 + worse, "training": {"steps": 1500}, "backend": "jax",
            "tokenized_bleu": (38.1 if split == "validation" else 37.2) - worse,
            "overrides": {"seed": seed, **changes},
        }  # fmt: skip

    rows = [row("validation", seed=2), row("validation", num_heads=16, norm="pre")]
    rows += [row("validation", dropout=0.1), row("test", num_heads=16)]
    rows += [row("validation", num_heads=1), row("test", num_heads=1)]
    lines = table3([*rows, row("test", "best"), row("validation"), row("test")]).splitlines()
    assert [line for line in lines if line.startswith("|")][2:] == [
        "|  | – | jax | 2,562,048 | 1,500 | 5.68 | 38.10 | 37.20 | – | – | 1 |",
        "|  | – | jax | 2,562,048 | 1,500 | 5.93 | 37.85 | – | +0.25 / -0.25 | – | 2 |",
        "| A | num_heads=1 | jax | 2,562,048 | 1,500 | 6.68 | 37.10 | 36.20 | +1.00 / -1.00 | +0.37 / -0.90 | 1 |",
        "| A | num_heads=16 | jax | 2,562,048 | 1,500 | – | – | 36.20 | – | +0.09 / -0.40 | 1 |",
        "| A | num_heads=16, norm=pre | jax | 2,562,048 | 1,500 | 7.68 | 36.10 | – | +2.00 / -2.00 | – | 1 |",
        "| D | dropout=0.1 | jax | 2,562,048 | 1,500 | 6.68 | 37.10 | – | +1.00 / -1.00 | – | 1 |",
    ]


def test_each_variation_has_the_paper_s_that_changes_the_same_in_the_same_direction(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from pages.in_small import ROW_OF_TABLE_3
    from reproduce import EXPERIMENTS

    changes = [tuple(training.overrides.items()) for training in EXPERIMENTS["table3"]]
    variations = {one[0] for one in changes if len(one) == 1}
    assert variations - ROW_OF_TABLE_3.keys() == {("dropout", 0.1), ("dropout", 0.2)}  # the paper's base has 0.1
    assert ROW_OF_TABLE_3.keys() <= variations
    for (field, value), preset in ROW_OF_TABLE_3.items():
        field = {"d_k": "key_width"}.get(field, field)
        usual, base, papers = (getattr(load_hparams(name), field) for name in ("tiny_short", "base", preset))
        assert (value > usual, value < usual) == (papers > base, papers < base)


def test_results_by_length_are_of_the_same_checkpoint_and_split(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from pages.in_small import extrapolation

    def row(split="test", name="last", **changes):
        part = {"words": "21-30", "lines": 70, "score": 12.345, "perplexity": None, "length_ratio": 0.5}
        return {
            "split": split, "checkpoint": {"name": name}, "seed": 1, "by_length": [part, {**part, "words": "31-40"}],
            "overrides": {"seed": 1, **changes}, "training": {"steps": 1500},
            "hparams": {"max_length": changes.get("max_length", 256)}, "backend": "jax",
        }  # fmt: skip

    short = {"max_length": 16}
    others = [row(), row("validation"), row(dropout=0.1), row(name="best")]
    lines = extrapolation([row(**short, positions="learned"), row("validation", **short)], others).splitlines()
    assert lines[-4:] == [
        f"| {training} | jax | 1,500 | {words} | 70 | 12.35 | 0.50 | – | 1 |"
        for training in ("sinusoidal | 256", "learned | 16") for words in ("21-30", "31-40")
    ]  # fmt: skip


def test_a_better_tiny_has_a_line_for_each_change(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from pages.in_small import one_by_one
    from pages.markdown import rows_of

    smaller = {"batch_tokens": 2048, "learning_rate_scale": 1.3, "train_steps": 12_000, "patience": None}
    smaller |= {"eval_steps": 240, "decode_steps": 1200, "checkpoint_steps": 240}

    def row(split, bleu, name="averaged", settings=(), seed=1, **changes):
        hparams = dataclasses.asdict(load_hparams("tiny", seed=seed, **changes))
        return {
            "problem": "multi30k_ende_tok", "preset": "tiny", "settings": dict(settings), "seed": seed, "split": split,
            "checkpoint": {"name": name}, "tokenized_bleu": bleu, "perplexity": 5.0, "parameters": 2_562_048,
            "training": {"tokens": 45_200_000, "precision": "bfloat16"}, "overrides": {}, "hparams": hparams,
            "decoding": {},
        }  # fmt: skip

    def read(*rows):
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return rows_of(tmp_path / "rows.jsonl")

    taught = {"settings": {"more_pairs": "taught"}, "ema_decay": 0.999, **smaller}
    rows = read(
        row("validation", 41.5, **smaller), row("test", 41.0, **smaller),
        row("validation", 41.0, norm="pre", **smaller),
        row("validation", 42.0, **taught), row("validation", 42.5, "ema", **taught),
        row("validation", 43.0, seed=2, **taught), row("test", 42.2, seed=2, **taught),
    )  # fmt: skip
    others = read(
        row("test", 9, dropout=0.1), row("test", 40, "best"), row("validation", 41.2), row("validation", 42.2, seed=2)
    )
    common = "tensorflow, bfloat16 | 2,562,048 | 45M | 5.00"
    assert one_by_one(rows, others).splitlines()[-5:] == [
        f"| `tiny` | averaged | {common} ± 0.00 | 41.70 ± 0.71 | – | 1, 2 |",
        f"| smaller updates | averaged | {common} | 41.50 | 41.00 | 1 |",
        f"| + norm=pre | averaged | {common} | 41.00 | – | 1 |",
        f"| + more_pairs=taught | averaged | {common} ± 0.00 | 42.50 ± 0.71 | 42.20 | 1, 2 |",
        f"| + more_pairs=taught | ema | {common} | 42.50 | – | 1 |",
    ]
    assert {row["preset"] for row in rows if row["settings"]} == {"tiny_plus"}


def test_the_length_penalty_has_a_line_for_each_exponent(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from pages.scores import length_penalty

    def row(seed, alpha, bleu, ratio):
        parts = [{"words": "1-10", "length_ratio": ratio}, {"words": "11-20", "length_ratio": 0.5}]
        return {"seed": seed, "decoding": {"alpha": alpha}, "tokenized_bleu": bleu, "by_length": parts}

    rows = [row(1, 1.3, 41.0, 1.0), row(2, 0.6, 40.5, 0.96), row(1, 0.6, 40.1, 0.98)]
    assert length_penalty(rows).splitlines()[-2:] == [
        "| 0.6 | 40.30 ± 0.28 | 0.970 | 0.500 | 1, 2 |",
        "| 1.3 | 41.00 | 1.000 | 0.500 | 1 |",
    ]


def test_a_run_s_directory_has_a_name_that_a_file_system_takes(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    trainings = [one for experiment in importlib.import_module("reproduce").EXPERIMENTS.values() for one in experiment]
    assert max(len(training.name.encode()) for training in trainings) < 200
    # One of a preset that was changed since is another's.
    before = trainings[0].name
    monkeypatch.setattr("reproduce.load_hparams", lambda preset, **changes: load_hparams(preset, alpha=9.0, **changes))
    assert trainings[0].name != before


def test_rows_are_those_that_a_training_asks_for(reproduce, tmp_path):
    several = [reproduce.Evaluation("ema", "test", {"beam_size": size}) for size in (3, 5)]
    reproduce.EXPERIMENTS["small"] = [reproduce.Training("reverse", "toy", 2, OVERRIDES, {}, several)]
    reproduce.main(["small", f"--json={tmp_path}/rows.jsonl"])
    found = rows(tmp_path / "rows.jsonl")
    kinds = [(row["checkpoint"]["name"], row["split"], row["decoding"]["beam_size"]) for row in found]
    assert kinds == [("ema", "test", 3), ("ema", "test", 5)] and found[0]["hparams"]["beam_size"] not in (3, 5)
    assert reproduce.calls == ["train", "evaluate", "evaluate"]
    (tmp_path / "rows.jsonl").write_text(json.dumps(found[0]) + "\n")
    del reproduce.calls[:]
    reproduce.main(["small", f"--json={tmp_path}/rows.jsonl"])
    assert reproduce.calls == ["train", "evaluate"] and rows(tmp_path / "rows.jsonl")[1]["decoding"]["beam_size"] == 5


def test_teachers_translate_the_training_text_together(reproduce, tmp_path, monkeypatch, capsys):
    """Once, whatever is stopped; another process that is at it is not disturbed."""
    teachers, done = tuple(reproduce.Training("toy_ende", "toy", seed) for seed in (1, 2)), []
    taught = {"more_pairs": reproduce.TAUGHT}
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
    assert f"problem.more_pairs={reproduce.TAUGHT}" in done[5] and "--seed=3" in done[5]
    lines = (tmp_path / f"{reproduce.TAUGHT}.en").read_text().splitlines()
    assert lines == [source for source, _ in load_problem("toy_ende").examples("train")]
    del done[:]
    reproduce.main(["small"])
    assert [command for command, *_ in done] == ["train", "evaluate"]


def test_an_unknown_experiment_is_one_sentence(reproduce, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["reproduce.py", "large"])
    with pytest.raises(SystemExit) as ended:
        run_command(reproduce.main)
    assert ended.value.code == 2 and capsys.readouterr().err.startswith("error: argument experiment: invalid choice")


def test_every_experiment_s_trainings_are_ones_that_train_would_take(monkeypatch):
    """Names are unique, problems and presets exist, and the fields take their values."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from reproduce import EXPERIMENTS

    from keras_transformer.hyperparameters import changed_fields

    trainings = [training for several in EXPERIMENTS.values() for training in several]
    names = {name: [training.name for training in several] for name, several in EXPERIMENTS.items()}
    assert all(len(set(several)) == len(several) for several in names.values()) and len(trainings) > 20
    for training in trainings:
        problem = load_problem(training.problem, raw_dir=".", **training.settings)
        hparams = dataclasses.asdict(load_hparams(training.preset, **training.overrides))
        assert changed_fields(training.preset, hparams) == training.overrides  # or its row would not be found
        usual = {field.name: field.default for field in dataclasses.fields(problem)}
        assert all(usual[name] != value for name, value in training.settings.items())
