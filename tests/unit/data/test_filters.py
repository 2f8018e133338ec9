"""Tests of filters for training pairs, and of the sample of text from which `prepare` learns a vocabulary."""

import random

import numpy as np
import pytest
from helpers.stores import new_store
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data import encoding
from keras_transformer.data.filters import PairFilter, first_occurrences, hash_pairs
from keras_transformer.data.sampling import sample_texts
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.errors import UserError

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
    filters = {"train": PairFilter(max_length_ratio=ratio, drop_duplicates=unique)}
    store = new_store(tmp_path / "store", {"train": pairs, "test": pairs}, SYMBOLS, filters=filters)
    split, counts = store.split("train"), store.manifest["splits"]["train"]
    ids = [[[*ids, 1] for ids in SYMBOLS.encode(pair)] for pair in kept]
    assert [[split.source[i].tolist(), split.target[i].tolist()] for i in range(len(split))] == ids
    expected = {"pairs": len(kept), "source_tokens": sum(len(s) for s, _ in ids)}
    expected |= {"target_tokens": sum(len(t) for _, t in ids)}
    expected |= {"pairs_with_an_empty_side": sum(1 in map(len, pair) for pair in ids)}
    expected |= {"dropped_for_their_length_ratio": len(pairs) - len(alike)} if ratio else {}
    expected |= {"dropped_as_duplicates": len(alike) - len(kept)} if unique else {}
    assert counts == expected and store.manifest["splits"]["test"]["pairs"] == len(pairs)
    assert {path.suffix for path in store.path.iterdir()} == {
        ".txt",
        ".json",
        ".ids",
        ".offsets",
        ".groups",
        ".order",
        ".crc",
    }


