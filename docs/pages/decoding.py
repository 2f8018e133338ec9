"""Sections of benchmarks.md about decoding: the search, exports, the server."""

from pages.markdown import form, table


def decoding(rows):
    """Return the speed of translation, compared with other engines."""
    sentences = {row["workload"]: f"{row['sentences']:,}" for row in rows}
    text = f"""## Decoding

Beam {rows[0]["beam_size"]}, {rows[0]["threads"]} threads, one process an engine, the same weights, loading
left out. `forced`: random weights, 25 tokens and EOS in and out. `natural`: a trained run. Tokens are output
tokens; × is to that engine in float32, the median of rounds in which all take turns; `same` is the share of
outputs equal to ours in float32. `benchmarks/decode.py` tells how the engines' searches differ.
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

What exports say beside `Translator` in float32. `same`: share of equal translations of a test split, in
batches of 64; `same-precision`: beside `Translator` in the same one; `alone`: one by one; `awkward`: of
strings that are blank, long, not UTF-8, …; `greedy`: with one beam. `difference`: the largest of a score,
for CTranslate2 of a token's log-probability. The score is the problem's: sacreBLEU, or F1. CTranslate2's
beam search is another one ([serving.md](serving.md)).
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

Clients that ask for one sentence at a time, and at once for the next; they run on the same machine, and take
part of its cores. × is beside one client, in the same run; latencies are from a request to its answer.
Every answer is compared with `Translator`'s. Memory is the server's, early and at the end.
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

Shares of the time of operations, in the workload `forced`. The rate is that of its matrix products, beside
the rate of one large float32 product on the same machine.
"""
    heads = ["size", "mode", "precision", *kinds, "GFLOP/s in products", "of one large product"]
    cells = (
        [row["size"], row["mode"], row["precision"], *(f"{row['shares'].get(kind, 0):.0%}" for kind in kinds),
         *(f"{row[f'{name}_flops_per_second'] / 1e9:.0f}" for name in ("products", "device"))]
        for row in rows
    )  # fmt: skip
    return table(text, heads, cells, rows)
