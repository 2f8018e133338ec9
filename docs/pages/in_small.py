"""results.md: experiments with `tiny` on Multi30k: Table 3, long sentences, a better `tiny`, the length penalty."""

import re
import statistics

from pages.markdown import backend, by_seed, changes_of, head, line, mean

from keras_transformer.config import registry
from keras_transformer.config.hparams import changed_fields

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
"""The paper's row, as a preset, that a variation of `tiny_short` is in small."""
BASE_OF_TABLE_3 = 4.92, 25.8
"""Perplexity and BLEU of the paper's base model, on newstest2013."""
WHAT_HOLDS = """
One seed a line. A second seed of the first line has almost the same perplexity, 6.86, and 1.2 less BLEU on validation:
little differences of BLEU tell nothing, of perplexity they may. What the lines say of the paper's conclusions:

- (A) One head is worse than several, and too many are worse than some: it holds. One head costs as much perplexity as
  in the paper; of its BLEU the two splits say opposite things. Two are as good as the four of `tiny`. Eight, of size
  16, cost some perplexity already, and sixteen, of size 8, far more of it and BLEU; the paper's model, four times as
  wide, loses by 32 heads of size 16.
- (B) Smaller keys are worse: it holds, and by perplexity more than in the paper.
- (C) Larger models are better: it holds for `d_ff` and for the width, both ways; for the layers from two to three.
  Half of `d_ff` costs as much perplexity as in the paper, and hardly any BLEU; twice as much lowers it somewhat more
  than there. Half the width costs far more here than half the layers; in the paper a third of the layers costs more
  than half the width. Twice the width gains more than in the paper, too: the best perplexity of the table, and the
  best BLEU on test. Three layers are better than the four of `tiny`, by perplexity as much as they are worse in the
  paper. Six learned nothing: their encoder collapsed, its outputs being the same at every position; BLEU on
  validation is below 1 after 500 updates, where the learning rate is highest, and less afterwards. With pre-norm six
  learn, and have a better perplexity than three and four, which may be the norm's doing: no other line has it. A
  longer warmup was not tried.
- (D) Dropout helps against overfitting: it holds, and more than in the paper. Without it BLEU on validation rises as
  fast as any at first, and falls between updates 1,000 and 1,500, which are 17 and 25 epochs of 29,000 pairs. For so
  short a training less is enough than the 0.3 of `tiny`: with 0.2 all three figures are the best of the lines of
  its size.
- (D) Label smoothing makes perplexity worse and BLEU better: half of it holds. Twice the smoothing costs as much
  perplexity as in the paper. Without smoothing perplexity is worse, too: by it the paper's 0.1 is the best of the
  three. Of BLEU on validation the seeds differ by more than these lines.
- (E) Learned positions are as good as sinusoids: it holds, by perplexity.
"""
FIGURES = {
    ("validation", "perplexity"): "perplexity", ("validation", "BLEU"): "tokenized_bleu",
    ("test", "BLEU"): "tokenized_bleu",
}  # fmt: skip
FIGURE_HEADS = [f"{figure}, {split}" for split, figure in FIGURES]


def table3(rows):
    """Return Table 3 in small: what each variation of `tiny_short` makes of it, by the last checkpoint."""
    lines = [
        "## Table 3 in small\n",
        "`tiny_short` on `multi30k_ende_tok`, one field changed at a time, once two, as `make reproduce-table3` trains",
        "it. The last checkpoint, as in the paper's Table 3 without averaging; perplexity is a piece's, BLEU that on",
        "tokens. Δ are differences from the first line, perplexity / BLEU on validation, and those of the paper's row",
        "that is most alike, from its base model.\n",
        *head(["", "changed", "backend", "parameters", "updates", *FIGURE_HEADS, "Δ", "Δ, the paper's", "seed"]),
    ]
    found = {}
    for row in rows:
        if row["checkpoint"]["name"] == "last":
            found.setdefault((tuple(changes_of(row).items()), row["seed"]), {})[row["split"]] = row
    variations = [(PART_OF_TABLE_3[changes[0][0]] if changes else "", changes, seed) for changes, seed in found]
    base = found.get(((), 1), {})
    for part, changes, seed in sorted(variations):
        splits = found[changes, seed]
        one = next(iter(splits.values()))
        cells = [part, ", ".join(f"{field}={value}" for field, value in changes) or "–", backend(one)]
        cells += [f"{one['parameters']:,}", f"{one['training']['steps']:,}", *figures_of(splits)]
        cells.append(difference(validated(splits), validated(base)) if splits is not base else "–")
        cells.append(difference(papers(changes), BASE_OF_TABLE_3))
        lines.append(line([*cells, str(seed)]))
    return "\n".join([*lines, WHAT_HOLDS])


def validated(splits):
    """Return a training's perplexity and BLEU on validation, None where there are none; `splits` are {split: row}."""
    row = splits.get("validation")
    return row and (row["perplexity"], row["tokenized_bleu"])


def papers(changes):
    """Return perplexity and BLEU of the paper's row that is like a variation, from its preset; None without one."""
    registry.load_catalog()
    preset = ROW_OF_TABLE_3.get(changes[0]) if len(changes) == 1 else None
    figures = re.search(r"PPL ([\d.]+), BLEU ([\d.]+)", dict(registry.hparams.describe()).get(preset, ""))
    return figures and tuple(map(float, figures.groups()))


