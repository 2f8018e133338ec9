"""Export descriptions in `export.json`, and checks of the export directory."""

import contextlib
from pathlib import Path

from keras_transformer import __version__
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import atomic_directory, read_json, write_json

DESCRIPTION = "export.json"
"""Name of the file that describes an export."""


@contextlib.contextmanager
def atomic_export(folder, force, description):
    """Yield a temporary directory. If the `with` block succeeds, add `export.json` and move the directory to `folder`.

    Args:
        folder: Directory of the export.
        force: Whether to replace an existing export. The function never replaces other directories.
        description: Contents of `export.json`, {name: value}.

    Raises:
        UserError: `check_place` rejects the directory, or the directory cannot be written.
    """
    check_place(folder, force)
    with atomic_directory(folder) as new:
        yield new
        files = sorted(path.name for path in new.iterdir())
        write_json(new / DESCRIPTION, {**description, "version": __version__, "files": files})
        check_place(folder, force)  # check again, because another process may have written to `folder`


def describe(run, checkpoint=None, state=None):
    """Return the part of `export.json` that describes a run, {name: value}.

    Args:
        run: `Run`.
        checkpoint: See `Checkpoints.load`.
        state: State of the exported checkpoint (default: read it).
    """
    # Load the weights as well, because "last" refers to an older checkpoint if the latest weights are damaged.
    state = state or run.checkpoints.load(checkpoint, parts=("weights",))[1]
    return {
        "run": run.path.resolve().name,
        "problem": run.config["problem"]["name"],
        "model": run.hparams.model,
        "preset": run.config["preset"],
        "checkpoint": str(checkpoint or run.checkpoints.default()),
        "steps": state.get("steps") or [state["step"]],
        "tokenizer_sha256": run.tokenizer.fingerprint,
    }


def check_place(folder, force):
    """Raise a `UserError` if `folder` is not a valid place for an export.

    Args:
        folder: Directory for the export.
        force: Whether `folder` may contain an export, which the caller then replaces.
    """
    folder = Path(folder)
    if folder.resolve() == Path.cwd():
        raise UserError(
            f"--output_dir must be a new directory or an export, got the working directory ({folder}). "
            "Choose another directory."
        )
    if not folder.exists() or folder.is_dir() and not any(folder.iterdir()):
        return
    own = {DESCRIPTION}
    if folder.is_dir() and (folder / DESCRIPTION).is_file():
        own.update(map(str, read_json(folder / DESCRIPTION, f"{folder} is not an export", files=list)["files"]))
    there = [path.name for path in folder.iterdir()] if folder.is_dir() else [folder.name]
    if others := sorted(set(there) - own):
        raise UserError(
            f"--output_dir must be a new directory or an export, got {folder}, which contains {others[0]}. "
            "Choose another directory."
        )
    if not force:
        raise UserError(f"{folder} contains an export. Pass --force to replace it, or choose another directory.")
