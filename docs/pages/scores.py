"""results.md: scores of models, by problem, seed and parser."""

import re

from pages.in_small import extrapolation, length_penalty, one_by_one, table3
from pages.markdown import backend, by_seed, changes_of, head, line, mean
from pages.parsers import parsers, parsing_speed
from pages.published import CITED, multi30k

HEAD = """# Results

All scores on this page come from outputs decoded with beam search, never from teacher-forced predictions.
`python docs/results.py` generates the page from `docs/results/*.jsonl`. Each row there holds the commands, settings,
signatures, seed, commit and machine of a score. [reproduce.md](reproduce.md) shows how to run the experiments.

```{warning}
Nobody has trained on WMT14 or the whole WSJ with this project yet. The results below are from small corpora.
```

## Findings

- **Translation.** On Multi30k, `tiny` reaches 40.65 ± 0.36 BLEU (three seeds), compared with a
  [published](#multi30k-compared-with-published-results) 41.02 from a single run.
- **Distillation.** A model of the same size that also learns from the translations of three others, `tiny_plus`,
  reaches [41.71 ± 0.46](#a-better-tiny).
- **Raw text.** `tiny` reaches a sacreBLEU of 40.01 from English into German, 42.23 from German into English, and 60.73
  from English into French (one seed each).
- **Your own text.** With 5,500 pairs and two minutes of updates, `quick` reaches [23.2 BLEU](#parallel_text).
- **Parsing.** On WSJ's sample and GUM, a parser reaches F1 76.90 after 97 minutes of updates in float32, and 76.80
  after 40 minutes in bfloat16. A PCFG from the same trees has [75.21](#parsers-on-each-treebank).
- **The paper's ablations.** [On a small scale](#table-3-on-a-small-scale), most conclusions of Table 3 hold.
- **Backends.** After 3,000 updates with the same seed, validation BLEU is 32.7 with TensorFlow and 32.1 with JAX.

"""

CHART = """BLEU of `tiny` on the validation split of Multi30k (`multi30k_ende_tok`), seed 1. The score rises quickly
in the first 1,500 updates and changes little after 3,500:
"""

LOGS = """## Validation logs

The validation score during each run, with the command of the run.
"""

BLEU = {"sacrebleu": "sacreBLEU", "tokenized_bleu": "tokenized BLEU"}

TREES = {
    "f1": "F1", "error_sentences": "errors", "f1_of_all_sentences": "F1 of all sentences", "recall": "recall",
    "precision": "precision", "tagging_accuracy": "tags", "exact_match": "exact",
}  # fmt: skip


def results_page(files):
    """Return the text of results.md; `files` are {name: rows}."""
    logs = [LOGS]
    parts, sections = (
        [HEAD + chart(files["multi30k"])],
        {
            "length_penalty": length_penalty,
            "table3": table3,
            "extrapolation": lambda rows: extrapolation(rows, files.get("table3", [])),
            "tiny_plus": lambda rows: one_by_one(rows, files["multi30k"]),
        },
    )
    for name, rows in files.items():
        if "benchmark" not in rows[0] and name not in sections:
            parts.append("\n".join([f"## {name}\n", table(rows), *means(rows), ""]))
            logs.extend(curve(row) for row in rows if row["training"]["curve"] and row is first_of_run(rows, row))
    parts.append(multi30k(files["multi30k"], files.get("tiny_plus", [])))
    parts.extend(section(files[name]) for name, section in sections.items() if name in files)
    parts.append(parsers(files["parsing_baselines"], files["parsing_parts"]))
    if "parsing_speed" in files:
        parts.append(parsing_speed(files["parsing_speed"]))
    return "\n".join([*parts, CITED, *logs])


def chart(rows):
    """Return a chart of the validation scores of the first run of `tiny` on Multi30k."""
    run = next(
        row for row in rows if (row["problem"], row["preset"]) == ("multi30k_ende_tok", "tiny") and is_plain(row)
    )
    bars = (
        f"{point['step']:>6,}  {point['score']:5.2f}  {'█' * round(point['score'])}"
        for point in run["training"]["curve"]
    )
    return "\n".join([CHART, "```text", "update   BLEU", *bars, "```\n"])


def is_plain(row):
    """Return whether a row's run has the hparams of its preset, except for the seed."""
    return not changes_of(row)


def table(rows):
    """Return a Markdown table with a line for each row."""
    scores = TREES if "f1" in rows[0] else BLEU
    heads = ["problem", "preset", "seed", "backend", "split", "checkpoint", *scores.values(), "steps", "training"]
    heads.append("commit")
    lines = head(heads)
    for row in rows:
        training = row["training"]
        cells = [
            problem(row), preset(row), row["seed"], backend(row), row["split"], row["checkpoint"]["name"],
            *(figure(row, score) for score in scores), f"{training['steps']:,}",
            f"{training['seconds'] / 60:.0f} min", row["commit"],
        ]  # fmt: skip
        lines.append(line(map(str, cells)))
    return "\n".join(lines)


def figure(row, score):
    """Return a score of a row, or "–". In older rows only EVALB's signature holds the number of error sentences."""
    if score == "error_sentences" and score not in row:
        return int(re.search(r"\((\d+) errors", row["signatures"]["F1"])[1])
    return row.get(score, "–")


def problem(row):
    """Return the problem of a row with the parameters that differ from its defaults."""
    return ", ".join([row["problem"], *(f"{name}={value}" for name, value in row.get("settings", {}).items())])


def preset(row):
    """Return the preset of a row with the fields that differ, if they are few."""
    changes = [f"{name}={value}" for name, value in changes_of(row).items()]
    return ", ".join([row["preset"], *(changes if len(changes) <= 3 else ["changed"])])


def means(rows):
    """Return the lines of a table of means over seeds with standard deviations, or no lines for single seeds."""
    scores, lines = TREES if "f1" in rows[0] else BLEU, []
    for alike in by_seed(rows):
        if alike[1:]:
            row, seeds = alike[0], ", ".join(str(row["seed"]) for row in alike)
            found = [[value for row in alike if (value := figure(row, score)) != "–"] for score in scores]
            cells = [mean(one) if one[1:] else "–" for one in found]
            names = problem(row), preset(row), backend(row), row["split"], row["checkpoint"]["name"]
            lines.append(line([*names, seeds, *cells]))
    heads = ["problem", "preset", "backend", "split", "checkpoint", "seeds", *scores.values()]
    return ["", "Means and standard deviations over seeds:\n", *head(heads), *lines] if lines else []


def curve(row):
    """Return the validation scores of a row's run as a Markdown table, with the command of the run."""
    points = row["training"]["curve"]
    command = "python -m keras_transformer.train " + " ".join(row["commands"]["train"][1:])
    if "backend" in row:
        command = f"KERAS_BACKEND={row['backend']} {command}"
    lines = [f"    {command}\n", "| update | score |", "|---|---|"]
    lines += [f"| {point['step']:,} | {point['score']:.2f} |" for point in points]
    return "\n".join(lines) + "\n"


def first_of_run(rows, row):
    """Return the first row of the same run, whose log is shown once."""
    return next(other for other in rows if other["manifest_sha256"] == row["manifest_sha256"])
