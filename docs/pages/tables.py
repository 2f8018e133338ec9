"""Functions that read result rows and format them as Markdown tables."""

import collections
import dataclasses
import functools
import json
import shlex
import statistics
import string
import sys
from pathlib import Path

from keras_transformer.config import registry
from keras_transformer.config.hparams import changed_fields, load_hparams

RESULTS = Path(__file__).parent.parent / "results"


def rows_of(name):
    """Return the rows of docs/results/NAME.jsonl.

    "overrides" holds the fields that differ from the current preset. If the hparams of a run equal those of another
    preset, the row names that preset instead.

    Raises:
        SystemExit: A line is not valid JSON.
    """
    path, rows = RESULTS / f"{name}.jsonl", []
    for number, text in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(text)
        except ValueError:
            sys.exit(f"{path}:{number}: the row is not valid JSON. Complete or remove it.")
        rows.append(row)
        if "overrides" in row:
            row["overrides"] = changed_fields(row["preset"], row["hparams"])
            if changes_of(row):
                row.update(as_preset(row["hparams"]))
    return rows


def as_preset(hparams):
    """Return {"preset", "overrides"} of the preset with these hparams, ignoring the seed, or {} if none matches."""
    preset = presets().get(without_seed(hparams))
    return {"preset": preset, "overrides": changed_fields(preset, hparams)} if preset else {}


@functools.cache
def presets():
    """Return {`without_seed` of the hparams: preset} of all presets. If presets are equal, the first one counts."""
    registry.load_catalog()
    names = [name for name, _ in registry.hparams.describe()]
    return {without_seed(dataclasses.asdict(load_hparams(name))): name for name in reversed(names)}


def without_seed(hparams):
    """Return (field, value) of all hparams except the seed, in a set that can be a key of a dictionary."""
    return frozenset(changed_fields(None, {**hparams, "seed": None}).items())


def changes_of(row):
    """Return {field: value} of the hparams that differ from those of the preset, except for the seed."""
    return {name: value for name, value in row["overrides"].items() if name != "seed"}


def backend(row):
    """Return the backend of a run as text, followed by the precision if the row has one."""
    return ", ".join(filter(None, [row.get("backend", "tensorflow"), row["training"].get("precision")]))


def by_seed(rows):
    """Group rows that differ only in the seed. If a seed has several rows, the last one counts."""
    groups = {}
    for row in rows:
        setup = row["problem"], row.get("settings"), row["preset"], changes_of(row), row["decoding"], backend(row)
        key = repr((setup, row["split"], row["checkpoint"]["name"]))
        groups.setdefault(key, {})[row["seed"]] = row
    return [[row for _, row in sorted(seeds.items())] for seeds in groups.values()]


def mean(values):
    """Return the mean of values as text, with the standard deviation if there are several values."""
    spread = f" ± {statistics.stdev(values):.2f}" if values[1:] else ""
    return f"{statistics.mean(values):.2f}{spread}"


def first_per(rows, key):
    """Return the first row for each value of the function `key`, in the original order."""
    return list({key(row): row for row in reversed(rows)}.values())[::-1]


class _Formatter(string.Formatter):
    """String formatter that shows "–" for None and for missing keys."""

    def get_field(self, name, args, kwargs):
        try:
            return super().get_field(name, args, kwargs)
        except KeyError:
            return None, name

    def format_field(self, value, spec):
        return "–" if value is None else super().format_field(value, spec)


def table(rows, columns):
    """Return a Markdown table with a line for each row.

    Args:
        rows: Dictionaries.
        columns: {heading: column}. A column is a format string for the row, such as "{seconds:.1f} s", or a function
            that returns a cell from the row.
    """
    form = _Formatter().vformat
    cells = (
        [form(column, (), row) if isinstance(column, str) else column(row) for column in columns.values()]
        for row in rows
    )
    return "\n".join([line(columns), "|" + "---|" * len(columns), *map(line, cells)])


def line(cells):
    """Return a line of a table. A None becomes "–"."""
    return "| " + " | ".join("–" if cell is None else str(cell) for cell in cells) + " |"


def curves(runs, every=2):
    """Return a table of validation scores during several runs, at each `every`-th update that two of them share.

    Args:
        runs: {heading: row}.
        every: The number.
    """
    scores = [{point["step"]: point["score"] for point in row["training"]["curve"]} for row in runs.values()]
    number = collections.Counter(step for curve in scores for step in curve)
    steps = sorted(step for step in number if number[step] > 1)[every - 1 :: every]
    lines = [{"step": step, "scores": [curve.get(step) for curve in scores]} for step in steps]
    return table(lines, {"update": "{step:,}", **{name: f"{{scores[{i}]:.2f}}" for i, name in enumerate(runs)}})


def bars(heading, values, scale=1):
    """Return a code block with a bar chart of [(label, text of the value, value)]."""
    lines = (f"{label}  {text}  {'█' * round(scale * value)}" for label, text, value in values)
    return "\n".join(["```text", heading, *lines, "```"])


def commands(rows):
    """Return a code block with the commands that added the rows."""
    programs = dict.fromkeys(shlex.join(row["command"]) for row in rows)
    return "\n".join(
        f"    python {'tests/slow' if program.startswith('soak.py') else 'benchmarks'}/{program}"
        for program in programs
    )
