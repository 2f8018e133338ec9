"""What an export says of itself, and whether a directory is one."""

from keras_transformer import __version__
from keras_transformer.errors import UserError

DESCRIPTION = "export.json"
"""The file of an export that tells what it is."""


def describe(run, checkpoint=None):
    """Returns what an export tells of its run: {name: value}, for JSON.

    Args:
        run: `Run`.
        checkpoint: As `Checkpoints.load` takes it.
    """
    return {
        "problem": run.config["problem"]["name"],
        "model": run.config["model"],
        "preset": run.config["preset"],
        "checkpoint": checkpoint or run.checkpoints.default(),
        "version": __version__,
    }


def check_place(folder, force):
    """Raises a `UserError` unless an export may be written to `folder`, a `Path`.

    Args:
        force: Whether an export that is there may be replaced.
    """
    if not folder.exists() or folder.is_dir() and not any(folder.iterdir()):
        return
    if not folder.is_dir() or not (folder / DESCRIPTION).is_file():
        raise UserError(f"{folder} exists and is no export; give another --output_dir")
    if not force:
        raise UserError(f"{folder} holds an export; give --force to replace it, or another --output_dir")
