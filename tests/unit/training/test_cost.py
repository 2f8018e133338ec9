"""Tests of the cost of training in the log, the summary, the estimates before a run, and the command `cost`."""

import gc
import json
import shutil
import types
import weakref

import keras
import numpy as np
import pytest
from helpers.logs import logged_lines
from helpers.paths import ROOT
from helpers.quick import quick_runs

import keras_transformer as kt
from keras_transformer import cost
from keras_transformer.config import registry
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.run import Run
from keras_transformer.runs.totals import summary_lines, training_summary
from keras_transformer.training.callbacks import ProgressLogger
from keras_transformer.training.cost import GPU_TFLOPS, PAPER_GPUS, PAPER_HOURS, paper_flops, training_cost
from keras_transformer.training.summary import OTHER, PRODUCTS
from keras_transformer.training.trainer import train_model
from keras_transformer.utils.timing import Stopwatch

hparams = kt.HParams(
    num_layers=2, d_model=16, d_ff=24, num_heads=2, d_k=6, d_v=10, dropout=0.1, batch_tokens=64, warmup_steps=10,
    train_steps=4, checkpoint_steps=1, eval_steps=4, beam_size=1, extra_length=2,
)  # fmt: skip
shallow = hparams.replace(num_layers=1)


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    with quick_runs():
        yield kt.problem("sort", data_dir=tmp_path_factory.mktemp("data"), num_symbols=5, longest=6, train_pairs=40)


@pytest.fixture(scope="module")
def run_and_lines(problem, tmp_path_factory):
    """Return a run of four updates that was resumed after two, and its log lines after resuming."""
    path = tmp_path_factory.mktemp("runs") / "run"
    train_model(problem, shallow.replace(train_steps=2), path)
    with logged_lines() as lines:
        return train_model(problem, shallow, path), lines


# Counting operations


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"norm": "pre", "positions": "learned"}, {"d_k": None, "d_v": None},
        {"num_layers": 3, "num_decoder_layers": 1},
        {"encoder_attention": "additive"},
        {"encoder_attention": "restricted", "attention_window": 1},
        {"encoder_attention": "restricted", "attention_window": 5},
        {"encoder_attention": "restricted", "attention_window": 64},
    ],
)  # fmt: skip
def test_flops_count_all_matrix_products(changes, monkeypatch):
    counted, matmul = [], keras.ops.matmul

    def count(a, b):
        product = matmul(a, b)
        counted.append(2 * int(np.prod(product.shape)) * a.shape[-1])
        return product

    model = kt.Transformer(11, hparams.replace(**changes))
    monkeypatch.setattr(keras.ops, "matmul", count)
    for rows, source_length, target_length in ((1, 1, 1), (3, 5, 7), (2, 9, 4)):
        counted.clear()
        model((np.ones((rows, source_length), "int32"), np.ones((rows, target_length), "int32")))
        assert model.flops(rows, source_length, target_length) == sum(counted)


# The log


def test_log_counts_each_update(problem, run_and_lines):
    run, _ = run_and_lines
    rows = [row for row in run.metrics() if row["kind"] == "train"]
    model = run.load_model("last")
    batches = problem.batches("train", hparams)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]  # one row per checkpoint
    for step, row in enumerate(rows):
        shape = count, source, target = batches.shape(step)
        assert shape == (*batches[step][0][0].shape, batches[step][1].shape[1])
        assert row["padded_tokens"] == count * (source + target)
        assert row["flops"] == 3 * model.flops(*shape)
        assert row["tokens"] <= row["padded_tokens"]
        assert 0 < row["data_seconds"] and 0 < row["seconds"] and row["peak_memory_mb"] > 50


def test_log_counts_starts_and_checkpoints(run_and_lines):
    rows = run_and_lines[0].metrics()
    assert [row["step"] for row in rows if row["kind"] == "start"] == [0, 2]
    assert [row["step"] for row in rows if row["kind"] == "checkpoint"] == [1, 2, 3, 4]
    assert all(row["seconds"] > 0 for row in rows if row["kind"] == "checkpoint")
    assert all(row["devices"] == 1 and row["device_flops_per_second"] > 1e8 for row in rows if row["kind"] == "start")