@given(hashes=st.lists(st.sampled_from([0, 1, 2, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)))
def test_first_occurrences_excludes_duplicates(hashes):
    first = first_occurrences(np.array(hashes, np.uint64))
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


# Filters of texts


@pytest.mark.parametrize(
    ("parameters", "reason", "bad", "good"),
    [
        ({"drop_copies": True}, "dropped_as_copies", ("Foto:  Reuters", "foto: reuters"), ("Foto: Reuters", "Photo")),
        ({"drop_control": True}, "dropped_with_control_characters", ("a\x07b", "b"), ("a\tb\u200d", "b")),
        ({"drop_control": True}, "dropped_with_control_characters", ("a", "b\ufffd"), ("a", "\u2028b\x85")),
        ({"min_letters": 0.5}, "dropped_for_few_letters", ("a dog", "12:30 -- !"), ("a dog", "ab12")),
        ({"min_letters": 1}, "dropped_for_few_letters", ("हिन्दी.", "a"), ("हिन्दी", "e\u0301")),
        ({"target_script": "Cyrillic"}, "dropped_for_their_script", ("dog", "dogс"), ("dog", "соба dog 12")),
        ({"source_script": "Latin"}, "dropped_for_their_script", ("собака", "a"), ("12, 14 ー", "собака")),
        ({"target_script": "Han, Katakana"}, "dropped_for_their_script", ("a", "word"), ("a", "カタカナ漢字")),
        ({"min_tokens": 3}, "dropped_for_their_length", ("a b c", "a"), ("a b", "a b")),
        ({"max_tokens": 3}, "dropped_for_their_length", ("a", "a b c"), ("a b", "a")),
    ],
)
def test_text_filters_drop_and_count_pairs(tmp_path, parameters, reason, bad, good):
    tokenizer, filters = SymbolTokenizer(["a", "b", "c"]), {"train": PairFilter(**parameters)}
    manifest = new_store(tmp_path / "store", {"train": [good, bad, bad]}, tokenizer, filters=filters).manifest
    assert manifest["splits"]["train"]["pairs"] == 1 and manifest["splits"]["train"][reason] == 2
    assert manifest["dropped"] == {"train": {reason: [list(bad)] * 2}}


def test_pair_counts_under_first_reason(tmp_path):
    pairs = [("a", ""), ("a", "a"), ("a", "A"), ("b", "c"), ("b", "c"), ("b", "a"), ("c", "a c"), ("c", "a b")]
    filters = PairFilter(
        drop_empty=True, drop_copies=True, drop_duplicates=True, drop_source_duplicates=True, drop_overlap="pairs"
    )
    splits = {"train": pairs, "test": [("c", "a c"), ("c", "b")]}
    tokenizer = SymbolTokenizer(["a", "b", "c"])
    manifest = new_store(tmp_path / "store", splits, tokenizer, filters={"train": filters}).manifest
    counts = {name: count for name, count in manifest["splits"]["train"].items() if name.startswith("dropped")}
    assert counts == {
        "dropped_with_an_empty_side": 1, "dropped_as_copies": 2, "dropped_as_validation_or_test_pairs": 1,
        "dropped_as_duplicates": 1, "dropped_as_source_duplicates": 1,
    }  # fmt: skip
    assert manifest["splits"]["train"]["pairs"] == 2 and "pairs_also_in_training" not in manifest["splits"]["test"]
    assert manifest["dropped"]["train"]["dropped_as_source_duplicates"] == [["b", "a"]]


@pytest.mark.parametrize(("overlap", "kept"), [(None, 4), ("pairs", 3), ("sources", 2)])
def test_overlap_with_test_pairs_is_dropped(tmp_path, overlap, kept):
    splits = {"train": [("a", "b"), ("a", "c"), ("b", "c"), ("c", "c")], "test": [("a", "b")]}
    filters = {"train": PairFilter(drop_overlap=overlap)}
    store = new_store(tmp_path / "store", splits, SymbolTokenizer(["a", "b", "c"]), filters=filters)
    counts = store.manifest["splits"]
    assert counts["train"]["pairs"] == kept
    assert counts["test"].get("pairs_also_in_training") == (None if overlap else 1)


def test_examples_are_few_and_short(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK_PAIRS", 7)
    pairs = [("a " * 500 + str(i), "a " * 500 + str(i)) for i in range(50)]
    filters = {"train": PairFilter(drop_copies=True)}
    store = new_store(tmp_path / "store", {"train": [*pairs, ("a", "b")]}, SYMBOLS, filters=filters)
    (examples,) = store.manifest["dropped"]["train"].values()
    assert examples == [["a " * 100] * 2] * 3


def test_text_filter_settings_reach_the_manifest(tmp_path):
    lines = [("A dog runs.", "Ein Hund läuft."), ("Foto", "Foto"), ("A cat.", "Eine Katze."), ("собака", "Hund")]
    for side, language in enumerate(("en", "de")):
        (tmp_path / f"train.{language}").write_text("".join(f"{pair[side]}\n" for pair in lines * 30))
        (tmp_path / f"validation.{language}").write_text(f"{lines[2][side]}\n")
    settings = {"drop_copies": True, "source_script": "Latin", "drop_overlap": "pairs", "vocab_size": 60}
    problem = load_problem("parallel_text", raw_dir=tmp_path, data_dir=tmp_path, **settings).prepare()
    counts = problem.store.manifest["splits"]["train"]
    assert [counts[name] for name in counts if name.startswith("dropped")] == [30, 30, 30] and counts["pairs"] == 30
    assert problem.store.manifest["parameters"]["source_script"] == "Latin"


def test_filter_settings_reject_unknown_values(tmp_path):
    with pytest.raises(UserError, match="a Unicode script must be a name such as Latin.*got 'Klingon'"):
        load_problem("toy_ende", target_script="Latin, Klingon")
    with pytest.raises(UserError, match="drop_overlap"):
        load_problem("toy_ende", drop_overlap="words")
    with pytest.raises(UserError, match="num_segmentations=2 cannot be combined with drop_source_duplicates"):
        load_problem("toy_ende", bpe_dropout=0.1, num_segmentations=2, drop_source_duplicates=True)


# Samples


def test_sample_texts_is_random_and_bounded():
    texts = [f"sentence number {i}" for i in range(1000)]
    assert list(sample_texts(iter(texts))) == texts
    sample = list(sample_texts(iter(texts), 5000))
    assert 100 < len(sample) < 400 and sum(map(len, sample)) <= 5000
    assert sample == list(sample_texts(texts, 5000)) == [text for text in texts if text in {*sample}]
    assert len(list(sample_texts(["x" * 999] * 3, 10))) == 1
    assert 10 < len(list(sample_texts(["日" * 40] * 200, 12 * 40 * 100))) < 100
