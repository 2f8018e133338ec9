"""Functions that read plain files and files compressed with gzip, xz or zstd."""

import contextlib
import gzip
import lzma
import sys
import zlib
from pathlib import Path

from keras_transformer.utils.errors import UserError, install_command

SUFFIXES = (".gz", ".xz", ".zst")


def without_suffix(name):
    """Remove the suffix of a compression format, if any, from a file name."""
    return name[: len(name) - len(_suffix(name))]


def name_of(path):
    """Return the name to show for a file in messages: its path, or "stdin" for "-"."""
    return "stdin" if str(path) == "-" else path


@contextlib.contextmanager
def open_binary(path):
    """Open a file for reading bytes in a `with` block. The suffix of the file selects the decompression, if any.

    Args:
        path: The file, or "-" for stdin.

    Raises:
        UserError: The file is missing, damaged or unreadable, or the package that reads zstd is missing. The error can
            also occur later, while the `with` block reads the file.
    """
    try:
        with _open(path) as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except EOFError:
        raise UserError(f"{path}: the compressed file is truncated. Create or download it again.") from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"{path} is not a valid compressed file ({error}). Create or download it again.") from None
    except OSError as error:
        raise UserError(f"cannot read {name_of(path)}: {error.strerror}") from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":  # by name, because the class may not be importable
            raise
        raise UserError(f"{path} is not a valid compressed file ({error}). Create or download it again.") from None


def _suffix(name):
    return next((suffix for suffix in SUFFIXES if str(name).lower().endswith(suffix)), "")


def _open(path):
    if str(path) == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    match _suffix(path):
        case ".gz":
            return gzip.open(path, "rb")
        case ".xz":
            return lzma.open(path, "rb")
        case ".zst":
            return _zstd(path).open(path, "rb")
    return open(path, "rb")


def _zstd(path):
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise UserError(
            f"reading {Path(path).name} needs a zstd package. Run {install_command('zstd')}, or decompress the file."
        ) from None
    return zstd
