"""Sections of benchmarks.md about training: speed, profiles, precision, memory."""

from pages.markdown import commands, form, head, line, table


def training(rows):
    """Return the speed of training, compared with other engines."""
    peers = {"opennmt_tf": "OpenNMT-tf", "pytorch": "PyTorch", "keras_hub": "keras-hub"}
    heads = "size workload engine mode precision tokens/s".split()
    heads += [*(f"×{peer}" for peer in peers.values()), "of product", "memory", "first step", "×fixed"]
    lines = [
        "## Training\n",
        f"All engines use {rows[0]['threads']} threads, each in a process of its own, with the same initial weights,",
        "batches, learning rates and dropout. Without dropout and label smoothing, their losses are also the same",
        "(`--check`). `make bench` runs the benchmark; add `RAW_DIR=FOLDER` to include Multi30k. The docstring of",
        "`benchmarks/train_step.py` has the details.\n",
        "| name | meaning |",
        "|---|---|",
        "| fixed | batches without padding |",
        "| multi30k | the batches of an epoch of Multi30k; this project reads them from its token store |",
        "| tokens/s | real target tokens per second |",
        "| ×OpenNMT-tf, ×PyTorch, ×keras-hub | speed relative to the engine in float32 (`fixed`: fastest mode) |",
        "| of product | rate of the operations, relative to a large float32 matrix product |",
        "| ×fixed | speed relative to `fixed` in the same mode |",
        "\nRatios are medians over rounds in which the engines alternate. A mode without ratios was slower than",
        "another mode of the same engine in the first round and was not measured again.",
    ]
    for machine in dict.fromkeys(row["machine"] for row in rows):
        there = [row for row in rows if row["machine"] == machine]
        lines += [f"\n### On {machine}\n", *head(heads), *training_lines(there, peers), "", *in_best_mode(there, peers)]
    return "\n".join([*lines, "", commands(rows)])


def speed_chart(rows):
    """Return a chart of the speed of engines at the size of `base`, on the first machine with bfloat16 instructions."""
    machine = next(row["machine"] for row in rows if row["precision"] == "bfloat16")
    there = [row for row in rows if (row["machine"], row["size"], row["workload"]) == (machine, "base", "fixed")]
    ratios = {}
    measured = [row for row in there if row["engine"] != "matmul" and row["ratios"]["opennmt_tf"]]
    for row in sorted(measured, key=lambda row: (row["repeats"], row["target_tokens_per_second"])):
        ratios[row["engine"], row["precision"]] = row["ratios"]["opennmt_tf"]
    bars = (
        f"{engine:<18}{precision:<10}{ratio:>5.2f}  {'█' * round(20 * ratio)}"
        for (engine, precision), ratio in sorted(ratios.items(), key=lambda item: -item[1])
    )
    text = (
        "Training speed at the size of `base` without padding, relative to OpenNMT-tf in float32. Each engine runs in"
    )
    return "\n".join(
        [text, f"its fastest mode, on {machine}:\n", "```text", "engine            precision ratio", *bars, "```\n"]
    )


def training_lines(rows, peers):
    """Return the lines of the table of all engines and modes."""
    return [
        line([
            row["size"], row["workload"], row["engine"], row["mode"], row["precision"],
            f"{row['target_tokens_per_second']:,.0f}", *(form(row["ratios"][peer], ".2f") for peer in peers),
            form(row["over_product"], ".0%"), f"{row['peak_memory_mb']:,.0f} MB",
            f"{row['seconds_to_first_step']:.0f} s", form(row["over_fixed"], ".2f"),
        ])
        for row in rows
        if row["engine"] != "matmul"
    ]  # fmt: skip


def in_best_mode(rows, peers):
    """Return the lines of a table that compares the fastest mode of this project with those of other engines."""
    heads = ["size", *(f"float32 ×{peer}" for peer in peers.values()), "bfloat16 ×OpenNMT-tf", "float32 of product"]
    lines = [
        "Summary: the fastest mode of this project relative to the fastest float32 mode of the others, and Multi30k"
    ]
    lines += ["relative to `fixed` in the same mode:\n", *head([*heads, "multi30k ×fixed"])]
    own = [row for row in rows if row["engine"] == "keras_transformer"]

    def best(figure, *key):
        """Return the figure of the fastest mode with the most repeats, among the modes that have it."""
        found = [row for row in own if (row["size"], row["precision"], row["workload"]) == key and figure(row)]
        row = max(found, key=lambda row: (row["repeats"], row["target_tokens_per_second"]), default=None)
        return row and figure(row)

    for size in dict.fromkeys(row["size"] for row in own):
        over = {peer: lambda row, peer=peer: row["ratios"][peer] for peer in peers}
        numbers = [
            *(best(over[peer], size, "float32", "fixed") for peer in peers),
            best(over["opennmt_tf"], size, "bfloat16", "fixed"),
            best(lambda row: row["over_product"], size, "float32", "fixed"),
            best(lambda row: row["over_fixed"], size, "float32", "multi30k"),
        ]
        lines.append(line([size, *(form(number, ".2f") for number in numbers)]))
    return lines


