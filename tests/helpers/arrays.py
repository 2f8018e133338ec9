"""Random arrays and comparisons of results with float64 references."""

import numpy as np


def normal(seed, *shape):
    """Return float32 samples of the standard normal distribution."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def close(actual, expected, tolerance=2e-5):
    """Assert that an array has the shape and the values of a reference."""
    actual = np.asarray(actual, dtype="float64")
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
