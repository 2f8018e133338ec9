"""Atomic writing of files and directories, locks, and JSON."""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import logging
import math
import os
import shutil
import stat
import sys
import uuid
from pathlib import Path

from keras_transformer.utils.errors import UserError

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def atomic_open(path, mode="w"):
    """Open a temporary file in the directory of `path`, and rename the file to `path` on success.

    Args:
        path: Path of the file. The function follows symbolic links, and opens devices and pipes directly.
        mode: "w" for UTF-8 text, "wb" for bytes.

    Raises:
        UserError: The temporary file cannot be created.
        OSError: The file cannot be written or renamed, for example because the disk is full.
    """
    path = _resolve(path)
    temporary = path if _is_stream(path) else _temporary_name(path)
    file = _open(temporary, mode)
    try:
        with file:
            yield file
            if temporary != path:
                _rename(file, path)
    except BaseException:
        if temporary != path:
            temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def open_partial(path):
    """Open the text file `PATH.partial`, and rename it to `path` on success.

    After an error, the function keeps the partial file unless it is empty.

    Args:
        path: Path of the file. The function follows symbolic links, and opens devices and pipes directly.

    Raises:
        UserError: The partial file cannot be created, or another process is writing it.
        OSError: The file cannot be written or renamed, for example because the disk is full.
    """
    path = _resolve(path)
    if _is_stream(path):
        with _open(path, "w") as file:
            yield file
        return
    partial = path.with_name(f"{path.name}.partial")
    with lock_file(partial) as file:
        if file is None:
            raise UserError(f"another process is writing {partial}; wait for it, or choose another path")
        file.truncate(0)
        try:
            yield file
            _rename(file, path)
        except BaseException as error:
            with contextlib.suppress(OSError):
                file.flush()
            size = partial.stat().st_size if partial.exists() else None  # None: already renamed
            if size == 0:
                partial.unlink()
            elif size and isinstance(error, UserError):
                raise UserError(f"{error}; the output so far is in {partial}") from None
            elif size:
                print(f"the output so far is in {partial}", file=sys.stderr)
            raise


def _rename(file, path):
    """Sync an open file to disk and give it the name `path`. The file stays open and keeps its lock."""
    file.flush()
    os.fsync(file.fileno())
    os.replace(file.name, path)
    _sync(path.parent)


