"""Tests of problems: pairs in both directions, corpus files and scores."""

import gzip
import random
import sys

import pytest
from helpers.errors import complaint
from hypothesis import example, given
from hypothesis import strategies as st

from keras_transformer.config import registry
from keras_transformer.tasks.problem import load_problem
from keras_transformer.tasks.translation import TranslationProblem
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import sha256

registry.load_catalog()
MULTI30K = ["multi30k_ende", "multi30k_ende_tok", "multi30k_enfr", "multi30k_enfr_tok"]
SPLITS = ("train", "validation", "test")
SIZES = {"train": 29_000, "validation": 1_014, "test": 1_000, "test_2017": 1_000, "test_coco": 461}


# Multi30k


@pytest.fixture(params=MULTI30K)
def multi30k(request, test_data, tmp_path):
    return load_problem(request.param, data_dir=tmp_path, raw_dir=test_data / "multi30k")


@pytest.mark.parametrize("split", SIZES)
def test_multi30k_is_complete(multi30k, split):
    pairs = list(multi30k.examples(split))
    assert len(pairs) == SIZES[split]
    assert all(source.strip() and target.strip() for source, target in pairs)


def test_multi30k_starts_as_published(test_data):
    raw, tokenized, french, _ = (load_problem(name, raw_dir=test_data / "multi30k") for name in MULTI30K)
    assert next(raw.examples("test")) == (
        "A man in an orange hat starring at something.", "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt."
    )  # fmt: skip
    assert next(tokenized.examples("test")) == (
        "a man in an orange hat starring at something .", "ein mann mit einem orangefarbenen hut , der etwas anstarrt ."
    )  # fmt: skip
    assert next(french.examples("test")) == (
        "A man in an orange hat starring at something.", "Un homme avec un chapeau orange regardant quelque chose."
    )  # fmt: skip


def test_multi30k_checksums_match_files(test_data):
    checksums = sys.modules[registry.problems.get("multi30k_ende").__module__].SHA256
    assert {name: sha256(test_data / "multi30k" / name) for name in checksums} == checksums


def test_multi30k_needs_further_test_sets_only_to_read_them(test_data, tmp_path):
    for split in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            name = f"{split}.{language}.gz"
            (tmp_path / name).symlink_to(test_data / "multi30k" / "raw" / name)
    problem = load_problem("multi30k_ende", raw_dir=tmp_path)
    assert len(problem.corpus_files()) == 6
    assert "test_2017_mscoco.en.gz is missing in" in complaint(problem.examples, "test_coco")


@pytest.mark.parametrize("split", ["validation", "test"])
def test_multi30k_raw_dir_may_be_inner_folder(multi30k, test_data, split):
    direct = load_problem(multi30k.name, raw_dir=test_data / "multi30k" / multi30k.folder)
    assert list(direct.examples(split)) == list(multi30k.examples(split))


@pytest.mark.parametrize(
    ("name", "corpus"),
    [
        ("multi30k_deen", "multi30k_ende"),
        ("multi30k_deen_tok", "multi30k_ende_tok"),
        ("multi30k_fren", "multi30k_enfr"),
        ("multi30k_fren_tok", "multi30k_enfr_tok"),
    ],
)
def test_multi30k_reverse_has_natural_name(name, corpus):
    natural, systematic, forwards = (load_problem(one) for one in (name, f"{corpus}_rev", corpus))
    assert (natural.name, natural.reversed) == (name, True)
    assert natural.prepared_dir == systematic.prepared_dir == forwards.prepared_dir


@pytest.mark.parametrize("name", MULTI30K)
def test_multi30k_names_missing_file(tmp_path, name):
    said = complaint(load_problem(name, raw_dir=tmp_path).examples, "train")
    assert str(tmp_path) in said and "train." in said


# Scores


