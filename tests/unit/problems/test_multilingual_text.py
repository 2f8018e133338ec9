"""Tests of the problem `multilingual_text`: files, language tags, temperature, scores and error messages."""

import dataclasses
import json

import pytest
from helpers.errors import complaint
from helpers.logs import logged_lines

from keras_transformer.config.registry import load_catalog, problems
from keras_transformer.data.tokenizers.base import UNK
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.errors import UserError

LINES = {"en": "{} times itself is {}", "de": "{} mal sich selbst ist {}", "fr": "{} fois lui-même font {}"}


def text(language, count, first=0):
    return [LINES[language].format(number, number**2) for number in range(first, first + count)]


def write(folder, counts):
    """Write text files from {name: (languages, number of lines)}. A file with two languages has the extension .tsv."""
    for name, (languages, count) in counts.items():
        columns = zip(*(text(language, count) for language in languages.split()))
        (folder / name).write_text("".join("\t".join(row) + "\n" for row in columns), encoding="utf-8")


@pytest.fixture
def corpus(tmp_path):
    """Return a folder with training and validation text in three languages."""
    for split, count in (("train", 40), ("validation", 5)):
        write(tmp_path, {f"{split}.{language}": (language, count) for language in LINES})
    return tmp_path


def multilingual(folder, directions="en-de,en-fr,de-en", **parameters):
    load_catalog()
    parameters = {"vocab_size": 80, "data_dir": folder / "data", **parameters}
    return load_problem("multilingual_text", raw_dir=folder, directions=directions, **parameters)


def test_examples_have_tags_in_order_of_directions(corpus):
    problem = multilingual(corpus)
    english, german, french = (text(language, 5) for language in LINES)
    expected = [*zip(english, german), *zip(english, french), *zip(german, english)]
    tags = ["<2de> "] * 5 + ["<2fr> "] * 5 + ["<2en> "] * 5
    assert list(problem.examples("validation")) == [(tag + one, other) for tag, (one, other) in zip(tags, expected)]
    assert problem.part_names("validation") == ["en-de"] * 5 + ["en-fr"] * 5 + ["de-en"] * 5
    assert problem.splits == ("train", "validation")
    assert (problem.input_language, problem.output_language) == ("mul", "mul")
    assert multilingual(corpus, "en-de, fr-de").output_language == "de"


def test_blank_sources_have_no_tag(corpus):
    (corpus / "train.en").write_text("\n" * 40)
    problem = multilingual(corpus, "en-de,de-en").prepare()
    assert problem.store.manifest["splits"]["train"]["dropped_with_an_empty_side"] == 80


@pytest.mark.parametrize("joint", [True, False], ids=["joint", "separate"])
def test_prepared_corpus_has_whole_tags(corpus, joint):
    problem = multilingual(corpus, joint_vocabulary=joint, user_symbols="<ph>").prepare()
    assert problem.tokenizer.languages == ("de", "fr", "en")
    (ids,) = problem.tokenizer.encode(["<2fr> 3 times <ph>"])
    pieces = problem.tokenizer.pieces(ids)
    assert pieces[1] == "<2fr>" and "<ph>" in pieces and UNK not in ids
    train = problem.store.split("train")
    assert len(train) == 120 and problem.tokenizer.pieces(train.source[0])[1] == "<2de>"


def test_directions_prefer_their_own_files(tmp_path):
    write(tmp_path, {"train.en": ("en", 50), "train.de": ("de", 50), "train.de-en.tsv": ("de en", 30)})
    write(tmp_path, {"train.en-fr.en": ("en", 20), "train.en-fr.fr": ("fr", 20)})
    write(tmp_path, {f"validation.{language}": (language, 3) for language in LINES})
    problem = multilingual(tmp_path, "de-en,en-de,en-fr,fr-en")
    train = list(problem.examples("train"))
    assert len(train) == 30 + 30 + 20 + 20
    assert train[29] == ("<2en> 29 mal sich selbst ist 841", "29 times itself is 841")
    assert train[59] == ("<2de> 29 times itself is 841", "29 mal sich selbst ist 841")
    assert train[-1] == ("<2en> 19 fois lui-même font 361", "19 times itself is 361")
    names = ["train.de-en.tsv", "validation.de", "validation.en", "train.en-fr.en", "train.en-fr.fr", "validation.fr"]
    assert sorted(path.name for path in problem.corpus_files()) == sorted(names)


