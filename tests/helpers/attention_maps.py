"""Attention maps with random weights."""

import numpy as np

from keras_transformer.visualization.attention import AttentionMaps, Tokens


def random_maps(source, target, seed=0, layers=2, heads=3):
    """Return attention maps with random weights.

    `source` and `target` list the number of pieces in each word. EOS and BOS count as separate words.
    """
    rng = np.random.default_rng(seed)

    def tokens(counts, name):
        word_of = np.repeat(np.arange(len(counts)), counts)
        return Tokens(
            tuple(f"{name}{i}" for i in range(len(word_of))), tuple(f"{name}_{i}" for i in set(word_of)), word_of
        )

    source, target, given = tokens([*source, 1], "s"), tokens([*target, 1], "t"), tokens([1, *target], "g")
    n, m = len(source.labels), len(target.labels)
    weights = [rng.dirichlet(np.ones(k), (layers, heads, q)).astype("float32") for q, k in ((n, n), (m, m), (m, n))]
    return AttentionMaps("a source", "a target", source, target, given, *weights)
