"""Files that appear whole or not at all."""

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
import tempfile
from pathlib import Path

from keras_transformer.utils.errors import UserError

logger = logging.getLogger(__name__)

WORK, LOCK = ".work", "lock"


@contextlib.contextmanager
def atomic_open(path, mode="w"):
    """Opens a temporary file beside `path` and renames it to `path` on success, after fsync.

    Args:
        path: Where the file is to appear; a link's target, and a device or a pipe is written to as it is.
        mode: "w" for UTF-8 text, "wb" for bytes.

    Raises:
        UserError: The place cannot be written.
    """
    path, is_stream = _place_of_file(path)
    encoding = None if "b" in mode else "utf-8"
    if is_stream:
        with _opened(path, mode, encoding) as file:
            yield file
        return
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
def open_partial(path):
    """Opens `PATH.partial` and renames it to `path` on success; broken off, it stays with what was written until then.

    Args:
        path: Where the file is to appear; a link's target, and a device or a pipe is written to as it is.

    Yields:
        A text file; what is flushed at a time should be whole lines.

    Raises:
        UserError: The place cannot be written.
    """
    path, is_stream = _place_of_file(path)
    if is_stream:
        with _opened(path, "w", "utf-8") as file:
            yield file
        return
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(partial, "w", encoding="utf-8")
    except OSError as error:
        raise cannot_write(path, error) from None
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync(path.parent)
    except BaseException as error:
        if not partial.stat().st_size:
            partial.unlink()
        elif isinstance(error, UserError):
            raise UserError(f"{error}; what was written before is in {partial}") from None
        else:
            print(f"what was written before is in {partial}", file=sys.stderr)
        raise


