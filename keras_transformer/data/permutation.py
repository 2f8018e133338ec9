"""Pseudorandom permutations of large ranges, evaluated only at the requested indices."""

import numpy as np

ROUNDS = 12
"""Number of Feistel rounds. With fewer rounds, some permutations of small ranges would be more likely than others."""


def permute(indices, size, key):
    """Apply a pseudorandom permutation of `range(size)` to indices.

    Memory and time depend on the number of indices, not on `size`. A Feistel network permutes a grid of about
    sqrt(size) × sqrt(size) cells. If a result is outside the range, the function applies the network again until
    the result is inside. This is rarely necessary, because the grid has only slightly more cells than the range.

    Args:
        indices: Integers `[count]`, from 0 to `size - 1`.
        size: Size of the range, at most 2**62.
        key: Tuple of non-negative integers. Each key has its own permutation.

    Returns:
        int64 `[count]`.
    """
    width = np.uint64(int(np.ceil(np.sqrt(size))))
    height = np.uint64(-(-size // int(width)))
    keys = np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64)
    images = np.array(indices, dtype=np.uint64)
    outside = np.arange(len(images))
    while len(outside):
        high, low = np.divmod(images[outside], width)
        for first, second in zip(keys[::2], keys[1::2]):
            high = (high + _hash(low, first, height)) % height
            low = (low + _hash(high, second, width)) % width
        images[outside] = high * width + low
        outside = outside[images[outside] >= size]
    return images.astype(np.int64)


def _hash(values, key, size):
    """Hash each value with the key to a uint64 that is less than `size`. `size` must be at most 2**32."""
    mixed = (values + key) * np.uint64(0x9E3779B97F4A7C15)  # multiplication wraps around
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return (mixed >> np.uint64(32)) * size >> np.uint64(32)
