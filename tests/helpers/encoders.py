"""Worker processes that encode a corpus."""

from pathlib import Path


def workers_of(folder):
    """Return the ids of the worker processes that encode to a directory in a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            *command, place, _ = (entry / "cmdline").read_text().split("\0")
            place = (entry / "cwd").readlink() / place
        except (OSError, ValueError):  # the process has ended
            continue
        if "import answer" in str(command) and place.is_relative_to(folder):
            found.append(int(entry.name))
    return found
