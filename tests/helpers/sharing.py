"""Expensive results that all test processes share. One process creates a result while the others wait for it."""

import fcntl
import os


def shared_folder(tmp_path_factory, name, make):
    """Return the folder `name`. The first test process that needs the folder fills it with `make(folder)`.

    Args:
        tmp_path_factory: pytest's session fixture.
        name: Name of the folder.
        make: Function that fills the folder. If it fails, the next caller tries again.
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
