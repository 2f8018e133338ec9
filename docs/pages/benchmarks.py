"""Tables and charts of benchmarks.md and reliability.md."""

from pages.tables import bars, table

PEERS = {"opennmt_tf": "OpenNMT-tf", "pytorch": "PyTorch", "keras_hub": "keras-hub"}
HEADERS = {"whole": "default", "softmax, best symbols": "softmax, top-k", "moving, reshaping": "copies, reshapes"}
"""Column headers for names in the result rows."""


def training(rows):
    """Return a section for each machine: a table of training speed by engine and mode, and a summary."""
    columns = {
        "size": "{size}", "workload": "{workload}", "engine": "{engine}", "mode": "{mode}", "precision": "{precision}",
        "tokens/s": "{target_tokens_per_second:,.0f}",
        **{f"×{name}": f"{{ratios[{peer}]:.2f}}" for peer, name in PEERS.items()},
        "% of product rate": "{over_product:.0%}", "memory": "{peak_memory_mb:,.0f} MB",
        "first step": "{seconds_to_first_step:.0f} s", "×fixed": "{over_fixed:.2f}",
    }  # fmt: skip
    parts = []
    for machine in dict.fromkeys(row["machine"] for row in rows):
        engines = [row for row in rows if row["machine"] == machine and row["engine"] != "matmul"]
        parts += [f"### On {machine}", table(engines, columns), SUMMARY, best_modes(engines)]
    return "\n\n".join(parts)


SUMMARY = """This table compares the fastest mode of this project with the fastest float32 mode of every other engine.
The last column compares Multi30k with `fixed` in the same mode:"""


def best_modes(rows):
    """Return a table that compares the fastest mode of this project with those of other engines."""
    own = [row for row in rows if row["engine"] == "keras_transformer"]

    def best(precision, workload, value, form=".2f"):
        """Return a function that formats the cell of a size.

        The cell shows the value of the row with the most repeats. Among several such rows, the fastest mode wins.
        """

        def cell(size):
            found = [
                row for row in own if (row["size"], row["precision"], row["workload"]) == (size, precision, workload)
            ]
            found = [row for row in found if value(row)]
            row = max(found, key=lambda row: (row["repeats"], row["target_tokens_per_second"]), default=None)
            return row and format(value(row), form)

        return cell

    def over(peer):
        return lambda row: row["ratios"][peer]

    columns = {
        "size": str,
        **{f"float32 ×{name}": best("float32", "fixed", over(peer)) for peer, name in PEERS.items()},
        "bfloat16 ×OpenNMT-tf": best("bfloat16", "fixed", over("opennmt_tf")),
        "float32, % of product rate": best("float32", "fixed", lambda row: row["over_product"], ".0%"),
        "multi30k ×fixed": best("float32", "multi30k", lambda row: row["over_fixed"]),
    }
    return table(dict.fromkeys(row["size"] for row in own), columns)


def training_chart(rows):
    """Return a chart of training speed by engine for `base`, on the first machine that has results in bfloat16."""
    machine = next(row["machine"] for row in rows if row["precision"] == "bfloat16")
    there = [row for row in rows if (row["machine"], row["size"], row["workload"]) == (machine, "base", "fixed")]
    measured = [row for row in there if row["engine"] != "matmul" and row["ratios"]["opennmt_tf"]]
    measured.sort(key=lambda row: (row["repeats"], row["target_tokens_per_second"]))
    ratios = {(row["engine"], row["precision"]): row["ratios"]["opennmt_tf"] for row in measured}
    values = [
        (f"{engine:<17} {precision:<8}", f"{ratio:5.2f}", ratio)
        for (engine, precision), ratio in sorted(ratios.items(), key=lambda item: -item[1])
    ]
    return bars("engine            precision ratio", values, scale=20)


