"""Which pairs of a corpus are left out: filters of one pair, and exact duplicates found in bounded memory."""

import hashlib
import os
from dataclasses import dataclass

import numpy as np

BLOCK = 1 << 20  # rows that are read at once
BUCKET = 1 << 23  # rows that are sorted at once


@dataclass(frozen=True)
class PairFilter:
    """The pairs of a split to leave out. By default none are.

    Attributes:
        max_length_ratio: Maximum number of tokens of the longer side for each of the shorter, including EOS; None
            disables the filter.
        drop_duplicates: Whether to keep only the first of identical pairs.
        drop_empty: Whether to drop pairs of which a side has no tokens.
    """

    max_length_ratio: float | None = None
    drop_duplicates: bool = False
    drop_empty: bool = False

    def empty(self, source_lengths, target_lengths):
        """Return which pairs to drop because a side is empty, bool `[pairs]`; for the arguments see `alike`."""
        return ((source_lengths == 1) | (target_lengths == 1)) & self.drop_empty

    def alike(self, source_lengths, target_lengths):
        """Returns which pairs are alike enough in length, bool `[pairs]`.

        Args:
            source_lengths: int32 `[pairs]`, tokens with EOS, so that a blank side has a length, too.
            target_lengths: int32 `[pairs]`, likewise.
        """
        if self.max_length_ratio is None:
            return np.full(len(source_lengths), True)
        shorter, longer = np.minimum(source_lengths, target_lengths), np.maximum(source_lengths, target_lengths)
        return longer <= self.max_length_ratio * shorter


def hash_pairs(pairs):
    """Returns a 64-bit hash of each pair of texts, uint64 `[pairs]`.

    Two different ones of 40 million pairs have the same with a probability of 1 to 20,000.
    """
    digests = (
        hashlib.blake2b(f"{len(source)} {source}{target}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for source, target in pairs
    )
    return np.frombuffer(b"".join(digests), dtype="<u8")


def find_duplicates(path, bucket=BUCKET):
    """Returns which of the hashes in a file were there before, bool `[hashes]`.

    Memory is one byte a hash and about 32 bytes for each of a bucket: hashes are gone through once for each of as many
    ranges of values as there are buckets, and those of a range are sorted.

    Args:
        path: File of uint64.
        bucket: About how many hashes are sorted at once.
    """
    count = os.path.getsize(path) // 8
    duplicate = np.full(count, False)
    bits = max(count // bucket, 1).bit_length()  # the highest, whose value is the range's number
    for number in range(1 << bits):
        rows, hashes, first = [], [], 0
        for block in read_blocks(path, "<u8"):
            found = np.flatnonzero(block >> np.uint64(64 - bits) == number)
            rows.append(found + first)
            hashes.append(block[found])
            first += len(block)
        if rows:
            rows, hashes = np.concatenate(rows), np.concatenate(hashes)
            order = np.argsort(hashes, kind="stable")  # equal ones stay in the corpus's order
            hashes = hashes[order]
            duplicate[rows[order[1:][hashes[1:] == hashes[:-1]]]] = True
    return duplicate


def count_common(path, other):
    """Return how many of the hashes in a file are also in another, which is read in blocks.

    Args:
        path: File of uint64, which is read into memory.
        other: File of uint64.
    """
    hashes = np.fromfile(path, "<u8")
    common = np.full(len(hashes), False)
    for block in read_blocks(other, "<u8"):
        common |= np.isin(hashes, block)
    return int(common.sum())


def read_blocks(path, dtype, block=BLOCK):
    """Yields the numbers in a file, `[block]` at a time, the last one shorter."""
    with open(path, "rb") as file:
        while len(numbers := np.fromfile(file, dtype=dtype, count=block)):
            yield numbers


def copy_rows(keep, lengths, ids, ids_dtype, suffix):
    """Writes the rows that are kept of a file of lengths and of its ids to files of the same names with `suffix`.

    Args:
        keep: bool `[rows]`.
        lengths: Path of a file of int32, the ids of each row.
        ids: Path of the file of ids.
        ids_dtype: Their type.
        suffix: What is appended to the names.
    """
    first = 0
    with open(ids, "rb") as old, open(f"{lengths}{suffix}", "wb") as new_lengths, open(f"{ids}{suffix}", "wb") as new:
        for block in read_blocks(lengths, np.int32, BLOCK // 16):
            kept = keep[first : first + len(block)]
            first += len(block)
            tokens = np.fromfile(old, dtype=ids_dtype, count=int(block.sum()))
            new_lengths.write(block[kept].tobytes())
            new.write(tokens[np.repeat(kept, block)].tobytes())
        for file in (new_lengths, new):
            file.flush()
            os.fsync(file.fileno())
