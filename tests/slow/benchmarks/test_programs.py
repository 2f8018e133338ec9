"""Tests that every program in benchmarks/ runs with small input and writes its result rows."""

import contextlib
import importlib
import io
import itertools
import json
import shutil
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest
from helpers.paths import ROOT

import keras_transformer as kt
from keras_transformer.decoding.translator import Translator
from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError

PROGRAMS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text())
THIS = keras.backend.backend()
on_tensorflow = pytest.mark.skipif(THIS != "tensorflow", reason="requires TensorFlow")


@pytest.fixture(autouse=True)
def paths(monkeypatch, tmp_path):
    """Set the working directory to a temporary folder, and put the programs and the package on the import path."""
    for folder in ("benchmarks/engines", "benchmarks"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def rows_of(monkeypatch, tmp_path):
    """Return a function that runs a program in this process and returns its result rows."""

    def rows_of(name, *flags):
        program, path = importlib.import_module(name), tmp_path / "rows.jsonl"
        flags = [*map(str, flags), f"--json={path}"]
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *flags])
        program.main(*([flags] if program.main.__code__.co_argcount else []))
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert rows and all({"command", "commit", "machine"} <= row.keys() for row in rows)
        return rows

    return rows_of


@pytest.mark.parametrize("name", PROGRAMS)
def test_benchmark_prints_help(name, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    program = importlib.import_module(name)
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit) as end:
        program.main(*([["--help"]] if program.main.__code__.co_argcount else []))
    assert end.value.code == 0 and "--json" in printed.getvalue()


def test_checkpoints_measures_one_size(rows_of):
    (row,) = rows_of("checkpoints", "--sizes=toy", "--times=1", "--tokens=64")
    assert row["write_seconds"] > 0 and 0 < row["share"] < 1


def test_consumers_names_reason_of_a_failed_consumer(rows_of, home):
    """Pass the tests' interpreter. It fails, because it can import keras_transformer or finds no tokenizer.model."""
    pytest.importorskip("ctranslate2")
    flags = (f"--run={home.run}", "--sentences=3", "--formats=ctranslate2", f"--python={sys.executable}")
    with pytest.raises(UserError, match="--python=.* could not translate: .+ Use an interpreter"):
        rows_of("consumers", *flags)


def test_decode_measures_this_project(rows_of, monkeypatch):
    program = importlib.import_module("decode")
    monkeypatch.setattr(program, "SIZES", {"tiny": ("tiny", 50)})
    monkeypatch.setattr(program, "SENTENCES", 4)
    mode = program.MODES[THIS][0]
    flags = ("--engines=keras_transformer", "--precisions=float32", "--repeats=1", f"--modes={mode}")
    (row,) = rows_of("decode", *flags, "--threads=1")
    assert row["output_tokens"] == 4 * 26 and row["peak_memory_mb"] > 100


@on_tensorflow
def test_decode_profile_finds_matrix_products(monkeypatch, tmp_path):
    decode, program = importlib.import_module("decode"), importlib.import_module("decode_profile")
    monkeypatch.setattr(decode, "SIZES", {"tiny": ("tiny", 50)})
    monkeypatch.setattr(decode, "SENTENCES", 4)
    # The number of threads cannot change after TensorFlow has started.
    monkeypatch.setattr(program.protocol, "limit_threads", lambda *_: None)
    row = program.measure(decode.forced("tiny", tmp_path), "graph", "float32")
    assert 0 < row["shares"]["matrix products"] < 1 and row["products_flops_per_second"] > 0


def test_exports_compares_formats(rows_of, home):
    pytest.importorskip("ctranslate2")
    variants = "--variants=ctranslate2 float32,engine float32"
    row, engine = rows_of("exports", f"--run={home.run}", "--sentences=3", variants)
    assert (row["format"], row["precision"], row["sentences"]) == ("ctranslate2", "float32", 3)
    assert (engine["format"], engine["same_greedy"]) == ("engine", 1)


