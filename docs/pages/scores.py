"""Tables and charts of results.md."""

import re
import statistics

from pages.tables import backend, bars, by_seed, changes_of, curves, first_per, mean, table

from keras_transformer.config.hparams import changed_fields

BLEU = {"sacrebleu": "sacreBLEU", "tokenized_bleu": "tokenized BLEU"}
TREES = {
    "f1": "F1", "error_sentences": "errors", "f1_of_all_sentences": "F1 of all sentences", "recall": "recall",
    "precision": "precision", "tagging_accuracy": "tags", "exact_match": "exact",
}  # fmt: skip
FIGURES = {
    "perplexity, validation": ("validation", "perplexity"), "BLEU, validation": ("validation", "tokenized_bleu"),
    "BLEU, test": ("test", "tokenized_bleu"),
}  # fmt: skip


def validation_chart(rows):
    """Return a chart of validation scores during the latest run of `tiny` with seed 1 on Multi30k."""
    curve = latest_tiny(rows)["training"]["curve"]
    points = ((f"{point['step']:>6,}", f"{point['score']:5.2f}", point["score"]) for point in curve)
    return bars("update   BLEU", points)


def is_tiny(row):
    """Return whether a row is from a run of unchanged `tiny` on tokenized Multi30k."""
    return (row["problem"], row["preset"]) == ("multi30k_ende_tok", "tiny") and not changes_of(row)


def latest_tiny(rows):
    """Return the last row of unchanged `tiny` with seed 1 on tokenized Multi30k."""
    return [row for row in rows if is_tiny(row) and row["seed"] == 1][-1]


def scores(rows):
    """Return a table with a line for each row."""
    metrics = TREES if "f1" in rows[0] else BLEU
    return table(rows, {
        "problem": problem, "preset": preset, "seed": "{seed}", "backend": backend, "split": "{split}",
        "checkpoint": "{checkpoint[name]}",
        **{name: lambda row, metric=metric: score(row, metric) for metric, name in metrics.items()},
        "steps": "{training[steps]:,}", "training": lambda row: f"{row['training']['seconds'] / 60:.0f} min",
        "commit": "{commit}",
    })  # fmt: skip


def score(row, metric):
    """Return a score of a row, or None. Older rows have the number of error sentences only in EVALB's signature."""
    if metric == "error_sentences" and metric not in row:
        return int(re.search(r"\((\d+) errors", row["signatures"]["F1"])[1])
    return row.get(metric)


def problem(row):
    """Return the problem of a row, with the parameters that differ from the problem's defaults."""
    return ", ".join([row["problem"], *(f"{name}={value}" for name, value in row.get("settings", {}).items())])


def preset(row):
    """Return the preset of a row and its changed fields. More than three changed fields become "changed"."""
    changes = [f"{name}={value}" for name, value in changes_of(row).items()]
    return ", ".join([row["preset"], *(changes if len(changes) <= 3 else ["changed"])])


def means(rows):
    """Return a table of means over seeds with standard deviations."""

    def cell(metric):
        def of_group(rows):
            found = [value for row in rows if (value := score(row, metric)) is not None]
            return mean(found) if found[1:] else None

        return of_group

    metrics = TREES if "f1" in rows[0] else BLEU
    return table([group for group in by_seed(rows) if group[1:]], {
        "problem": lambda rows: problem(rows[0]), "preset": lambda rows: preset(rows[0]),
        "backend": lambda rows: backend(rows[0]), "split": lambda rows: rows[0]["split"],
        "checkpoint": lambda rows: rows[0]["checkpoint"]["name"], "seeds": seeds_of,
        **{name: cell(metric) for metric, name in metrics.items()},
    })  # fmt: skip


def seeds_of(rows):
    """Return the seeds of rows as text."""
    return ", ".join(str(row["seed"]) for row in rows)


def validation_logs(*files):
    """Return the validation scores of all runs in several result files, with the command of each run."""
    parts = []
    for rows in files:
        for row in first_per(rows, lambda row: row["manifest_sha256"]):
            if curve := row["training"]["curve"]:
                command = "python -m keras_transformer.train " + " ".join(row["commands"]["train"][1:])
                command = f"KERAS_BACKEND={row['backend']} {command}" if "backend" in row else command
                parts += [f"    {command}", table(curve, {"update": "{step:,}", "score": "{score:.2f}"})]
    return "\n\n".join(parts)


