"""Generate commands.md and presets.md from the help texts of the commands and the registered hparams.

python docs/reference.py            # writes both pages
python docs/reference.py --check    # exits with status 1 if a page is outdated
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
    ("base", "`wmt14_ende`", "100,000", "BLEU 27.3", "12 hours", "8 P100 (paper)"),
    ("big", "`wmt14_ende`", "300,000", "BLEU 28.4", "3.5 days", "8 P100 (paper)"),
    ("big_enfr", "`wmt14_enfr`", "300,000", "BLEU 41.8", "3.5 days", "8 P100 (paper)"),
    ("parsing_wsj", "`parsing_wsj`", "", "F1 91.3", "", "paper"),
    ("parsing_semisupervised", "`parsing_wsj_semisupervised`", "", "F1 92.7", "", "paper"),
)
MADE = "<!-- Written by docs/reference.py. -->\n"


def commands_page():
    """Return commands.md: the help text of each command."""
    parts = [
        "# Commands",
        MADE
        + "This page shows the help text of each command. Run a command as `python -m keras_transformer.COMMAND`, and "
        "write flags as `--NAME=VALUE`.\n\n"
        "| exit status | meaning |\n|---|---|\n"
        "| 0 | success |\n"
        "| 1 | a bug, with a traceback |\n"
        "| 2 | a mistake in the command or its input, with one sentence that names the remedy |\n"
        "| 75 | another worker of a distributed run is lost |\n"
        "| 130, 143 | interrupted by Ctrl-C or SIGTERM |",
    ]
    for command, what in COMMANDS.items():
        parts += [f"## {command}", what, f"```text\n{help_of(command).strip()}\n```"]
    return "\n\n".join(parts) + "\n"


def help_of(command):
    """Return the output of a command with `--help`."""
    name = f"keras_transformer.{command}"
    if importlib.util.find_spec(name).submodule_search_locations:  # a package, whose command is its __main__
        name += ".__main__"
    os.environ["COLUMNS"] = WIDTH
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        importlib.import_module(name).main(["--help"])
    return text.getvalue()


def presets_page():
    """Return presets.md: sizes and costs of all registered hparams."""
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

{MADE}Select a preset with `--hparams=NAME`. The table assumes a vocabulary of {VOCABULARY:,} tokens and sentences of
30 tokens.

- **tokens**: maximum number of source tokens, and of target tokens, in an update
- **parameters**: number of parameters with this vocabulary; `train --dry_run` prints the number for your vocabulary
- **FLOPs**: operations of the whole run, with updates that are full on both sides
  (`python -m keras_transformer.cost --hparams=NAME`)

{table}

```{{note}}
Three things differ from the paper:

- `base`, `big` and the presets of Table 3 drop pairs with more than 256 tokens on a side.
- The checkpoints that `average` uses for `base` and `big` have other intervals
  ([reproduce.md](reproduce.md#table-2-translation)).
- `parsing_wsj` and `parsing_semisupervised` have the paper's sizes, but were not tuned on section 22
  ([parsing.md](parsing.md#problems)).
```

## Expected results

The table lists the longest measured run of each preset, and the results of the paper (§5.2, Tables 2 and 4), which
nobody has reproduced with this project yet.

- "other hparams" marks presets that were only run with changed settings.
- For several seeds, score and time are means, with the standard deviation of the score.
- The time covers the updates, without validation and decoding.

{expected()}

A small translation model or parser trains within minutes to two hours on a CPU. The models of the paper need GPUs.

See also [results.md](results.md) for commands, seeds and curves, [benchmarks.md](benchmarks.md) for the speed of an
update, [cost.md](cost.md) for hours by hardware, and [reproduce.md](reproduce.md) for the commands of the paper's
results.
"""


def expected():
    """Return the table of results and times of the paper and of the rows in docs/results."""
    shown = {}
    for rows in by_seed(row for name in RESULTS for row in rows_of(DOCS / "results" / f"{name}.jsonl")):
        kind = rows[0]["preset"], rows[0]["problem"]
        if rows[0]["split"] == "test" and precedence(rows) >= precedence(shown.get(kind, rows)):
            shown[kind] = rows
    lines = ["| preset | problem | updates | score on the test set | time | hardware |", "| --- " * 6 + "|"]
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
    """Return the sort key of the runs to show: unchanged presets first, then longer runs."""
    return not changes_of(rows[0]), average(rows, "steps")


def average(rows, name):
    """Return the mean over rows of a field of their training."""
    return statistics.mean(row["training"][name] for row in rows)


def main(arguments):
    """Write the pages or, with `--check`, compare them; return the exit status."""
    registry.load_catalog()
    stale = []
    for name, make in (("commands.md", commands_page), ("presets.md", presets_page)):
        path, text = DOCS / name, make()
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        print(f"outdated, run `python docs/reference.py`: {', '.join(stale)}", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