def test_layer_types_measures_all_layers_and_sizes(rows_of, monkeypatch, tmp_path):
    program = importlib.import_module("layer_types")
    for name, value in {"WIDTH": 16, "LENGTH": 32, "BATCH": 1}.items():
        monkeypatch.setattr(program, name, value)
    flags = "--lengths=32,64", "--widths=16,32", "--repeats=2", f"--output={tmp_path}/plot.png"
    rows = rows_of("layer_types", *flags)
    assert len(rows) == 7 * 3 * 2  # 7 layers, 3 pairs of length and width, 2 passes
    assert len({row["layer"] for row in rows}) == 7
    assert all(0 < row["seconds"] <= row["median_seconds"] < 10 for row in rows)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_layer_types_counts_all_matrix_products(monkeypatch):
    program = importlib.import_module("layer_types")
    monkeypatch.setattr(program, "WINDOW", 6)
    matmul = keras.ops.matmul
    for kind in program.kinds():
        if "O(n·d²)" in kind.operations or "k·n" in kind.operations:
            continue  # Keras' own layers do not use keras.ops.matmul
        counted = []

        def count(a, b, counted=counted):
            product = matmul(a, b)
            counted.append(2 * int(np.prod(product.shape)) * a.shape[-1])
            return product

        layer = kind.make(16)
        layer.build((1, 20, 16))
        monkeypatch.setattr(keras.ops, "matmul", count)
        layer(np.ones((1, 20, 16), "float32"))
        monkeypatch.setattr(keras.ops, "matmul", matmul)
        assert sum(counted) == kind.flops(20, 16), kind.name


def test_memory_measures_one_update(rows_of, monkeypatch):
    monkeypatch.setattr(importlib.import_module("memory"), "WAYS", {"whole": {}})
    (row,) = rows_of("memory", "--hparams", "toy", "--tokens", "64", "--vocab_size=50")
    assert row["peak_mb"] > 100


def test_parsing_baselines_parse_the_toy_problem(rows_of, monkeypatch, tmp_path):
    problem = type(kt.problem("toy_parsing"))
    trees, count = problem.trees, {"train": 1500, "test": 50}
    monkeypatch.setattr(problem, "trees", lambda self, split: itertools.islice(trees(self, split), count[split]))
    right, pcfg = rows_of("parsing_baselines", f"--output_dir={tmp_path}")
    assert (right["parser"], pcfg["parser"]) == ("right_branching", "pcfg")
    assert pcfg["f1"] > 90 > 50 > right["f1"] > 0 and pcfg["errors"] == pcfg["fallbacks"] == 0


def test_parsing_speed_counts_whole_trees(rows_of, monkeypatch):
    problem = kt.problem("toy_parsing")
    pairs = list(itertools.islice(problem.examples("test"), 3))
    # The fake parser returns the second sentence's tree for the first sentence, so one tree is wrong.
    trees = {sentence: tree for sentence, tree in pairs} | {pairs[0][0]: pairs[1][1]}
    translator = types.SimpleNamespace(
        translate=lambda sentences, **_: [[types.SimpleNamespace(text=trees[sentence])] for sentence in sentences]
    )
    monkeypatch.setattr(Run, "open", lambda path: types.SimpleNamespace(problem=problem))
    monkeypatch.setattr(Translator, "load", lambda *_: translator)
    (row,) = rows_of("parsing_speed", "--run=x", "--sentences=3")
    assert (row["sentences"], row["whole_trees"]) == (3, 2)


def test_precision_compares_validations(rows_of, monkeypatch, home):
    def run(command, **_):
        (folder,) = (flag.removeprefix("--output_dir=") for flag in command if flag.startswith("--output_dir="))
        shutil.copytree(home.run, folder)
        return types.SimpleNamespace(returncode=0, stderr="")

    program = importlib.import_module("precision")
    monkeypatch.setattr(program, "subprocess", types.SimpleNamespace(run=run, DEVNULL=None, PIPE=None))
    first, second = rows_of("precision", "--problem=reverse", "--seeds", "1")
    assert (first["precision"], second["precision"]) == ("float32", "bfloat16")
    assert second["nll_over_float32"] == 1


