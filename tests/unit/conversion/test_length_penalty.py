"""Tests of the approximation of the paper's length penalty for engines with a different formula."""

import types

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.conversion.length_penalty import length_exponent


@pytest.mark.parametrize("length", [4.0, 15.0, 60.0])
def test_length_exponent_grows_as_the_papers_penalty(length):
    splits = {"train": {"pairs": 10, "target_tokens": 10 * length}}
    run = types.SimpleNamespace(hparams=kt.HParams(alpha=1.3), manifest=lambda: {"corpus": {"splits": splits}})
    step = 1e-4
    there = np.log((length + step) / length) * length_exponent(run)
    here = np.log((5 + length + step) / (5 + length)) * run.hparams.alpha
    np.testing.assert_allclose(there, here, rtol=2e-3)


def test_length_exponent_of_converted_model_is_alpha():
    run = types.SimpleNamespace(hparams=kt.HParams(alpha=1.3), manifest=lambda: {"corpus": {}})
    assert length_exponent(run) == 1.3
