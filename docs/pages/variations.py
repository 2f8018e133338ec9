"""Tables of results.md about variations of `tiny_short`: Table 3 on a small scale, and long sentences."""

import math
import re
import statistics

from pages.scores import FIGURES, seeds_of
from pages.tables import backend, changes_of, mean, table

from keras_transformer.config import registry

PART_OF_TABLE_3 = {
    "num_heads": "A", "d_k": "B", "num_layers": "C", "d_model": "C", "d_ff": "C", "dropout": "D",
    "label_smoothing": "D", "positions": "E",
}  # fmt: skip
ROW_OF_TABLE_3 = {
    ("num_heads", 1): "base_h1", ("num_heads", 2): "base_h4", ("num_heads", 8): "base_h16",
    ("num_heads", 16): "base_h32", ("d_k", 8): "base_dk16", ("d_k", 16): "base_dk32", ("num_layers", 2): "base_n2",
    ("num_layers", 3): "base_n4", ("num_layers", 6): "base_n8", ("d_model", 64): "base_d256",
    ("d_model", 256): "base_d1024", ("d_ff", 128): "base_ff1024", ("d_ff", 512): "base_ff4096",
    ("dropout", 0.0): "base_dropout0", ("label_smoothing", 0.0): "base_smoothing0",
    ("label_smoothing", 0.2): "base_smoothing02", ("positions", "learned"): "base_learned_positions",
}  # fmt: skip
"""For each variation of `tiny_short`, the preset of the corresponding row in the paper."""
BASE_OF_TABLE_3 = 4.92, 25.8
"""Perplexity and BLEU of the paper's base model on newstest2013."""
PERPLEXITY, BLEU = "perplexity, validation", "BLEU, validation"
"""The two entries of `FIGURES` that are compared with the paper."""


def table3(rows):
    """Return a table of all variations of `tiny_short`, with the scores of the last checkpoint.

    Scores are means over seeds. The columns with Δ show the difference from the first line.
    """
    runs = {}
    for row in rows:
        if row["checkpoint"]["name"] == "last":
            runs.setdefault(tuple(changes_of(row).items()), {}).setdefault(row["split"], {})[row["seed"]] = row
    lines = []
    for changes, splits in sorted(runs.items(), key=lambda run: (part_of_table_3(run[0]), run[0])):
        splits = {split: [row for _, row in sorted(seeds.items())] for split, seeds in splits.items()}
        lines.append({
            "part": part_of_table_3(changes), "changes": changes, "rows": next(iter(splits.values())),
            **{head: [row[metric] for row in splits.get(split, ())] for head, (split, metric) in FIGURES.items()},
        })  # fmt: skip

    def change(head):
        groups = [line[head] for line in lines if learned(line)]
        return lambda line: difference(line[head], groups) if line["changes"] and learned(line) else None

    return table(lines, {
        "": "{part}",
        "changed": lambda line: ", ".join(f"{field}={value}" for field, value in line["changes"]) or "–",
        "backend": lambda line: "; ".join(dict.fromkeys(map(backend, line["rows"]))),
        "parameters": "{rows[0][parameters]:,}",
        **{head: lambda line, head=head: mean(line[head]) if line[head] else None for head in FIGURES},
        "Δ perplexity": change(PERPLEXITY), "Δ BLEU": change(BLEU),
        "Δ, paper": lambda line: changes_in_paper(line["changes"]), "seeds": lambda line: seeds_of(line["rows"]),
    })  # fmt: skip


def part_of_table_3(changes):
    """Return the letter of the part of Table 3 that has these changes, or "" for no changes."""
    return PART_OF_TABLE_3[changes[0][0]] if changes else ""


def learned(line):
    """Return whether all runs of a line learned to translate. Otherwise, their differences are not meaningful."""
    return min(line[BLEU], default=0) > 1


def difference(values, groups):
    """Return the difference between the mean of `values` and that of the first group, with its confidence interval.

    The method is Student's t-test for two samples with equal variance. The variance is pooled over all groups.

    Args:
        values: One of the groups.
        groups: Lists of figures of runs with the same hyperparameters and different seeds.

    Returns:
        The difference and half of the 95% interval as text. The text is bold if the interval does not contain 0.
    """
    from scipy import stats

    several = [group for group in groups if group[1:]]
    freedom = sum(len(group) - 1 for group in several)
    variance = sum((len(group) - 1) * statistics.variance(group) for group in several) / freedom
    change = statistics.mean(values) - statistics.mean(groups[0])
    half = stats.t.ppf(0.975, freedom) * math.sqrt(variance * (1 / len(values) + 1 / len(groups[0])))
    text = f"{change:+.2f} ± {half:.2f}"
    return f"**{text}**" if abs(change) > half else text


def changes_in_paper(changes):
    """Return the differences of the paper's row for a variation as text, or None if the paper has no such row."""
    registry.load_catalog()
    preset = ROW_OF_TABLE_3.get(changes[0]) if len(changes) == 1 else None
    figures = re.search(r"PPL ([\d.]+), BLEU ([\d.]+)", dict(registry.hparams.describe()).get(preset, ""))
    pairs = zip(map(float, figures.groups()), BASE_OF_TABLE_3) if figures else ()
    return " / ".join(f"{figure - base:+.2f}" for figure, base in pairs) or None


def extrapolation(rows, others):
    """Return a table of scores by source length, as means over seeds.

    `rows` are from runs that train on short sentences, `others` from runs that train on all sentences.
    """
    groups = {}
    for row in [*others, *rows]:
        wanted = (row["split"], row["checkpoint"]["name"]) == ("test", "last")
        if wanted and changes_of(row).keys() <= {"positions", "max_length"}:
            for part in row["by_length"]:
                changes = changes_of(row)
                key = changes.get("positions", "sinusoidal"), row["hparams"]["max_length"], part["words"]
                groups.setdefault(key, {})[row["seed"]] = {**row, **part}
    lines = [
        {"positions": positions, "max_length": length, "words": words, "rows": [*seeds.values()]}
        for (positions, length, words), seeds in groups.items()
    ]

    def figure(name):
        return lambda line: mean([row[name] for row in line["rows"]])

    return table(lines, {
        "positions": "{positions}", "max_length": "{max_length}", "words": "{words}", "lines": "{rows[0][lines]}",
        "BLEU": figure("score"), "length ratio": figure("length_ratio"), "perplexity": figure("perplexity"),
        "seeds": lambda line: seeds_of(line["rows"]),
    })  # fmt: skip
