"""The description of an export, `export.json`, and the rules for its directory."""

import contextlib
from pathlib import Path

from keras_transformer import __version__
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import atomic_directory, read_json, write_json

DESCRIPTION = "export.json"
"""Name of the file that describes an export."""


@contextlib.contextmanager
def atomic_export(folder, force, description):
    """Yield a new directory that appears as `folder`, with `export.json`, when the block ends without an error.

    Args:
        folder: The directory.
        force: Whether to replace an existing export. Other directories are never replaced.
        description: Content of `export.json`: {name: value}.

    Raises:
        UserError: See `check_place`, or the directory cannot be written.
    """
    check_place(folder, force)
    with atomic_directory(folder) as new:
        yield new
        files = sorted(path.name for path in new.iterdir())
        write_json(new / DESCRIPTION, {**description, "version": __version__, "files": files})
        check_place(folder, force)  # another process may have written there meanwhile


def describe(run, checkpoint=None):
    """Return the part of `export.json` that describes a run: {name: value}.

    Args:
        run: `Run`.
        checkpoint: See `Checkpoints.load`.
    """
    name = checkpoint or run.checkpoints.default()
    state = run.checkpoints.load(name, parts=())[1] if name != "ema" else run.checkpoints.load("last", parts=())[1]
    return {
        "run": run.path.resolve().name,
        "problem": run.config["problem"]["name"],
        "model": run.hparams.model,
        "preset": run.config["preset"],
        "checkpoint": str(name),
        "steps": state.get("steps") or [state["step"]],
        "tokenizer_sha256": run.tokenizer.fingerprint,
    }


def load_weights(run, checkpoint=None):
    """Return the weights of a run, {name: array}.

    A name is a variable's path without the model's own name, such as "encoder/layer_1/self_attention/query".

    Args:
        run: `Run`.
        checkpoint: See `Checkpoints.load`.
    """
    weights = run.checkpoints.load(checkpoint, parts=("weights",))[0]["weights"]
    return {path.partition("/")[2]: array for path, array in weights.items()}


def first_unsupported(hparams, norms, positions):
    """Return the first setting of a model that an engine with full attention does not support, or None.

    Args:
        hparams: `HParams`.
        norms, positions: The values of `norm` and `positions` that the engine supports.

    Returns:
        (name, value, supported values).
    """
    width = hparams.d_model // hparams.num_heads
    settings = (
        ("norm", hparams.norm, norms),
        ("positions", hparams.positions, positions),
        ("encoder_attention", hparams.encoder_attention, ("full",)),
        ("d_k", hparams.key_width, (width,)),
        ("d_v", hparams.value_width, (width,)),
    )
    return next((setting for setting in settings if setting[1] not in setting[2]), None)


def check_place(folder, force):
    """Raise a `UserError` unless an export may be written to `folder`.

    Args:
        folder: The directory.
        force: Whether to replace an existing export. Other directories are never replaced.
    """
    folder = Path(folder)
    if folder.resolve() == Path.cwd():
        raise UserError(
            f"--output_dir must be a new directory or an export, got {folder}, the working directory. "
            "Choose another directory."
        )
    if not folder.exists() or folder.is_dir() and not any(folder.iterdir()):
        return
    own = {DESCRIPTION}
    if folder.is_dir() and (folder / DESCRIPTION).is_file():
        own |= {*read_json(folder / DESCRIPTION, f"{folder} is not an export", files=list)["files"]}
    there = [path.name for path in folder.iterdir()] if folder.is_dir() else [folder.name]
    if others := sorted(set(there) - own):
        raise UserError(
            f"--output_dir must be a new directory or an export, got {folder}, which contains {others[0]}. "
            "Choose another directory."
        )
    if not force:
        raise UserError(f"{folder} contains an export. Pass --force to replace it, or choose another directory.")