@contextlib.contextmanager
def atomic_directory(path):
    """Create a temporary directory next to `path`, and rename the directory to `path` on success.

    Raises:
        UserError: The temporary directory cannot be created.
        OSError: The directory cannot be renamed.
    """
    path = _check_directory(path)
    temporary = _temporary_name(path)
    try:
        temporary.mkdir()
    except OSError as error:
        raise cannot_write(path, error) from None
    try:
        yield temporary
        _put_in_place(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class WorkDirectory:
    """Directory for unfinished results; see `work_directory`.

    Args:
        folder: Path of the directory.
        path: Path of the finished directory.

    Attributes:
        folder: Path of the directory.
        keep: Whether to keep an unfinished directory for the next attempt (default: False).
    """

    def __init__(self, folder, path):
        self.folder, self._path, self.keep = Path(folder), path, False

    def clear(self):
        """Remove all files in the directory."""
        for entry in self.folder.iterdir():
            entry.unlink()

    def finish(self):
        """Rename the directory to its final path. Replace an existing directory."""
        _put_in_place(self.folder, self._path)


@contextlib.contextmanager
def work_directory(path, identity):
    """Create or reopen the hidden work directory of `path`, and hold a lock on it inside a `with` block.

    Other processes wait for the lock. If a process is killed, its files remain for a later call with the same
    `identity`. The function removes work directories with other identities. At the end of the block, it also removes
    the work directory of this call unless `keep` is set.

    Args:
        path: Path of the finished directory.
        identity: Hash of everything that the content depends on. It becomes part of the directory name.

    Yields:
        `WorkDirectory`.

    Raises:
        UserError: The directory cannot be written.
    """
    path = _check_directory(path)
    folder = path.with_name(f".{path.name}.{identity}.work")
    lock = path.with_name(f".{path.name}.lock")
    with lock_file(lock, wait=True):
        for other in path.parent.glob(f".{glob.escape(path.name)}.*.work*"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        for temporary in folder.glob(".*"):  # left by `atomic_open` in a killed process
            temporary.unlink()
        work = WorkDirectory(folder, path)
        try:
            yield work
        finally:
            if not work.keep:
                shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


@contextlib.contextmanager
def lock_file(path, wait=False):
    """Hold an exclusive lock on a file inside a `with` block. The system releases the lock if the process dies.

    The function creates the file if necessary. The holder of the lock may remove or rename the file. A child process
    that inherits the open file also holds the lock.

    Args:
        path: Path of the file.
        wait: Whether to wait until other processes release the lock.

    Yields:
        The open file, or None if another process holds the lock and `wait` is False.
    """
    while True:
        with _open(path, "a") as file:
            try:
                _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    yield None
                    return
                logger.info(f"waiting for another process, which has locked {path}")
                _lock(file, fcntl.LOCK_EX)
            if _is_same_file(file, path):
                yield file
                return


def _lock(file, operation):
    """Call `fcntl.flock`. Do nothing if the file system does not support locks."""
    try:
        fcntl.flock(file, operation)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
            raise


def _is_same_file(file, path):
    """Return whether an open file is still the file at `path`."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def remove_directory(path):
    """Remove a directory. Rename it first, so that it never looks complete while its files are removed."""
    hidden = path.with_name(f".{path.name}.old")
    shutil.rmtree(hidden, ignore_errors=True)
    os.replace(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _temporary_name(path):
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")


def _resolve(path):
    """Return the path of a file to write, with a symbolic link resolved.

    Raises:
        UserError: The path is a directory.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a directory; choose another path")
    return path.resolve() if path.is_symlink() and not _is_stream(path) else path


def _is_stream(path):
    """Return whether a path must be opened directly, because it is a device, a pipe or an open file descriptor."""
    return path.exists() and (not path.is_file() or str(path.absolute()).startswith(("/dev/fd/", "/dev/std", "/proc/")))


def _open(path, mode):
    """Open a file as UTF-8 text or bytes, and create its directory. Raise a `UserError` if either cannot be created."""
    try:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, mode, encoding=None if "b" in mode else "utf-8")
    except OSError as error:
        raise cannot_write(path, error) from None


def _check_directory(path):
    """Return the path of a directory to write, with a symbolic link resolved, and create its parent.

    Raises:
        UserError: The path is a file, or the parent cannot be created.
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise UserError(f"cannot write {path}: it is not a directory; choose another path, or remove the file")
    path = path.resolve() if path.is_symlink() else path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from None
    return path


def _put_in_place(folder, path):
    """Sync a directory and its content to disk, and rename it to `path`. Replace an existing directory."""
    for entry in (*folder.rglob("*"), folder):
        _sync(entry)
    old = folder.with_name(f"{folder.name}.old")
    if path.is_dir():
        os.replace(path, old)  # removing the old files in place would leave a partial directory for a while
    os.replace(folder, path)
    _sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def cannot_write(path, error):
    """Return the `UserError` for an `OSError` raised when writing to a path."""
    return UserError(f"cannot write {path}: {error.strerror or error}; choose another path or fix its permissions")


def check_output(flag, output, **inputs):
    """Raise a `UserError` if writing a file would overwrite a file that the same command reads.

    The function follows symbolic links. It also checks `OUTPUT.partial`, which `open_partial` writes.

    Args:
        flag: The flag that names the output, for the message.
        output: The file to write; "-" for stdout.
        **inputs: The file of each input flag; "-" for stdin, None for a flag that was not given.
    """
    partial = None if str(output) == "-" else f"{os.path.realpath(output)}.partial"
    written_files = [status for place in (output, partial) if (status := _regular_file(place, sys.stdout))]
    for name, path in inputs.items():
        read_file = _regular_file(path, sys.stdin)
        if read_file and any(os.path.samestat(read_file, status) for status in written_files):
            raise UserError(
                f"{flag} and --{name} must be different files, got {output} for both; choose another output file"
            )


def _regular_file(path, stream):
    """Return the `os.stat` result of a regular file, otherwise None. The path "-" stands for `stream`."""
    try:
        status = os.fstat(stream.fileno()) if str(path) == "-" else os.stat(path)
    except (OSError, TypeError, ValueError):  # a missing file, None, or a stream without a descriptor
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def append_line(path, text):
    """Append a line to a file. A lock keeps lines from several processes apart.

    If a crash left the last line incomplete, first write a line break.

    Raises:
        UserError: The file cannot be written.
    """
    try:
        with open(path, "ab+") as file:
            _lock(file, fcntl.LOCK_EX)
            separator = b""
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                separator = b"" if file.read(1) == b"\n" else b"\n"
            file.write(separator + text.encode() + b"\n")
    except OSError as error:
        raise cannot_write(path, error) from None


def _sync(path):
    """Sync a file or a directory to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path):
    """Return the SHA-256 checksum of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def finite_or_null(values):
    """Return a dictionary with None instead of NaN and infinities, which JSON does not support."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }


def write_json(path, value):
    """Write `value` to a JSON file atomically. The function raises the same errors as `atomic_open`."""
    with atomic_open(path) as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def read_json(path, description, **types):
    """Return the object in a JSON file, a dictionary.

    Args:
        path: Path of the file.
        description: Start of the error message, such as "run runs/toy".
        **types: Keys that the object must have, each with the type of its value or a tuple of types.

    Raises:
        UserError: The file is missing or damaged.
    """
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError:
        raise UserError(f"{description}: {path} is missing") from None
    except (OSError, ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise UserError(f"{description}: {path} is damaged ({error})") from None
    value = value if isinstance(value, dict) else {}
    for name, kind in types.items():
        if not isinstance(value.get(name), kind):
            raise UserError(f"{description}: {path} is damaged (no valid {name!r})")
    return value
