"""Tests of synthetic pairs from monolingual text: the side of the input, skipped lines, shards, and resuming."""

import dataclasses
import gzip
import os
import re
import tracemalloc
import types

import pytest

import keras_transformer as kt
from keras_transformer.data.tokenizers.base import Tokenizer
from keras_transformer.decoding import augmentation
from keras_transformer.decoding.augmentation import AugmentOptions, AugmentResult, augment
from keras_transformer.decoding.base_translator import BaseTranslator
from keras_transformer.decoding.search_options import Sampling, SearchOptions
from keras_transformer.utils.errors import TextError

BACK = AugmentOptions(direction="back")


class Upper:
    """A translator that converts text to upper case. After `limit` lines, it raises KeyboardInterrupt."""

    hide_spans = BaseTranslator.hide_spans

    def __init__(self):
        self.lines, self.limit, self.searches = [], 10**6, []
        self.tokenizer = Tokenizer()

    def translate(self, lines, cut, **search):
        self.searches.append(search)
        for row, line in enumerate(lines):
            if len(self.lines) == self.limit:
                raise KeyboardInterrupt
            self.lines.append(line)
            if line == "wrong":
                raise TextError(row, "cannot translate {}")
            if (length := len(line.split()) + 1) > search["max_source_length"]:
                cut(row, length)
        outputs = ["" if line == "nothing" else line.upper() for line in lines]
        return [[kt.Hypothesis(text, (), 0.0, 0.0)] * search["nbest"] for text in outputs]


@pytest.fixture
def translator(monkeypatch):
    """Replace the translator of every run with `Upper`, which gets chunks of two lines."""
    translator = Upper()
    run = types.SimpleNamespace(
        path="run", config_hash="1", tokenizer=types.SimpleNamespace(constraint=None), hparams=kt.HParams(max_length=5),
        checkpoints=types.SimpleNamespace(load=lambda name, parts: ({}, {"sha256": {}})),
    )  # fmt: skip
    monkeypatch.setattr(augmentation, "CHUNK", 2)
    monkeypatch.setattr(augmentation.Run, "open", lambda path: run)
    monkeypatch.setattr(augmentation, "load_translator", lambda *arguments, **options: translator)
    translator.run = run
    return translator


@pytest.fixture
def files(tmp_path):
    """Return (function that writes lines to an input file, path of the output)."""

    def write(*lines):
        path = tmp_path / "mono.gz"
        path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
        return path

    return write, tmp_path / "pairs.tsv"


def test_augment_puts_the_input_on_the_chosen_side(translator, files):
    write, output = files
    augment("run", write("ein Hund", "eine Katze"), output, dataclasses.replace(BACK, tag="<bt>"))
    assert output.read_text() == "<bt> EIN HUND\tein Hund\n<bt> EINE KATZE\teine Katze\n"
    augment("run", write("a dog"), output, AugmentOptions(direction="forward"))
    assert output.read_text() == "a dog\tA DOG\n"


def test_augment_skips_and_counts_lines_without_a_pair(translator, files):
    write, output = files
    path = write("a", "", "b", "a", "nothing", " \t", "1 2 3 4", "1 2 3 4 5", "tab\there", " b ")
    result = augment("run", path, output, BACK)
    assert output.read_text() == "A\ta\nB\tb\n1 2 3 4\t1 2 3 4\nTAB HERE\ttab here\n"
    assert result == AugmentResult(lines=10, blank=2, repeated=2, rejected=2, pairs=4)
    assert translator.lines == ["a", "b", "nothing", "1 2 3 4", "1 2 3 4 5", "tab here"]
    result = augment("run", path, output, dataclasses.replace(BACK, drop_duplicates=False))
    assert result.repeated == 0 and output.read_text().count("B\tb\n") == 2


def test_search_for_repeated_lines_needs_little_memory(files):
    count, result = 50_000, AugmentResult()
    path = files[0](*range(count), *range(10))
    tracemalloc.start()
    try:
        repeated = augmentation._count(path, BACK, result)
        assert sum(1 for _ in augmentation._lines(path, BACK, repeated)) == count
        assert tracemalloc.get_traced_memory()[1] < 30 * count
    finally:
        tracemalloc.stop()
    assert result == AugmentResult(lines=count + 10, repeated=10)


def test_augment_writes_each_output_of_a_line_once(translator, files):
    write, output = files
    result = augment("run", write("a"), output, dataclasses.replace(BACK, search=SearchOptions(nbest=3)))
    assert output.read_text() == "A\ta\n" and result.pairs == 1


def test_augment_writes_no_language_tags(translator, files):
    write, output = files
    translator.tokenizer = Tokenizer()
    translator.tokenizer.tags = {"de": "<2de>"}
    augment(
        "run", write("<2de> a dog", "<2fr> a cat", "<2de>"), output, AugmentOptions(direction="forward", tag="<bt>")
    )
    assert output.read_text() == "<bt> a dog\t<2DE> A DOG\n<bt> <2fr> a cat\t<2FR> A CAT\n"


