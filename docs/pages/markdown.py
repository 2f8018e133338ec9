"""Markdown of tables, and the commands that their rows came from."""

import shlex


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
