"""benchmarks.md: how fast things are, and how much memory they take."""

from pages.decoding import decoding, decoding_profile, exports, served
from pages.markdown import table
from pages.training import loss_curves, memory, precisions, speed_chart, training, training_profile

BENCHMARKS_HEAD = """# Benchmarks

`python docs/results.py` generates this page from `docs/results/*.jsonl`, to which the programs in `benchmarks/` add
rows. All measurements are on CPUs. The machines also had other work, so compare ratios within a run, not absolute
values.

## Findings

- **Training speed.** In float32, this project is 1.14 to 1.17 times as fast as OpenNMT-tf at the size of `tiny`, and
  0.98 to 1.11 times at the size of `base`. It is 1.12 to 1.61 times as fast as PyTorch and 1.12 to 1.64 times as fast
  as keras-hub ([table](#training)).
- **bfloat16.** On a CPU with bfloat16 instructions, training is 1.54 (`tiny`) and 1.72 (`base`) times as fast as
  OpenNMT-tf in float32. The scores of `toy_ende` differ hardly more than those of two seeds ([table](#precision)).
- **Decoding speed.** With XLA in float32, this project is 1.08 to 1.33 times as fast as CTranslate2 and 1.53 to 3.04
  times as fast as OpenNMT-tf. CTranslate2 needs less memory ([table](#decoding)).
- **Exports.** A float32 SavedModel gives the same translations as `Translator` in all cases ([table](#exports)).
- **Server.** 64 clients get 61.5 answers per second, 7.9 times as many as one client, without a wrong answer
  ([table](#server)).
- **Memory.** `--accumulate=8` reduces the memory of `base` with 25,000 tokens from 13.5 to 4.1 GB, and together with
  `--remat` to 2.9 GB ([table](#memory-of-an-update)).
- **Data.** Five million pairs are encoded in about two minutes ([table](#preparing-a-corpus)).

"""


def benchmarks_page(files):
    """Return the text of benchmarks.md."""
    sections = {
        "train_step": training, "train_profile": training_profile, "loss_curve": loss_curves, "precision": precisions,
        "memory": memory,
        "decode": decoding, "decode_profile": decoding_profile, "exports": exports, "serve": served,
        "prepare": preparation,
    }  # fmt: skip
    parts = [section(files[name]) for name, section in sections.items() if name in files]
    return "\n".join([BENCHMARKS_HEAD + speed_chart(files["train_step"]), *parts])


def preparation(rows):
    """Return how fast corpora are prepared."""
    text = """## Preparing a corpus

The corpus consists of random words, about 25 per sentence, which `prepare` encodes and stores. The time for 36
million pairs, the size of WMT14 English–French in the paper, is extrapolated. The vocabulary is learned from a
sample, so this time hardly grows. Encoding the paper's largest corpus would take less than 20 minutes.
"""
    heads = "pairs, kept, filters, vocabulary, encoding, pairs/s, peak memory, 36 million pairs, machine".split(", ")
    cells = []
    for row in rows:
        phases, counts = row["phases"], row["counts"]
        pairs = counts["pairs"] + sum(count for name, count in counts.items() if name.startswith("dropped"))
        rate, memory = phases["encoding"]["pairs_per_second"], max(phase["peak_bytes"] for phase in phases.values())
        seconds = [f"{phases[name]['seconds']:.0f} s" for name in ("learning the vocabulary", "encoding")]
        cells.append([
            f"{pairs:,}", f"{counts['pairs']:,}", ", ".join(row["filters"]) or "none", *seconds, f"{rate:,.0f}",
            f"{memory / 1e9:.2f} GB", f"{36e6 / rate / 60:.0f} min", row["machine"],
        ])  # fmt: skip
    return table(text, heads, cells, rows)
