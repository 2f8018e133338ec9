"""Tables of the result pages: which rows of docs/results/*.jsonl they show, and how."""

import dataclasses
import json

import pytest
from helpers.paths import ROOT

from keras_transformer.config.hparams import changed_fields, load_hparams
from keras_transformer.tasks.problem import load_problem


@pytest.fixture(autouse=True)
def paths(monkeypatch):
    for folder in ("docs", "benchmarks"):
        monkeypatch.syspath_prepend(str(ROOT / folder))


def test_table3_page_has_a_row_per_variation():
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


def test_table3_variations_change_as_in_the_paper():
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


def test_length_page_compares_the_same_checkpoint_and_split():
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


def test_tiny_plus_page_has_a_row_per_change(tmp_path):
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

    taught = {"settings": {"extra_train": "taught"}, "ema_decay": 0.999, **smaller}
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
        f"| + extra_train=taught | averaged | {common} ± 0.00 | 42.50 ± 0.71 | 42.20 | 1, 2 |",
        f"| + extra_train=taught | ema | {common} | 42.50 | – | 1 |",
    ]
    assert {row["preset"] for row in rows if row["settings"]} == {"tiny_plus"}


def test_length_penalty_page_has_a_row_per_exponent():
    from pages.scores import length_penalty

    def row(seed, alpha, bleu, ratio):
        parts = [{"words": "1-10", "length_ratio": ratio}, {"words": "11-20", "length_ratio": 0.5}]
        return {"seed": seed, "decoding": {"alpha": alpha}, "tokenized_bleu": bleu, "by_length": parts}

    rows = [row(1, 1.3, 41.0, 1.0), row(2, 0.6, 40.5, 0.96), row(1, 0.6, 40.1, 0.98)]
    assert length_penalty(rows).splitlines()[-2:] == [
        "| 0.6 | 40.30 ± 0.28 | 0.970 | 0.500 | 1, 2 |",
        "| 1.3 | 41.00 | 1.000 | 0.500 | 1 |",
    ]


def test_layer_types_page_shows_the_rows():
    import layer_types

    rows = layer_types.read(ROOT / "docs" / "layer_types.jsonl")
    page = (ROOT / "docs" / "layer_types.md").read_text(encoding="utf-8")
    assert layer_types.tables(rows) in page
    assert " ".join(rows[0]["command"]) in page
    assert (ROOT / "docs" / "layer_types.png").stat().st_size < 150_000


def test_pupils_of_the_experiments_are_tiny_plus(monkeypatch):
    benchmarks = __import__("reproduce")
    taught = [training for training in benchmarks.EXPERIMENTS["tiny_plus"] if training.teachers]
    assert [training.seed for training in taught] == [1, 2, 3]
    for training in taught:
        assert load_hparams(training.preset, **training.overrides) == load_hparams("tiny_plus")


def test_experiments_name_valid_problems_and_hparams(monkeypatch):
    """Names are unique, problems and presets exist, and the fields take their values."""
    from reproduce import EXPERIMENTS

    trainings = [training for several in EXPERIMENTS.values() for training in several]
    names = {name: [training.name for training in several] for name, several in EXPERIMENTS.items()}
    assert all(len(set(several)) == len(several) for several in names.values()) and len(trainings) > 20
    for training in trainings:
        problem = load_problem(training.problem, raw_dir=".", **training.settings)
        hparams = dataclasses.asdict(load_hparams(training.preset, **training.overrides))
        assert changed_fields(training.preset, hparams) == training.overrides  # or its row would not be found
        usual = {field.name: field.default for field in dataclasses.fields(problem)}
        assert all(usual[name] != value for name, value in training.settings.items())


def test_experiments_have_valid_directory_names(monkeypatch):
    trainings = [one for experiment in __import__("reproduce").EXPERIMENTS.values() for one in experiment]
    assert max(len(training.name.encode()) for training in trainings) < 200
    # One of a preset that was changed since is another's.
    before = trainings[0].name
    monkeypatch.setattr("reproduce.load_hparams", lambda preset, **changes: load_hparams(preset, alpha=9.0, **changes))
    assert trainings[0].name != before
