"""Tests of treebanks: the files of each split, real trees and parsing problems."""

import dataclasses
import itertools
import random

import pytest
from helpers.errors import complaint
from helpers.trees import delinearize, spans

from keras_transformer.parsing.linearize import linearize, repaired
from keras_transformer.parsing.normalize import icelandic, penn, without_empty_icelandic
from keras_transformer.parsing.problem import TreebankProblem, sentence_of
from keras_transformer.parsing.semisupervised import SemisupervisedTreebank
from keras_transformer.parsing.tree import tree_of, unescaped
from keras_transformer.parsing.treebanks import gum_files, icepahc_files, part_of_text, read_treebank, wsj_files
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.text import split_words

SPLITS = ("train", "validation", "test")


def write_trees(path, words):
    """Write a file with a one-word tree for each of `words`. Return the path of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"( (S (NN {word}) ) )\n\n" for word in words), encoding="utf-8")
    return path


def words_of(problem, split):
    return [source for source, _ in problem.examples(split)]


# The Wall Street Journal


@pytest.fixture(params=["wsj_raw/{:02d}", "{:02d}", "."])
def sections(tmp_path, request):
    """Return a folder with two files per section, either in a subfolder for each section or directly in the folder.

    Each folder with such files also contains an unrelated file.
    """
    for section in range(25):
        folder = tmp_path / request.param.format(section)
        for number in (1, 12):
            write_trees(folder / f"wsj_{section:02d}{number:02d}.mrg", [f"{section}.{number}"])
        write_trees(folder / "wsj_all.mrg", ["none"])
    return tmp_path


def test_wsj_sections_make_splits(sections):
    expected = {"train": range(2, 22), "validation": [22], "test": [23]}
    problem = load_problem("parsing_wsj", raw_dir=sections)
    for split, numbers in expected.items():
        assert words_of(problem, split) == [f"{section}.{number}" for section in numbers for number in (1, 12)]
    assert len(problem.corpus_files()) == 2 * 22


@pytest.mark.parametrize(("section", "split"), [(2, "train"), (13, "train"), (22, "validation"), (23, "test")])
def test_wsj_names_missing_section(sections, section, split):
    for path in sections.rglob(f"wsj_{section:02d}*.mrg"):
        path.unlink()
    said = f"{sections} must contain section {section:02d} of the {split} split (wsj_{section:02d}01.mrg, …)"
    assert complaint(wsj_files, sections) == said


def test_wsj_sample_is_split_by_file_number(tmp_path):
    expected = {"train": ["1", "99", "100", "179"], "validation": ["180", "189"], "test": ["190", "199"]}
    for number in map(int, itertools.chain(*expected.values())):
        write_trees(tmp_path / f"wsj_{number:04d}.mrg", [number])
    problem = load_problem("parsing_wsj", raw_dir=tmp_path)
    assert {split: words_of(problem, split) for split in SPLITS} == expected
    for path in tmp_path.glob("wsj_018*"):
        path.unlink()
    said = complaint(wsj_files, tmp_path)
    assert "must contain the files of the validation split, wsj_0180.mrg to wsj_0189.mrg" in said
    write_trees(tmp_path / "wsj_0201.mrg", ["no sample"])
    assert "must contain section 03 " in complaint(wsj_files, tmp_path)


def test_wsj_sample_has_199_files(test_data):
    splits = wsj_files(folder_of(test_data, "wsj_sample"))
    assert {split: len(paths) for split, paths in splits.items()} == {"train": 179, "validation": 10, "test": 10}


# GUM


@pytest.fixture
def gum(tmp_path):
    """Return a GUM folder with two documents per partition, but none for test2.

    The file splits.md also lists documents that are missing.
    """
    lines = ["# Splits", "", "The standard splits:", ""]
    for partition in ("dev", "test", "test2", "train"):
        documents = [f"GUM_news_{partition}", f"GUM_bio_{partition}2"]
        lines += [f"## {partition}", "", *(f"  * {name}" for name in (*documents, f"GUM_reddit_{partition}")), ""]
        for name in documents if partition != "test2" else []:
            write_trees(tmp_path / "gum" / f"{name}.ptb", [name])
    (tmp_path / "gum" / "splits.md").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path / "gum"


def test_gum_uses_official_partition(gum):
    write_trees(gum / "GUM_reddit_dev.ptb", ["red"])
    problem = load_problem("parsing_gum", raw_dir=gum)
    for split, partition, more in zip(SPLITS, ("train", "dev", "test"), ([], ["red"], [])):
        assert words_of(problem, split) == [f"GUM_news_{partition}", f"GUM_bio_{partition}2", *more]


def test_gum_skips_documents_with_masked_words(gum):
    write_trees(gum / "GUM_reddit_train.ptb", ["____", "_"])
    write_trees(gum / "GUM_reddit_test.ptb", ["red", "_"])
    write_trees(gum / "GUM_news_dev.ptb", ["____"])  # only documents from Reddit are masked
    problem = load_problem("parsing_gum", raw_dir=gum)
    assert words_of(problem, "train") == ["GUM_news_train", "GUM_bio_train2"]
    assert words_of(problem, "validation") == ["____", "GUM_bio_dev2"]
    assert words_of(problem, "test") == ["GUM_news_test", "GUM_bio_test2", "red", "_"]


@pytest.mark.parametrize("missing", ["GUM_bio_train2.ptb", "GUM_news_test.ptb"])
def test_gum_names_missing_document(gum, missing):
    (gum / missing).unlink()
    assert complaint(gum_files, gum).startswith(f"{gum / missing}, which {gum / 'splits.md'} lists, does not exist.")


def test_gum_names_empty_partition(gum):
    (gum / "splits.md").write_text("## train\n  * GUM_news_train\n## dev\n\n## test\n  * GUM_news_test\n")
    assert complaint(gum_files, gum) == f"{gum / 'splits.md'} lists no documents under '## dev'. Use GUM's splits.md."
    (gum / "splits.md").unlink()
    assert f"{gum / 'splits.md'} does not exist" in complaint(gum_files, gum)


def test_parsing_english_joins_wsj_and_gum(gum):
    for number in (3, 183, 193):
        write_trees(gum.parent / "some" / f"wsj_{number:04d}.mrg", [number])
    problem = load_problem("parsing_english", raw_dir=gum.parent)
    assert words_of(problem, "validation") == ["183", "GUM_news_dev", "GUM_bio_dev2"]
    assert [*map(len, problem.files.values())] == [3, 3, 3]


# IcePaHC


@pytest.mark.parametrize(("count", "held_out"), [(0, 0), (9, 0), (11, 1), (20, 1), (31, 2), (1000, 50), (1011, 51)])
def test_icepahc_holds_out_last_tenth_of_text(count, held_out):
    parts = {split: part_of_text(list(range(count)), split) for split in SPLITS}
    assert [*parts["train"], *parts["validation"], *parts["test"]] == list(range(count))
    assert len(parts["validation"]) == len(parts["test"]) == held_out


def test_icepahc_splits_each_text(tmp_path):
    for text in ("1150.a", "1250.b"):
        leaves = "".join(f"( (IP-MAT (NP (N-N {text}{i}-x)) (CODE y)) (ID z))\n\n" for i in range(40))
        (tmp_path / f"{text}.psd").write_text("( (META (CODE x)))\n" * 60 + leaves, encoding="utf-8")
    problem = load_problem("parsing_icepahc", raw_dir=tmp_path)
    for split, numbers in zip(SPLITS, (range(36), range(36, 38), range(38, 40))):
        assert words_of(problem, split) == [f"{text}{i}" for text in ("1150.a", "1250.b") for i in numbers]
    assert {target for _, target in problem.examples("test")} >= {"(IP (NP (N-N 1250.b39)))"}


# Folders


@pytest.mark.parametrize(
    ("name", "lacks"),
    [("parsing_wsj", "contains no treebank files of the LDC, such"), ("parsing_gum", "splits.md does not exist"),
     ("parsing_english", "the folder {}/gum does not exist"), ("parsing_icepahc", "contains no IcePaHC .psd files")],
)  # fmt: skip
def test_treebanks_name_missing_or_empty_folder(tmp_path, name, lacks):
    assert "--raw_dir=FOLDER" in complaint(load_problem, name)
    problem = load_problem(name, raw_dir=tmp_path / "none")
    assert f"the folder {tmp_path}/none" in complaint(problem.prepare)
    assert lacks.format(tmp_path) in complaint(load_problem(name, raw_dir=tmp_path).prepare)


def test_treebank_error_names_its_line(gum):
    path = gum / "GUM_bio_train2.ptb"
    path.write_text("(ROOT (NN a))\n(ROOT\n  (NN a)))\n", encoding="utf-8")
    problem = load_problem("parsing_gum", raw_dir=gum)
    assert complaint(problem.examples, "train").startswith(f"{path}:3: ')' is outside of the trees")


# Real trees


def folder_of(test_data, name):
    if not (test_data / name).is_dir():
        pytest.skip(f"{test_data / name} is missing")
    return test_data / name


def check(tree, learned, words):
    """Assert that a normalized tree has plain labels and unchanged words, and can be restored from its symbols.

    Args:
        tree: Tree of the treebank.
        learned: The same tree after normalization.
        words: Expected words.
    """
    assert [unescaped(word) for word in learned.words()] == words and words
    assert penn(learned) == learned and learned.word is None and tree_of(str(learned)) == learned
    for label, _, _ in spans(learned):
        assert label and not {*label[1:]} & {*"-="}, tree
    for leaf in learned.leaves():
        assert leaf.label != "-NONE-" and not leaf.label.rpartition("-")[2].isdigit(), tree
    assert split_words(sentence_of(learned)) == words
    symbols = linearize(learned)
    assert delinearize(symbols, words) == repaired(symbols, words) == learned
    untagged = delinearize(linearize(learned, tags=False), words)
    assert spans(untagged) == spans(learned) and untagged.words() == learned.words()


@pytest.mark.parametrize(
    ("name", "files", "count"), [("gum", gum_files, 13_263), ("wsj_sample", wsj_files, 3_914)], ids=["gum", "wsj"]
)
def test_english_trees_are_normalized_and_restored(test_data, name, files, count):
    trees = list(read_treebank(itertools.chain(*files(folder_of(test_data, name)).values())))
    assert len(trees) == count
    for tree in trees[::4]:
        check(tree, penn(tree), [unescaped(leaf.word) for leaf in tree.leaves() if leaf.label != "-NONE-"])


@pytest.mark.parametrize(("step", "count"), [(30, 2_261), pytest.param(1, 72_435, marks=pytest.mark.soak)])
def test_icelandic_trees_are_normalized_and_restored(test_data, step, count):
    trees = read_treebank(icepahc_files(folder_of(test_data, "icepahc"))[::step])
    pairs = [(tree, learned) for tree in trees if (learned := icelandic(tree))]
    assert len(pairs) == count
    for tree, learned in pairs:
        words = [unescaped(word) for word in learned.words()]
        for leaf, word in zip(without_empty_icelandic(tree).leaves(), words, strict=True):
            assert leaf.word.startswith(word) and leaf.word[len(word) :][:1] in ("", "-")  # "-" precedes the lemma
        check(tree, learned, words)


def test_parsing_problem_without_tags(gum):
    symbols = [load_problem("parsing_gum", raw_dir=gum, tags=tags).make_tokenizer().symbols for tags in (False, True)]
    assert [each.keys() for each in symbols] == [{"(S", ")S", "XX"}, {"(S", ")S", "NN"}]


# Automatic trees


def semisupervised(folder, gold, auto, **parameters):
    """Return the semi-supervised problem with `gold` gold trees and `auto` automatic trees."""
    write_trees(folder / "wsj" / "wsj_0001.mrg", [f"g{i}" for i in range(gold)])
    for number in (180, 190):
        write_trees(folder / "wsj" / f"wsj_0{number}.mrg", [number])
    write_trees(folder / "auto" / "parsed", [f"a{i}" for i in range(auto)])
    (folder / "auto" / ".hidden").write_text("no tree")
    (folder / "auto" / "folder").mkdir(exist_ok=True)
    paths = {"raw_dir": folder / "wsj", "auto_dir": str(folder / "auto"), "data_dir": folder / "data"}
    return load_problem("parsing_wsj_semisupervised", **paths, **parameters)


@pytest.mark.parametrize(
    ("gold", "auto", "share", "copies"),
    [(10, 100, 0.0, 1), (10, 100, 0.05, 1), (10, 100, 0.1, 2), (10, 10, 0.5, 1), (10, 11, 0.5, 2), (9, 1, 0.9, 1),
     (9, 3, 0.9, 3), (1, 1, 0.9, 9), (7, 3, 0.7, 1), (3, 14, 0.3, 2), (1, 90, 0.1, 10)],
)  # fmt: skip
def test_gold_copies_follow_gold_share(tmp_path, gold, auto, share, copies):
    problem = semisupervised(tmp_path, gold, auto, gold_share=share)
    assert problem.gold_copies == copies
    expected = [f"g{i}" for i in range(gold)] * copies + [f"a{i}" for i in range(auto)]
    assert words_of(problem, "train") == expected
    assert [words_of(problem, split) for split in SPLITS[1:]] == [["180"], ["190"]]


def test_gold_copies_are_minimal(tmp_path, fresh_seed):
    rng = random.Random(fresh_seed)
    for _ in range(20):
        gold, auto, percent = rng.randint(1, 20), rng.randint(1, 60), rng.randint(1, 90)
        copies = semisupervised(tmp_path, gold, auto, gold_share=percent / 100).gold_copies
        assert 100 * copies * gold >= percent * (copies * gold + auto)
        assert copies == 1 or 100 * (copies - 1) * gold < percent * ((copies - 1) * gold + auto)


def test_unreadable_automatic_trees_name_line(tmp_path):
    problem = semisupervised(tmp_path, 3, 2)
    path = tmp_path / "auto" / "second.ptb"
    path.write_text("(S (NN a))\n\nThe dog barks .\n", encoding="utf-8")
    problem.__dict__.pop("auto_files", None)
    said = f"{path}:3: 'The' is outside of the trees. Begin each tree with '('."
    assert complaint(problem.examples, "train") == said == complaint(problem.prepare)
    assert not list((tmp_path / "data").glob("*"))


def test_automatic_trees_are_read_from_translate_output(tmp_path):
    problem = semisupervised(tmp_path, 2, 0)
    (tmp_path / "auto" / "parsed").write_text("(S (NN a))\n\n(TOP (XX b) (XX c))\n", encoding="utf-8")
    assert words_of(problem, "train") == ["g0", "g1", "a", "b c"]


def test_semisupervised_problem_requires_auto_dir(tmp_path):
    folder = write_trees(tmp_path / "wsj" / "wsj_0001.mrg", ["a"]).parent
    (tmp_path / "auto").mkdir()
    name = "parsing_wsj_semisupervised"
    assert "--set problem.auto_dir=FOLDER" in complaint(load_problem, name, raw_dir=folder)
    said = {
        "none": "problem.auto_dir must be a folder, got {}",
        "auto": "{} (problem.auto_dir) contains no files. Use a folder of automatically parsed trees.",
    }
    for auto, message in said.items():
        problem = load_problem(name, raw_dir=folder, auto_dir=f"{tmp_path}/{auto}")
        assert complaint(problem.auto_trees) == message.format(tmp_path / auto)


def test_semisupervised_problem_keeps_settings_of_treebank():
    @dataclasses.dataclass(kw_only=True)
    class Treebank(TreebankProblem):
        vocab_size: int = 8_000

    @dataclasses.dataclass(kw_only=True)
    class Both(SemisupervisedTreebank, Treebank):
        pass

    usual = {field.name: field.default for field in dataclasses.fields(Both)}
    assert (usual["vocab_size"], usual["auto_dir"], usual["gold_share"]) == (8_000, None, 0.0)


def test_prepared_directory_follows_absolute_auto_dir(tmp_path, monkeypatch):
    def prepared_dir(auto_dir):
        paths = {"raw_dir": tmp_path / "wsj", "data_dir": tmp_path / "data"}
        return load_problem("parsing_wsj_semisupervised", auto_dir=str(auto_dir), **paths).prepared_dir

    found = set()
    for name in ("one", "two"):
        (tmp_path / name / "auto").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / name)
        assert prepared_dir("auto") == prepared_dir(tmp_path / name / "auto")
        found.add(prepared_dir("auto"))
    assert len(found) == 2
