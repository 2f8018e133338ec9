"""Tests of perplexity per token, length buckets and length ratio."""

import math

import pytest

from keras_transformer.metrics.lengths import length_buckets, length_ratio
from keras_transformer.metrics.perplexity import nats_per_token, perplexity


def test_perplexity_is_by_token():
    assert nats_per_token([-1.0, -8.0], [1, 3]) == 2.25
    assert perplexity(0.0) == 1.0 and perplexity(math.log(7)) == pytest.approx(7)
    assert perplexity(1000.0) == math.inf


def test_length_buckets_partition_rows():
    words = [51, 1, 10, 11, 20, 0, 21, 50, 200, 1]
    assert length_buckets(words) == {
        "0": [5], "1-10": [1, 2, 9], "11-20": [3, 4], "21-30": [6], "41-50": [7], "51+": [0, 8],
    }  # fmt: skip
    assert list(length_buckets(list(range(99, 0, -1)))) == [
        "1-10", "11-20", "21-30", "31-40", "41-50", "51+",
    ]  # fmt: skip
    assert length_buckets([]) == {}


def test_length_ratio_is_by_words():
    assert length_ratio(["a b c", ""], ["a b", "c d"]) == 0.75
    assert length_ratio(["a"], [""]) is None
