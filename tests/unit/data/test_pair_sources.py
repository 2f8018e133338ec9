"""Tests of weighted files of parallel text, and of the problem that reads several of them."""

import json

import pytest
from helpers.errors import complaint

from keras_transformer.config.registry import load_catalog
from keras_transformer.data.pair_sources import find_source, parse_sources
from keras_transformer.tasks.problem import load_problem

LANGUAGES = ("en", "de")


def pairs(count, name="line"):
    return [(f"{name} {index}", f"{name} {index} auf Deutsch") for index in range(count)]


def write_sides(folder, name, rows):
    for side, language in enumerate(LANGUAGES):
        (folder / f"{name}.{language}").write_text("".join(f"{row[side]}\n" for row in rows))


def write_tsv(folder, name, rows):
    (folder / f"{name}.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in rows))


@pytest.mark.parametrize("name", ["train.tsv", "train.jsonl", "train.tmx", "train.tsv.gz"])
def test_find_source_finds_each_format(tmp_path, name):
    assert find_source(tmp_path, "train", LANGUAGES) is None
    (tmp_path / name).touch()
    assert find_source(tmp_path, "train", LANGUAGES).paths == (tmp_path / name,)


def test_find_source_rejects_two_corpora(tmp_path):
    write_tsv(tmp_path, "train", pairs(3))
    write_sides(tmp_path, "train", pairs(3))
    message = complaint(find_source, tmp_path, "train", LANGUAGES)
    assert "train.tsv and train.en and train.de; choose one" in message and "--set problem.train=FILE" in message


def test_weights_are_copies_and_shares(tmp_path):
    write_tsv(tmp_path, "a", pairs(1000, "a"))
    write_sides(tmp_path, "b", pairs(5, "b"))
    half, more, plain = parse_sources("a.tsv:0.5, b:2.4,b", tmp_path, LANGUAGES)
    chosen = list(half.pairs())
    assert 440 < len(chosen) < 560 and set(chosen) < set(pairs(1000, "a"))  # 500 ± 4 standard deviations
    assert chosen == list(half.pairs())
    assert 10 <= len(list(more.pairs())) <= 15 and set(more.pairs()) == set(pairs(5, "b"))
    assert list(plain.pairs()) == pairs(5, "b")


@pytest.mark.parametrize("weight", ["x", "", "0", "-1", "nan", "inf", "1001"])
def test_bad_weights_are_rejected(tmp_path, weight):
    write_tsv(tmp_path, "a", pairs(3))
    message = complaint(parse_sources, f"a.tsv:{weight}", tmp_path, LANGUAGES)
    assert message == f"the weight of a.tsv must be a number above 0 and at most 1000, got {weight!r}"


@pytest.mark.parametrize(
    "text, words",
    [
        ("gone.tsv", "gone.tsv does not exist"),
        ("gone", "gone.en does not exist"),
        ("~gone.tsv", "~gone.tsv does not exist"),
        (" , ", "at least one file"),
    ],
)
def test_missing_files_are_named(tmp_path, text, words):
    assert words in complaint(parse_sources, text, tmp_path, LANGUAGES)


def problem(folder, **parameters):
    load_catalog()
    return load_problem("parallel_text", raw_dir=folder, data_dir=folder / "data", vocab_size=60, **parameters)


def test_problem_mixes_formats_with_weights(tmp_path):
    write_tsv(tmp_path, "web", pairs(40, "web"))
    rows = [json.dumps({"translation": {"en": source, "de": target}}) for source, target in pairs(10, "news")]
    (tmp_path / "news.jsonl").write_text("\n".join(rows))
    write_sides(tmp_path, "validation", pairs(3, "held out"))
    prepared = problem(tmp_path, train="web.tsv,news.jsonl:3").prepare()
    assert prepared.store.manifest["splits"]["train"]["pairs"] == 40 + 30
    assert prepared.splits == ("train", "validation")
    names = [path.name for path in prepared.corpus_files()]
    assert names == ["web.tsv", "news.jsonl", "validation.en", "validation.de"]
    reverse = load_problem(
        "parallel_text_rev", raw_dir=tmp_path, data_dir=tmp_path / "data", vocab_size=60, train="web.tsv,news.jsonl:3"
    )
    assert reverse.prepared_dir == prepared.prepared_dir
    assert list(reverse.examples("validation")) == [(target, source) for source, target in pairs(3, "held out")]


def test_held_out_pairs_are_unweighted_and_untrained(tmp_path):
    write_tsv(tmp_path, "web", pairs(200))
    weighted = problem(tmp_path, train="web.tsv:3")
    held_out, train = list(weighted.examples("validation")), list(weighted.examples("train"))
    assert len(held_out) == 10 and len(train) == 3 * 190
    assert set(held_out) | set(train) == set(pairs(200)) and not set(held_out) & set(train)


def test_named_files_of_other_splits(tmp_path):
    for name in ("a", "b", "c"):
        write_tsv(tmp_path, name, pairs(9, name))
    parts = problem(tmp_path, train="a.tsv", validation="b.tsv", test=f"{tmp_path}/c.tsv")
    assert parts.splits == ("train", "validation", "test")
    assert [list(parts.examples(split)) for split in parts.splits] == [pairs(9, name) for name in "abc"]


def test_drop_duplicates_rejects_copies(tmp_path):
    write_tsv(tmp_path, "a", pairs(9))
    assert "drop_duplicates" in complaint(problem(tmp_path, train="a.tsv:2", drop_duplicates=True).prepare)
