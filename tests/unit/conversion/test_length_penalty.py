"""Tests of the approximation of the paper's length penalty for engines with a different formula."""

import types

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.conversion.length_penalty import length_exponent


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("length", [4.0, 15.0, 60.0])
def test_length_exponent_grows_as_the_papers_penalty(length, backwards):
    output, other = ("source", "target") if backwards else ("target", "source")
    train = {"pairs": 10, f"{output}_tokens": 10 * length, f"{other}_tokens": 30 * length}
    run = types.SimpleNamespace(
        hparams=kt.HParams(alpha=1.3), problem=types.SimpleNamespace(reversed=backwards),
        manifest=lambda: {"corpus": {"splits": {"train": train}}},
    )  # fmt: skip
    step = 1e-4
    there = np.log((length + step) / length) * length_exponent(run)
    here = np.log((5 + length + step) / (5 + length)) * run.hparams.alpha
    np.testing.assert_allclose(there, here, rtol=2e-3)


def test_length_exponent_of_converted_model_is_alpha():
    run = types.SimpleNamespace(
        hparams=kt.HParams(alpha=1.3), problem=types.SimpleNamespace(reversed=False), manifest=lambda: {"corpus": {}}
    )
    assert length_exponent(run) == 1.3
