"""Tests that decoding step by step gives the same logits as teacher forcing."""

import itertools

import keras
import numpy as np
import pytest
from helpers.small_transformer import (
    SOURCE,
    VOCAB,
    every_variant,
    logits,
    make_model,
    randomize,
)
from keras import ops

from keras_transformer.data.tokenizers.base import BOS, PAD


def decode(model, beams, length, settled=0, dtype="float32"):
    """Decode random tokens with `decode_step`. Return the tokens, and the logits as `[batch, beams, length, vocab]`.

    If `settled` is not 0, the keys and values of the first `settled` positions move from `recent` to `past`.
    """
    cache = model.start_cache(SOURCE)._replace(kernels=model.step_kernels())
    recent = model.empty_nodes(3, (length + 2) * beams)
    tokens = np.random.default_rng(beams).integers(1, VOCAB, (3, beams, length)).astype("int32")
    tokens[:, :, 0] = BOS
    own = np.arange((length + 2) * beams)[None] % beams == np.arange(beams)[:, None]  # node = step * beams + beam
    steps, first = [], 0
    for index in range(length):
        if settled and index == settled:
            past = keras.tree.map_structure(lambda part: part[:, :, : settled * beams], recent)
            cache, first = cache._replace(past=past), settled
            recent = model.empty_nodes(3, (length + 2 - settled) * beams)
        path = np.tile(own & (np.arange((length + 2) * beams) < (index + 1) * beams), (3, 1, 1))
        node = ops.convert_to_tensor((index - first) * beams)
        so_far = np.where(np.arange(length - 1) < index, tokens[:, :, 1:], PAD)
        step, recent = model.decode_step(
            so_far, ops.convert_to_tensor(index), cache._replace(recent=recent), node, ops.convert_to_tensor(path)
        )
        steps.append(np.asarray(step, dtype="float64"))
    return np.stack(steps, axis=2), tokens


def check_step_by_step(changes, beams, settled):
    model = randomize(make_model(**changes))
    stepwise, tokens = decode(model, beams, length=7, settled=settled)
    for beam in range(beams):
        np.testing.assert_allclose(stepwise[:, beam], logits(model, (SOURCE, tokens[:, beam])), atol=1e-5)


@every_variant
def test_decode_step_matches_teacher_forced_logits(changes):
    check_step_by_step(changes, beams=3, settled=4)


@pytest.mark.backend
def test_decode_step_without_past():
    check_step_by_step({}, beams=1, settled=0)


def test_decode_step_in_bfloat16():
    model = make_model(dtype="mixed_bfloat16")
    stepwise, tokens = decode(model, 1, length=7)
    np.testing.assert_allclose(stepwise[:, 0], logits(model, (SOURCE, tokens[:, 0])), atol=0.15)
    for cached in itertools.chain(*model.start_cache(SOURCE).memory, *model.empty_nodes(3, 7)):
        assert keras.backend.standardize_dtype(cached.dtype) == "bfloat16"
