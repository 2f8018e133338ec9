"""Tests that keyed permutations are bijections and have the statistics of true shuffles."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data.permutation import permute


@given(
    size=st.one_of(st.integers(1, 100), st.integers(1, 20_000)), key=st.tuples(st.integers(0, 2**64), st.integers(0))
)
def test_permute_maps_a_range_to_itself(size, key):
    assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


@given(size=st.integers(1, 2**62), data=st.data())
def test_permute_evaluates_indices_separately(size, data):
    indices = data.draw(st.lists(st.integers(0, size - 1), max_size=20))
    images = permute(indices, size, (1, 2))
    assert images.dtype == np.int64 and ((0 <= images) & (images < size)).all()
    assert len(set(images.tolist())) == len(set(indices))
    assert images.tolist() == [permute([index], size, (1, 2)).item() for index in indices]


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_permute_gives_every_permutation_equally_often(size):
    keys, count = 6_000, math.factorial(size)
    seen = Counter(tuple(permute(np.arange(size), size, (5, key))) for key in range(keys))
    assert len(seen) == count
    chi_square = sum((times - keys / count) ** 2 for times in seen.values()) / (keys / count)
    assert chi_square < count + 5 * math.sqrt(2 * count)


@pytest.mark.parametrize("size", [1_000, 4_096, 50_000])
def test_permute_has_the_neighbours_of_a_shuffle(size):
    def statistics(images):
        """Return four statistics of a permutation of `range(size)`.

        - the rank correlation between numbers and their images
        - the mean distance between the images of neighbours, divided by `size`
        - the number of pairs of neighbours whose images are also neighbours
        - the number of ordered pairs in the same block of 100 both before and after the permutation, divided by `size`
        """
        blocks = np.arange(size) // 100 * size + images // 100
        again = np.unique(blocks, return_counts=True)[1]
        distance = np.abs(np.diff(images))
        correlation = np.corrcoef(np.arange(size), images)[0, 1]
        return correlation, distance.mean() / size, (distance == 1).sum(), again @ (again - 1) / size

    found = np.array([statistics(permute(np.arange(size), size, (9, key))) for key in range(40)])
    true = np.array([statistics(np.random.default_rng(key).permutation(size)) for key in range(40)])
    error = np.sqrt((found.var(axis=0) + true.var(axis=0)) / 40)
    assert (np.abs(found.mean(axis=0) - true.mean(axis=0)) < 4 * error).all()


def test_permute_differs_between_keys():
    first, *others = (permute(np.arange(1_000), 1_000, key) for key in ((1, 0), (0, 1), (1, 1), (2**40, 0)))
    for other in others:
        assert (first == other).sum() < 10


def test_permute_of_a_fixed_key_is_fixed():
    """Compare with stored values: after an upgrade of the package, a resumed run must read the same batches."""
    assert permute(np.arange(10), 10, (1, 2, 3)).tolist() == [8, 4, 7, 6, 9, 2, 5, 1, 0, 3]
    assert permute([0, 1, 10**12 - 1], 10**12, (4,)).tolist() == [2349736394, 582564362405, 828319925641]
