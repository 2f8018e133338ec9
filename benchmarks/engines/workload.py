"""Training batches for all engines: token ids from a prepared corpus, or random tokens."""

import numpy as np

from keras_transformer.data.batch_plan import BatchPlan
from keras_transformer.data.token_batches import TokenBatches
from keras_transformer.data.token_store import Sequences, Split
from keras_transformer.data.tokenizers.base import SPECIAL

MEAN_LENGTH = 29
"""Approximate mean of the lengths from `wmt_lengths`, in tokens."""


def training_batches(corpus):
    """Return the `TokenBatches` of a run.

    Args:
        corpus: Dictionary with "batch_tokens" and one of these groups of keys:

            - "problem", "data_dir", "raw_dir", "hparams": a registered problem and the preset for its batches.
            - "lengths", "vocab_size", "batches": random tokens. "lengths" is the length of all sequences, or "wmt" for
              the lengths of `wmt_lengths`. With "wmt", the number of batches is approximate.
    """
    if "problem" in corpus:
        import keras_transformer as kt

        problem = kt.problem(corpus["problem"], data_dir=corpus["data_dir"], raw_dir=corpus["raw_dir"])
        return problem.batches("train", kt.hparams(corpus["hparams"], batch_tokens=corpus["batch_tokens"]))
    if corpus["lengths"] == "wmt":
        lengths = wmt_lengths(corpus["batches"] * corpus["batch_tokens"] // MEAN_LENGTH)
    else:
        lengths = np.full((2, corpus["batches"] * (corpus["batch_tokens"] // corpus["lengths"])), corpus["lengths"])
    split = Split(*(random_sequences(side, corpus["vocab_size"]) for side in lengths))
    return TokenBatches(split, BatchPlan(split.index, corpus["batch_tokens"]))


def wmt_lengths(count):
    """Return sentence lengths in tokens, similar to those of WMT English-German, as an integer array `[2, count]`.

    Source lengths are log-normal with a median of 24. The logarithm of target length / source length is normal, with
    mean 0.03 and standard deviation 0.16.
    """
    random = np.random.default_rng(0)
    source = np.clip(np.exp(np.log(24) + 0.62 * random.normal(size=count)), 3, 250).astype(int)
    target = np.clip(source * np.exp(random.normal(0.03, 0.16, count)), 3, 250).astype(int)
    return np.stack([source, target])


def random_sequences(lengths, vocab_size):
    """Return `Sequences` of random ids with the given lengths."""
    offsets = np.append(0, np.cumsum(lengths))
    ids = np.random.default_rng(0).integers(len(SPECIAL), vocab_size, offsets[-1], dtype=np.int32)
    return Sequences(ids, offsets)
