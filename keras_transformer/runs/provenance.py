"""Origin of results: command, commit and date."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from keras_transformer.config.registry import PACKAGE
from keras_transformer.utils.files import append_line


def command():
    """Return the command line of this process: [file name, arguments…]."""
    return [os.path.basename(sys.argv[0]), *sys.argv[1:]]


def git_revision(folder=PACKAGE.parent):
    """Return the commit of a checkout, with "+" if files have changed, or None if the folder is not a checkout."""
    if not (folder / ".git").exists():
        return None  # so that a package inside another checkout does not report the commit of that checkout
    try:
        status = subprocess.run(
            ["git", "-C", folder, "describe", "--always", "--abbrev=12", "--dirty=+"],
            capture_output=True, text=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return status.stdout.strip() or None


def append_row(path, row):
    """Add today's date to a dictionary and append it to a file as a line of JSON. Processes may append concurrently."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    append_line(path, json.dumps({**row, "date": time.strftime("%Y-%m-%d")}, ensure_ascii=False))
