"""Sections of results.md about `tiny` on Multi30k: Table 3, long sentences, distillation, the length penalty."""

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
"""For each variation of `tiny_short`, the preset of the corresponding row in the paper."""
BASE_OF_TABLE_3 = 4.92, 25.8
"""Perplexity and BLEU of the paper's base model on newstest2013."""
WHAT_HOLDS = """
Each row is a single run. A second seed of the first row has almost the same perplexity (6.86), but 1.2 BLEU less on
validation. Small differences in BLEU are therefore meaningless; small differences in perplexity may be real.

The conclusions of the paper, compared with these runs:

- **A:** One head is worse than several, and too many heads are also worse. *Holds.*
- **B:** Smaller keys are worse. *Holds.*
- **C:** Larger models are better. *Holds for the width and `d_ff`; for layers only from two to three.*
- **D:** Dropout reduces overfitting. *Holds, and the effect is larger.*
- **D:** Label smoothing makes perplexity worse and BLEU better. *Holds in part, for perplexity with more smoothing.*
- **E:** Learned positions are as good as sinusoids. *Holds in perplexity.*

**A, heads.** One head costs as much perplexity as in the paper; its BLEU is better on validation and worse on test.
Two heads are as good as the four of `tiny`. Eight heads (of size 16) cost some perplexity, and sixteen (of size 8)
cost much more. The paper's model is four times as wide and loses with 32 heads of size 16.

**B, key size.** The loss in perplexity is larger than in the paper.

**C, model size.**

- Half of `d_ff` costs as much perplexity as in the paper, and hardly any BLEU. Doubling it gains slightly more than
  in the paper.
- Half of the width costs far more than half of the layers. In the paper, a third of the layers costs more than half
  of the width. Twice the width gives the best perplexity of the table and the best BLEU on test.
- Three layers are better than the four of `tiny`. Six layers learned nothing: the encoder collapsed to the same
  output at every position. Validation BLEU was below 1 after 500 updates, where the learning rate peaks, and fell
  further. Longer warm-up was not tried.
- With pre-norm, six layers train. Their perplexity is better than with three and four layers, but the cause may be
  pre-norm, which no other row uses.

**D, dropout.** Without dropout, validation BLEU first rises as fast as with it. It falls between updates 1,000 and
1,500, which are epochs 17 and 25 of 29,000 pairs. For such a short run, dropout of 0.2 is better than the 0.3 of
`tiny`: all three figures are the best among models of this size.

**D, label smoothing.** Twice the smoothing costs as much perplexity as in the paper. Without smoothing, perplexity is
also worse, so 0.1 is the best of the three values. The differences in validation BLEU are smaller than between seeds.
"""
FIGURES = {
    ("validation", "perplexity"): "perplexity", ("validation", "BLEU"): "tokenized_bleu",
    ("test", "BLEU"): "tokenized_bleu",
}  # fmt: skip
FIGURE_HEADS = [f"{figure}, {split}" for split, figure in FIGURES]


def table3(rows):
    """Return the table of all variations of `tiny_short`, scored with the last checkpoint."""
    lines = [
        "## Table 3 on a small scale\n",
        "`make reproduce-table3` trains `tiny_short` on `multi30k_ende_tok` and changes one field per run (in one run",
        "two). Scores are from the last checkpoint, without averaging, as in Table 3 of the paper. Perplexity is per",
        "subword, and BLEU is computed on tokens. Δ is the difference from the first row in perplexity / BLEU on",
        'validation. "Δ, paper" is the difference of the corresponding row of the paper from its base model.\n',
        *head(["", "changed", "backend", "parameters", "updates", *FIGURE_HEADS, "Δ", "Δ, paper", "seed"]),
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
    """Return perplexity and BLEU of a run on validation, or None without them; `splits` are {split: row}."""
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
    """Return scores by source length of runs on short sentences (`rows`) and on all sentences (`others`)."""
    lines = [
        "## Sentences longer than in training\n",
        "The paper expects that sinusoids extrapolate to sequences longer than those in training (§3.5). To test this,",
        "`make reproduce-extrapolation` trains `tiny_short` on `multi30k_ende_tok` without pairs of more than 16",
        "tokens on a side (`max_length`, including EOS). The table shows the last checkpoint on the test split, by the",
        "number of words in the source. The length ratio is words in the outputs / words in the references. The runs",
        "with `max_length` = 256 are those of Table 3 above. There are `max_length` learned positions, and longer",
        "sequences reuse the last one.\n",
        "After training on short sentences, BLEU on sentences of 21 to 30 words is about half as high. In these single",
        "runs, sinusoids are better there than learned positions, most clearly in perplexity.\n",
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
        '`make reproduce-tiny_plus` starts from `tiny` on `multi30k_ende_tok`, reduces the batch size ("smaller',
        'updates"), and then adds single changes (+):\n',
        "- `norm=pre`: pre-norm",
        "- `r_drop`: R-Drop",
        "- `extra_train`: knowledge distillation from an ensemble of three `tiny` models",
        "  ([how to](own_data.md#knowledge-distillation))\n",
        "The checkpoint `averaged` is the mean of the last ten checkpoints, and `ema` is a moving average of the",
        "weights, which does not change training. Perplexity is per subword, BLEU is computed on tokens, and several",
        "seeds give means and standard deviations. Distillation gives the best BLEU, but a higher perplexity.\n",
        *head(["run", "checkpoint", "backend", "parameters", "tokens", *FIGURE_HEADS, "seeds"]),
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
    """Return the name of a run of `tiny`, or of `tiny_plus` with additions."""
    if row["preset"] == "tiny" and not changes_of(row):
        return "`tiny`"
    changes = {**changed_fields("tiny_plus", row["hparams"]), **row.get("settings", {})}
    added = [f"{name}={value}" for name, value in changes.items() if name not in ("seed", "ema_decay")]
    return "+ " + ", ".join(added) if added else "smaller updates"


def length_penalty(rows):
    """Return the scores by exponent of the length penalty, as means over seeds."""
    alphas = {}
    for row in rows:
        alphas.setdefault(row["decoding"]["alpha"], {})[row["seed"]] = row
    lengths = [part["words"] for part in rows[0]["by_length"]]
    lines = [
        "## The length penalty\n",
        "`make reproduce-length_penalty` evaluates `tiny` on the validation split of `multi30k_ende_tok` with several",
        "exponents α, averaged checkpoints and five beams. The table shows BLEU on tokens, and the length ratio (words",
        "in the outputs / words in the references) by the number of words in the source, as means over seeds.\n",
        "α = 1.3 gives the best BLEU. A larger α makes outputs longer; at α = 2, outputs of long sentences are far too",
        "long, and BLEU falls.\n",
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