def test_score_has_signature():
    (score,) = load_problem("multi30k_ende").score(["a b c d e"], ["a b c d f"])
    assert score.name == "sacreBLEU" and str(score) == f"sacreBLEU = {score.value:.2f}"
    assert score.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.")


def test_tokenized_corpus_is_scored_on_tokens():
    scores = load_problem("multi30k_ende_tok").score(["a dog ."], ["a dog ."])
    assert [score.name for score in scores] == ["sacreBLEU", "tokenized BLEU"]
    assert "tok:none" in scores[-1].signature and "case:mixed" in scores[-1].signature


def test_symbols_are_scored_by_exact_match():
    bleu, match = load_problem("copy").score(["s1 s2", "s3"], ["s1 s2", "s4"])
    assert (bleu.name, str(match)) == ("tokenized BLEU", "exact match = 50.00")


# Symbols


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", ["copy", "reverse"])
def test_symbol_pairs_are_correct(name, split):
    problem = load_problem(name, num_symbols=7, longest=5, train_pairs=300)
    pairs = list(problem.examples(split))
    assert len(pairs) == {"train": 300, "validation": 200, "test": 500}[split]
    for source, target in pairs:
        assert target.split() == source.split()[:: 1 if name == "copy" else -1]
        assert 1 <= len(source.split()) <= 5
        assert {*source.split()} <= {f"s{i}" for i in range(7)}
    lengths = {len(source.split()) for source, _ in pairs}
    assert lengths == {1, 2, 3, 4, 5} if split == "train" else lengths >= {2, 3, 4, 5}


@given(symbols=st.integers(2, 30), longest=st.integers(2, 12), name=st.sampled_from(["copy", "reverse", "sort"]))
@example(symbols=20, longest=10, name="copy")
@example(symbols=2, longest=4, name="sort")
def test_symbol_splits_share_no_source(symbols, longest, name):
    problem = load_problem(name, num_symbols=symbols, longest=longest, train_pairs=2000)
    try:
        train, validation, test = ({source for source, _ in problem.examples(split)} for split in SPLITS)
    except UserError as error:
        assert symbols**longest < 1000 and "raise problem.num_symbols or problem.longest" in str(error)
    else:
        assert not train & validation and not train & test and not validation & test


def test_symbol_problem_reports_too_few_sequences():
    assert complaint(load_problem("copy", num_symbols=2, longest=2).examples, "test").startswith(
        "copy: num_symbols=2 and longest=2 leave no sequences for the test split"
    )


def test_symbols_are_sorted_as_numbers():
    sort = registry.problems.get("sort")()
    assert sort.transform(["s10", "s2", "s0", "s2", "s11"]) == ["s0", "s2", "s2", "s10", "s11"]
    for source, target in load_problem("sort", num_symbols=15, train_pairs=200).examples("train"):
        assert target.split() == sorted(source.split(), key=lambda symbol: int(symbol[1:]))


def test_symbol_pairs_are_deterministic_per_split():
    first, again = (list(load_problem("copy", train_pairs=200).examples("train")) for _ in range(2))
    assert first == again != list(load_problem("copy").examples("validation"))


@pytest.mark.parametrize(("wrong", "right"), [("tset", "test"), ("valid", "validation")])
def test_unknown_split_suggests_nearest(wrong, right):
    assert f"unknown split {wrong!r}: did you mean {right}" in complaint(load_problem("copy").examples, wrong)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [({"num_symbols": 1}, "num_symbols must be from 2 to 1000"), ({"longest": "5"}, "longest must be an integer"),
     ({"num_symbol": 5}, "did you mean num_symbols")],
)  # fmt: skip
def test_problem_rejects_wrong_parameters(parameters, said):
    assert said in complaint(load_problem, "copy", **parameters)


# Exceptions that `pairs` raises while a tokenizer is trained