def training_profile(rows):
    """Return a table of the time of an update by part of the model, with notes on each profile."""
    parts, notes = [], []
    for row in rows:
        total = sum(part["seconds"] for part in row["parts"])
        parts += [
            {**row, **part, "share": part["seconds"] / total}
            for part in row["parts"]
            if row["onednn"] == "on" and part["seconds"] >= 0.005 * total
        ]
        products = [part for part in row["parts"] if part["operations"] == "products"]
        seconds = sum(part["seconds"] for part in products)
        rate = sum(part["flops"] for part in products) / seconds
        notes.append(
            f"- {row['size']} {row['precision']}, oneDNN {row['onednn']}, {row['machine']}: "
            f"an update takes {row['milliseconds']:,.0f} ms. A large product reaches "
            f"{row['product_flops_per_second'] / 1e9:,.0f} GFLOP/s, and copying reaches "
            f"{row['copy_bytes_per_second'] / 1e9:,.1f} GB/s. Products take {seconds / total:.0%} of the time, at "
            f"{rate / row['product_flops_per_second']:.0%} of the rate of a large product."
        )
    columns = {
        "size": "{size}", "precision": "{precision}", "part": "{part}", "operations": "{operations}",
        "share": "{share:.1%}", "GFLOP/s": lambda part: f"{part['flops'] / part['seconds'] / 1e9:,.0f}",
        "GB/s": lambda part: f"{part['bytes'] / part['seconds'] / 1e9:,.1f}",
        "minimum / measured": lambda part: f"{part['limit'] / part['seconds']:.0%}",
    }  # fmt: skip
    return "\n".join([table(parts, columns), "", *notes])


def precisions(rows):
    """Return a table of the effect of lower precision on losses."""
    return table(rows, {
        "problem": "{problem}", "hparams": "{hparams}", "seed": "{seed}", "precision": "{precision}",
        "updates": "{step:,}", "loss": "{loss:.4f}", "loss ×": "{loss_over_float32:.4f}", "nll": "{nll:.4f}",
        "nll ×": "{nll_over_float32:.4f}", "score": "{score:.2f}",
    })  # fmt: skip


def memory(rows):
    """Return a table of the memory of an update, with a column for each way to save memory."""
    peaks = {}
    for row in rows:
        peak = f"{row['peak_mb']:,}" if row["peak_mb"] else f"more than {row['free_mb']:,}"
        key = row["backend"], row["hparams"], row["precision"], row["tokens"]
        peaks.setdefault(key, row)[row["way"]] = peak
    columns = {name: f"{{{name}}}" for name in ("backend", "hparams", "precision")} | {"tokens": "{tokens:,}"}
    ways = dict.fromkeys(row["way"] for row in rows)
    return table(peaks.values(), columns | {HEADERS.get(way, way): lambda row, way=way: row.get(way) for way in ways})


def decoding(rows):
    """Return a table of translation speed by engine."""
    return table(rows, {
        "workload": "{workload}, {sentences:,} sentences", "size": "{size}", "engine": "{engine}", "mode": "{mode}",
        "precision": "{precision}", "tokens/s": "{output_tokens_per_second:,.0f}",
        "×CTranslate2": "{ratios[ctranslate2]:.2f}", "×OpenNMT-tf": "{ratios[opennmt_tf]:.2f}",
        "memory": "{peak_memory_mb:,.0f} MB", "BLEU": "{bleu:.2f}", "same": "{same_as_ours:.1%}",
    })  # fmt: skip


def decoding_profile(rows):
    """Return a table of the share of decoding time that each kind of operation takes."""
    kinds = dict.fromkeys(kind for row in rows for kind in row["shares"])
    return table(rows, {
        "size": "{size}", "mode": "{mode}", "precision": "{precision}",
        **{HEADERS.get(kind, kind): lambda row, kind=kind: f"{row['shares'].get(kind, 0):.0%}" for kind in kinds},
        "GFLOP/s of products": lambda row: f"{row['products_flops_per_second'] / 1e9:.0f}",
        "GFLOP/s of a large product": lambda row: f"{row['device_flops_per_second'] / 1e9:.0f}",
    })  # fmt: skip


def exports(rows):
    """Return a table that compares exports with `Translator`."""
    return table([row for row in rows if row["benchmark"] == "exports"], {
        "problem": "{problem}, {sentences:,} sentences", "format": "{format}", "precision": "{precision}",
        "same": "{same:.1%}", "same-precision": "{same_precision:.1%}", "alone": "{same_alone:.1%}",
        "awkward": "{awkward:.1%}", "greedy": "{same_greedy:.1%}",
        "difference": lambda row: f"{row.get('max_score_difference', row.get('max_log_probability_difference')):.0e}",
        "score": "{score:.2f}", "ours": "{reference_score:.2f}", "sentences/s": "{sentences_per_second:,.0f}",
        "MB": "{megabytes:,.1f}",
    })  # fmt: skip


