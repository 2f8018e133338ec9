"""Command line, records and tables that the benchmarks share."""

import argparse
import importlib
import os
import sys
from pathlib import Path

from keras_transformer.utils.errors import UserError, unknown


class Parser(argparse.ArgumentParser):
    """An argument parser that shows a program's docstring, and whose errors are one sentence."""

    def __init__(self, description):
        super().__init__(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )

    def error(self, message):
        raise UserError(f"{message}; see --help")

    def add_machine(self):
        """Add `--threads` and `--environments`."""
        cores = len(os.sched_getaffinity(0))
        self.add_argument(
            "--threads", type=number, default=cores, help="each engine's (default all cores: %(default)s)"
        )
        self.add_argument(
            "--environments", default="~/.cache/keras_transformer/benchmarks", metavar="FOLDER",
            help="where the other engines are installed, once (default %(default)s)",
        )  # fmt: skip

    def add_json(self, help="file that gets each record as one more line of JSON"):
        """Add `--json`."""
        self.add_argument("--json", metavar="FILE", help=help)


def add_row(row, path):
    """Add a row, with its command, commit and machine, to a .jsonl file if there is a path. Return the row."""
    from keras_transformer.runs.manifest import append_row, command, git_revision, machine

    row = {**row, "command": command(), "commit": git_revision(), "machine": machine()}
    if path:
        append_row(path, row)
    return row


def print_table(name, rows):
    """Print rows as the documentation shows them: `name` is a function of docs/results.py."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))
    print(importlib.import_module("results").FUNCTIONS[name](rows))


def check_flags(flags):
    """Raise a `UserError` if there are fewer cores than threads, or no folder for the records."""
    cores = len(os.sched_getaffinity(0))
    if getattr(flags, "threads", 1) > cores:
        raise UserError(f"--threads={flags.threads}: there are {cores} cores")
    for file in filter(None, (flags.json, getattr(flags, "output", None))):
        if not Path(file).resolve().parent.is_dir():
            raise UserError(f"{file} cannot be written: its folder does not exist")


def names(kind, text, known):
    """Return the names in a comma-separated list, each of them known."""
    found = [name for name in text.split(",") if name]
    for name in found:
        if name not in known:
            raise unknown(kind, name, known)
    if not found:
        raise UserError(f"no {kind} is named; there are: {', '.join(known)}")
    return found


def number(text):
    """Return a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"takes a whole number from 1 on, not {text!r}")
    return int(text)