@pytest.mark.parametrize("error", [UserError("line 3 is bad"), ValueError("a bug"), KeyboardInterrupt()])
def test_exception_in_pairs_is_raised_unchanged(tmp_path, error):
    class Broken(TranslationProblem):
        name, corpus, source, target = "broken", "broken", "en", "de"

        def pairs(self, split):
            yield "a", "b"
            raise error

    with pytest.raises(type(error)) as caught:
        Broken(data_dir=str(tmp_path)).prepare()
    assert caught.value is error and not list(tmp_path.iterdir())


# Unregistered classes


class Digits(TranslationProblem):
    """Unregistered problem that translates digits to letters."""

    source, target = "en", "de"

    def pairs(self, split):
        letters = str.maketrans("0123456789", "abcdefghij")
        return ((text, text.translate(letters)) for text in (f"{i} {i * i}" for i in range(40)))


class Doubled(Digits):
    """Unregistered subclass of `Digits` with a different corpus."""

    def pairs(self, split):
        return ((f"{source} {source}", target) for source, target in super().pairs(split))


def test_unregistered_problem_has_class_name(tmp_path):
    problems = [kind(vocab_size=40, data_dir=str(tmp_path)).prepare() for kind in (Digits, Doubled)]
    assert [problem.name for problem in problems] == [problem.corpus for problem in problems] == ["Digits", "Doubled"]
    assert [problem.prepared_dir.name.partition("-")[0] for problem in problems] == ["Digits", "Doubled"]
    assert len(list(tmp_path.glob("D*-*/manifest.json"))) == 2
    assert Digits(vocab_size=40, data_dir=str(tmp_path)).store.manifest["problem"] == "Digits"
    reverse = Digits.reverse_class("mine")(vocab_size=40, data_dir=str(tmp_path))
    assert (reverse.name, reverse.prepared_dir) == ("mine", problems[0].prepared_dir)
    with pytest.raises(UserError, match="Digits: vocab_size must be from 8"):
        Digits(vocab_size=1)


# Parallel text