def test_training_summary_adds_up_all_rows(run_and_lines):
    run, lines = run_and_lines
    rows, summary = run.metrics(), training_summary(run.metrics())
    updates = [row for row in rows if row["kind"] == "train"]
    assert summary["steps"] == 4 and len(summary["curve"]) == 2 and summary["precision"] == "float32"
    assert summary["tokens"] == sum(row["tokens"] for row in updates)
    assert summary["flops"] == sum(row["flops"] for row in updates)
    assert summary["padding"] == pytest.approx(
        1 - summary["tokens"] / sum(r["padded_tokens"] for r in updates), abs=1e-4
    )
    rates = [row["device_flops_per_second"] for row in rows if row["kind"] == "start"]
    assert summary["paper_flops"] == pytest.approx(
        sum(row["seconds"] * rate for row, rate in zip(updates, np.repeat(rates, 2), strict=True))
    )
    assert all(line in lines for line in summary_lines(summary))
    assert any(line.startswith("time: updates 0:00:") and "checkpoints 0:00:" in line for line in lines)
    assert any("counted" in line and "by the paper's method" in line for line in lines)
    assert any(line.startswith("padding ") and "peak memory" in line for line in lines)


# The summary


def test_training_summary_counts_repeated_updates_once():
    rows = [
        {"kind": "start", "step": 0, "devices": 8, "device_flops_per_second": 10.0},
        {"kind": "train", "step": 50, "tokens": 90, "padded_tokens": 100, "seconds": 2.0, "flops": 7},
        {"kind": "train", "step": 100, "tokens": 70, "padded_tokens": 100, "seconds": 3.0, "flops": 7},
        {"kind": "checkpoint", "step": 50, "seconds": 0.5},
        {"kind": "start", "step": 50, "devices": 1, "device_flops_per_second": 5.0},
        {"kind": "train", "step": 100, "tokens": 70, "padded_tokens": 100, "seconds": 30.0, "flops": 7},
    ]
    summary = training_summary(rows)
    assert (summary["steps"], summary["tokens"], summary["seconds"], summary["flops"]) == (100, 160, 32, 14)
    assert summary["paper_flops"] == 2 * 80 + 30 * 5
    assert (summary["padding"], summary["checkpoint_seconds"]) == (0.2, 0.5)


def test_training_summary_ignores_updates_lost_by_kill():
    """Simulate a run that was killed after logging update 120 and resumed from the checkpoint at update 80."""
    train = {"kind": "train", "tokens": 10, "padded_tokens": 10, "seconds": 1.0, "flops": 1}
    start = {"kind": "start", "devices": 1, "device_flops_per_second": 1.0}
    rows = [{**start, "step": 0}, *({**train, "step": step} for step in (50, 80, 100, 120))]
    rows += [{"kind": "validation", "step": 100, "seconds": 5.0, "score": 1.0}]
    rows += [{**start, "step": 80}, *({**train, "step": step} for step in (110, 130))]
    summary = training_summary(rows)
    assert (summary["steps"], summary["tokens"], summary["flops"], summary["seconds"]) == (130, 40, 4, 4)
    assert summary["evaluation_seconds"] == 0 and summary["curve"] == []


def test_metrics_log_survives_truncated_line(run_and_lines, tmp_path):
    shutil.copytree(run_and_lines[0].path, tmp_path / "copied")
    run = Run.open(tmp_path / "copied")
    rows = run.metrics()
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "tra')
    run.log(kind="start", step=4)
    assert run.metrics() == [*rows, {"kind": "start", "step": 4}]


