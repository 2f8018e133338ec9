"""Smoke tests of the benchmarks that need a trained run."""

import json

import pytest
from helpers.paths import ROOT


def test_exports_benchmark_compares_exports(home, tmp_path, monkeypatch):
    pytest.importorskip("tensorflow_text")
    pytest.importorskip("ctranslate2")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import exports

    rows = tmp_path / "rows.jsonl"
    variants = "--variants=saved_model float32,ctranslate2 float32"
    monkeypatch.chdir(home.path)  # where its prepared corpus is
    exports.main([f"--run={home.run}", "--sentences=20", variants, f"--json={rows}"])
    ours, other = map(json.loads, rows.read_text().splitlines())
    assert ours["same"] == ours["same_alone"] == ours["awkward"] == ours["awkward_alone"] == other["same_greedy"] == 1
    assert ours["max_score_difference"] < 1e-4 and other["max_log_probability_difference"] < 1e-3
    assert ours["score"] == ours["reference_score"]


def test_serve_benchmark_compares_every_answer(home, tmp_path, monkeypatch):
    pytest.importorskip("fastapi")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import serve

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(home.path)  # where its prepared corpus is
    monkeypatch.setattr(serve, "WARM_UP", 1)
    flags = f"--run={home.run}", "--sentences=20", "--seconds=1", f"--json={tmp_path}/rows.jsonl"
    serve.main([*flags, "--clients=1,4"])
    one, four = map(json.loads, (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines())
    assert (one["clients"], four["clients"]) == (1, 4) and one["model"] == "reverse-toy"
    assert one["answers"] > 0 and four["answers"] > 0
    assert one["wrong"] == one["errors"] == four["wrong"] == four["errors"] == 0
    monkeypatch.setattr(serve, "questions_of", lambda *arguments: [("s1 s2", "something else")])
    serve.main([*flags, "--clients=1"])
    last = json.loads((tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert last["wrong"] == last["answers"] > 0
