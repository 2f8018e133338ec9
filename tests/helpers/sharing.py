"""Folders that one test process fills while the others wait, so that expensive results are computed only once."""

import fcntl
import os


def shared_folder(tmp_path_factory, name, make):
    """Return a folder that all test processes share. The first process to call this function fills the folder.

    Args:
        tmp_path_factory: Pytest fixture.
        name: Name of the folder.
        make: Function that takes the folder and fills it. If the function fails, the next caller tries again.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / name
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / "complete").touch()
    return folder
