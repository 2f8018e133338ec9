"""Expensive results that all test processes share: the first that needs one makes it, the others wait."""

import fcntl
import os


def shared_folder(tmp_path_factory, name, make):
    """Return the folder `name` that `make(folder)` filled once for all test processes.

    Args:
        tmp_path_factory: pytest's session fixture.
        name: Name of the folder.
        make: Function that fills the folder it is given. If it fails, the next caller tries again.
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
