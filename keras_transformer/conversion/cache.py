"""Cache of converted CTranslate2 models in the run directory, with one model per checkpoint."""

import hashlib
import logging
import tempfile
from pathlib import Path

from keras_transformer.conversion.ctranslate2 import convert
from keras_transformer.conversion.weights import load_weights
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import atomic_directory, read_json, write_json

logger = logging.getLogger(__name__)

FOLDER = "ctranslate2"
DESCRIPTION = "cache.json"
VERSION = 1
"""Version of the conversion. A cache with a different version is rebuilt."""


def converted_files(run, checkpoint=None):
    """Return the files of a run's model in CTranslate2's format, {name: bytes}.

    The first call converts the checkpoint and caches the result in `RUN/ctranslate2/CHECKPOINT`. Later calls read
    the cache. They rebuild the cache if it is damaged, or if the weights, the configuration, the tokenizer or `VERSION`
    have changed. If the run directory is not writable, the function does not cache the result.

    Args:
        run: `Run`.
        checkpoint: "best", "last", "averaged", "ema" or a step (default: the best, or the last if there is no best).

    Raises:
        UserError: CTranslate2 is not installed or does not support the model, or the checkpoint is missing or damaged.
    """
    name = str(checkpoint or run.checkpoints.default())
    key = _key(run, name, run.checkpoints.load(checkpoint, parts=())[1])
    folder = run.path / FOLDER / name
    if (files := _read(folder, key)) is None:
        # If the weights of the last checkpoint are damaged, `load_weights` loads an older checkpoint with another key.
        weights, state = load_weights(run, checkpoint)
        key, tokenizer = _key(run, name, state), run.tokenizer
        if (files := _read(folder, key)) is not None:
            return files
        with tempfile.TemporaryDirectory() as temporary:
            model = Path(temporary) / "model"
            convert(weights, run.hparams, tokenizer.pieces(range(tokenizer.vocab_size)), model)
            files = {path.name: path.read_bytes() for path in model.iterdir()}
        _write(folder, key, files)
    return files


def _key(run, name, state):
    """Return everything that affects the converted model of a checkpoint with the given name and state."""
    return {
        "version": VERSION,
        "weights_sha256": state["sha256"].get("ema" if name == "ema" else "weights"),
        "config_hash": run.config_hash,
        "tokenizer_sha256": run.tokenizer.fingerprint,
    }


def _write(folder, key, files):
    """Write a cache, or log a warning if writing fails."""
    try:
        with atomic_directory(folder) as new:
            for name, content in files.items():
                (new / name).write_bytes(content)
            write_json(new / DESCRIPTION, {**key, "files": {name: _checksum(files[name]) for name in files}})
    except (OSError, UserError) as error:
        logger.warning(f"cannot cache the converted CTranslate2 model; the next call will convert it again: {error}")


def _read(folder, key):
    """Return the files of a cache, or None if the cache is missing, is damaged or has a different key."""
    try:
        description = read_json(folder / DESCRIPTION, "cache", files=dict)
        files = {name: (folder / name).read_bytes() for name in description["files"]}
    except (OSError, UserError):
        return None
    same_key = key.items() <= description.items()
    return files if same_key and description["files"] == {name: _checksum(files[name]) for name in files} else None


def _checksum(content):
    return hashlib.sha256(content).hexdigest()
