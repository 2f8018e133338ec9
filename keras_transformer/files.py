"""Files that appear whole or not at all."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from keras_transformer.errors import UserError


@contextlib.contextmanager
def written(path, mode="w"):
    """Opens a temporary file beside `path` and renames it to `path` on success, after fsync.

    Args:
        path: Where the file is to appear.
        mode: "w" for UTF-8 text, "wb" for bytes.

    Raises:
        UserError: The place cannot be written.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a directory; choose another place")
    encoding = None if "b" in mode else "utf-8"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise cannot_write(path, error) from None
    try:
        with os.fdopen(handle, mode, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files that their owner alone may read.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def written_directory(path):
    """Yields a new temporary directory beside `path` and renames it to `path` on success, after fsync.

    Raises:
        UserError: The place cannot be written.
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise UserError(f"cannot write {path}: it is no directory; choose another place or remove it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise cannot_write(path, error) from None
    try:
        yield temporary
        os.chmod(temporary, 0o777 & ~_umask())
        for entry in (*temporary.iterdir(), temporary):
            sync(entry)
        old = temporary.with_name(f"{temporary.name}.old")
        if path.is_dir():
            os.replace(path, old)  # at once, where removing it takes its time
        os.replace(temporary, path)
        sync(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def cannot_write(path, error):
    """Returns the `UserError` for a `path` that an `OSError` says cannot be written."""
    return UserError(f"cannot write {path}: {error.strerror or error}; choose another place or mend its permissions")


def sync(path):
    """Makes the content of a file, or the renames inside a directory, survive a crash of the machine."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path):
    """Returns the SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path, value):
    """Writes `value` as JSON, whole or not at all."""
    with written(path) as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def read_json(path, what):
    """Returns the value in a JSON file.

    Raises:
        UserError: It is missing or damaged; `what` names it in the sentence.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        raise UserError(f"{what}: {path} is missing") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{what}: {path} is damaged ({error})") from None


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
