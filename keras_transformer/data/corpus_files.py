"""Functions that find or download the files of a corpus."""

import contextlib
import dataclasses
import functools
import hashlib
import http.client
import urllib.request
from pathlib import Path

from keras_transformer.data.compression import SUFFIXES, open_binary, without_suffix
from keras_transformer.data.corpus import read_pairs
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import atomic_open


def existing_file(folder, name):
    """Return the path of the file `name` in `folder`, plain or compressed, or None if it does not exist.

    Raises:
        UserError: The file exists both plain and compressed, with different content.
    """
    found = [path for suffix in ("", *SUFFIXES) if (path := Path(folder) / f"{name}{suffix}").is_file()]
    for other in found[1:]:
        if not _same_content(found[0], other, found[0].stat().st_mtime_ns, other.stat().st_mtime_ns):
            raise UserError(f"{found[0]} and {other.name} must have the same content, but differ; remove one of them")
    return found[0] if found else None


@functools.lru_cache
def _same_content(path, other, *times):
    """Return whether two files have the same decompressed content.

    The modification times are part of the key of `lru_cache`, so that the function compares changed files again.
    """
    with contextlib.suppress(UserError), open_binary(path) as one, open_binary(other) as two:
        while (block := one.read(1 << 20)) == two.read(1 << 20):
            if not block:
                return True
    return False


def existing_files(folder, names, otherwise=""):
    """Return the paths of the files `names` in `folder`, each plain or compressed.

    Args:
        folder: Folder of the files.
        names: Names of the files, without the suffix of a compression format.
        otherwise: See `remedy`.

    Raises:
        UserError: A file is missing, or exists both plain and compressed, with different content.
    """
    paths = [existing_file(folder, name) for name in names]
    for name, path in zip(names, paths):
        if path is None:
            raise UserError(f"{folder}/{name} does not exist{remedy(folder, name, otherwise)}")
    return paths


def remedy(folder, name, otherwise=""):
    """Return the remedy to append to the error message about a missing corpus file.

    If the folder contains a file with a similar name (different case, or with `.txt`), the remedy is to rename it.

    Args:
        folder: Folder in which the file is missing.
        name: Name of the missing file, without the suffix of a compression format.
        otherwise: Text to return if there is no file with a similar name.
    """
    for path in sorted(Path(folder).glob("*")):
        stem = without_suffix(path.name)
        if path.is_file() and stem.lower() in (name.lower(), f"{name.lower()}.txt"):
            return f"; rename {path.name} to {name}{path.name[len(stem) :].lower()}"
    return otherwise


@dataclasses.dataclass(frozen=True)
class PlainFiles:
    """Published corpus on disk with one plain or compressed file for each split and language.

    Args:
        folder: Folder of the files.
        languages: Language codes at the end of the source and target file names.
        names: {split: possible file names}, with "{}" for the language. The first existing file is read.
    """

    folder: str
    languages: tuple[str, str]
    names: dict

    def paths(self, split):
        """Return the paths of the source file and the target file of a split.

        Raises:
            UserError: A file is missing.
        """
        for pattern in self.names[split]:
            names = [pattern.format(language) for language in self.languages]
            if found := list(filter(None, (existing_file(self.folder, name) for name in names))):
                return existing_files(self.folder, names, f", but {found[0].name} does")
        pairs = [[name.format(each) for each in self.languages] for name in self.names[split]]
        hint = next(filter(None, (remedy(self.folder, name) for pair in pairs for name in pair)), "")
        wanted = " or ".join(" and ".join(pair) for pair in pairs)
        raise UserError(
            f"{self.folder} must contain the files of the {split} split: {wanted}, each plain or compressed{hint}"
        )

    def files(self):
        """Return the paths of all files."""
        return [path for split in self.names for path in self.paths(split)]

    def pairs(self, split):
        """Return an iterator over the pairs (source, target) of texts."""
        return read_pairs(*self.paths(split))


def download(url, path, checksum):
    """Download `url` to `path` and verify its SHA-256, unless `path` exists.

    Raises:
        UserError: The download fails, or the checksum differs. No file is left behind.
    """
    if Path(path).is_file():
        return
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, atomic_open(path, "wb") as file:
            found = hashlib.sha256()
            while block := answer.read(1 << 20):
                file.write(block)
                found.update(block)
            if found.hexdigest() != checksum:
                raise UserError(
                    f"{url}: the SHA-256 must be {checksum}, got {found.hexdigest()}. Rerun the command to download "
                    "the file again."
                )
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"cannot download {url} ({getattr(error, 'reason', error)}); "
            "download it on another computer and pass its folder with --raw_dir"
        ) from None
