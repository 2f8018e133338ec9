"""Helpers shared by the benchmarks: command line, timing, result rows and tables."""

import argparse
import concurrent.futures
import importlib
import multiprocessing
import statistics
import sys
import time
from pathlib import Path

from keras_transformer.cli.arguments import positive_int
from keras_transformer.runs.provenance import append_row, command, git_revision
from keras_transformer.utils.errors import UserError, unknown
from keras_transformer.utils.machine import describe_machine, usable_cores

CORES = usable_cores()


class Parser(argparse.ArgumentParser):
    """Argument parser with the flag `--json` and one-sentence errors."""

    def __init__(self, description, json_help="file to append each row to, as a line of JSON"):
        super().__init__(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        self.add_argument("--json", metavar="FILE", help=json_help)

    def add_names(self, flag, known, default=None, help="default %(default)s"):
        """Add a flag whose value is a comma-separated list of names from `known`. The parsed value is a list."""
        kind = flag.strip("-").removesuffix("s")

        def names(text):
            found = list(filter(None, text.split(",")))
            for name in found:
                if name not in known:
                    raise unknown(kind, name, known)
            if not found:
                raise UserError(f"{flag} must name one of {', '.join(known)}, got {text!r}.")
            return found

        self.add_argument(flag, type=names, default=default, help=f"comma-separated ({help})")

    def add_run(self, required=True):
        """Add the flags `--run` and `--checkpoint`."""
        self.add_argument("--run", required=required, help="run directory")
        self.add_argument("--checkpoint", help="best, last, averaged, ema or a step (default as in evaluate)")

    def add_corpus(self):
        """Add the flags `--raw_dir` and `--data_dir`."""
        self.add_argument("--raw_dir", help="folder of the corpus files (default: download)")
        self.add_argument("--data_dir", default="data", help="folder of prepared corpora (default %(default)s)")

    def add_engines(self):
        """Add the flags of benchmarks that compare engines: `--repeats`, `--threads` and `--environments`."""
        self.add_argument(
            "--repeats", type=positive_int, default=5, help="number of timed rounds (default %(default)s)"
        )
        self.add_argument(
            "--threads", type=positive_int, default=CORES, help="threads per engine (default all cores: %(default)s)"
        )
        self.add_argument(
            "--environments", default="~/.cache/keras_transformer/benchmarks", metavar="FOLDER",
            help="folder for the environments of other engines (default %(default)s)",
        )  # fmt: skip

    def parse_args(self, arguments=None):
        """Parse the command line and return the flags.

        Raises:
            UserError: A flag is invalid, `--threads` exceeds the number of cores, or an output folder does not exist.
        """
        flags = super().parse_args(arguments)
        if getattr(flags, "threads", 1) > CORES:
            raise UserError(f"--threads must be at most {CORES} (the number of cores), got {flags.threads}.")
        for file in filter(None, (flags.json, getattr(flags, "output", None))):
            if not Path(file).resolve().parent.is_dir():
                raise UserError(f"the folder of {file} must exist. Create it first.")
        return flags

    def error(self, message):
        raise UserError(f"{message}; see --help")


def add_row(row, path):
    """Add the command, commit and machine to a result row, append the row to a .jsonl file, and return the row.

    Args:
        row: Result row. If it already has a commit, the function keeps that commit.
        path: Path of the file, or None to write no file.
    """
    row = {"commit": git_revision(), **row, "command": command(), "machine": describe_machine()}
    if path:
        append_row(path, row)
    return row


def print_table(name, rows):
    """Print result rows as a table, formatted by the function `FUNCTIONS[name]` of docs/results.py."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))
    print(importlib.import_module("results").FUNCTIONS[name](rows))


def in_process(function, *arguments):
    """Run a function in a new process and return its result."""
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def megabytes(folder):
    """Return the total size of the files in a folder in MB."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def timed(function, *arguments, clock=time.perf_counter):
    """Call a function with the given arguments, and return (result, duration in seconds)."""
    began = clock()
    result = function(*arguments)
    return result, clock() - began


def median_seconds(function, times):
    """Call `function(i)` for each i from 0 to `times` - 1, and return the median duration of a call in seconds."""
    return statistics.median(timed(function, i)[1] for i in range(times))


def percentiles(milliseconds):
    """Return percentiles of latencies in ms as {"p50_ms": …, "p95_ms": …, "p99_ms": …}."""
    points = statistics.quantiles(milliseconds, n=100, method="inclusive") if len(milliseconds) > 1 else None
    return {f"p{share}_ms": round(points[share - 1] if points else sum(milliseconds), 1) for share in (50, 95, 99)}
