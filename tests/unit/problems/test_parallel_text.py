"""Tests of the problem `parallel_text`: held-out validation pairs, and the files that it reads."""

import pathlib

import pytest
from helpers.logs import logged_lines

from keras_transformer.config.registry import load_catalog
from keras_transformer.data import corpus
from keras_transformer.tasks.prepared_corpus import changed_since
from keras_transformer.tasks.problem import load_problem

load_catalog()


def write(folder, pairs, split="train"):
    for side, language in enumerate(("en", "de")):
        (folder / f"{split}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")


def numbered(count, first=0):
    return [(f"number {i}", f"Nummer {i}") for i in range(first, first + count)]


def parallel(folder, name="parallel_text", **parameters):
    return load_problem(name, raw_dir=folder, data_dir=folder / "data", **{"vocab_size": 60, **parameters})


WITH_BLANKS = [(source, target if i % 3 else "") for i, (source, target) in enumerate(numbered(400))]


@pytest.mark.parametrize("name", ["parallel_text", "parallel_text_rev", "multilingual_text"])
def test_held_out_pairs_have_two_sides(tmp_path, name):
    settings = {"directions": "en-de,de-en"} if name == "multilingual_text" else {}
    write(tmp_path, WITH_BLANKS)
    problem = parallel(tmp_path, name, **settings).prepare()
    held_out = list(problem.examples("validation"))
    assert len(problem.store.split("train")) + len(held_out) == 266 * len(problem.parts or [name])
    assert held_out and all(source.strip() and target.strip() for source, target in held_out)
    assert len(problem.store.split("validation")) == len(held_out)
    assert name != "multilingual_text" or len(problem.part_names("validation")) == len(held_out)


def test_blank_lines_of_validation_files_are_kept(tmp_path):
    write(tmp_path, WITH_BLANKS)
    write(tmp_path, WITH_BLANKS[:8], "validation")
    assert list(parallel(tmp_path).examples("validation")) == WITH_BLANKS[:8]


def test_extra_train_loses_only_held_out_pairs(tmp_path):
    (tmp_path / "corpus").mkdir()
    write(tmp_path / "corpus", numbered(300))
    extra = [*numbered(300), *((f"extra {source}", target) for source, target in numbered(300))]
    write(tmp_path, extra, "extra")
    problem = parallel(tmp_path / "corpus", extra_train=str(tmp_path / "extra"))
    assert len([*problem.further_pairs()]) == len(extra) - len([*problem.examples("validation")])


def test_held_out_hashes_read_the_training_text_once(tmp_path, monkeypatch):
    write(tmp_path, numbered(300))
    opened, open_binary = [], corpus.open_binary
    monkeypatch.setattr(corpus, "open_binary", lambda path: opened.append(path.name) or open_binary(path))
    with logged_lines() as lines:
        assert len(parallel(tmp_path).held_out_hashes) == 15
    assert opened == ["train.en", "train.de"]
    assert lines == [f"  no validation.en and validation.de in {tmp_path}; holding out 15 of 300 training pairs"]


@pytest.mark.parametrize("name", ["parallel_text", "multilingual_text"])
def test_prepare_again_holds_out_pairs_of_the_new_files(tmp_path, name):
    settings = {"directions": "en-de", "temperature": 2.0} if name == "multilingual_text" else {}
    write(tmp_path, numbered(400))
    problem = parallel(tmp_path, name, **settings).prepare()
    write(tmp_path, numbered(200, first=1000))
    problem.prepare()
    expected = parallel(tmp_path, name, **settings)
    for split in ("train", "validation"):
        assert list(problem.examples(split)) == list(expected.examples(split))
    assert len(problem.store.split("validation")) == 10


@pytest.mark.parametrize("name", ["parallel_text", "multilingual_text"])
def test_construction_reads_no_files(tmp_path, name, monkeypatch):
    def guard(original):
        def guarded(path, *arguments, **options):
            if path.is_relative_to(tmp_path):
                raise PermissionError
            return original(path, *arguments, **options)

        return guarded

    for method in ("stat", "is_file", "is_dir"):
        monkeypatch.setattr(pathlib.Path, method, guard(getattr(pathlib.Path, method)))
    settings = {"directions": "en-de"} if name == "multilingual_text" else {}
    assert parallel(tmp_path, name, **settings).output_language == "de"


# Changes of the files after training


@pytest.fixture
def trained(tmp_path):
    """Return (problem, corpus entry of a manifest) of files with all splits."""
    for index, split in enumerate(("train", "validation", "test")):
        write(tmp_path, numbered(100, 100 * index), split)
    problem = parallel(tmp_path).prepare()
    return problem, {**problem.store.manifest["corpus"], "splits": {}}


def test_changed_files_of_a_split_are_named(trained, tmp_path):
    problem, known = trained
    for path in tmp_path.glob("*.en"):
        path.touch()
    assert [changed_since(problem, split, known) for split in ("train", "validation", "test")] == [None] * 3
    write(tmp_path, numbered(150, 50), "train")
    assert [changed_since(problem, split, known) for split in ("train", "validation", "test")] == [None] * 3
    write(tmp_path, numbered(100, 150), "test")
    assert changed_since(problem, "test", known) == f"{tmp_path}/test.de has changed"
    assert changed_since(problem, "validation", known) is None
    assert changed_since(problem, "test", {}) is None


def test_removed_validation_files_are_named(trained, tmp_path):
    problem, known = trained
    for language in ("en", "de"):
        (tmp_path / f"test.{language}").unlink()
        (tmp_path / f"validation.{language}").rename(tmp_path / f"dev.{language}")
    assert changed_since(problem, "validation", known) == f"{tmp_path}/validation.de was removed"


def test_changed_training_files_change_held_out_pairs(tmp_path):
    write(tmp_path, numbered(300))
    problem = parallel(tmp_path).prepare()
    known = problem.store.manifest["corpus"]
    assert changed_since(problem, "validation", known) is None
    write(tmp_path, numbered(310))
    assert changed_since(problem, "validation", known) == f"{tmp_path}/train.de has changed"