def test_data_path_measures_every_workload(rows_of):
    rows = rows_of("data_path", "--pairs=3000,6000", "--stored_pairs=2000", "--batches=3", "--batch_tokens=2000")
    rates = {row["workload"]: row["tokens_per_second"] for row in rows if "tokens_per_second" in row}
    assert rates.keys() == ({"assembly", "tf_data"} if THIS == "tensorflow" else {"jax"})
    assert all(rate > 0 for rate in rates.values())
    plans = [row for row in rows if row["workload"] == "plan"]
    assert [row["pairs"] for row in plans] == ([3000, 6000] if THIS == "tensorflow" else [])
    for row in plans:
        assert min(row["open_seconds"], row["first_batch_seconds"], row["epoch_boundary_seconds"]) > 0
    for row in rows:
        if row["workload"] == "mixing":
            assert 0 < row["share_that_meets_again"] <= 1 and row["real_share_shapes"] <= row["real_share_longest"] < 1


@pytest.mark.skipif(THIS != "jax", reason="the report requires KERAS_BACKEND=jax")
@pytest.mark.backend
def test_gpu_report_measures_every_workload_in_miniature(rows_of, tmp_path):
    rows = rows_of("gpu_report", "--miniature", f"--page={tmp_path}/page.md")
    by_workload = {row["workload"]: row for row in rows}
    assert list(by_workload) == ["rate", "train", "phases", "program", "decode", "learn"]
    assert [(row["hparams"], row["lengths"]) for row in rows if row["workload"] == "train"] == [
        ("base", "wmt"), ("base", "fixed"), ("big", "wmt"), ("big", "fixed"),
    ]  # fmt: skip
    assert all(row["target_tokens_per_second"] > 0 for row in rows if row["workload"] == "train")
    assert by_workload["program"]["products"]["bf16"] > 20 and by_workload["program"]["host_transfers"] == 0
    assert by_workload["program"]["products"]["f32"] == 1  # the mean logits for label smoothing
    assert by_workload["decode"]["output_tokens"] == 4 * 6 and by_workload["learn"]["updates"] == 2
    page = (tmp_path / "page.md").read_text()
    assert all(f"## {workload}" in page for workload in by_workload) and "| utilization |" in page


@pytest.mark.skipif(THIS != "jax", reason="only JAX compiles each shape")
@pytest.mark.backend
def test_compilation_measures_cold_and_warm_cache(rows_of):
    cold, warm = rows_of("compilation", "--updates=2")
    assert (cold["cache"], warm["cache"]) == ("cold", "warm") and cold["shapes"] == warm["shapes"] == 2
    assert 0 < warm["first_update_seconds"] <= warm["all_updates_seconds"]


def test_prepare_measures_all_phases(rows_of, tmp_path):
    (row,) = rows_of("prepare", "--pairs=2000", "--vocab_size=200", "--workers=1", f"--folder={tmp_path}/corpus")
    assert len(row["phases"]) == 3 and all(phase["seconds"] > 0 for phase in row["phases"].values())


def test_serve_measures_the_server(rows_of, home, monkeypatch):
    monkeypatch.setattr(importlib.import_module("serve"), "WARM_UP", 0.2)
    (row,) = rows_of("serve", f"--run={home.run}", "--clients=2", "--seconds=1", "--sentences=3")
    assert row["clients"] == 2 and row["wrong"] == 0 and row["errors"] == 0


def test_serve_counts_wrong_answers(rows_of, home, monkeypatch):
    program = importlib.import_module("serve")
    monkeypatch.setattr(program, "WARM_UP", 0.2)
    monkeypatch.setattr(program, "questions_of", lambda *arguments: [("s1 s2", "something else")])
    (row,) = rows_of("serve", f"--run={home.run}", "--clients=1", "--seconds=1")
    assert row["wrong"] == row["answers"] > 0