def summary(multi30k, tiny_plus, parsing, auto_trees, baselines, parts):
    """Return a table of the main scores, as means over seeds, next to the scores of other systems."""
    pcfg = next(row["f1"] for row in baselines if (row["part"], row["parser"]) == ("all", "pcfg"))
    chart = next(row["f1"] for row in parts if row["test"] == "parsed/chart/all.txt")
    students = [row for row in tiny_plus if row["settings"].get("extra_train") == "runs/reproduce/taught"]
    lines = [
        *(
            {"published": f"{score:.2f}", "source": SOURCES[problem],
             **result("tiny", multi30k, problem, "tokenized_bleu", split)}
            for problem, splits in PUBLISHED.items()
            for split, score in splits.items()
        ),
        result("tiny_plus", students, "multi30k_ende_tok", "tokenized_bleu", checkpoint="ema"),
        *(result("tiny", multi30k, f"multi30k_{pair}", "sacrebleu") for pair in ("ende", "deen", "enfr")),
        {"published": f"{pcfg:.2f}", "source": "PCFG estimated from the same trees", **result(
            "parsing_small", parsing, "parsing_english", "f1", checkpoint="ema")},
        {"published": f"{chart:.2f}", "source": "chart parser that parsed the additional text", **result(
            "parsing_small", auto_trees, "parsing_english_semisupervised", "f1", checkpoint="ema", train_steps=20_000)},
    ]  # fmt: skip
    return table([one for one in lines if one["score"]], {
        "problem": "`{problem}`", "test set": "{split}", "recipe": "`{recipe}`", "score": "{score}",
        "seeds": "{seeds}", "other system": "{published}", "source": "{source}", "training": "{time}",
        "hardware": "{machine}",
    })  # fmt: skip


SOURCES = {
    "multi30k_ende_tok": "Transformer-Tiny, Wu et al. 2021, one run",
    "multi30k_enfr_tok": "Transformer-Tiny, as cited by later work; not checked",
}
PUBLISHED = {
    "multi30k_ende_tok": {"test": 41.02, "test_2017": 33.36, "test_coco": 29.88},
    "multi30k_enfr_tok": {"test": 61.80, "test_2017": 53.46, "test_coco": 44.52},
}
"""Tokenized BLEU of Transformer-Tiny by problem and test set. `SOURCES` names the source of the scores."""
METRICS = {"tokenized_bleu": "tokenized BLEU", "sacrebleu": "sacreBLEU", "f1": "F1"}


def result(recipe, rows, problem, metric, split="test", checkpoint="averaged", **changes):
    """Return the dictionary for a line of `summary`. Its "score" is None if there are no matching rows.

    `changes` are hparams that differ from the recipe's preset.
    """
    wanted = (problem, split, checkpoint)
    ours = {
        row["seed"]: row
        for row in rows
        if (row["problem"], row["split"], row["checkpoint"]["name"]) == wanted and is_recipe(row, recipe, changes)
    }
    flags = "".join(f" --{name}={value}" for name, value in changes.items())
    line = {"problem": problem, "split": split, "recipe": recipe + flags, "score": None}
    if ours:
        last = ours[max(ours)]
        line |= {
            "score": f"{METRICS[metric]} {mean([row[metric] for row in ours.values()])}",
            "seeds": len(ours), "time": f"{last['training']['seconds'] / 60:.0f} min", "machine": last["machine"],
        }  # fmt: skip
    return line


def t_of_published(rows):
    """Return Student's t of the published score on test 2016, a single run, compared with the seeds of `tiny`."""
    final = [row for row in rows if is_tiny(row) and is_averaged(row) and row["split"] == "test"]
    scores = {row["seed"]: row["tokenized_bleu"] for row in final}.values()
    spread = statistics.stdev(scores) * (1 + 1 / len(scores)) ** 0.5
    return f"{(PUBLISHED['multi30k_ende_tok']['test'] - statistics.mean(scores)) / spread:.2f}"


def is_recipe(row, preset, changes):
    """Return whether a row is from a run of a preset with `changes` on all text. Validation options may differ."""
    found = {**changed_fields(preset, row["hparams"]), **row.get("settings", {})}
    others = {"seed", "vocab_size", "eval_steps", "beam_size", "extra_train", "auto_dir", "gold_share"}
    return {name: value for name, value in found.items() if name not in others} == changes


def engines(rows, multi30k):
    """Return a table of scores with CTranslate2, from `rows`, and of the same models with Keras."""

    def key(row):
        return row["manifest_sha256"], row["split"], row["checkpoint"]["name"]

    keras = {key(row): row for row in multi30k}
    return table(rows, {
        "split": "{split}", "Keras": lambda row: f"{keras[key(row)]['tokenized_bleu']:.2f}",
        "CTranslate2": "{tokenized_bleu:.2f}",
        "difference": lambda row: f"{row['tokenized_bleu'] - keras[key(row)]['tokenized_bleu']:+.2f}",
    })  # fmt: skip


