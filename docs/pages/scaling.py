"""Tables of scaling.md."""

from pages.scores import is_tiny
from pages.tables import backend, bars, curves, table

BEFORE_POOLS = ("5d67265d50aa", "5d1e77149c54", "853a7365bc04+")
"""Commits of runs whose batches were not yet mixed in pools."""
PAPER_UPDATES = {"base": 100_000, "big": 300_000}
"""Numbers of updates in the paper (§5.2)."""


def plan_costs(rows):
    """Return a table of the cost of batch plans by corpus size."""
    rows = sorted((row for row in rows if row["workload"] == "plan"), key=lambda row: row["pairs"])
    times = ("open", "first_batch", "epoch_boundary", "resume_at_10", "resume_at_1000000")
    headings = ("open", "first batch", "new epoch", "resume at 10", "resume at 1,000,000")
    return table(rows, {
        "pairs": "{pairs:,}", "batches per epoch": "{batches_per_epoch:,}",
        **{f"{heading}, s": f"{{{name}_seconds:.3f}}" for heading, name in zip(headings, times)},
        "memory, MB": "{peak_memory_mb:,.0f}", "commit": "{commit}",
    })  # fmt: skip


def plan_chart(rows):
    """Return a chart of the CPU seconds until the first batch, by corpus size."""
    rows = sorted((row for row in rows if row["workload"] == "plan"), key=lambda row: row["pairs"])
    seconds = [row["open_seconds"] + row["first_batch_seconds"] for row in rows]
    labels = [(f"{row['pairs']:>13,} pairs, {row['commit']}", f"{value:7.3f}") for row, value in zip(rows, seconds)]
    return bars("CPU seconds until the first batch", [(*label, value) for label, value in zip(labels, seconds)], 3)


def assembly_rates(rows):
    """Return a table of the speed of batch assembly, with the number of CPU cores that 8 GPUs would need."""
    rows = [row for row in rows if "tokens_per_second" in row]
    return table(rows, {
        "workload": "{workload}",
        "million tokens/s": lambda row: f"{row['tokens_per_second'] / 1e6:.1f}",
        "cores for 8 million tokens/s": lambda row: f"{8e6 / row['tokens_per_second']:.2f}",
        "first epoch, s": "{first_epoch_seconds:.2f}", "memory, MB": "{peak_memory_mb:,.0f}", "commit": "{commit}",
    })  # fmt: skip


def mixing(rows):
    """Return a table of padding and mixing by corpus and batch size."""
    return table([row for row in rows if row["workload"] == "mixing" and row.get("max_shapes", 24) == 24], {
        "lengths": "{lengths}", "pairs": "{pairs:,}", "tokens per side": "{batch_tokens:,}",
        "batches per epoch": "{batches_per_epoch:,}", "longest": "{real_share_longest:.1%}",
        "shapes": "{real_share_shapes:.1%}", "meet again": "{share_that_meets_again:.1%}",
    })  # fmt: skip


def padding_by_shapes(rows):
    """Return a table of padding and mixing by the maximum number of shapes."""
    rows = [row for row in rows if row["workload"] == "mixing" and "max_shapes" in row]
    return table(rows, {
        "lengths": "{lengths}", "tokens per side": "{batch_tokens:,}", "max_shapes": "{max_shapes}",
        "padding": lambda row: f"{1 - row['real_share_shapes']:.1%}", "meet again": "{share_that_meets_again:.1%}",
    })  # fmt: skip


def learning_curves(rows):
    """Return a table of validation scores during runs of `tiny`, with batches before and after the change of mixing."""
    runs = {}
    for row in filter(is_tiny, rows):
        if backend(row) == "tensorflow, bfloat16":
            mixed = "before" if row["commit"] in BEFORE_POOLS else "now"
            runs[f"{mixed}, seed {row['seed']}"] = row
    return curves(dict(sorted(runs.items())))


def compilation(rows):
    """Return a table of the times of updates on JAX, with a cold and a warm compilation cache."""
    return table(rows, {
        "hparams": "{hparams}", "updates": "{updates}", "shapes": "{shapes}", "cache": "{cache}",
        "first update, s": "{first_update_seconds:.1f}", "all updates, s": "{all_updates_seconds:.1f}",
        "CPU, s": "{cpu_seconds:.0f}", "commit": "{commit}",
    })  # fmt: skip


def compiled_program(rows):
    """Return a table of the operations of a compiled update."""
    rows = [row for row in rows if row["workload"] == "program"]
    return table(rows, {
        "products": lambda row: f"{row['products']['bf16']} bfloat16, {row['products']['f32']} float32",
        "host transfers": "{host_transfers}", "copies": "{copies:,}", "transposes": "{transposes:,}",
        "fusions": "{fusions:,}", "operations, XLA": "{flops:.1e}", "operations, formula": "{model_flops:.1e}",
        "arguments, MiB": "{argument_mb:,.0f}", "reused, MiB": "{aliased_mb:,.0f}",
        "temporary, MiB": "{temporary_mb:,.0f}",
    })  # fmt: skip


def gpu_training(rows):
    """Return a table of the training speed on GPUs, with sentences of equal lengths."""
    rates = {row["machine"]: row["bfloat16_tflops"] for row in rows if row["workload"] == "rate"}
    rows = [row for row in rows if row["workload"] == "train" and row["lengths"] == "fixed" and not row["miniature"]]
    return table(rows, {
        "hparams": "{hparams}", "time per update, ms": lambda row: f"{1000 * row['seconds_per_update']:.1f}",
        "target tokens/s": "{target_tokens_per_second:,.0f}", "TFLOP/s": "{products_tflops:.0f}",
        "utilization": lambda row: f"{row['products_tflops'] / rates[row['machine']]:.0%}",
        "memory, MiB": "{peak_device_memory_mb:,}",
        "the paper's updates, hours": lambda row: (
            f"{row['seconds_per_update'] * PAPER_UPDATES[row['hparams']] / 3600:.1f}"
        ),
    })  # fmt: skip


def first_commit(rows):
    """Return the commit of the first result row."""
    return rows[0]["commit"]
