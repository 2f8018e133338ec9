"""Writes commands.md and presets.md, from what the commands and the registered hparams say of themselves.

python docs/reference.py            # writes both
python docs/reference.py --check    # tells whether they are what would be written; status 1 if not
"""

import contextlib
import importlib
import importlib.util
import io
import os
import statistics
import sys
from pathlib import Path

from pages.markdown import by_seed, changes_of, mean, rows_of

from keras_transformer.__main__ import COMMANDS
from keras_transformer.config import registry

DOCS = Path(__file__).parent
VOCABULARY = 37_000
WIDTH = "96"
RESULTS = "toy_ende", "parallel_text", "multi30k", "tiny_plus", "parsing"
METRICS = {"f1": "F1", "tokenized_bleu": "BLEU on tokens", "sacrebleu": "sacreBLEU"}
THE_PAPERS = (
    ("base", "`wmt14_ende`", "100,000", "BLEU 27.3", "12 hours", "8 P100, the paper's"),
    ("big", "`wmt14_ende`", "300,000", "BLEU 28.4", "3.5 days", "8 P100, the paper's"),
    ("big_enfr", "`wmt14_enfr`", "300,000", "BLEU 41.8", "3.5 days", "8 P100, the paper's"),
    ("parsing_wsj", "`parsing_wsj`", "", "F1 91.3", "", "the paper's"),
    ("parsing_semisupervised", "`parsing_wsj_semisupervised`", "", "F1 92.7", "", "the paper's"),
)
MADE = "<!-- Written by docs/reference.py. -->\n"


def commands_page():
    """Returns commands.md: each command's own help."""
    parts = [
        "# Commands",
        MADE
        + "Every flag is `--NAME=VALUE`. A mistake is told in one sentence, with exit status 2; 75 means that another "
        "worker is gone, 130 and 143 that a signal ended the work.",
    ]
    for command, what in COMMANDS.items():
        parts += [f"## {command}", what, f"```text\n{help_of(command).strip()}\n```"]
    return "\n\n".join(parts) + "\n"


def help_of(command):
    """Returns what a command prints when it is asked for help."""
    name = f"keras_transformer.{command}"
    if importlib.util.find_spec(name).submodule_search_locations:  # a package, whose command is its __main__
        name += ".__main__"
    os.environ["COLUMNS"] = WIDTH
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        importlib.import_module(name).main(["--help"])
    return text.getvalue()


def presets_page():
    """Returns presets.md: sizes and cost of all registered hparams."""
    from keras_transformer.backend.loading import load_keras

    load_keras()
    from keras_transformer.config.hparams import load_hparams
    from keras_transformer.training.cost import training_cost

    heads = "preset what layers d_model d_ff heads dropout tokens updates parameters FLOPs".split()
    rows = [heads, ["---"] * len(heads)]
    for name, what in registry.hparams.describe():
        h = load_hparams(name)
        cost = training_cost(h, VOCABULARY)
        sizes = [f"{h.num_layers} + {h.decoder_depth}", h.d_model, h.d_ff, h.num_heads, f"{h.dropout:g}"]
        work = [f"{number:,}" for number in (h.batch_tokens, h.train_steps, cost.parameters)]
        rows.append([f"`{name}`", what.rstrip("."), *sizes, *work, f"{cost.counted:.1e}"])
    table = "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)
    return f"""# Presets

{MADE}All with a vocabulary of {VOCABULARY:,} tokens and sentences of 30, as
`python -m keras_transformer.cost --hparams=NAME` counts; a preset that is trained on another vocabulary has other
numbers, which `train --dry_run` prints. Tokens are those of an update, on either side. FLOPs are those of the whole
run, with updates that are full on both sides.

{table}

`base`, `big` and the presets of Table 3 drop pairs with more than 256 tokens on a side, and the checkpoints that
`average` takes of `base` and `big` have other distances than the paper's
([reproduce.md](reproduce.md#table-2-translation)). `parsing_wsj` and `parsing_semisupervised` have the paper's sizes,
but not its tuning on section 22 ([parsing.md](parsing.md#problems)).

## What to expect

The longest run of each that was measured, and the paper's own results (§5.2, Tables 2 and 4), which nobody has
repeated with this project. A row says "other hparams" where no run has the preset's. With several seeds, score and time
are means, with the score's standard deviation. The time is that of the updates; validation and decoding come on top.

{expected()}

[results.md](results.md) has the commands, seeds and curves; [benchmarks.md](benchmarks.md) the speed of an update;
[cost.md](cost.md) hours by hardware; [reproduce.md](reproduce.md) the commands for the paper's figures.
"""


def expected():
    """Returns the table of results and times: the paper's, and those of the rows in docs/results."""
    shown = {}
    for rows in by_seed(row for name in RESULTS for row in rows_of(DOCS / "results" / f"{name}.jsonl")):
        kind = rows[0]["preset"], rows[0]["problem"]
        if rows[0]["split"] == "test" and precedence(rows) >= precedence(shown.get(kind, rows)):
            shown[kind] = rows
    lines = ["| preset | problem | updates | score on the test set | time | on |", "| --- " * 6 + "|"]
    lines += [f"| `{preset}` | {' | '.join(cells)} |" for preset, *cells in THE_PAPERS]
    for (preset, problem), rows in sorted(shown.items()):
        row, seeds = rows[0], f", {len(rows)} seeds" * (len(rows) > 1)
        settings = (f"`{name}={value}`" for name, value in row.get("settings", {}).items())
        named = ", ".join([f"`{problem}`", *settings])
        key, metric = next((key, label) for key, label in METRICS.items() if key in row)
        changed = ", other hparams" if changes_of(row) else ""
        minutes = f"{average(rows, 'seconds') / 60:.0f} min"
        score = f"{metric} {mean([row[key] for row in rows])}{seeds}"
        cells = named, f"{average(rows, 'steps'):,.0f}", score, minutes, row["machine"]
        lines.append(f"| `{preset}`{changed} | {' | '.join(cells)} |")
    return "\n".join(lines)


def precedence(rows):
    """What makes trainings those that are shown: the preset as it is, then the longer training."""
    return not changes_of(rows[0]), average(rows, "steps")


def average(rows, name):
    """Returns the mean over rows of what they tell of their training."""
    return statistics.mean(row["training"][name] for row in rows)


def main(arguments):
    """Writes or, with `--check`, compares the pages; returns the exit status."""
    registry.load_catalog()
    stale = []
    for name, make in (("commands.md", commands_page), ("presets.md", presets_page)):
        path, text = DOCS / name, make()
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        print(f"not what docs/reference.py writes: {', '.join(stale)}", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
