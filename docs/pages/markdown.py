"""The rows of a file, Markdown of tables, and the commands that their rows came from."""

import json
import shlex
import statistics

from keras_transformer.config import registry
from keras_transformer.config.hparams import changed_fields

RENAMED = {"more_pairs": "extra_train"}
"""Settings of problems that had another name when their rows were added."""


def rows_of(path):
    """Return the rows of a .jsonl file, settings by their present names.

    "overrides" holds the fields that differ from the current preset. If the changes of a run lead to another preset,
    the row is assigned to that preset.
    """
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        if "settings" in row:
            row["settings"] = {RENAMED.get(name, name): value for name, value in row["settings"].items()}
        if "overrides" in row:
            if row["hparams"].pop("word_heads", 0):  # a field of earlier rows, now a model
                row["hparams"]["model"] = "word_aligned_transformer"
            row["overrides"] = changed_fields(row["preset"], row["hparams"])
            if changes_of(row):
                row.update(as_preset(row["hparams"]))
    return rows


def as_preset(hparams):
    """Return {"preset", "overrides"} of the preset with these hparams, except for the seed, or {} without one."""
    registry.load_catalog()
    for preset, _ in registry.hparams.describe():
        found = {"preset": preset, "overrides": changed_fields(preset, hparams)}
        if not changes_of(found):
            return found
    return {}


def changes_of(row):
    """Return {field: value} of the hparams that differ from the preset's, the seed aside."""
    return {name: value for name, value in row["overrides"].items() if name != "seed"}


def backend(row):
    """Return the backend of a row's run, and its precision if it is known."""
    return ", ".join(filter(None, [row.get("backend", "tensorflow"), row["training"].get("precision")]))


def by_seed(rows):
    """Return lists of rows that differ in nothing but the seed; of several with one seed the last counts."""
    groups = {}
    for row in rows:
        setup = (
            row["problem"],
            row.get("settings"),
            row["preset"],
            changes_of(row),
            row["decoding"],
            row.get("backend", "tensorflow"),
        )
        what = row["training"].get("precision"), row["split"], row["checkpoint"]["name"]
        groups.setdefault(repr((setup, what)), {})[row["seed"]] = row
    return [[row for _, row in sorted(seeds.items())] for seeds in groups.values()]


def mean(values):
    """Return the mean of values, and their standard deviation if they are several."""
    spread = f" ± {statistics.stdev(values):.2f}" if values[1:] else ""
    return f"{statistics.mean(values):.2f}{spread}"


def head(heads):
    """Return the first two lines of a table."""
    return [line(heads), "|" + "---|" * len(heads)]


def line(cells):
    """Return a line of a table. A cell is a text, a number, or None."""
    return "| " + " | ".join("–" if cell is None else str(cell) for cell in cells) + " |"


def form(value, spec):
    """Return a formatted number, or None for None."""
    return None if value is None else format(value, spec)


def table(text, heads, cells, rows=(), programs="benchmarks"):
    """Return a section: its text, a table with a line for each list of cells, and the commands that added the rows."""
    return "\n".join([text, *head(heads), *map(line, cells), "", commands(rows, programs)])


def commands(rows, folder="benchmarks"):
    """Return the commands that added rows, as code; their programs are in `folder`."""
    programs = dict.fromkeys(shlex.join(row["command"]) for row in rows)
    return "".join(f"    python {folder}/{program}\n" for program in programs)
