"""The rows of a file, Markdown of tables, and the commands that their rows came from."""

import json
import shlex

from keras_transformer.hyperparameters import changed_fields


def rows_of(path):
    """Returns the rows of a .jsonl file; "overrides" are the fields that differ from the preset as it is now."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        if "overrides" in row:
            row["overrides"] = changed_fields(row["preset"], row["hparams"])
    return rows


def head(heads):
    """Returns the two lines that a table begins with."""
    return [line(heads), "|" + "---|" * len(heads)]


def line(cells):
    """Returns a line of a table."""
    return "| " + " | ".join(cells) + " |"


def commands(rows):
    """Returns the commands that printed rows, as code."""
    programs = dict.fromkeys(shlex.join(row["command"]) for row in rows)
    return "".join(f"    python benchmarks/{program}\n" for program in programs)
