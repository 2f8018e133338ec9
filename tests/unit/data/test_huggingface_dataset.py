"""Tests of Hugging Face datasets as parallel text: columns, splits, weights and errors."""

import sys

import pytest
from helpers.errors import complaint

from keras_transformer.config.registry import load_catalog
from keras_transformer.data.pair_sources import parse_sources
from keras_transformer.tasks.problem import load_problem

LANGUAGES = ("en", "de")


@pytest.fixture
def datasets():
    """The package `datasets` with its progress bars disabled."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    return datasets


def pairs(count, name="line"):
    return [(f"{name} {index}", f"{name} {index} auf Deutsch") for index in range(count)]


def columns(rows):
    return {"id": list(range(len(rows))), "de": [row[1] for row in rows], "en": [row[0] for row in rows]}


def translations(rows):
    return {"translation": [{"de": target, "en": source} for source, target in rows]}


def save(datasets, path, **splits):
    made = {name: datasets.Dataset.from_dict(rows, split=name) for name, rows in splits.items()}
    datasets.DatasetDict(made).save_to_disk(path)


def read(text, folder, split="train"):
    return [pair for source in parse_sources(text, folder, LANGUAGES, split) for pair in source.pairs()]


@pytest.mark.parametrize("form", [columns, translations])
def test_saved_dataset_has_pairs_of_each_split(datasets, tmp_path, form):
    save(datasets, tmp_path / "saved", train=form(pairs(1234)), dev=form(pairs(3, "dev")))
    assert read("dataset:saved", tmp_path) == pairs(1234)
    assert read(f"dataset:{tmp_path}/saved::dev", "elsewhere") == pairs(3, "dev")
    (source,) = parse_sources("dataset:saved", tmp_path, ("de", "en"))
    assert next(source.pairs()) == pairs(1)[0][::-1]
    assert {path.suffix for path in source.paths} == {".arrow", ".json"}


def test_saved_split_needs_no_name(datasets, tmp_path):
    rows = datasets.Dataset.from_dict(columns(pairs(3)))
    rows.save_to_disk(tmp_path / "any")
    assert read("dataset:any", tmp_path, "validation") == pairs(3)
    datasets.Dataset.from_dict(columns(pairs(3)), split="train").save_to_disk(tmp_path / "known")
    assert read("dataset:known", tmp_path) == pairs(3)
    assert "must be one of train, got 'test'" in complaint(read, "dataset:known", tmp_path, "test")


def test_folder_of_data_files_is_a_dataset(datasets, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "files").mkdir()
    datasets.Dataset.from_dict(columns(pairs(3))).to_parquet(tmp_path / "files" / "train.parquet")
    assert read("dataset:files:default:train", tmp_path) == pairs(3)
    assert "BuilderConfig 'x' not found" in complaint(read, "dataset:files:x", tmp_path)


def test_weight_follows_the_name(datasets, tmp_path):
    save(datasets, tmp_path / "saved", train=columns(pairs(100)), dev=columns(pairs(3)))
    assert sorted(read("dataset:saved:2", tmp_path)) == sorted(pairs(100) * 2)
    assert read("dataset:saved::dev:2", tmp_path)[:2] == pairs(1) * 2
    assert 20 < len(read("dataset:saved:::0.5", tmp_path)) < 80


def test_problem_trains_on_datasets_and_files(datasets, tmp_path):
    save(datasets, tmp_path / "saved", train=translations(pairs(40)), validation=translations(pairs(5, "dev")))
    (tmp_path / "more.tsv").write_text("a dog\tein Hund\n")
    load_catalog()
    problem = load_problem(
        "parallel_text", raw_dir=tmp_path, data_dir=tmp_path / "data", vocab_size=60, train="more.tsv,dataset:saved",
        validation="dataset:saved",
    )  # fmt: skip
    splits = problem.prepare().store.manifest["splits"]
    assert {name: splits[name]["pairs"] for name in splits} == {"train": 41, "validation": 5}
    assert list(problem.pairs("validation")) == pairs(5, "dev")


@pytest.mark.parametrize(
    "text, words",
    [
        ("dataset:saved::dev", "split of dataset {}/saved must be one of train, other, got 'dev'. Use the form"),
        ("dataset:saved:en-de", "{}/saved is a saved dataset and has no configuration 'en-de'. Write"),
        (
            "dataset:saved::other",
            "must have the columns 'en' and 'de', or a column 'translation' that contains both languages, but has only "
            "'text'. Rename",
        ),
        ("dataset:null", "row 1 (counted from 0) of dataset {}/null must have texts for en and de, got 'b' and None."),
        ("dataset:none", "row 1 (counted from 0) of dataset {}/none must have texts for en and de, got None and None."),
        ("dataset:french", "row 0 (counted from 0) of dataset {}/french must have texts for en and de, got 'a' and"),
        ("dataset:text", "row 0 (counted from 0) of dataset {}/text must have texts for en and de, got None and None."),
        ("dataset:empty", "cannot read the dataset {}/empty: "),
        ("dataset:script", "cannot read the dataset {}/script: Dataset scripts are no longer supported"),
        ("dataset:damaged", "cannot read the dataset {}/damaged: "),
    ],
)
def test_unsuitable_dataset_is_explained(datasets, tmp_path, text, words):
    save(datasets, tmp_path / "saved", train=columns(pairs(3)), other={"text": ["a"]})
    save(datasets, tmp_path / "null", train={"en": ["a", "b"], "de": ["c", None]})
    save(datasets, tmp_path / "french", train={"translation": [{"en": "a", "fr": "b"}]})
    save(datasets, tmp_path / "none", train={"translation": [{"en": "a", "de": "b"}, None]})
    save(datasets, tmp_path / "text", train={"en": ["a"], "translation": ["b"]})
    save(datasets, tmp_path / "damaged", train=columns(pairs(1)))
    (tmp_path / "damaged" / "train" / "state.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "script.py").touch()
    message = complaint(read, text, tmp_path)
    assert words.format(tmp_path) in message and "\n" not in message


@pytest.mark.parametrize(
    "text, words",
    [
        ("dataset:", "a dataset must have the form dataset:NAME[:CONFIG[:SPLIT]], got dataset:"),
        ("dataset:a:b:c:d", "a dataset must have the form dataset:NAME[:CONFIG[:SPLIT]], got dataset:a:b:c:d"),
        ("dataset:gone/and/away", "the dataset folder {}/gone/and/away does not exist. Check the path."),
        ("dataset:~gone", "the dataset folder {}/~gone does not exist. Check the path."),
        ("dataset:./gone", "the dataset folder {}/gone does not exist. Check the path."),
        ("dataset:a:0", "the weight of dataset:a must be a number above 0 and at most 1000, got '0'"),
    ],
)
def test_malformed_name_is_explained(tmp_path, text, words):
    assert complaint(parse_sources, text, tmp_path, LANGUAGES) == words.format(tmp_path)


def test_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    (source,) = parse_sources("dataset:user/corpus:en-de", tmp_path, LANGUAGES)
    assert complaint(lambda: list(source.pairs())) == (
        "dataset:user/corpus needs the package datasets. Run pip install 'keras-transformer-toolkit[datasets]'."
    )
