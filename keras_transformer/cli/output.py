"""Output of the commands."""

import contextlib
import sys

from keras_transformer.utils.files import open_partial
from keras_transformer.utils.logs import discard_output


def report(line):
    """Print a line without buffering."""
    print(line, flush=True)


def report_if_read(line):
    """Print a line without buffering. If the reader has closed the pipe, discard this and all later output."""
    try:
        report(line)
    except BrokenPipeError:
        discard_output()


def warn(line):
    """Print a line to stderr without buffering."""
    print(line, file=sys.stderr, flush=True)


def open_output(path):
    """Return a context manager for the text file of `--output`: `open_partial(path)`, or stdout for "-"."""
    return contextlib.nullcontext(sys.stdout) if path == "-" else open_partial(path)
