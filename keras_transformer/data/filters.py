"""Filters of the pairs of a corpus: by their lengths, and exact duplicates by their hashes."""

import hashlib
from dataclasses import dataclass

import numpy as np


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
        """Return which pairs satisfy `max_length_ratio`, bool `[pairs]`.

        Args:
            source_lengths: int32 `[pairs]`, tokens with EOS; a blank side has length 1.
            target_lengths: int32 `[pairs]`, the same for targets.
        """
        if self.max_length_ratio is None:
            return np.full(len(source_lengths), True)
        shorter, longer = np.minimum(source_lengths, target_lengths), np.maximum(source_lengths, target_lengths)
        return longer <= self.max_length_ratio * shorter


def hash_pairs(pairs):
    """Return a 64-bit hash of each pair of texts, uint64 `[pairs]`.

    Among 40 million pairs, two different ones have the same hash with a probability of 1 to 20,000.
    """
    digests = (
        hashlib.blake2b(f"{len(source)} {source}{target}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for source, target in pairs
    )
    return np.frombuffer(b"".join(digests), dtype="<u8")


def first_occurrences(blocks):
    """Return which hashes did not occur before, bool `[hashes]`.

    Args:
        blocks: Iterable of uint64 arrays, the blocks of the hashes.
    """
    hashes = np.concatenate([np.empty(0, np.uint64), *blocks])
    first = np.full(len(hashes), False)
    first[np.unique(hashes, return_index=True)[1]] = True
    return first