def test_training_cost_leaves_no_weights_behind(monkeypatch):
    weights = []

    class Seen(Transformer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            weights.extend(map(weakref.ref, self.variables))

    monkeypatch.setitem(registry.models._entries, "transformer", Seen)
    training_cost(hparams, 50)
    gc.collect()
    assert len(weights) > 10 and not any(reference() is not None for reference in weights)


def test_training_summary_omits_figures_missing_in_rows():
    old = {"kind": "train", "step": 1, "tokens": 1000, "seconds": 2.0}
    start = {"kind": "start", "step": 1, "devices": 1, "device_flops_per_second": 1.0}
    new = {"kind": "train", "step": 2, "tokens": 10, "padded_tokens": 12, "seconds": 2.0, "flops": 3}
    assert not {"padding", "flops", "paper_flops", "precision"} & training_summary([old, start, new]).keys()


def test_training_summary_lists_precisions():
    def started(step, precision):
        return {
            "kind": "start", "step": step, "precision": precision, "devices": 1, "device_flops_per_second": 1.0,
        }  # fmt: skip

    def update(step):
        return {"kind": "train", "step": step, "tokens": 10, "seconds": 2.0}

    rows = [started(0, "float32"), update(1), started(1, "bfloat16"), update(2), started(2, "bfloat16"), update(3)]
    assert training_summary(rows[:2])["precision"] == "float32"
    assert training_summary(rows)["precision"] == "float32, bfloat16"
    # The updates in bfloat16 do not count, because the run repeated them in float32.
    assert training_summary([*rows, started(1, "float32"), update(2)])["precision"] == "float32"
    assert "precision" not in training_summary([started(0, "float32")])


def test_evaluation_row_holds_training_cost(run_and_lines, tmp_path):
    from keras_transformer.decoding.evaluation import evaluate
    from keras_transformer.decoding.evaluation_records import append_result

    append_result(tmp_path / "rows.jsonl", evaluate(run_and_lines[0].path))
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["training"]["flops"] > 0 and row["training"]["paper_flops"] > 0
    assert row["backend"] == keras.backend.backend() == Run.open(run_and_lines[0].path).manifest()["backend"]


# Before a training run


def estimate(problem, path, monkeypatch, rates=(1e9, 1e9), **options):
    """Return the lines with the time estimate of a dry run. `rates` are FLOP/s in float32 and bfloat16."""
    rates = dict(zip(("float32", "bfloat16"), rates))
    monkeypatch.setattr("keras_transformer.training.summary.device_rate", rates.get)
    with logged_lines() as lines:
        train_model(problem, shallow.replace(train_steps=1000), path, kt.TrainOptions(**options), dry_run=True)
    first = next(i for i, line in enumerate(lines) if line.startswith("  time "))
    return [line[12:] for line in lines[first:] if line[2] in " t"]


def test_time_estimate_uses_run_precision(problem, tmp_path, monkeypatch):
    line = estimate(problem, tmp_path / "run", monkeypatch, rates=(2e9, 8e9), precision="bfloat16")[0]
    rate = 1 / (PRODUCTS / 8e9 + OTHER / 2e9)
    assert line.endswith(f" floating point operations at {rate:.1e} per second")


def test_time_estimate_counts_compilation(problem, tmp_path, monkeypatch):
    on_jax = keras.backend.backend() == "jax"
    lines = estimate(problem, tmp_path / "run", monkeypatch, jit_compile="auto" if on_jax else True)
    count = len(problem.batches("train", hparams).replace(few_shapes=True).shapes(1000))
    when = "during the first updates" if on_jax else "each on first use"
    assert lines[1] == f"plus the compilation of {count} batch shapes, {when}"


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX compiles every shape")
def test_time_estimate_omits_compilation_without_xla(problem, tmp_path, monkeypatch):
    assert len(estimate(problem, tmp_path / "run", monkeypatch)) == 1


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="on JAX, CompileAhead reports compilations")
def test_progress_excludes_compilations_from_eta(problem, monkeypatch):
    """Simulate two alternating batch shapes. The first update of each shape takes 20 seconds, later ones 1 second."""
    times = iter([0, 20, 20, 40, 40, 41, 41, 42, 42, 42])
    monkeypatch.setattr("keras_transformer.utils.timing.time.monotonic", lambda: next(times))
    shapes = [(4, 5, 6), (2, 9, 9)]
    batches = types.SimpleNamespace(
        few_shapes=True, shape=lambda index: shapes[index % 2], shapes=lambda count: shapes[:count],
        tokens=lambda index: 10, stopwatch=Stopwatch(),
    )  # fmt: skip
    settings = hparams.replace(train_steps=100, eval_steps=100)
    run = types.SimpleNamespace(log=lambda **row: None, hparams=settings)
    progress = ProgressLogger(0, run, batches, lambda *shape: 1, None, every=4)
    optimizer = types.SimpleNamespace(watched=lambda: ({}, 0, 0))
    progress.set_model(
        types.SimpleNamespace(
            get_metrics_result=lambda: {"loss": 1.0, "perplexity": 2.0}, reset_metrics=lambda: None, optimizer=optimizer
        )
    )
    with logged_lines() as lines:
        for _ in range(4):
            progress.on_train_batch_begin(0)
            progress.on_train_batch_end(0)
    assert lines[:2] == [f"  compiled the update for batch shape {n} of 2 in 20.0 s" for n in (1, 2)]
    assert lines[2].endswith("  1 tokens/s  ETA 0:01:36")
    assert lines[3] == "  estimated time for all updates: 0:02:18, without evaluations and checkpoints"


