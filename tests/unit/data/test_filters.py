"""Filters of training pairs, and the sample from which a vocabulary is learned."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data import encoding
from keras_transformer.data.filters import PairFilter, first_occurrences, hash_pairs
from keras_transformer.data.sampling import sample_texts
from keras_transformer.data.token_store import TokenStore
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.tasks.problem import load_problem

LETTERS = [f"s{i}" for i in range(20)]
SYMBOLS = SymbolTokenizer(LETTERS)


def pairs_of(count):
    rng = random.Random(1)
    return [tuple(" ".join(rng.choices(LETTERS, k=rng.randint(0, 2))) for _ in range(2)) for _ in range(count)]


@pytest.mark.parametrize(("ratio", "unique"), [(None, True), (2.0, False), (1.5, True), (1, True)])
def test_filters_drop_and_count_pairs(tmp_path, monkeypatch, ratio, unique):
    monkeypatch.setattr(encoding, "CHUNK_PAIRS", 7)
    pairs = pairs_of(400) + [("", ""), ("s1", "  "), ("s1 s2 s3 s4", "")]
    sizes = [sorted(len(text.split()) + 1 for text in pair) for pair in pairs]
    alike = [pair for pair, (short, long) in zip(pairs, sizes) if ratio is None or long <= ratio * short]
    kept = list(dict.fromkeys(alike)) if unique else alike
    filters = {"train": PairFilter(ratio, unique)}
    TokenStore.write(tmp_path / "store", {"train": pairs, "test": pairs}, SYMBOLS, {}, filters=filters)
    store = TokenStore(tmp_path / "store")
    split, counts = store.split("train"), store.manifest["splits"]["train"]
    ids = [[[*ids, 1] for ids in SYMBOLS.encode(pair)] for pair in kept]
    assert [[split.source[i].tolist(), split.target[i].tolist()] for i in range(len(split))] == ids
    expected = {"pairs": len(kept), "source_tokens": sum(len(s) for s, _ in ids)}
    expected |= {"target_tokens": sum(len(t) for _, t in ids)}
    expected |= {"pairs_with_an_empty_side": sum(1 in map(len, pair) for pair in ids)}
    expected |= {"dropped_for_their_length_ratio": len(pairs) - len(alike)} if ratio else {}
    expected |= {"dropped_as_duplicates": len(alike) - len(kept)} if unique else {}
    assert counts == expected and store.manifest["splits"]["test"]["pairs"] == len(pairs)
    assert {path.suffix for path in store.path.iterdir()} == {".txt", ".json", ".ids", ".lengths"}


@given(blocks=st.lists(st.lists(st.sampled_from([0, 1, 2, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1))))
def test_first_occurrences_excludes_duplicates(blocks):
    hashes = [each for block in blocks for each in block]
    first = first_occurrences(np.array(block, np.uint64) for block in blocks)
    assert first.tolist() == [each not in hashes[:i] for i, each in enumerate(hashes)]


def test_hash_pairs_distinguishes_sides():
    pairs = [("a b", "c"), ("a", "b c"), ("a", " b c"), ("", "abc"), ("abc", ""), ("1", "2"), ("", "1 2")]
    assert len({*hash_pairs(pairs).tolist()}) == len(pairs)
    assert hash_pairs(pairs).tolist() == hash_pairs([tuple(pair) for pair in map(list, pairs)]).tolist()


def test_filters_are_part_of_prepared_directory_name(tmp_path):
    changes = ({}, {"max_length_ratio": 3}, {"drop_duplicates": True})
    problems = [load_problem("toy_ende", data_dir=tmp_path, **change) for change in changes]
    assert len({problem.prepared_dir.name for problem in problems}) == 3
    assert [problem.parameters["drop_duplicates"] for problem in problems] == [False, False, True]


# Samples


def test_sample_texts_is_random_and_bounded():
    texts = [f"sentence number {i}" for i in range(1000)]
    assert list(sample_texts(iter(texts))) == texts
    sample = list(sample_texts(iter(texts), 5000))
    assert 100 < len(sample) < 400 and sum(map(len, sample)) <= 5000
    assert sample == list(sample_texts(texts, 5000)) == [text for text in texts if text in {*sample}]
    assert len(list(sample_texts(["x" * 999] * 3, 10))) == 1
    assert 10 < len(list(sample_texts(["日" * 40] * 200, 12 * 40 * 100))) < 100
