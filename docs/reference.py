"""Generate commands.md and presets.md from the help texts of the commands and the registered hparams.

    python docs/reference.py            # write both pages
    python docs/reference.py --check    # exit with status 1 if a page is outdated

The text of the pages is in docs/pages/*.md (see docs/results.py).
"""

import contextlib
import importlib
import importlib.util
import io
import itertools
import os
import statistics
import sys

import results
from pages.scores import METRICS
from pages.tables import by_seed, changes_of, mean, table

from keras_transformer.__main__ import COMMANDS
from keras_transformer.config import registry

VOCABULARY = 37_000
WIDTH = "96"


def help_texts():
    """Return Markdown with a section for each command that contains its help text."""
    return "\n\n".join(
        f"## {command}\n\n{summary}\n\n```text\n{help_of(command).strip()}\n```"
        for command, summary in COMMANDS.items()
    )


def help_of(command):
    """Return the help text that a command prints."""
    name = f"keras_transformer.{command}"
    if importlib.util.find_spec(name).submodule_search_locations:  # a package runs its __main__ module
        name += ".__main__"
    os.environ["COLUMNS"] = WIDTH
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        importlib.import_module(name).main(["--help"])
    return text.getvalue()


def preset_sizes():
    """Return a Markdown table with the size and the cost of all registered hparams."""
    from keras_transformer.backend.loading import load_keras

    load_keras()
    from keras_transformer.config.hparams import load_hparams
    from keras_transformer.training.cost import training_cost

    rows = []
    for name, summary in registry.hparams.describe():
        hparams = load_hparams(name)
        rows.append(
            {"name": name, "summary": summary.rstrip("."), "h": hparams, "cost": training_cost(hparams, VOCABULARY)}
        )
    return table(rows, {
        "preset": "`{name}`", "description": "{summary}", "layers": "{h.num_layers} + {h.decoder_depth}",
        "d_model": "{h.d_model}", "d_ff": "{h.d_ff}", "heads": "{h.num_heads}", "dropout": "{h.dropout:g}",
        "tokens": "{h.batch_tokens:,}", "updates": "{h.train_steps:,}", "parameters": "{cost.parameters:,}",
        "FLOPs": "{cost.counted:.1e}",
    })  # fmt: skip


def measured_presets(*files):
    """Return the lines of a table, without the header, with the results of each preset on each problem.

    The table prefers runs that do not change the preset, then the longest ones, then those with the most seeds.
    """

    def precedence(rows):
        return not changes_of(rows[0]), average(rows, "steps"), len(rows)

    shown = {}
    for rows in by_seed(itertools.chain(*files)):
        kind = rows[0]["preset"], rows[0]["problem"]
        if rows[0]["split"] == "test" and precedence(rows) >= precedence(shown.get(kind, rows)):
            shown[kind] = rows
    columns = {
        "preset": preset,
        "problem": problem,
        "updates": lambda rows: f"{average(rows, 'steps'):,.0f}",
        "score": score,
    }
    columns["time"] = lambda rows: f"{average(rows, 'seconds') / 60:.0f} min"
    columns["hardware"] = lambda rows: rows[0]["machine"]
    return "\n".join(table([rows for _, rows in sorted(shown.items())], columns).splitlines()[2:])


def preset(rows):
    return f"`{rows[0]['preset']}`" + (", other hparams" if changes_of(rows[0]) else "")


def problem(rows):
    settings = (f"`{name}={value}`" for name, value in rows[0].get("settings", {}).items())
    return ", ".join([f"`{rows[0]['problem']}`", *settings])


def score(rows):
    key, metric = next((key, label) for key, label in METRICS.items() if key in rows[0])
    return f"{metric} {mean([row[key] for row in rows])}" + (f", {len(rows)} seeds" if rows[1:] else "")


def average(rows, name):
    """Return the mean of the field `name` of "training" over the rows."""
    return statistics.mean(row["training"][name] for row in rows)


def main(arguments):
    registry.load_catalog()
    return results.write({name: results.page(name, globals()) for name in ("commands.md", "presets.md")}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
