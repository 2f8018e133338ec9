"""Of benchmarks.md what training takes: speed, where the time goes, precision, memory."""

from pages.markdown import commands, form, head, line, table


def training(rows):
    """Return how fast models are trained, beside other engines."""
    peers = {"opennmt_tf": "OpenNMT-tf", "pytorch": "PyTorch", "keras_hub": "keras-hub"}
    heads = "size workload engine mode precision tokens/s".split()
    heads += [*(f"×{peer}" for peer in peers.values()), "of product", "memory", "first step", "×fixed"]
    lines = [
        "## Training\n",
        f"{rows[0]['threads']} threads, one process an engine; initial weights, batches, rates, dropout are the same,",
        "and without dropout and smoothing so are the losses (`--check`). `fixed`: no padding. `multi30k`: batches of",
        "its epoch, here from the store. Tokens are real target tokens; × is to that engine in float32, in `fixed` in",
        "its fastest mode, `of product` the rate beside a large float32 matrix product's, each the median of turns. A",
        "mode without ratios was slower than the same engine's other one in a first turn, and had no more.",
        "`benchmarks/train_step.py` tells more; `make bench` runs it, and with `RAW_DIR=FOLDER` Multi30k, too.",
    ]
    for machine in dict.fromkeys(row["machine"] for row in rows):
        there = [row for row in rows if row["machine"] == machine]
        lines += [f"\n### On {machine}\n", *head(heads), *training_lines(there, peers), "", *in_best_mode(there, peers)]
    return "\n".join([*lines, "", commands(rows)])


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
    """Return the lines of a table of this project's fastest mode in `fixed` beside the other engines' fastest."""
    heads = ["size", *(f"float32 ×{peer}" for peer in peers.values()), "bfloat16 ×OpenNMT-tf", "float32 of product"]
    lines = ["This project's fastest mode beside the others' fastest in float32; Multi30k beside `fixed` in the"]
    lines += ["same mode:\n", *head([*heads, "multi30k ×fixed"])]
    own = [row for row in rows if row["engine"] == "keras_transformer"]

    def best(figure, *key):
        """The figure of the mode that was fastest in most repeats, among those that have it."""
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

The workload `fixed` in graph mode, operations one after the other. `products` are matrix products. A part's
limit is the time at the machine's rates of a large product and of copying, whichever is longer; above 100%
arrays came from a cache.
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
            f"{row['milliseconds']:,.0f} ms an update; a large product {product:,.0f} GFLOP/s, "
            f"copying {copying:,.1f} GB/s. {bound(row)}"
        )
    return "\n".join([table(text, heads, cells) + "\n".join(notes), "", commands(rows)])


def bound(row):
    """Return a sentence on how fast an update could become whose products stayed as they are."""
    products = [part for part in row["parts"] if part["operations"] == "products"]
    seconds = sum(part["seconds"] for part in products)
    share = seconds / sum(part["seconds"] for part in row["parts"])
    rate = sum(part["flops"] for part in products) / seconds / row["product_flops_per_second"]
    return (
        f"Products take {share:.0%} of the time, at {rate:.0%} of a large one's rate, narrow as they are: that is "
        "what an update would reach if all else took no time."
    )


def loss_curves(rows):
    """Return how far apart the losses of two training runs are."""
    text = """### The same losses

Smoothed losses, in nats a token, of every update of two trainings without dropout: by two versions, or from
two seeds, which share nothing but the data.
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
    text = """## In fewer bits

The last evaluation of trainings that differ in `--precision` alone: label-smoothed and plain cross-entropy,
and their ratios to float32. How far apart two seeds are in float32 tells what is chance.
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

Peaks of a process, in MiB, with {rows[0]["vocab_size"]:,} symbols, in sequences of
{rows[0]["length"]} tokens; loading, weights and both slots are part of it.
"""
    peaks = {}
    for row in rows:
        peak = f"{row['peak_mb']:,}" if row["peak_mb"] else f"more than {row['free_mb']:,}"
        peaks.setdefault((row["backend"], row["hparams"], row["precision"], row["tokens"]), {})[row["way"]] = peak
    cells = ([*key[:3], f"{key[3]:,}", *map(by_way.get, ways)] for key, by_way in peaks.items())
    return table(text, ["backend", "hparams", "precision", "tokens", *ways], cells, rows)
