"""Tests of faulty corpus files: error messages, dropped pairs and warnings of `prepare`."""

import random

import pytest
from helpers.errors import complaint
from helpers.logs import logged_lines

from keras_transformer.data import encoding, preparation
from keras_transformer.data.corpus import read_lines
from keras_transformer.data.filters import PairFilter
from keras_transformer.data.preparation import write_store
from keras_transformer.data.token_store import TokenStore
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import work_directory

PAIRS = [(f"source {i}", f"target {i * i}") for i in range(100)]
SYMBOLS = SymbolTokenizer([f"s{i}" for i in range(9)])


def write(folder, pairs, split="train"):
    folder.mkdir(exist_ok=True)
    for side, language in enumerate(("en", "de")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


@pytest.fixture
def corpus(tmp_path):
    write(tmp_path / "text", PAIRS)
    write(tmp_path / "text", PAIRS[:7], "validation")
    return tmp_path / "text"


def parallel(folder, **parameters):
    arguments = {"vocab_size": 40, "data_dir": folder.parent / "data", **parameters}
    return load_problem("parallel_text", raw_dir=folder, **arguments)


# Names of files


@pytest.mark.parametrize(
    ("found", "advice"),
    [
        ("train.en.txt", "rename train.en.txt to train.en"),
        ("train.EN", "rename train.EN to train.en"),
        ("Train.en", "rename Train.en to train.en"),
        ("train.en.txt.gz", "rename train.en.txt.gz to train.en.gz"),
        ("train.en.TXT.xz", "rename train.en.TXT.xz to train.en.xz"),
        ("train.en.ZST", "rename train.en.ZST to train.en.zst"),
    ],
)
def test_missing_file_error_names_a_similar_file(corpus, found, advice):
    (corpus / "train.en").rename(corpus / found)
    said = complaint(parallel(corpus).prepare)
    assert said == f"{corpus}/train.en does not exist; {advice}"


def test_missing_file_error_lists_the_folder_otherwise(corpus):
    (corpus / "train.en").rename(corpus / "english")
    assert "the folder contains english, train.de" in complaint(parallel(corpus).prepare)


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_similar_file_is_not_ignored_in_other_splits(corpus, split, suffix):
    for language in ("en", "de"):
        (corpus / f"{split}.{language}").unlink(missing_ok=True)
        (corpus / f"{split}.{language}.txt{suffix}").write_text("a line\n")
    assert f"; rename {split}.en.txt{suffix} to {split}.en{suffix}" in complaint(parallel(corpus).prepare)


def test_published_corpora_name_a_similar_file(tmp_path):
    (tmp_path / "train.en.txt").write_text("a line\n")
    for name in ("wmt14_ende", "multi30k_ende"):
        said = complaint(load_problem(name, raw_dir=tmp_path).corpus_files)
        assert said.endswith("; rename train.en.txt to train.en")
    (tmp_path / "train.en").write_text("a line\n")
    (tmp_path / "train.DE").write_text("a line\n")
    said = complaint(load_problem("wmt14_ende", raw_dir=tmp_path).corpus_files)
    assert said == f"{tmp_path}/train.de does not exist; rename train.DE to train.de"


def test_more_pairs_name_a_similar_file(corpus):
    for language in ("en", "de"):
        (corpus / f"taught.{language}.txt").write_text("a line\n")
    problem = parallel(corpus, extra_train=f"{corpus}/taught")
    assert "taught.en does not exist; rename taught.en.txt to taught.en" in complaint(problem.prepare)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-32-be"])
def test_utf16_file_is_recognized_by_its_mark(tmp_path, encoding):
    path = tmp_path / "train.en"
    text = "one\ntwo\n" if encoding in ("utf-16", "utf-32") else "\ufeffone\ntwo\n"
    path.write_bytes(text.encode(encoding))
    name = encoding.upper().removesuffix("-BE")
    for handler in (None, lambda line, message: ""):
        with pytest.raises(UserError) as caught:
            list(read_lines(path, undecodable=handler))
        assert str(caught.value) == (
            f"{path}:1: the file must be UTF-8, but begins with a byte order mark of {name}; convert the file, for "
            f"example with iconv -f {name} -t UTF-8"
        )


# Pairs with an empty side


def test_training_pairs_with_an_empty_side_are_dropped(corpus):
    write(corpus, [*PAIRS, ("", "a"), ("b", " \u3000"), ("", "")])
    write(corpus, [("", "a"), *PAIRS[:2]], "validation")
    with logged_lines() as said:
        problem = parallel(corpus, max_length_ratio=100).prepare()
    counts = problem.store.manifest["splits"]
    assert counts["train"]["pairs"] == len(PAIRS) and counts["train"]["dropped_with_an_empty_side"] == 3
    assert counts["train"]["dropped_for_their_length_ratio"] == 0
    assert counts["validation"]["pairs"] == 3 and counts["validation"]["pairs_with_an_empty_side"] == 1
    assert any(line.startswith("  train: 100 pairs") and "3 dropped with an empty side" in line for line in said)


def test_empty_more_pairs_are_dropped(corpus):
    write(corpus, [("a", ""), ("source", "target")], "taught")
    counts = parallel(corpus, extra_train=f"{corpus}/taught").prepare().store.manifest["splits"]["train"]
    assert counts["pairs"] == len(PAIRS) + 1 and counts["dropped_with_an_empty_side"] == 1


# Validation and test pairs that also occur in the training text


def test_prepare_warns_of_validation_pairs_in_training(corpus, call):
    write(corpus, [*PAIRS[:3], ("source 1", "another"), ("new", "neu")], "validation")
    write(corpus, [("new", "neu"), PAIRS[5]], "test")
    arguments = ["--problem=parallel_text", f"--raw_dir={corpus}", f"--data_dir={corpus.parent}/data", "--set"]
    for _ in range(2):  # the second call finds a prepared corpus
        lines = call("prepare", *arguments, "problem.vocab_size=40").succeeded()
        warnings = [line for line in lines if line.startswith("warning: ")]
        assert warnings == [
            f"warning: the training text contains {common} of {count} {split} pairs, so {split} scores are too "
            "high; remove these pairs from the training text, or set problem.drop_overlap=pairs"
            for split, common, count in (("validation", 3, 5), ("test", 1, 2))
        ]


@pytest.mark.parametrize("parameters", [{}, {"drop_duplicates": True}, {"bpe_dropout": 0.1, "num_segmentations": 3}])
def test_validation_pairs_in_training_are_counted_once(corpus, parameters):
    write(corpus, [*PAIRS, *PAIRS])
    problem = parallel(corpus, **parameters).prepare()
    assert problem.store.manifest["splits"]["validation"]["pairs_also_in_training"] == 7
    assert not list(problem.prepared_dir.glob("*hashes*"))


def test_held_out_pairs_cause_no_warning(corpus):
    for language in ("en", "de"):
        (corpus / f"validation.{language}").unlink()
    with logged_lines() as lines:
        parallel(corpus).prepare()
    assert not [line for line in lines if "in the training text" in line]


def test_resumed_preparation_counts_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK_PAIRS", 7)
    for module in (encoding, preparation):
        monkeypatch.setattr(module, "SERIAL_PAIRS", 20)
    rng = random.Random(1)
    train = [tuple(" ".join(rng.choices(["s1", "s2"], k=rng.randint(0, 4))) for _ in "ab") for _ in range(100)]
    test = list(dict.fromkeys(pair for pair in train if all(pair)))[:9] + [("s3", "s4")]

    def broken_off(pairs):
        yield from pairs[: len(pairs) // 2]
        raise ConnectionError

    def fill(train, test):
        with work_directory(tmp_path / "store", "identity") as work:
            splits = {"train": iter(train), "test": iter(test)}
            filters = {"train": PairFilter(drop_empty=True)}
            write_store(work, splits, SYMBOLS, {}, filters=filters, expected={"train": 100})
            work.finish()

    for splits in ((broken_off(train), test), (train, broken_off(test))):
        with pytest.raises(ConnectionError):
            fill(*splits)
    fill(train, test)
    counts = TokenStore(tmp_path / "store").manifest["splits"]
    assert counts["train"]["dropped_with_an_empty_side"] == sum(not all(pair) for pair in train) > 5
    assert counts["test"]["pairs_also_in_training"] == 9
