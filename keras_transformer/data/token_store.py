"""TokenStore, a prepared corpus on disk that consists of memory-mapped columns and a manifest."""

import contextlib
import functools
from pathlib import Path

import numpy as np

from keras_transformer.data.columns import SUFFIX, Column
from keras_transformer.data.length_index import LengthIndex
from keras_transformer.data.tokenizers.base import PAD
from keras_transformer.data.tokenizers.loading import load_tokenizer
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import read_json, sha256, write_json

VERSION = 2
SIDES = ("source", "target")
ID_TYPES = ("uint16", "uint32")
COLUMNS = {
    **{f"{side}.ids": ID_TYPES for side in SIDES},
    **{f"{side}.offsets": ("int64",) for side in SIDES},
    "groups": ("int64",),
    "order": ("uint32", "int64"),
}
"""{name: possible data types} of the columns of a split."""
VERIFIED = "verified.json"
"""Name of the file with the size, modification time and inode of each file that this machine has verified."""


class TokenStore:
    """Prepared corpus on disk, written by `preparation.write_store`.

    When a machine opens a split for the first time, the store verifies all checksums. Later, it only checks that the
    size, modification time and inode of each file are unchanged, which takes the same time for a corpus of any size. In
    addition, the store verifies each chunk when a process first reads it.

    Args:
        path: Directory of the corpus.
        reverse: Whether to swap source and target.

    Raises:
        UserError: The directory is not a complete store, is damaged, or has the format of another package version.
    """

    def __init__(self, path, reverse=False):
        self.path = Path(path)
        self.manifest = read_json(
            self.path / "manifest.json",
            f"{path} is not a complete prepared corpus; remove it and run `prepare` again",
            version=int, splits=dict, files=dict, tokenizer=str,
        )  # fmt: skip
        if self.manifest["version"] != VERSION:
            raise UserError(f"{path} has the format of another version of this program; {self._remedy}")
        self.tokenizer = load_tokenizer(self.path)
        if self.tokenizer.fingerprint != self.manifest["tokenizer"]:
            raise UserError(f"{self.path / self.tokenizer.file_name} is damaged; {self._remedy}")
        if reverse:
            self.tokenizer = self.tokenizer.reverse()
        self._reverse = reverse

    @property
    def _remedy(self):
        return f"remove {self.path} and run `prepare` again"

    def split(self, name):
        """Return the `Split` with the given name.

        Raises:
            UserError: The corpus has no such split, or a file is missing or damaged.
        """
        if name not in self.manifest["splits"]:
            raise UserError(f"{self.path} has no split {name!r}; choose one of {', '.join(self.manifest['splits'])}")
        self._check(name, self._verified())
        columns = {
            column: Column(self.path / f"{name}.{column}", self.manifest["files"][f"{name}.{column}"]["dtype"])
            for column in COLUMNS
        }
        sides = [Sequences(columns[f"{side}.ids"], columns[f"{side}.offsets"]) for side in SIDES]
        index = LengthIndex.from_columns(columns["groups"], columns["order"])
        return Split(*sides[::-1], index.reversed()) if self._reverse else Split(*sides, index)

    def verify(self):
        """Verify the checksums of all files.

        Raises:
            UserError: A file is missing or damaged.
        """
        for name in self.manifest["splits"]:
            self._check(name, {})

    def _check(self, split, verified):
        """Raise a `UserError` if a file of a split is missing or has changed.

        Args:
            split: Name of the split.
            verified: {file name: result of `file_status`} of the files whose checksums are already verified.
        """
        files, current = self.manifest["files"], {}
        dtypes = {
            f"{split}.{column}{suffix}": types
            for column, own in COLUMNS.items() for suffix, types in (("", own), (SUFFIX, ("uint32",)))
        }  # fmt: skip
        for name, types in dtypes.items():
            path, entry = self.path / name, files.get(name)
            whole = isinstance(entry, dict) and entry.get("dtype") in types and path.parent == self.path
            current[name] = file_status(path) if whole and path.is_file() else None
            if current[name] is None or current[name][0] != entry.get("bytes"):
                raise UserError(f"{path} is missing or damaged; {self._remedy}")
        new = [name for name, status in current.items() if verified.get(name) != status]
        for name in new:
            if sha256(self.path / name) != files[name].get("sha256"):
                raise UserError(f"{self.path / name} is missing or damaged; {self._remedy}")
        if new:
            with contextlib.suppress(UserError, OSError):  # the folder may be read-only, or the disk full
                write_json(self.path / VERIFIED, {**self._verified(), **current})

    def _verified(self):
        """Return {file name: result of `file_status`} of the files whose checksums were verified on this machine."""
        try:
            return read_json(self.path / VERIFIED, "")
        except UserError:
            return {}

    @property
    def fingerprint(self):
        """SHA-256 of the manifest, which contains the checksums of all other files."""
        return sha256(self.path / "manifest.json")


class Split:
    """Pairs of token sequences.

    Args:
        source: `Sequences` of the sources.
        target: `Sequences` of the targets.
        index: `LengthIndex` of the pairs (default: computed from the lengths).

    Attributes:
        failure: `UserError` about a damaged chunk, or None. The backend may turn this error into an exception of its
            own, which `data_errors` replaces with the `UserError`.
    """

    def __init__(self, source, target, index=None):
        self.source, self.target, self.failure = source, target, None
        self.index = LengthIndex.from_lengths(source.lengths, target.lengths) if index is None else index

    def __len__(self):
        return len(self.source)


class Sequences:
    """Sequences of token ids. `sequences[i]` is an integer array `[length]` that ends in EOS.

    Args:
        ids: Integers `[tokens]`, the ids of all sequences, as a `Column` or a NumPy array.
        offsets: Integers `[sequences + 1]`, the position of the first id of each sequence, followed by the total number
            of ids.
    """

    def __init__(self, ids, offsets):
        self._ids, self._offsets = ids, offsets

    def __len__(self):
        return len(self._offsets) - 1

    def __getitem__(self, row):
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self._ids.take(np.arange(*self._offsets.take([row, row + 1])))

    @functools.cached_property
    def lengths(self):
        """Number of ids in each sequence, int32 `[sequences]`. Time and memory are linear in the size of the corpus."""
        return np.diff(self._offsets.take(np.arange(len(self._offsets)))).astype(np.int32)

    def padded(self, rows, count, length):
        """Return the sequences at `rows`, truncated or padded with PAD to int32 `[count, length]`."""
        starts = self._offsets.take(rows)
        real = np.arange(length) < (self._offsets.take(rows + 1) - starts)[:, None]
        ids = np.full((count, length), PAD, np.int32)
        ids[: len(rows)][real] = self._ids.take((starts[:, None] + np.arange(length))[real])
        return ids


def file_status(path):
    """Return the size, modification time and inode of a file, which change if the file is changed or copied."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]
