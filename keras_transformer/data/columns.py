"""Columns: memory-mapped arrays on disk. The first read of a chunk verifies its checksum."""

import hashlib
import os
import zlib
from pathlib import Path

import numpy as np

from keras_transformer.utils.errors import UserError

CHUNK = 4096
"""Size of a chunk in bytes. Reading a short sentence verifies its whole chunk, so larger chunks would be slower."""
BLOCK = 1 << 20
SUFFIX = ".crc"


class Column:
    """Memory-mapped array `[size]` with a checksum for each chunk. The time to open it does not depend on its size.

    Args:
        path: File with the values. `PATH.crc` contains the checksums of its chunks (see `add_checksums`).
        dtype: Name of the NumPy type of the values.
    """

    def __init__(self, path, dtype):
        self._path, dtype = Path(path), np.dtype(dtype)
        self._values = _mapped(path, dtype)
        self._checksums = _mapped(f"{path}{SUFFIX}", np.dtype("uint32"))
        self._verified = np.zeros(len(self._checksums), bool)
        self._per_chunk = CHUNK // dtype.itemsize

    def __len__(self):
        return len(self._values)

    def take(self, indices):
        """Return the values at non-negative integer indices.

        Raises:
            UserError: A chunk that contains one of the values is damaged.
        """
        chunks = np.asarray(indices) // self._per_chunk
        unread = chunks[~self._verified[chunks]]
        for chunk in np.unique(unread):
            self._verify(int(chunk))
        return self._values[indices]

    def _verify(self, chunk):
        values = self._values[chunk * self._per_chunk : (chunk + 1) * self._per_chunk]
        if zlib.crc32(values) != self._checksums[chunk]:
            first = chunk * CHUNK
            raise UserError(
                f"{self._path} is damaged in bytes {first:,} to {first + values.nbytes - 1:,}; "
                f"remove {self._path.parent} and run `prepare` again"
            )
        self._verified[chunk] = True


def allocate_column(path, dtype, size):
    """Allocate a new file on disk, and return its contents as a writable memory-mapped array `[size]`.

    Without the allocation, a later write to the array would kill the process if the disk were full.

    Raises:
        OSError: The disk is full.
    """
    total = size * np.dtype(dtype).itemsize
    with open(path, "wb") as file:
        for first in range(0, total, BLOCK):
            file.write(bytes(min(BLOCK, total - first)))
    return np.memmap(path, dtype, mode="r+") if size else np.empty(0, dtype)


def add_checksums(path, dtype):
    """Write the checksums of a column to `PATH.crc`. Return {name: manifest entry} for `PATH` and `PATH.crc`."""
    checksums, digest = [], hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            checksums += [zlib.crc32(block[first : first + CHUNK]) for first in range(0, len(block), CHUNK)]
        size = file.tell()
    content, name = np.array(checksums, np.uint32).tobytes(), Path(path).name
    Path(f"{path}{SUFFIX}").write_bytes(content)
    return {
        name: {"bytes": size, "dtype": dtype, "sha256": digest.hexdigest()},
        name + SUFFIX: {"bytes": len(content), "dtype": "uint32", "sha256": hashlib.sha256(content).hexdigest()},
    }


def _mapped(path, dtype):
    """Return the values in a file as an array, memory-mapped unless the file is empty."""
    return np.asarray(np.memmap(path, dtype, mode="r")) if os.path.getsize(path) else np.empty(0, dtype)
