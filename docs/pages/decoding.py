"""Of benchmarks.md what translating takes: the search, exports, the server."""

from pages.markdown import commands, head, line


def decoding(rows):
    """Returns how fast sentences are translated, beside other engines."""
    sentences = {row["workload"]: f"{row['sentences']:,}" for row in rows}
    heads = "workload size engine mode precision tokens/s ×CTranslate2 ×OpenNMT-tf memory BLEU same".split()
    lines = [
        "## Decoding\n",
        f"Beam {rows[0]['beam_size']}, {rows[0]['threads']} threads, one process an engine, the same weights, loading",
        "left out. `forced`: random weights, 25 tokens and EOS in and out. `natural`: a trained run. Tokens are output",
        "tokens; × is to that engine in float32, the median of rounds in which all take turns; `same` is the share of",
        "outputs equal to ours in float32. `benchmarks/decode.py` tells how the engines' searches differ.\n",
        *head(heads),
    ]
    for row in rows:
        ratios = [row["ratios"][engine] for engine in ("ctranslate2", "opennmt_tf")]
        bleu, same = row["bleu"], row["same_as_ours"]
        cells = [
            f"{row['workload']}, {sentences[row['workload']]} sentences", row["size"], row["engine"], row["mode"],
            row["precision"], f"{row['output_tokens_per_second']:,.0f}",
            *("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios), f"{row['peak_memory_mb']:,.0f} MB",
            "–" if bleu is None else f"{bleu:.2f}", "–" if same is None else f"{same:.1%}",
        ]  # fmt: skip
        lines.append(line(cells))
    return "\n".join([*lines, "", commands(rows)])


def exports(rows):
    """Returns how exports compare with `Translator`."""
    heads = "problem format precision same same-precision alone awkward greedy difference score ours".split()
    lines = [
        "## Exports\n",
        "What exports say beside `Translator` in float32. `same`: share of equal translations of a test split, in",
        "batches of 64; `same-precision`: beside `Translator` in the same one; `alone`: one by one; `awkward`: of",
        "strings that are blank, long, not UTF-8, …; `greedy`: with one beam. `difference`: the largest of a score,",
        "for CTranslate2 of a token's log-probability. The score is the problem's: sacreBLEU, or F1. CTranslate2's",
        "beam search is another one ([serving.md](serving.md)).\n",
        *head([*heads, "sentences/s", "MB"]),
    ]
    for row in rows:
        shares = [row.get(name) for name in ("same", "same_precision", "same_alone", "awkward", "same_greedy")]
        difference = row.get("max_score_difference", row.get("max_log_probability_difference"))
        cells = [
            f"{row['problem']}, {row['sentences']:,} sentences", row["format"], row["precision"],
            *("–" if share is None else f"{share:.1%}" for share in shares), f"{difference:.0e}",
            f"{row['score']:.2f}", f"{row['reference_score']:.2f}", f"{row['sentences_per_second']:,.0f}",
            f"{row['megabytes']:,.1f}",
        ]  # fmt: skip
        lines.append(line(cells))
    return "\n".join([*lines, "", commands(rows)])


def served(rows):
    """Returns how many answers a server gives, and how late."""
    lines = [
        "## Server\n",
        "Clients that ask for one sentence at a time, and at once for the next; they run on the same machine, and take",
        "part of its cores. × is beside one client, in the same run; latencies are from a request to its answer.",
        "Every answer is compared with `Translator`'s. Memory is the server's, early and at the end.\n",
        *head("model clients seconds answers answers/s × p50 p95 p99 wrong refused memory".split()),
    ]
    alone: dict = {}
    for row in rows:
        run = row["model"], tuple(row["command"])
        if row["clients"] == 1:
            alone[run] = row["sentences_per_second"]
        ratio = f"{row['sentences_per_second'] / alone[run]:.1f}" if run in alone else "–"
        cells = [
            f"{row['model']} ({row['problem']})", str(row["clients"]), str(row["seconds"]), f"{row['answers']:,}",
            f"{row['sentences_per_second']:.1f}", ratio, *(f"{row[f'p{share}_ms']:,} ms" for share in (50, 95, 99)),
            str(row["wrong"]), str(row["errors"]), " → ".join(f"{size:,}" for size in row["memory_mb"]) + " MB",
        ]  # fmt: skip
        lines.append(line(cells))
    return "\n".join([*lines, "", commands(rows)])


def decoding_profile(rows):
    """Returns where the time of decoding goes."""
    kinds = list(dict.fromkeys(kind for row in rows for kind in row["shares"]))
    lines = [
        "### Where the time goes\n",
        "Shares of the time of operations, in the workload `forced`. The rate is that of its matrix products, beside",
        "the rate of one large float32 product on the same machine.\n",
        f"| size | mode | precision | {' | '.join(kinds)} | GFLOP/s in products | of one large product |",
        "|" + "---|" * (len(kinds) + 5),
    ]
    for row in rows:
        shares = " | ".join(f"{row['shares'].get(kind, 0):.0%}" for kind in kinds)
        lines.append(
            f"| {row['size']} | {row['mode']} | {row['precision']} | {shares} "
            f"| {row['products_flops_per_second'] / 1e9:.0f} | {row['device_flops_per_second'] / 1e9:.0f} |"
        )
    return "\n".join([*lines, "", commands(rows)])
