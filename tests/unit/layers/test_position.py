"""Tests of positional encodings (§3.5), compared with a NumPy oracle."""

import numpy as np
import oracles
import pytest

from keras_transformer.layers.position import LearnedPositions, SinusoidalPositions
from keras_transformer.utils.errors import UserError

pytestmark = pytest.mark.backend


def close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(found, "float64"), expected, atol=tolerance)


@pytest.mark.parametrize("d_model", [2, 6, 512])
def test_sinusoids_are_interleaved(d_model):
    close(SinusoidalPositions(d_model)(np.arange(40)), oracles.sinusoids(range(40), d_model))


def test_sinusoids_need_an_even_width():
    with pytest.raises(UserError, match="sinusoidal positions need an even d_model, got 7"):
        SinusoidalPositions(7)(np.arange(3))


def test_sinusoids_extend_beyond_max_length():
    positions = np.array([3, 4, 5, 5_000, 20_000])
    close(SinusoidalPositions(16, max_length=4)(positions), oracles.sinusoids(positions, 16), tolerance=3e-3)


@pytest.mark.parametrize("d_model", [8, 512])
def test_sinusoid_wavelengths_are_geometric(d_model):
    step = np.asarray(SinusoidalPositions(d_model)(np.array([1])), "float64")[0]
    wavelengths = 2 * np.pi / np.arctan2(step[0::2], step[1::2])
    assert wavelengths[0] == pytest.approx(2 * np.pi)
    assert wavelengths[-1] == pytest.approx(2 * np.pi * 10000 ** ((d_model - 2) / d_model))
    np.testing.assert_allclose(wavelengths[1:] / wavelengths[:-1], 10000 ** (2 / d_model), rtol=1e-4)


@pytest.mark.parametrize("offset", [1, 7, 100])
def test_sinusoid_shift_is_linear_map(offset):
    encoding = np.asarray(SinusoidalPositions(16)(np.arange(300)))
    shift = np.zeros((16, 16))
    for i in range(0, 16, 2):
        sine, cosine = encoding[offset, i : i + 2]
        shift[i : i + 2, i : i + 2] = [[cosine, sine], [-sine, cosine]]
    close(encoding[: 300 - offset] @ shift.T, encoding[offset:], tolerance=1e-4)


def test_learned_positions_scale_and_clip():
    layer = LearnedPositions(16, max_length=10, seed=1)
    encoding = np.asarray(layer(np.arange(13)))
    close(encoding[:10], oracles.array(layer.table) * 4)
    assert len(np.unique(encoding[:10], axis=0)) == 10
    np.testing.assert_array_equal(encoding[10:], encoding[[9, 9, 9]])