def test_listed_files_belong_to_directions(corpus):
    write(corpus, {"news.tsv": ("en de", 7), "talks-new.en": ("en", 3), "talks-new.fr": ("fr", 3)})
    rows = [dict(zip(LINES, row)) for row in zip(*(text(language, 2, 50) for language in LINES))]
    (corpus / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    listed = "en-de:news.tsv, all.jsonl:2, fr-en:talks-new"
    problem = multilingual(corpus, "en-de,de-en,en-fr", train=listed, test="en-fr:talks-new")
    train = list(problem.examples("train"))
    english, german, french = (text(language, 2, 50) for language in LINES)
    twice = [pair for pair in zip(english, german) for _ in range(2)]
    assert train[:11] == [(f"<2de> {one}", other) for one, other in [*zip(text("en", 7), text("de", 7)), *twice]]
    assert train[11:22] == [(f"<2en> {other}", one[6:]) for one, other in train[:11]]
    twice = [pair for pair in zip(english, french) for _ in range(2)]
    assert train[22:] == [(f"<2fr> {one}", other) for one, other in [*twice, *zip(text("en", 3), text("fr", 3))]]
    assert problem.part_names("test") == ["en-fr"] * 3
    assert problem.part_names("validation") == ["en-de"] * 5 + ["de-en"] * 5 + ["en-fr"] * 5
    names = {path.name for path in problem.corpus_files()}
    assert names == {"news.tsv", "all.jsonl", "talks-new.en", "talks-new.fr", *(f"validation.{one}" for one in LINES)}
    assert problem.prepare().store.manifest["splits"]["train"]["pairs"] == 29


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train": "en-de:news.tsv"}, "problem.train must contain files for en-fr, got 'en-de:news.tsv'. Add an entry"),
        (
            {"train": "news.tsv"},
            "problem.train must name the languages of the two columns of news.tsv. Write en-de:news",
        ),
        ({"train": "train,en-fra:news.tsv"}, "unknown direction in problem.train 'en-fra': did you mean en-fr"),
        ({"train": "train,en-de:new.tsv"}, "new.tsv does not exist"),
        ({"train": "train,en-de:news.tsv:x"}, "the weight of news.tsv must be a number"),
        ({"train": "train,de-en:news"}, "news.de does not exist; the folder contains"),
        ({"train": "train:2", "drop_duplicates": True}, "drop_duplicates cannot be combined with a weight above 1"),
        ({"validation": "en-it:validation"}, "unknown direction in problem.validation 'en-it'"),
    ],
)
def test_wrong_lists_of_files_are_rejected(corpus, files, message):
    write(corpus, {"news.tsv": ("en de", 7)})
    error = complaint(lambda: multilingual(corpus, "en-de,en-fr", **files).prepare())
    assert message in error and "problem.source" not in error
    assert not (corpus / "data").exists()


def test_directions_without_listed_files_hold_out_pairs(corpus):
    problem = multilingual(corpus, "en-de,en-fr", validation="en-fr:validation")
    assert problem.part_names("validation") == ["en-de"] * 2 + ["en-fr"] * 5


def test_zero_shot_directions_need_no_listed_files(corpus):
    problem = multilingual(corpus, "en-de,en-fr", train="en-de:train,en-fr:train")
    other = dataclasses.replace(problem, directions="fr-de")
    assert [source for source, _ in other.examples("validation")] == [f"<2de> {line}" for line in text("fr", 5)]


def test_held_out_pairs_are_those_of_the_reverse(tmp_path):
    write(tmp_path, {f"train.{language}": (language, 200) for language in LINES})
    problem = multilingual(tmp_path, "en-de,de-en")
    held_out, train = list(problem.examples("validation")), list(problem.examples("train"))
    assert (len(held_out), len(train)) == (20, 380)
    untagged = [(source.partition(" ")[2], target) for source, target in held_out]
    assert untagged[:10] == [(target, source) for source, target in untagged[10:]]
    assert not set(held_out) & set(train)


def test_temperature_repeats_pairs_of_small_directions(corpus):
    write(corpus, {"train.en-fr.tsv": ("en fr", 10)})
    problem = multilingual(corpus, "en-de,en-fr", temperature=2)
    with logged_lines() as lines:
        train = list(problem.examples("train"))
    assert problem.weights == {"en-de": 1.0, "en-fr": 2.0}  # (40 / 10)^(1 - 1/2)
    assert lines == ["  en-de: 40 pairs, 1.00 copies of each", "  en-fr: 10 pairs, 2.00 copies of each"]
    assert len(train) == 60 and len(set(train)) == 50
    assert len(list(multilingual(corpus, "en-de,en-fr").examples("train"))) == 50
    equal = list(multilingual(corpus, "en-de,en-fr", temperature=100).examples("train"))
    assert abs(sum(source.startswith("<2fr>") for source, _ in equal) - 40) <= 5
    assert len(list(problem.examples("validation"))) == 10
    prepared = {multilingual(corpus, temperature=value).prepared_dir for value in (1.0, 5.0)}
    assert len(prepared) == 2


def test_temperature_also_repeats_a_share_of_weighted_pairs(tmp_path):
    write(tmp_path, {"big.tsv": ("en de", 4000), "small.tsv": ("en fr", 2000)})
    listed = {"train": "en-de:big.tsv,en-fr:small.tsv:0.5", "validation": "en-de:big.tsv,en-fr:small.tsv"}
    problem = multilingual(tmp_path, "en-de,en-fr", temperature=1.4, **listed)
    weighted = sum(1 for _ in problem.parts["en-fr"].pairs("train"))
    repeated = sum(source.startswith("<2fr>") for source, _ in problem.examples("train"))
    assert 1.3 < problem.weights["en-fr"] < 1.7
    assert repeated == pytest.approx(weighted * problem.weights["en-fr"], abs=70)  # 4 standard deviations