@contextlib.contextmanager
def atomic_directory(path):
    """Yields a new temporary directory beside `path` and renames it to `path` on success, after fsync.

    Raises:
        UserError: The place cannot be written.
    """
    path = _place_of_directory(path)
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise cannot_write(path, error) from None
    try:
        yield temporary
        os.chmod(temporary, 0o777 & ~_umask())
        _put_in_place(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class WorkDirectory:
    """A directory in the making, which another process may go on with; see `work_directory`.

    Attributes:
        folder: Where it is, for now.
        keep: Whether it is worth keeping if the work is broken off; False at first.
    """

    def __init__(self, folder, path):
        self.folder, self._path, self.keep = Path(folder), path, False

    def clear(self):
        """Removes all that was made."""
        for entry in self.folder.iterdir():
            if entry.name != LOCK:
                entry.unlink()

    def finish(self):
        """Renames it to its path, after fsync."""
        self.keep = True  # what has its name next is another process's
        _put_in_place(self.folder, self._path)
        # Not before: others would take the folder for one that nobody works in. It may have been replaced by now.
        (self._path / LOCK).unlink(missing_ok=True)


@contextlib.contextmanager
def work_directory(path, identity):
    """Yields a `WorkDirectory` beside `path`, the same for the same `identity`: what a killed process left is in it.

    It is hidden and belongs to one process at a time: others wait until that one has ended. Those of other identities
    are removed. Unless `finish` was called it is removed, too, or kept, if `keep` says so, for the next attempt.

    Args:
        path: Where the directory is to appear.
        identity: Text for a file name: a hash of all that the content depends on.

    Raises:
        UserError: The place cannot be written.
    """
    path = _place_of_directory(path)
    folder = path.with_name(f".{path.name}.{identity}{WORK}")
    try:
        lock = _lock_directory(folder)
    except OSError as error:
        raise cannot_write(path, error) from None
    with lock:
        for other in path.parent.glob(f".{glob.escape(path.name)}.*{WORK}*"):
            if other != folder:
                _remove_unlocked(other)
        for stray in folder.glob(".*"):  # of `atomic_open`, when it was killed
            stray.unlink()
        work = WorkDirectory(folder, path)
        try:
            yield work
        finally:
            if not work.keep:
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def lock_file(path):
    """Locks a file, which is made if need be, inside a `with` block.

    Yields:
        The open file, or None if another process has locked it. A process that inherits the file holds the lock, too.
    """
    with _opened(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # a file system without locks
                raise
        yield file


def remove_directory(path):
    """Removes a directory at once: it is renamed to a hidden one before its files go, one after the other."""
    hidden = path.with_name(f".{path.name}.old")
    shutil.rmtree(hidden, ignore_errors=True)
    os.replace(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _lock_directory(folder):
    """Makes a directory, or finds it, and locks the file in it; returns the locked file.

    The lock ends with the process, however that ends.
    """
    while True:
        with contextlib.ExitStack() as stack:
            try:
                folder.mkdir(exist_ok=True)
                lock = stack.enter_context(open(folder / LOCK, "w"))
            except FileNotFoundError:  # it was finished just now
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info(f"waiting for another process that works in {folder}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # a file system without locks
                    raise
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(folder / LOCK), os.fstat(lock.fileno())):
                    stack.pop_all()
                    return lock


def _remove_unlocked(folder):
    """Removes a directory of work unless a process works in it."""
    with contextlib.suppress(OSError), open(folder / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)


def _place_of_file(path):
    """Returns where a file is to be put, and whether a device or a pipe is there, which is not to be replaced.

    Raises:
        UserError: It is a directory.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a directory; choose another place")
    # A file that a descriptor stands for may have another name by now, or none.
    if path.exists() and (not path.is_file() or str(path.absolute()).startswith(("/dev/fd/", "/dev/std", "/proc/"))):
        return path, True
    return path.resolve() if path.is_symlink() else path, False


def _opened(path, mode, encoding=None):
    """Opens a file, in a folder that is made if need be, or raises the `UserError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, mode, encoding=encoding)
    except OSError as error:
        raise cannot_write(path, error) from None


def _place_of_directory(path):
    """Returns `path`, whose parent is there and which is no file, or raises the `UserError`."""
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise UserError(f"cannot write {path}: it is no directory; choose another place or remove it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from None
    return path


def _put_in_place(folder, path):
    """Renames a directory to `path`, after fsync; one that is there is removed."""
    for entry in (*folder.rglob("*"), folder):
        sync(entry)
    old = folder.with_name(f"{folder.name}.old")
    if path.is_dir():
        os.replace(path, old)  # at once, where removing it takes its time
    os.replace(folder, path)
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def cannot_write(path, error):
    """Returns the `UserError` for a `path` that an `OSError` says cannot be written."""
    return UserError(f"cannot write {path}: {error.strerror or error}; choose another place or mend its permissions")


def check_output(flag, output, **inputs):
    """Raise a `UserError` if writing a file would overwrite a file that the same command reads.

    Links are followed. `open_partial` also writes `OUTPUT.partial`, so that name is checked as well.

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
            raise UserError(f"{flag} must be another file than --{name}, got {output}, which would overwrite the input")


def _regular_file(path, stream):
    """Return the `os.stat` of a regular file, or None; "-" stands for `stream`."""
    try:
        status = os.fstat(stream.fileno()) if str(path) == "-" else os.stat(path)
    except (OSError, TypeError, ValueError):  # a missing file, None, or a stream without a descriptor
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def append_line(path, text):
    """Adds a line to a file, in one write, so that other processes' lines are whole; a cut one before it is ended.

    Raises:
        UserError: It cannot be written.
    """
    try:
        with open(path, "ab+") as file:
            cut = b""
            if file.tell():
                file.seek(-1, os.SEEK_END)
                cut = b"" if file.read(1) == b"\n" else b"\n"
            file.write(cut + text.encode() + b"\n")
    except OSError as error:
        raise cannot_write(path, error) from None


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


def finite_or_null(values):
    """Return a dictionary with None for each number that JSON does not have: NaN and the infinities."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }


def write_json(path, value):
    """Writes `value` as JSON, whole or not at all."""
    with atomic_open(path) as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def read_json(path, what, **types):
    """Returns the object in a JSON file, a dictionary.

    Args:
        path: The file.
        what: What it is, for the sentence.
        **types: The type, or a tuple of types, of each value that must be in it.

    Raises:
        UserError: It is missing or damaged.
    """
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError:
        raise UserError(f"{what}: {path} is missing") from None
    except (OSError, ValueError, RecursionError) as error:  # also what is no UTF-8
        raise UserError(f"{what}: {path} is damaged ({error})") from None
    value = value if isinstance(value, dict) else {}
    for name, kind in types.items():
        if not isinstance(value.get(name), kind):
            raise UserError(f"{what}: {path} is damaged (it lacks a proper {name!r})")
    return value


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