def write_text(folder, split, pairs, compress=False):
    folder.mkdir(exist_ok=True)
    for language, texts in zip(("en", "de"), zip(*pairs)):
        content = "".join(f"{text}\n" for text in texts).encode()
        if compress:
            (folder / f"{split}.{language}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / f"{split}.{language}").write_bytes(content)


def pairs_of(count, different=None):
    """Return `count` pairs with distinct targets. Sources repeat after `different` pairs (default: never)."""
    return [(f"source {i % (different or count)}", f"target {i}") for i in range(count)]


def parallel(folder, **parameters):
    return load_problem("parallel_text", raw_dir=folder, **parameters)


@pytest.mark.parametrize(("count", "held_out"), [(20, 1), (199, 9), (2_000, 100), (30_000, 1_000)])
def test_parallel_text_holds_out_training_pairs(tmp_path, count, held_out):
    pairs = pairs_of(count)
    write_text(tmp_path, "train", pairs)
    train, validation = (list(parallel(tmp_path).examples(split)) for split in ("train", "validation"))
    assert len(validation) == held_out
    assert sorted(train + validation) == sorted(pairs)


def test_held_out_pairs_share_no_source_with_training(tmp_path, fresh_seed):
    pairs = pairs_of(3_000, different=700)
    random.Random(fresh_seed).shuffle(pairs)
    write_text(tmp_path, "train", pairs)
    train, validation = (list(parallel(tmp_path).examples(split)) for split in ("train", "validation"))
    assert 0 < len(validation) <= 150 and sorted(train + validation) == sorted(pairs)
    assert not {source for source, _ in train} & {source for source, _ in validation}


def test_held_out_pairs_are_independent_of_line_order(tmp_path, fresh_seed):
    pairs = pairs_of(500)
    write_text(tmp_path, "train", pairs)
    before = set(parallel(tmp_path).examples("validation"))
    random.Random(fresh_seed).shuffle(pairs)
    write_text(tmp_path, "train", pairs)
    assert set(parallel(tmp_path).examples("validation")) == before


@pytest.mark.parametrize("pairs", [pairs_of(19), [("the same", str(i)) for i in range(500)]])
def test_parallel_text_too_small_to_hold_out(tmp_path, pairs):
    write_text(tmp_path, "train", pairs)
    assert "add validation.en and validation.de" in complaint(parallel(tmp_path).examples, "validation")


def test_parallel_text_has_no_pairs_without_files(tmp_path):
    write_text(tmp_path, "train", pairs_of(30))
    assert list(parallel(tmp_path).pairs("test")) == []


def stored(problem, split="train"):
    """Prepare the problem and return the pairs of text in a split of the prepared corpus."""
    pairs = problem.prepare().store.split(split)
    texts = [
        problem.tokenizer.decode([rows[i].tolist()[:-1] for i in range(len(rows))])
        for rows in (pairs.source, pairs.target)
    ]
    return list(zip(*texts))


def test_extra_train_keeps_vocabulary(tmp_path):
    write_text(tmp_path, "train", pairs_of(300))
    write_text(tmp_path, "taught", [(source, f"{target} 7") for source, target in pairs_of(300)], compress=True)
    where = {"data_dir": tmp_path / "data", "vocab_size": 60}
    plain = parallel(tmp_path, **where)
    more = parallel(tmp_path, extra_train=f"{tmp_path}/taught", **where)
    held_out = {source for source, _ in stored(plain, "validation")}
    expected = [(source, f"{target} 7") for source, target in pairs_of(300) if source not in held_out]
    assert len(held_out) == 15 and stored(more) == stored(plain) + expected
    assert stored(more, "validation") == stored(plain, "validation")
    assert more.tokenizer.to_bytes() == plain.tokenizer.to_bytes() and more.prepared_dir != plain.prepared_dir
    backwards = load_problem("parallel_text_rev", raw_dir=tmp_path, extra_train=f"{tmp_path}/taught", **where)
    assert stored(backwards) == [(target, source) for source, target in stored(more)]
    # With validation files, the problem holds out no training pairs. It also reads changed text files again.
    write_text(tmp_path, "validation", pairs_of(3))
    for packed in tmp_path.glob("taught.*.gz"):
        packed.unlink()
    write_text(tmp_path, "taught", [("source 1", "target 2")])
    assert stored(parallel(tmp_path, extra_train=f"{tmp_path}/taught", **where))[-2:] == [
        ("source 299", "target 299"), ("source 1", "target 2")
    ]  # fmt: skip


def test_extra_train_names_missing_file(tmp_path):
    write_text(tmp_path, "train", pairs_of(300))
    (tmp_path / "taught.en").write_text("source\n")
    problem = parallel(tmp_path, extra_train=f"{tmp_path}/taught", data_dir=tmp_path)
    assert f"{tmp_path}/taught.de does not exist; problem.extra_train must be" in complaint(problem.prepare)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("language", ["en", "de"])
def test_parallel_text_names_missing_side(tmp_path, split, language):
    for name in ("train", split):
        write_text(tmp_path, name, pairs_of(30))
    (tmp_path / f"{split}.{language}").unlink()
    assert f"{tmp_path}/{split}.{language} does not exist" in complaint(parallel(tmp_path).examples, split)


def test_parallel_text_languages_are_parameters(tmp_path):
    write_text(tmp_path, "train", pairs_of(30))
    for language, new in (("en", "cs"), ("de", "pl")):
        (tmp_path / f"train.{language}").rename(tmp_path / f"train.{new}")
    assert len(list(parallel(tmp_path, source="cs", target="pl").examples("train"))) == 29
    assert "Set the languages with --set" in complaint(parallel(tmp_path).examples, "train")
    assert "got 'cs' twice" in complaint(parallel, tmp_path, source="cs", target="cs")


def test_parallel_text_requires_raw_dir():
    assert "--raw_dir=FOLDER" in complaint(load_problem, "parallel_text")
