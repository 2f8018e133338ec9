"""Sections of benchmarks.md about decoding: the search, exports, the server."""

from pages.markdown import form, table


def decoding(rows):
    """Return the speed of translation, compared with other engines."""
    sentences = {row["workload"]: f"{row['sentences']:,}" for row in rows}
    text = f"""## Decoding

All engines use the same weights, a beam size of {rows[0]["beam_size"]} and {rows[0]["threads"]} threads, each in a
process of its own. Loading is not included. The docstring of `benchmarks/decode.py` explains how the searches differ.

| name | meaning |
|---|---|
| forced | random weights; 25 tokens and EOS as input and output |
| natural | a trained model |
| tokens/s | output tokens per second |
| ×CTranslate2, ×OpenNMT-tf | speed relative to that engine in float32, median over alternating rounds |
| same | share of outputs equal to those of this project in float32 |

With XLA, this project is the fastest engine in float32.
"""
    heads = "workload size engine mode precision tokens/s ×CTranslate2 ×OpenNMT-tf memory BLEU same".split()
    cells = (
        [f"{row['workload']}, {sentences[row['workload']]} sentences", row["size"], row["engine"], row["mode"],
         row["precision"], f"{row['output_tokens_per_second']:,.0f}",
         *(form(row["ratios"][engine], ".2f") for engine in ("ctranslate2", "opennmt_tf")),
         f"{row['peak_memory_mb']:,.0f} MB", form(row["bleu"], ".2f"), form(row["same_as_ours"], ".1%")]
        for row in rows
    )  # fmt: skip
    return table(text, heads, cells, rows)


def exports(rows):
    """Return how exports compare with `Translator`."""
    text = """## Exports

The outputs of exports, compared with those of `Translator` in float32. CTranslate2 uses another beam search
([serving.md](serving.md)).

| column | meaning |
|---|---|
| same | share of equal translations on a test split, in batches of 64 |
| same-precision | the same, compared with `Translator` in the precision of the export |
| alone | the same, one sentence at a time |
| awkward | the same for special strings: blank, long, not UTF-8, … |
| greedy | the same with one beam |
| difference | largest difference of a score; for CTranslate2, of the log-probability of a token |
| score, ours | sacreBLEU or F1 of the export and of `Translator` |

A float32 SavedModel gives identical outputs. CTranslate2 in float32 is identical with one beam, and three times as
fast.
"""
    heads = "problem format precision same same-precision alone awkward greedy difference score ours sentences/s MB"
    shares = ("same", "same_precision", "same_alone", "awkward", "same_greedy")
    cells = (
        [f"{row['problem']}, {row['sentences']:,} sentences", row["format"], row["precision"],
         *(form(row.get(name), ".1%") for name in shares),
         f"{row.get('max_score_difference', row.get('max_log_probability_difference')):.0e}", f"{row['score']:.2f}",
         f"{row['reference_score']:.2f}", f"{row['sentences_per_second']:,.0f}", f"{row['megabytes']:,.1f}"]
        for row in rows
    )  # fmt: skip
    return table(text, heads.split(), cells, rows)


def served(rows):
    """Return how many answers a server gives, and how late."""
    text = """## Server

Each client sends one sentence after the other without a pause. The clients run on the same machine and use part of
its cores. × is the speed relative to one client in the same run, and latencies (p50, p95, p99) are from request to
answer. The benchmark compares every answer with that of `Translator`. The memory of the server is shown at the
beginning and at the end.

With more clients, larger batches increase the throughput at the price of latency. There were no wrong answers.
"""
    heads = "model clients seconds answers answers/s × p50 p95 p99 wrong refused memory".split()

    def run(row):
        return row["model"], tuple(row["command"])

    alone = {run(row): row["sentences_per_second"] for row in rows if row["clients"] == 1}
    cells = (
        [f"{row['model']} ({row['problem']})", row["clients"], row["seconds"], f"{row['answers']:,}",
         f"{row['sentences_per_second']:.1f}",
         f"{row['sentences_per_second'] / alone[run(row)]:.1f}" if run(row) in alone else None,
         *(f"{row[f'p{share}_ms']:,} ms" for share in (50, 95, 99)), row["wrong"], row["errors"],
         " → ".join(f"{size:,}" for size in row["memory_mb"]) + " MB"]
        for row in rows
    )  # fmt: skip
    return table(text, heads, cells, rows)


def decoding_profile(rows):
    """Return where the time of decoding goes."""
    kinds = list(dict.fromkeys(kind for row in rows for kind in row["shares"]))
    text = """### Where the time goes

Shares of the operations in the time of the workload `forced`. The last two columns compare the rate of its matrix
products with the rate of a single large float32 product on the same machine. At the size of `base` in float32, most
of the time goes into matrix products.
"""
    heads = ["size", "mode", "precision", *kinds, "GFLOP/s in products", "of one large product"]
    cells = (
        [row["size"], row["mode"], row["precision"], *(f"{row['shares'].get(kind, 0):.0%}" for kind in kinds),
         *(f"{row[f'{name}_flops_per_second'] / 1e9:.0f}" for name in ("products", "device"))]
        for row in rows
    )  # fmt: skip
    return table(text, heads, cells, rows)