def counted(*flags, capsys):
    """Run `cost` and return the lines that it prints."""
    cost.main(list(flags))
    return capsys.readouterr().out.splitlines()


def test_paper_flops_match_table_2():
    """Compute 3.3e18 (base) and 2.3e19 (big) FLOPs from the times in §5.2 and the P100's rate in footnote 5."""
    tflops = GPU_TFLOPS["P100"]
    assert f"{paper_flops(PAPER_HOURS['base'], PAPER_GPUS, tflops):.1e}" == "3.3e+18"
    assert f"{paper_flops(PAPER_HOURS['big'], PAPER_GPUS, tflops):.1e}" == "2.3e+19"


def test_training_cost_near_6_flops_per_weight_and_token():
    """Compare the cost with a rule of thumb: 6 floating-point operations per weight and token.

    Each weight takes part in one multiply-add in the forward pass and in two in the backward pass.
    """
    hparams = kt.hparams("base", num_layers=2, batch_tokens=600, train_steps=10)
    model, found = kt.Transformer(2000, hparams), training_cost(hparams, 2000, length=30)
    encoder = model.encoder.count_params()
    # The decoder includes the shared embedding, whose only matrix product is the output projection.
    decoder = model.count_params() - encoder
    assert (found.parameters, found.updates) == (model.count_params(), 10)
    assert found.counted == pytest.approx(10 * 6 * 600 * (encoder + decoder), rel=0.05)
    assert found.hours(gpus=2, tflops=1.0) == pytest.approx(found.counted / 2e12 / 3600)
    twice = training_cost(hparams.replace(r_drop=5.0), 2000, length=30)
    assert (twice.parameters, twice.counted) == (found.parameters, 2 * found.counted)


def test_cost_command_prints_table_2(capsys):
    lines = counted("--hparams=base", "--vocab_size=500", capsys=capsys)
    assert "100,000 updates of 25,000 source and 25,000 target tokens, 30 per sentence" in lines[0]
    assert "3.28e+18 by the paper's method, 12 hours × 8 devices × 9.5 TFLOP/s" in lines[2]


def test_cost_command_with_other_settings(capsys):
    flags = ("--hparams=toy", "--vocab_size=100", "--train_steps=10", "--gpus=2", "--tflops=0.5")
    lines = counted(*flags, capsys=capsys)
    # No line uses the paper's method, because the paper reports no training time for this model.
    assert len(lines) == 3 and "10 updates of 2,048 source" in lines[0]
    assert lines[2].endswith("hours at the full rate of 2 devices × 0.5 TFLOP/s")
    assert "3.60e+15 by the paper's method" in counted(*flags, "--hours=1", capsys=capsys)[2]
    assert "1.64e+18 by the paper" in counted("--vocab_size=100", "--train_steps=50000", capsys=capsys)[2]
    other = counted("--vocab_size=100", "--gpus=1", "--tflops=60", capsys=capsys)
    assert not any("paper's method" in line for line in other)  # the paper's hours are valid only for its GPUs


@pytest.mark.parametrize(
    "flag", ["--gpus=0", "--tflops=-1", "--tflops=nan", "--length=0", "--length=30000", "--hparams=bse", "--hours=x"]
)
def test_cost_command_rejects_wrong_flags(flag):
    with pytest.raises(
        kt.UserError, match=flag.partition("=")[0].strip("-") if "bse" not in flag else "did you mean base"
    ):
        cost.main([flag])


@pytest.mark.parametrize("name", ["base", "big"])
def test_cost_page_matches_command(name, capsys):
    page = (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if f"--hparams={name}`" in line and line.startswith("|")]
    lines = counted(f"--hparams={name}", capsys=capsys)
    by_method, count, share = (cell.strip() for cell in row.split("|")[3:6])
    assert f"{float(by_method):.2e} by the paper's method" in lines[2] and f"is {share} of this estimate" in lines[2]
    assert f"{float(count):.2e} counted" in lines[1]
