"""Filters that drop pairs of a corpus by their lengths or as exact duplicates."""

import hashlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PairFilter:
    """The rules that decide which pairs of a split to drop. By default all pairs stay.

    Attributes:
        max_length_ratio: Maximum ratio of the longer side to the shorter one, in tokens with EOS. None disables the
            filter.
        drop_duplicates: Whether to keep only the first of identical pairs.
        drop_empty: Whether to drop pairs with a side that has no tokens.
    """

    max_length_ratio: float | None = None
    drop_duplicates: bool = False
    drop_empty: bool = False

    def empty(self, source_lengths, target_lengths):
        """Return which pairs to drop because a side is empty, bool `[pairs]`. The arguments are those of `alike`."""
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

    In a corpus of 40 million pairs, the probability that two different pairs have the same hash is 1 in 20,000.
    """
    digests = (
        hashlib.blake2b(f"{len(source)} {source}{target}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for source, target in pairs
    )
    return np.frombuffer(b"".join(digests), dtype="<u8")


def first_occurrences(blocks):
    """Return which hashes did not occur before, bool `[hashes]`.

    Args:
        blocks: Iterable of uint64 arrays that together hold the hashes.
    """
    hashes = np.concatenate([np.empty(0, np.uint64), *blocks])
    first = np.full(len(hashes), False)
    first[np.unique(hashes, return_index=True)[1]] = True
    return first
