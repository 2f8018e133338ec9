"""Fixtures of tests that compare translations with exhaustive search."""

import pytest
from helpers.exhaustive_search import new_translator, randomize, short_segments


@pytest.fixture(scope="module")
def segments():
    """Apply `short_segments` until the end of the test module."""
    with short_segments():
        yield


@pytest.fixture(scope="module")
def translator():
    return randomize(new_translator(1), 1)


@pytest.fixture(scope="module")
def ensemble():
    return randomize(new_translator(1, 2), 3)
