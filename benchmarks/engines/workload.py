"""What all engines train on: the same batches of token ids, from a prepared corpus or of random tokens."""

import numpy as np

from keras_transformer.data.batch_plan import BatchPlan
from keras_transformer.data.token_batches import TokenBatches
from keras_transformer.data.token_store import Split
from keras_transformer.data.tokenizers.base import SPECIAL

MEAN_LENGTH = 29
"""Tokens of a sentence of `wmt_lengths`."""


def training_batches(corpus):
    """Return the `TokenBatches` of a training, as Keras' `fit` takes them.

    Args:
        corpus: {"problem", "data_dir", "raw_dir"}: a problem that is prepared there, with the batches of `hparams`; or
            {"lengths": "wmt" or a number of tokens, "vocab_size", "batches"}: random tokens, of "wmt" about as many
            batches; with "batch_tokens" both.
    """
    if "problem" in corpus:
        import keras_transformer as kt

        problem = kt.problem(corpus["problem"], data_dir=corpus["data_dir"], raw_dir=corpus["raw_dir"])
        return problem.batches("train", kt.hparams(corpus["hparams"], batch_tokens=corpus["batch_tokens"]))
    if corpus["lengths"] == "wmt":
        lengths = wmt_lengths(corpus["batches"] * corpus["batch_tokens"] // MEAN_LENGTH)
    else:
        lengths = np.full((2, corpus["batches"] * (corpus["batch_tokens"] // corpus["lengths"])), corpus["lengths"])
    split = Split(*(_RandomSequences(side, corpus["vocab_size"]) for side in lengths))
    return TokenBatches(split, BatchPlan(*lengths, corpus["batch_tokens"]))


def wmt_lengths(count):
    """Return lengths int `[2, count]` as WMT's English and German have them in pieces: log-normal, the median 24; a
    target is some 16% longer or shorter than its source."""
    random = np.random.default_rng(0)
    source = np.clip(np.exp(np.log(24) + 0.62 * random.normal(size=count)), 3, 250).astype(int)
    target = np.clip(source * np.exp(random.normal(0.03, 0.16, count)), 3, 250).astype(int)
    return np.stack([source, target])


class _RandomSequences:
    """Sequences of these lengths; ids depend on the number of the sequence alone."""

    def __init__(self, lengths, vocab_size):
        self.lengths = lengths.astype(np.int32)
        self._ids = np.random.default_rng(0).integers(len(SPECIAL), vocab_size, 1 << 20).astype(np.int32)

    def __getitem__(self, row):
        first = row * 7919 % (len(self._ids) - self.lengths[row])
        return self._ids[first : first + self.lengths[row]]
