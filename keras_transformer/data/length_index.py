"""LengthIndex, which sorts the pairs of a corpus by length for a batch plan."""

import numpy as np

from keras_transformer.data.columns import add_checksums, allocate_column

BLOCK = 1 << 20
"""Number of pairs to sort at a time."""


class LengthIndex:
    """Pairs of a corpus, grouped by their two lengths and sorted so that neighbours have similar lengths.

    Groups are in ascending order of n, the length of their longer side. Groups with the same n are sorted by source
    length minus target length, in ascending order if n is even and in descending order if n is odd. The pairs of a
    group keep their order in the corpus.

    Args:
        source: int64 `[groups]`, source length of the pairs in each group, including EOS.
        target: int64 `[groups]`, target length, including EOS.
        size: int64 `[groups]`, number of pairs.
        order: Row indices of the sorted pairs: a `Column`, a NumPy array `[pairs]`, or any object with a method
            `take(positions)` that returns integers `[positions]`.
    """

    def __init__(self, source, target, size, order):
        self.source, self.target, self.size, self._order = source, target, size, order

    def __len__(self):
        return len(self.source)

    def rows(self, positions):
        """Return the row indices of the pairs at the given positions, int64 `[count]`."""
        return self._order.take(positions).astype(np.int64)

    def reversed(self):
        """Return the index of the same pairs with source and target swapped."""
        return LengthIndex(self.target, self.source, self.size, self._order)

    @classmethod
    def from_columns(cls, groups, order):
        """Create the index from the two `Column`s that `write_index` has written."""
        return cls(*groups.take(np.arange(len(groups))).reshape(3, -1), order)

    @classmethod
    def from_lengths(cls, source, target):
        """Create the index of pairs with the given lengths, two integer arrays of shape `[pairs]`.

        Raises:
            ValueError: The arrays differ in shape, or a length is less than 1.
        """
        source, target = np.asarray(source), np.asarray(target)
        if source.ndim != 1 or source.shape != target.shape:
            raise ValueError(
                "source and target lengths must be one-dimensional arrays of the same size, got shapes "
                f"{source.shape} and {target.shape}"
            )
        if len(source) and min(source.min(), target.min()) < 1:
            raise ValueError(f"lengths include EOS and must be at least 1, got {min(source.min(), target.min())}")
        groups = group_lengths(source, target)
        order = np.empty(len(source), order_type(len(source)))
        sort_rows(source, target, groups, order)
        return cls(*groups, order)


def write_index(prefix, source, target):
    """Write the columns of a `LengthIndex` to `PREFIX.groups` and `PREFIX.order`.

    Args:
        prefix: Path without a suffix.
        source: Integers `[pairs]`, source length of each pair. The function reads `BLOCK` pairs at a time.
        target: Integers `[pairs]`, target length of each pair.

    Returns:
        {file name: entry} for a manifest.
    """
    groups, dtype = group_lengths(source, target), order_type(len(source))
    allocate_column(f"{prefix}.groups", "int64", 3 * len(groups[0]))[:] = np.concatenate(groups)
    order = allocate_column(f"{prefix}.order", dtype, len(source))
    sort_rows(source, target, groups, order)
    if len(order):
        order.flush()
    return add_checksums(f"{prefix}.groups", "int64") | add_checksums(f"{prefix}.order", dtype)


def order_type(pairs):
    """Return the name of a NumPy type that can store the row indices of the given number of pairs."""
    return "uint32" if pairs <= 1 << 32 else "int64"


def group_lengths(source, target):
    """Return the source lengths, target lengths and sizes of the groups of a `LengthIndex`, int64 arrays `[groups]`.

    Regardless of the number of pairs, the function needs memory for only `BLOCK` pairs at a time.

    Args:
        source: Integers `[pairs]`.
        target: Integers `[pairs]`.
    """
    keys = sizes = np.empty(0, np.int64)
    for _, block in _keys(source, target):
        new, counts = np.unique(block, return_counts=True)
        keys, place = np.unique(np.concatenate([keys, new]), return_inverse=True)
        merged = np.zeros(len(keys), np.int64)
        np.add.at(merged, place, np.concatenate([sizes, counts]))
        sizes = merged
    source, target = keys >> 32, keys & 0xFFFFFFFF
    longest, lean = np.maximum(source, target), source - target
    order = np.lexsort((np.where(longest % 2 == 0, lean, -lean), longest))
    return source[order], target[order], sizes[order]


def sort_rows(source, target, groups, order):
    """Write the row indices of a corpus to the array `order`, sorted by group.

    The function needs memory for only `BLOCK` pairs at a time.

    Args:
        source: Integers `[pairs]`.
        target: Integers `[pairs]`.
        groups: The result of `group_lengths`.
        order: Integer array `[pairs]`.
    """
    keys = groups[0] << 32 | groups[1]
    by_key = np.argsort(keys)
    free = np.cumsum(groups[2]) - groups[2]  # the next free position of each group
    for first, block in _keys(source, target):
        group = by_key[np.searchsorted(keys, block, sorter=by_key)]
        rows = np.argsort(group, kind="stable")
        counts = np.bincount(group, minlength=len(free))
        order[np.repeat(free - (np.cumsum(counts) - counts), counts) + np.arange(len(rows))] = first + rows
        free += counts


def _keys(source, target):
    """Yield, for each block of `BLOCK` pairs, the index of the first pair and an int64 array `[pairs in block]`.

    Each element of the array combines the source length and the target length of a pair.
    """
    for first in range(0, len(source), BLOCK):
        block = slice(first, first + BLOCK)
        yield first, source[block].astype(np.int64) << 32 | target[block].astype(np.int64)
