"""Tests of the result pages and of the experiments that produce the results."""

import dataclasses
import json
import secrets

import numpy as np
import pytest
from helpers.paths import ROOT

from keras_transformer.config.hparams import HParams, changed_fields, load_hparams
from keras_transformer.tasks.problem import load_problem


@pytest.fixture(autouse=True)
def paths(monkeypatch):
    for folder in ("docs", "benchmarks"):
        monkeypatch.syspath_prepend(str(ROOT / folder))


def test_table3_variations_change_as_in_paper():
    from pages.variations import ROW_OF_TABLE_3
    from reproduce import EXPERIMENTS

    changes = [tuple(run.overrides.items()) for run in EXPERIMENTS["table3"]]
    variations = {one[0] for one in changes if len(one) == 1}
    # Two values have no corresponding row: dropout 0.1 is the paper's base value, and dropout 0.2 is an increase in
    # Table 3, but a decrease from the value of `tiny_short`.
    assert variations - ROW_OF_TABLE_3.keys() == {("dropout", 0.1), ("dropout", 0.2)}
    assert ROW_OF_TABLE_3.keys() <= variations
    for (field, value), preset in ROW_OF_TABLE_3.items():
        field = {"d_k": "key_width"}.get(field, field)
        usual, base, papers = (getattr(load_hparams(name), field) for name in ("tiny_short", "base", preset))
        assert (value > usual, value < usual) == (papers > base, papers < base)


def test_table3_intervals_equal_t_test():
    """Check that bold differences are significant, and that the variance of all groups counts."""
    from pages.variations import difference
    from scipy.stats import t, ttest_ind

    seed = secrets.randbits(32)
    print("seed", seed)
    random, significant = np.random.default_rng(seed), set()
    for shift in np.linspace(0, 4, 20):
        values, base = random.normal(shift, size=3).tolist(), random.normal(size=2).tolist()
        test = ttest_ind(values, base)
        low, high = test.confidence_interval(0.95)
        text = f"{(low + high) / 2:+.2f} ± {(high - low) / 2:.2f}"
        assert difference(values, [base, values, [5.0]]) == (f"**{text}**" if test.pvalue < 0.05 else text)
        significant.add(test.pvalue < 0.05)
    assert significant == {True, False}
    # The squared deviations from the means of the groups sum up to 0 + 2 + 8 + 0, with 4 degrees of freedom.
    groups = [[1.0, 1.0], [4.0, 6.0], [3.0, 7.0, 5.0], [9.0]]
    assert difference([9.0], groups) == f"**+8.00 ± {t.ppf(0.975, 4) * np.sqrt(10 / 4 * (1 + 1 / 2)):.2f}**"


def test_layer_types_page_matches_rows():
    import layer_types

    rows = layer_types.read(ROOT / "docs" / "layer_types.jsonl")
    page = (ROOT / "docs" / "layer_types.md").read_text(encoding="utf-8")
    assert layer_types.tables(rows) in page
    assert " ".join(rows[0]["command"]) in page
    assert (ROOT / "docs" / "layer_types.png").stat().st_size < 150_000


def test_experiments_with_synthetic_pairs_use_tiny_plus():
    from reproduce import EXPERIMENTS

    runs = [run for run in EXPERIMENTS["tiny_plus"] if run.synthetic]
    assert [(run.seed, run.synthetic.captions) for run in runs] == [
        (1, False), (2, False), (3, False), (1, True), (1, True)
    ]  # fmt: skip
    for run in runs:
        expected = load_hparams("tiny_plus", train_steps=26_400 if run is runs[-1] else 12_000)
        assert load_hparams(run.preset, **run.overrides) == expected


def test_experiments_name_valid_problems_and_hparams(monkeypatch):
    """Check that names of runs are unique, that problems and presets exist, and that all settings are valid."""
    from reproduce import EXPERIMENTS

    runs = [run for several in EXPERIMENTS.values() for run in several]
    names = {name: [run.name for run in several] for name, several in EXPERIMENTS.items()}
    assert all(len(set(several)) == len(several) for several in names.values()) and len(runs) > 20
    for run in runs:
        problem = load_problem(run.problem, raw_dir=".", **run.settings)
        hparams = dataclasses.asdict(load_hparams(run.preset, **run.overrides))
        # `reproduce.py` uses this comparison to find the result rows of a run.
        assert changed_fields(run.preset, hparams) == run.overrides
        usual = {field.name: field.default for field in dataclasses.fields(problem)}
        changed = {name: value for name, value in problem.parameters.items() if value != usual[name]}
        assert changed == run.settings


def test_experiments_have_valid_directory_names(monkeypatch):
    runs = [one for experiment in __import__("reproduce").EXPERIMENTS.values() for one in experiment]
    assert max(len(run.name.encode()) for run in runs) < 200
    # If a preset changes, its runs get new names.
    before = runs[0].name
    monkeypatch.setattr("reproduce.load_hparams", lambda preset, **changes: load_hparams(preset, alpha=9.0, **changes))
    assert runs[0].name != before


def test_result_rows_have_current_hparams_only():
    today = {field.name for field in dataclasses.fields(HParams)}
    rows = [
        json.loads(line)
        for path in (ROOT / "docs" / "results").glob("*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    trained = [row["hparams"] for row in rows if isinstance(row.get("hparams"), dict)]
    assert trained
    assert all(hparams.keys() <= today for hparams in trained)  # reproduce.py compares these fields with the preset


def test_reproduce_skips_incomplete_rows(tmp_path):
    from reproduce import EXPERIMENTS, open_evaluations

    row = json.loads((ROOT / "docs" / "results" / "table3.jsonl").read_text(encoding="utf-8").split("\n")[0])
    row, path = json.dumps({**row, "machine": "a\u2028b"}, ensure_ascii=False), tmp_path / "rows.jsonl"
    path.write_bytes(b'{"machine": "\xe2\x80' + f"\n{row}\n".encode())  # the first row ends within a character
    planned = [evaluation for one in EXPERIMENTS["table3"] for evaluation in one.planned_evaluations()]
    missing = [evaluation for one in EXPERIMENTS["table3"] for evaluation in open_evaluations(one, path)]
    assert len(missing) == len(planned) - 1


def test_result_pages_name_incomplete_row(monkeypatch, tmp_path):
    from pages import tables

    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"host": "a\u2028b"}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert tables.rows_of("rows") == [{"host": "a\u2028b"}]
    path.write_text("{}\n{\n{}\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"rows\.jsonl:2: "):
        tables.rows_of("rows")