def training_profile(rows):
    """Return where the time of an update goes."""
    text = """### Where the time of an update goes

The workload `fixed` in graph mode, with one operation at a time; `products` are matrix products. The limit of a part
is the longer of two times: its products at the rate of a large product, and its memory traffic at the rate of
copying. Values above 100% mean that arrays came from a cache. Most of the time goes into matrix products.
"""
    heads = ["size", "precision", "part", "operations", "share", "GFLOP/s", "GB/s", "of its limit"]
    cells, notes = [], []
    for row in rows:
        total = sum(part["seconds"] for part in row["parts"])
        for part in row["parts"] if row["onednn"] == "on" else []:
            seconds = part["seconds"]
            if seconds >= 0.005 * total:
                cells.append([
                    row["size"], row["precision"], part["part"], part["operations"], f"{seconds / total:.1%}",
                    f"{part['flops'] / seconds / 1e9:,.0f}", f"{part['bytes'] / seconds / 1e9:,.1f}",
                    f"{part['limit'] / seconds:.0%}",
                ])  # fmt: skip
        product, copying = row["product_flops_per_second"] / 1e9, row["copy_bytes_per_second"] / 1e9
        notes.append(
            f"- {row['size']} {row['precision']}, oneDNN {row['onednn']}, {row['machine']}: "
            f"{row['milliseconds']:,.0f} ms per update; a large product {product:,.0f} GFLOP/s, "
            f"copying {copying:,.1f} GB/s. {bound(row)}"
        )
    return "\n".join([table(text, heads, cells) + "\n".join(notes), "", commands(rows)])


def bound(row):
    """Return sentences about the rate of an update with the same matrix products and nothing else."""
    products = [part for part in row["parts"] if part["operations"] == "products"]
    seconds = sum(part["seconds"] for part in products)
    share = seconds / sum(part["seconds"] for part in row["parts"])
    rate = sum(part["flops"] for part in products) / seconds / row["product_flops_per_second"]
    return (
        f"Products take {share:.0%} of the time, at {rate:.0%} of the rate of a large product, as they are narrow. "
        "An update cannot exceed this rate, even if everything else took no time."
    )


def loss_curves(rows):
    """Return how far apart the losses of two training runs are."""
    text = """### Losses of two versions

Label-smoothed losses, in nats per token, of all updates of two runs without dropout: with two versions of the code,
or with two seeds. Two versions with the same seed differ only by rounding.
"""
    heads = "problem, versions, seeds, updates, loss at the end, largest difference, mean difference".split(", ")
    cells = (
        [row["problem"], ", ".join(dict.fromkeys(commit[:7] for commit in row["commits"])),
         ", ".join(dict.fromkeys(map(str, row["seeds"]))), f"{row['updates']:,}", f"{row['last_loss']:.3f}",
         f"{row['greatest_difference']:.1e}", f"{row['mean_difference']:.1e}"]
        for row in rows
    )  # fmt: skip
    return table(text, heads, cells, rows)


def precisions(rows):
    """Return the effect of lower precision on losses."""
    text = """## Precision

The last evaluation of runs that differ only in `--precision`: label-smoothed cross-entropy (loss), plain
cross-entropy (nll), and their ratios to float32. The difference between two seeds in float32 shows the size of random
effects. The scores of lower precisions differ from those of float32 by hardly more than this.
"""
    heads = "problem hparams seed precision updates loss × nll × score".split()
    losses = ("loss", "loss_over_float32", "nll", "nll_over_float32")
    cells = (
        [row["problem"], row["hparams"], row["seed"], row["precision"], f"{row['step']:,}",
         *(f"{row[name]:.4f}" for name in losses), f"{row['score']:.2f}"]
        for row in rows
    )  # fmt: skip
    return table(text, heads, cells, rows)


def memory(rows):
    """Return how much memory an update takes."""
    ways = list(dict.fromkeys(row["way"] for row in rows))
    text = f"""## Memory of an update

Peak memory of a process in MiB, including the library, the weights and the optimizer state. The vocabulary has
{rows[0]["vocab_size"]:,} tokens, and sequences have {rows[0]["length"]} tokens. `--remat` and `--accumulate` save
most of the memory of large batches:
"""
    peaks = {}
    for row in rows:
        peak = f"{row['peak_mb']:,}" if row["peak_mb"] else f"more than {row['free_mb']:,}"
        peaks.setdefault((row["backend"], row["hparams"], row["precision"], row["tokens"]), {})[row["way"]] = peak
    cells = ([*key[:3], f"{key[3]:,}", *map(by_way.get, ways)] for key, by_way in peaks.items())
    return table(text, ["backend", "hparams", "precision", "tokens", *ways], cells, rows)