def test_directions_have_scores_of_their_language(corpus):
    problem = multilingual(corpus, "en-de,de-zh", bleu_tokenizer=None)
    assert [part.sacrebleu_tokenizer for part in problem.parts.values()] == ["13a", "zh"]
    problem = multilingual(corpus, "en-de,de-zh", bleu_tokenizer="char")
    assert [part.sacrebleu_tokenizer for part in problem.parts.values()] == ["char", "char"]


def test_columns_of_upper_case_tsv_need_languages(tmp_path):
    write(tmp_path, {"news.TSV": ("en de", 40)})
    problem = multilingual(tmp_path, "en-de,de-en", train="news.TSV")
    assert "the languages of the two columns" in complaint(problem.prepare)


def test_listed_files_may_have_line_breaks_in_names(tmp_path):
    write(tmp_path, {"a\nb.tsv": ("en de", 40)})
    assert len(list(multilingual(tmp_path, "en-de", train="en-de:a\nb.tsv").examples("train"))) == 38


@pytest.mark.parametrize("directions", ["en_de", "en-", "en-de-fr", "en-de,", "en-en", "en>de", ""])
def test_malformed_directions_are_rejected(corpus, directions):
    message = complaint(multilingual, corpus, directions)
    assert "directions" in message and "en-de" in message


def test_languages_without_files_are_rejected(corpus):
    expected = "unknown language 'fra': did you mean fr?"
    assert complaint(multilingual(corpus, "en-de,en-fra").prepare) == expected
    (corpus / "train.fr").rename(corpus / "train.fr-it.fr")
    (corpus / "train.fr-it.it").write_text("uno\n")
    message = complaint(multilingual(corpus, "en-de,en-fr").prepare)
    assert message.startswith(f"{corpus} has no training files for en-fr, such as train.en-fr.tsv, or train.en and")
    assert "train.fr-it.fr" in message
    assert not (corpus / "data").exists()


def test_incomplete_or_ambiguous_files_are_rejected(corpus):
    (corpus / "train.de-fr.fr").write_text("un\n")
    message = complaint(multilingual(corpus, "de-fr").prepare)
    assert "train.de-fr.de does not exist; the folder contains" in message and "problem.source" not in message
    (corpus / "train.en-de.en").write_text("one\n")
    write(corpus, {"train.en-de.tsv": ("en de", 3)})
    assert complaint(multilingual(corpus, "en-de").prepare).endswith("; keep one of them")
    for language in LINES:
        (corpus / f"train.{language}").unlink()
    write(corpus, {"train.tsv": ("en fr", 3)})
    assert "Rename it to train.en-fr.tsv" in complaint(multilingual(corpus, "en-fr").prepare)


def test_settings_that_do_not_apply_are_rejected(corpus):
    load_catalog()
    for name in ("source", "extra_train", "source_script"):
        with pytest.raises(UserError, match=f"unknown parameter of multilingual_text '{name}'"):
            multilingual(corpus, **{name: "x"})
    assert "cannot be combined with temperature=5" in complaint(
        multilingual, corpus, temperature=5.0, drop_duplicates=True
    )
    assert "--raw_dir=FOLDER" in complaint(load_problem, "multilingual_text", directions="en-de")
    assert "multilingual_text_rev" not in dict(problems.describe())


@pytest.mark.parametrize("joint", [True, False], ids=["joint", "separate"])
def test_vocab_file_with_tags_needs_tagged_sources(corpus, joint):
    tokenizer = multilingual(corpus, "en-de,de-en", joint_vocabulary=joint).prepare().tokenizer
    tokenizer.save(corpus)
    vocabulary = str(corpus / tokenizer.file_name)
    problem = load_problem("parallel_text", raw_dir=corpus, data_dir=corpus / "own", vocab_file=vocabulary)
    message = complaint(problem.prepare)
    assert message.startswith(
        f"parallel_text: training sources must begin with a tag of {vocabulary}, such as <2de>, got '0 times itself"
    )
    assert message.endswith("Use multilingual_text with problem.directions, which adds the tags.")
    assert not problem.prepared_dir.exists()
    tagged = "".join(f"<2de> {line}\n" for line in text("en", 39))
    (corpus / "train.en").write_text(f"\n{tagged}", encoding="utf-8")
    assert problem.prepare().tokenizer.languages == ("de", "en")


def test_vocab_file_must_have_tags(corpus):
    ordinary = multilingual(corpus, "en-de", vocab_size=70).prepare()
    problem = multilingual(corpus, "en-fr", vocab_file=f"{ordinary.prepared_dir}/tokenizer.model", vocab_size=8000)
    message = complaint(problem.prepare)
    assert "must have the tags <2fr>" in message and "--user_defined_symbols=<2fr>" in message
