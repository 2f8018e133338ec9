"""Function that finds the worker processes that encode a corpus."""

from pathlib import Path


def workers_of(parent):
    """Return the process ids of the workers that the process with the id `parent` started to encode a corpus."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command, status = (entry / "cmdline").read_text(), (entry / "stat").read_text()
        except OSError:  # the process has ended
            continue
        if "multiprocessing.spawn" in command and int(status.rpartition(")")[2].split()[1]) == parent:
            found.append(int(entry.name))
    return found