CAPTIONS = {None: "no captions", "runs/back": "captions", "runs/reproduce/back": "captions, tagged and balanced"}
"""Names of the runs in the tables of back-translation, {setting `extra_train`: name}."""


def back_translation(rows, multi30k):
    """Return a table of final scores of `tiny` without and with back-translated captions, by split."""
    runs = {}
    for row in [*(row for row in multi30k if is_tiny(row) and row["seed"] == 1), *rows]:
        if is_averaged(row):
            runs.setdefault(row.get("settings", {}).get("extra_train"), {})[row["split"]] = row
    lines = [{"run": CAPTIONS[extra], "splits": splits} for extra, splits in runs.items()]
    return table(lines, {"training pairs": "{run}"} | {
        head: f"{{splits[{split}][tokenized_bleu]:.2f}}" for head, split in SPLITS.items()
    })  # fmt: skip


def back_translation_curves(rows, multi30k):
    """Return a table of validation scores during runs of `tiny` without and with back-translated captions."""
    captions = {CAPTIONS[row["settings"]["extra_train"]]: row for row in rows}
    return curves({CAPTIONS[None]: latest_tiny(multi30k)} | captions, every=1)


SPLITS = {"validation": "validation", "2016": "test", "2017": "test_2017", "COCO": "test_coco"}
"""{heading: split} for all splits of Multi30k."""


def is_averaged(row):
    """Return whether a row contains scores of averaged checkpoints."""
    return row["checkpoint"]["name"] == "averaged"


def length_penalty(rows):
    """Return a table of scores by exponent of the length penalty, as means over seeds."""
    alphas = {}
    for row in rows:
        alphas.setdefault(row["decoding"]["alpha"], {})[row["seed"]] = row

    def ratio(i):
        return lambda rows: f"{statistics.mean(row['by_length'][i]['length_ratio'] for row in rows):.3f}"

    return table([[row for _, row in sorted(alphas[alpha].items())] for alpha in sorted(alphas)], {
        "α": lambda rows: f"{rows[0]['decoding']['alpha']:g}",
        "BLEU": lambda rows: mean([row["tokenized_bleu"] for row in rows]),
        **{f"length ratio, {part['words']}": ratio(i) for i, part in enumerate(rows[0]["by_length"])},
        "seeds": seeds_of,
    })  # fmt: skip


def tiny_plus(rows, multi30k):
    """Return a table of the effect of each change to `tiny`. The rows of `tiny` itself are in `multi30k`."""
    runs = {}
    for group in by_seed([*filter(is_tiny, multi30k), *rows]):
        row, checkpoint = group[0], group[0]["checkpoint"]["name"]
        if row["problem"] == "multi30k_ende_tok" and checkpoint != "best":
            runs.setdefault((step_to_better(row), checkpoint), {})[row["split"]] = group

    def figure(split, name):
        return lambda splits: mean([row[name] for row in splits[split]]) if split in splits else None

    def first(value):
        return lambda splits: value(next(iter(splits.values())))

    return table(runs.values(), {
        "run": first(lambda rows: step_to_better(rows[0])),
        "checkpoint": first(lambda rows: rows[0]["checkpoint"]["name"]),
        "backend": first(lambda rows: backend(rows[0])), "parameters": first(lambda rows: f"{rows[0]['parameters']:,}"),
        "tokens": first(lambda rows: f"{statistics.mean(row['training']['tokens'] for row in rows) / 1e6:.0f}M"),
        **{head: figure(*key) for head, key in FIGURES.items()}, "seeds": first(seeds_of),
    })  # fmt: skip


def r_drop(rows, tiny_plus):
    """Return a table of validation BLEU during training, with R-Drop and without it."""
    (run,) = rows
    without = next(row for row in tiny_plus if step_to_better(row) == "smaller updates")
    scores = {point["step"]: point["score"] for point in without["training"]["curve"]}
    points = [{**point, "without": scores[point["step"]]} for point in run["training"]["curve"]]
    return table(points, {
        "update": "{step:,}", "without": "{without:.2f}", "with R-Drop": "{score:.2f}",
        "difference": lambda point: f"{point['score'] - point['without']:+.2f}",
    })  # fmt: skip


def step_to_better(row):
    """Return the name of a run: `tiny`, or `tiny_plus` with its additions."""
    if is_tiny(row):
        return "`tiny`"
    changes = {**changed_fields("tiny_plus", row["hparams"]), **row.get("settings", {})}
    added = [f"{name}={value}" for name, value in changes.items() if name not in ("seed", "ema_decay")]
    return "+ " + ", ".join(added) if added else "smaller updates"
