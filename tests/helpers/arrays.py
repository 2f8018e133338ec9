"""Functions that draw random arrays and compare results with float64 references."""

import numpy as np


def normal(seed, *shape):
    """Draw float32 samples from the standard normal distribution."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def close(actual, expected, tolerance=2e-5):
    """Assert that an array has the same shape as a reference and, within the tolerance, the same values."""
    actual = np.asarray(actual, dtype="float64")
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