def test_augment_writes_no_marks_of_spans(translator, files):
    write, output = files
    translator.tokenizer.placeholders = (7, 8)
    augment(
        "run", write("see <ph>a b</ph> x.org/a", "<ph> </ph>", "<ph1>"), output, AugmentOptions(direction="forward")
    )
    assert [line.split("\t")[0] for line in output.read_text().splitlines()] == ["see a b x.org/a", "<ph1>"]
    translator.tokenizer.placeholders = ()
    augment("run", write("see <ph>a</ph> <ph1>"), output, AugmentOptions(direction="forward"))
    assert output.read_text().startswith("see <ph>a</ph> <ph1>\t")


def test_augment_names_the_line_of_an_error(translator, files):
    write, output = files
    path = write("a", "", "b", "a", "c", "wrong")
    with pytest.raises(kt.UserError, match=f"cannot translate {re.escape(str(path))}:6$"):
        augment("run", path, output, BACK)
    assert not output.exists()


@pytest.mark.parametrize(
    ("search", "beam_size"),
    [
        (SearchOptions(nbest=6), None),
        (SearchOptions(beam_size=2), 2),
        (SearchOptions(sampling=Sampling()), 1),
        (SearchOptions(nbest=3, sampling=Sampling()), 3),
        (SearchOptions(beam_size=5, sampling=Sampling()), 5),
    ],
)
def test_augment_chooses_the_beam_size(translator, files, search, beam_size):
    write, output = files
    augment("run", write("a"), output, dataclasses.replace(BACK, search=search))
    assert translator.searches[0]["beam_size"] == beam_size


def test_shards_divide_lines_by_content(translator, files):
    write, output = files
    path = write(*(str(number % 50) for number in range(100)))
    pairs, lines = [], 0
    for part in (1, 2, 3):
        result = augment("run", path, output, dataclasses.replace(BACK, shard=(part, 3)))
        assert 0 < result.pairs == result.repeated < 40
        pairs += output.read_text().splitlines()
        lines += result.lines
    assert sorted(pairs) == sorted(f"{number}\t{number}" for number in range(50)) and lines == 100


def test_augment_continues_after_an_interruption(translator, files, caplog):
    write, output = files
    path = write(*"abcdefg")
    translator.limit = 5
    with pytest.raises(KeyboardInterrupt):
        augment("run", path, output, BACK)
    assert not output.exists() and len(list(output.parent.iterdir())) == 2
    translator.limit, translator.lines = 10**6, []
    with caplog.at_level("INFO"):
        result = augment("run", path, output, BACK)
    assert translator.lines == list("efg") and result.pairs == 7
    assert "resuming: 4 of 7 lines are already translated" in caplog.messages
    assert output.read_text() == "".join(f"{letter.upper()}\t{letter}\n" for letter in "abcdefg")
    assert sorted(entry.name for entry in output.parent.iterdir()) == ["mono.gz", "pairs.tsv"]


@pytest.mark.parametrize("changed", ["options", "run", "input", "engine"])
def test_augment_starts_again_if_anything_has_changed(translator, files, changed, monkeypatch):
    monkeypatch.setattr(augmentation, "choose_engine", lambda engine, *arguments: engine)
    write, output = files
    path, options = write(*"abc"), BACK
    translator.limit = 2
    with pytest.raises(KeyboardInterrupt):
        augment("run", path, output, options)
    if changed == "options":
        options = dataclasses.replace(BACK, tag="<bt>")
    elif changed == "run":
        translator.run.checkpoints.load = lambda name, parts: ({}, {"sha256": {"weights": "2"}})
    elif changed == "input":
        path = write(*"abcd")
    translator.limit, translator.lines = 10**6, []
    augment("run", path, output, options, engine="ctranslate2" if changed == "engine" else "keras")
    assert translator.lines == list("abcd" if changed == "input" else "abc")
    assert sorted(entry.name for entry in output.parent.iterdir()) == ["mono.gz", "pairs.tsv"]


def test_augment_rejects_wrong_arguments_before_it_translates(translator, files, tmp_path):
    write, output = files
    path = write("a")
    with pytest.raises(kt.UserError, match=r"must end in .tsv, got .*pairs.txt"):
        augment("run", path, output.with_suffix(".txt"), BACK)
    with pytest.raises(kt.UserError, match=r"--tag must be a single line .*, got '<bt>\\tx'"):
        augment("run", path, output, dataclasses.replace(BACK, tag="<bt>\tx"))
    with pytest.raises(kt.UserError, match="missing.gz does not exist"):
        augment("run", tmp_path / "missing.gz", output, BACK)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(kt.UserError, match="the compressed file is truncated"):
        augment("run", path, output, BACK)
    lines = tmp_path / "mono.tsv"
    lines.write_text("a\n")
    with pytest.raises(kt.UserError, match="--output and --input must be different files"):
        augment("run", lines, lines, BACK)
    translator.run.tokenizer.constraint = object()
    with pytest.raises(kt.UserError, match="augmentation needs a translation model, but run.* is a parser"):
        augment("run", lines, output, BACK)
    assert not translator.lines and not output.exists()


def test_augment_rejects_input_that_it_cannot_read_twice(translator, files):
    reader, writer = os.pipe()
    with open(reader), open(writer, "w") as pipe:
        pipe.write("a\n")
        pipe.close()
        for path, name in ((f"/dev/fd/{reader}", f"/dev/fd/{reader}"), ("-", "stdin")):
            with pytest.raises(kt.UserError, match=f"--input must be a regular file, got {name}. The command"):
                augment("run", path, files[1], BACK)