def consumers(rows):
    """Return a table of scores and speeds of exports in their target software."""
    return table([row for row in rows if row["benchmark"] == "consumers"], {
        "format": "{format}", "precision": "{precision}", "consumer": "{consumer}",
        "problem": "{problem}, {sentences:,} sentences", "same": "{same:.1%}", "score": "{score:.2f} {score_name}",
        "sentences/s": "{sentences_per_second:,.0f}", "MB": "{megabytes:,.1f}",
    })  # fmt: skip


def server(rows):
    """Return a table of the server's throughput and latency."""
    alone = {repr(row["command"]): row["sentences_per_second"] for row in rows if row["clients"] == 1}
    for row in rows:
        one = alone.get(repr(row["command"]))
        row["speedup"] = one and row["sentences_per_second"] / one
    return table(rows, {
        "model": "{model} ({problem})", "clients": "{clients}", "seconds": "{seconds}", "answers": "{answers:,}",
        "answers/s": "{sentences_per_second:.1f}", "×": "{speedup:.1f}",
        **{f"p{share}": f"{{p{share}_ms:,}} ms" for share in (50, 95, 99)}, "wrong": "{wrong}", "refused": "{errors}",
        "memory": "{memory_mb[0]:,} → {memory_mb[1]:,} MB",
    })  # fmt: skip


def latencies(rows):
    """Return a table of latencies by workload and engine, without percentiles that need more calls."""

    def percentile(share):
        return lambda row: f"{row[f'p{share}_ms']:,.1f} ms" if row["count"] * (100 - share) >= 100 else None

    return table(rows, {
        "workload": "{workload}", "model": "{model}",
        "engine": lambda row: f"{row['engine']} ({row['backend']})" if row["backend"] else row["engine"],
        **{f"p{share}": percentile(share) for share in (50, 95, 99)},
        "first": lambda row: None if row["first_ms"] is None else f"{row['first_ms']:,.0f} ms",
        "sentences/s": "{per_second:,.1f}", "commit": "{commit}",
    })  # fmt: skip


def preparation(rows):
    """Return a table of the speed of preparing corpora."""
    for row in rows:
        row["pairs"] = sum(n for name, n in row["counts"].items() if name == "pairs" or name.startswith("dropped"))
        row["rate"] = row["phases"]["encoding"]["pairs_per_second"]
        row["gigabytes"] = max(phase["peak_bytes"] for phase in row["phases"].values()) / 1e9
    return table(rows, {
        "pairs": "{pairs:,}", "kept": "{counts[pairs]:,}", "filters": lambda row: ", ".join(row["filters"]) or "none",
        "vocabulary": "{phases[learning the vocabulary][seconds]:.0f} s",
        "encoding": "{phases[encoding][seconds]:.0f} s", "pairs/s": "{rate:,.0f}",
        "peak memory": "{gigabytes:.2f} GB",
        "36 million pairs": lambda row: f"{36e6 / row['rate'] / 60:.0f} min", "machine": "{machine}",
    })  # fmt: skip


def soak(rows):
    """Return a table of soak tests, in which a training run is killed repeatedly."""
    return table(rows, {
        "updates": "{updates:,}", "kills": "{kills}", "by SIGTERM": "{sigterm}",
        "during a checkpoint write": "{inside_a_checkpoint_write}", "survived": "{survived}", "lost": "{lost}",
        "time per checkpoint": lambda row: f"{1000 * row['checkpoint_share']['seconds_each']:.0f} ms",
        "share of the time": "{checkpoint_share[share]:.1%}", "machine": "{machine}",
    })  # fmt: skip


def checkpoint_times(rows):
    """Return a table of the cost of checkpoints at the default interval."""
    return table(rows, {
        "size": "{size}", "parameters": "{parameters:,}", "checkpoint": "{megabytes:,.0f} MB",
        "write time": "{write_seconds:.2f} s", "update time": "{update_seconds:.2f} s",
        "tokens per update": "{tokens:,}", "share": "{share:.2%}",
        "update time for 2%": lambda row: f"{0.98 / 0.02 * row['write_seconds'] / row['checkpoint_steps']:.3f} s",
        "machine": "{machine}",
    })  # fmt: skip