def test_latency_compares_medians_of_all_requests():
    """Take `first_ms` and `p50_ms` from the same requests, so that a slow round affects both alike."""
    program = importlib.import_module("latency")
    slow = {"latencies": [9.0], "first": [8.0], "per_second": 1}
    fast = {"latencies": [3.0, 3.0, 3.0], "first": [2.0, 2.0, 2.0], "per_second": 3}
    result = program.summary([slow, fast])
    assert (result["first_ms"], result["p50_ms"]) == (2.0, 3.0)


def test_latency_measures_all_workloads(rows_of, copied, monkeypatch, tmp_path):
    pytest.importorskip("ctranslate2")
    program = importlib.import_module("latency")
    monkeypatch.setattr(program, "LINES", 3)
    monkeypatch.setattr(program, "WARM_UP", 0.2)
    flags = ["--engines=ctranslate2", "--workloads=single,cold_start,lines_1000,server_2,stream_64", "--rounds=2"]
    (tmp_path / "before").symlink_to(ROOT)
    flags += ["--seconds=1", "--sentences=3", "--baseline=before", f"--plot={tmp_path}/plot.png"]
    rows = rows_of("latency", f"--run={copied}", *flags)
    single, cold, lines, server, stream = (row for row in rows if row["over_baseline"])
    assert (single["count"], cold["count"], lines["count"]) == (4, 2, 2)
    assert 0 < single["p50_ms"] < cold["p50_ms"] and lines["per_second"] > cold["per_second"]
    assert server["wrong"] == server["errors"] == 0 and server["first_ms"] > 0
    assert stream["wrong"] == stream["errors"] == 0 and 0 < stream["first_ms"] <= stream["p50_ms"]
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@on_tensorflow
def test_train_profile_finds_all_matrix_products(monkeypatch):
    program, train_step = importlib.import_module("train_profile"), importlib.import_module("train_step")
    small = train_step.Size("tiny", 60, 8, 64, 1)
    monkeypatch.setitem(program.SIZES, "small", small)
    for limit in ("product_rate", "copy_rate"):
        monkeypatch.setattr(program, limit, lambda *_: 1e10)
    row = program.measure("small", "float32")
    model = kt.Transformer.from_hparams(kt.hparams("tiny"), vocab_size=small.vocab_size)
    found = sum(part["flops"] for part in row["parts"])
    rows = small.batch_tokens // small.length
    assert found == pytest.approx(model.update_flops(rows, small.length, small.length), rel=0.01)
    assert {"attention", "feed-forward", "loss"} == {part["part"] for part in row["parts"] if part["flops"]}


def test_train_step_measures_this_project(rows_of, monkeypatch):
    program = importlib.import_module("train_step")
    monkeypatch.setattr(program, "SIZES", {"tiny": program.Size("tiny", 60, 5, 40, 1)})
    mode = program.OUR_MODES[THIS]["float32"][0]
    monkeypatch.setitem(program.OUR_MODES, THIS, {"float32": (mode,)})
    flags = ("--engines=keras_transformer", "--sizes=tiny", "--precisions=float32", "--repeats=1", "--threads=1")
    ours, product = rows_of("train_step", *flags)
    assert ours["target_tokens_per_second"] > 0 and 0 < ours["first_loss"] < 10
    assert product["engine"] == "matmul" and Path(ours["command"][0]).name == "train_step.py"


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("decode", ["--engines=ctranslat2"], "unknown engine 'ctranslat2': did you mean ctranslate2"),
        ("decode", ["--workloads=natural"], "requires a trained run. Add --run=DIR"),
        ("train_step", ["--repeats=0"], "must be from 1 to 1000000000, got '0'"),
    ],
)
def test_benchmark_rejects_wrong_arguments(name, arguments, message):
    with pytest.raises(UserError, match=message):
        importlib.import_module(name).main(arguments)