def difference(figures, others):
    """Return by how much figures are more than others, "–" where either is missing."""
    if not (figures and others):
        return "–"
    return " / ".join(f"{figure - other:+.2f}" for figure, other in zip(figures, others))


def extrapolation(rows, others):
    """Return scores by source length, of trainings on short sentences and, from Table 3 in small, of those on all."""
    lines = [
        "## Sentences longer than in training\n",
        "`tiny_short` on `multi30k_ende_tok`, as `make reproduce-extrapolation` trains it: without the pairs of which",
        "a side has more than `max_length` tokens, EOS counted. The last checkpoint on the test split, by the words of",
        "the source; the length ratio is words of the outputs / words of the references.",
        "Trainings on all pairs are those of Table 3 in small. Learned positions are as many as `max_length`; places",
        "beyond share the last one.\n",
        *head(
            "positions, max_length, backend, updates, words, lines, BLEU, length ratio, perplexity, seed".split(", ")
        ),
    ]
    for row in [*others, *rows]:
        changes = changes_of(row)
        shown = (row["split"], row["checkpoint"]["name"]) == ("test", "last") and "by_length" in row
        if shown and changes.keys() <= {"positions", "max_length"}:
            for part in row["by_length"]:
                cells = [changes.get("positions", "sinusoidal"), row["hparams"]["max_length"], backend(row)]
                cells += [f"{row['training']['steps']:,}", part["words"], part["lines"]]
                figures = [part[name] for name in ("score", "length_ratio", "perplexity")]
                cells += ["–" if figure is None else f"{figure:.2f}" for figure in figures]
                lines.append(line(map(str, [*cells, row["seed"]])))
    return "\n".join([*lines, ""])


def one_by_one(rows, others):
    """Return what makes `tiny`, which is one of `others`, better: `tiny_plus`, and what is added to it."""
    lines = [
        "## A better `tiny`\n",
        "On `multi30k_ende_tok`, as `make reproduce-tiny_plus` trains it: `tiny`; the smaller updates of `tiny_plus`;",
        "and what is added to these (+). `averaged` is the mean of the last ten checkpoints, `ema` a moving average of",
        "the weights, which changes nothing in training; `extra_train` are what three trainings of `tiny`, together,",
        "make of the training text. Perplexity is a piece's, BLEU that on tokens; means over seeds, and standard",
        "deviations.\n",
        *head(["training", "checkpoint", "backend", "parameters", "tokens", *FIGURE_HEADS, "seeds"]),
    ]
    found = {}
    for alike in by_seed([*(row for row in others if row["preset"] == "tiny" and not changes_of(row)), *rows]):
        row, checkpoint = alike[0], alike[0]["checkpoint"]["name"]
        if row["problem"] == "multi30k_ende_tok" and checkpoint != "best":
            found.setdefault((step_to_better(row), checkpoint), {})[row["split"]] = alike
    for (step, checkpoint), splits in found.items():
        alike = next(iter(splits.values()))
        tokens = statistics.mean(row["training"]["tokens"] for row in alike) / 1e6
        cells = [step, checkpoint, backend(alike[0]), f"{alike[0]['parameters']:,}", f"{tokens:.0f}M"]
        for (split, _), figure in FIGURES.items():
            cells.append(mean([row[figure] for row in splits[split]]) if split in splits else "–")
        lines.append(line([*cells, ", ".join(str(row["seed"]) for row in alike)]))
    return "\n".join([*lines, ""])


def step_to_better(row):
    """Return how a training is named that is `tiny`, or `tiny_plus` with something added."""
    if row["preset"] == "tiny" and not changes_of(row):
        return "`tiny`"
    changes = {**changed_fields("tiny_plus", row["hparams"]), **row.get("settings", {})}
    added = [f"{name}={value}" for name, value in changes.items() if name not in ("seed", "ema_decay")]
    return "+ " + ", ".join(added) if added else "smaller updates"


def length_penalty(rows):
    """Return what the exponent of the length penalty makes of a training, by the mean over its seeds."""
    alphas = {}
    for row in rows:
        alphas.setdefault(row["decoding"]["alpha"], {})[row["seed"]] = row
    lengths = [part["words"] for part in rows[0]["by_length"]]
    lines = [
        "## The length penalty\n",
        "`tiny` on the validation split of `multi30k_ende_tok`, the mean of the last checkpoints and five beams, as",
        "`make reproduce-length_penalty` evaluates it: BLEU on tokens, and words of the outputs / words of the",
        "references, by words of the source. Means over seeds, and the standard deviation.\n",
        *head(["α", "BLEU", *(f"length ratio, {words}" for words in lengths), "seeds"]),
    ]
    for alpha, seeds in sorted(alphas.items()):
        scores = [row["tokenized_bleu"] for row in seeds.values()]
        parts = zip(*(row["by_length"] for row in seeds.values()))
        ratios = [f"{statistics.mean(part['length_ratio'] for part in one):.3f}" for one in parts]
        lines.append(line([f"{alpha:g}", mean(scores), *ratios, ", ".join(map(str, sorted(seeds)))]))
    return "\n".join([*lines, ""])


def figures_of(splits):
    """Return the cells of a training's `FIGURES`; `splits` are {split: row}."""
    figures = [splits.get(split, {}).get(name) for (split, _), name in FIGURES.items()]
    return ["–" if figure is None else f"{figure:.2f}" for figure in figures]
