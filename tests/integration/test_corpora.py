"""Tests that `prepare` stores all pairs of unusual corpora unchanged and in order, and reports bad lines."""

import re

import numpy as np
import pytest
from helpers import commands
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.errors import UserError

COUNT = 200


def lines(language, changes=None):
    """Return one side of a corpus as bytes. `changes` maps line numbers to replacement lines (bytes)."""
    texts = {number: f"{language} {number} {number * number}".encode() for number in range(1, COUNT + 1)}
    return b"\n".join((texts | (changes or {})).values()) + b"\n"


def write(folder, english, german):
    """Write both sides of the training text and a validation split. Return arguments for `parallel_text`."""
    valid = {language: "".join(f"{language} {i}\n" for i in range(9)) for language in ("en", "de")}
    commands.write_text(folder / "raw", valid, "validation")
    commands.write_text(folder / "raw", {"en": english, "de": german})
    return {"raw_dir": str(folder / "raw"), "data_dir": str(folder / "data")}


def prepared(arguments, vocab_size=60):
    """Prepare a problem and return it. If `vocab_size` is out of range, use the limit in the error message."""
    problem = load_problem("parallel_text", **arguments, vocab_size=vocab_size)
    try:
        return problem.prepare()
    except UserError as error:
        possible = re.search(r"at (?:least|most) (\d+) pieces", str(error))
        if not possible or int(possible[1]) == vocab_size:
            raise
        return prepared(arguments, int(possible[1]))


def assert_stored(problem, pairs):
    """Assert that the training split contains the given pairs in order, without pairs that have an empty side."""
    split, tokenizer = problem.store.split("train"), problem.tokenizer
    encoded = [tokenizer.encode(list(pair)) for pair in pairs]
    kept = [row for row, sides in enumerate(encoded) if all(sides)]
    assert len(split) == len(kept)
    assert problem.store.manifest["splits"]["train"].get("dropped_with_an_empty_side", 0) == len(pairs) - len(kept)
    for number, row in enumerate(kept):
        for side, ids in zip((split.source, split.target), encoded[row]):
            np.testing.assert_array_equal(side[number], [*ids, 1], err_msg=repr(pairs[row]))


def expected(english, german):
    """Split the contents of two files into pairs of text, without using the package."""
    sides = []
    for content in (english, german):
        parts = content.split(b"\n")
        parts = parts[:-1] if parts[-1] == b"" else parts
        texts = [part.removesuffix(b"\r").decode("utf-8") for part in parts]
        sides.append([texts[0].removeprefix("\ufeff"), *texts[1:]])
    return list(zip(*sides, strict=True))


@pytest.mark.parametrize(
    "changes",
    [
        {1: b"\xef\xbb\xbfen 1 1"},
        {7: b"en 7\0 49"},
        {7: b"\0"},
        {7: "en\u20287\u202949".encode(), 8: "en\x0b8\x0c64\x1c\x1d\x1e\x85".encode()},
        {7: b"en 7\r49\r", 9: b"en 9 81\r\r"},
        {7: b"", 8: b"  \t ", COUNT: b""},
        {number: b"en 1 1" for number in range(50, 150)},
        {7: "e\u0301\u200d\ufe0f \U0001f468\u200d\U0001f469 \u05d0\u05d1 \ufffd \uffff".encode()},
    ],
    ids="bom nul only_nul separators returns empty duplicates unicode".split(),
)
def test_prepare_stores_unusual_lines_in_place(tmp_path, changes):
    english, german = lines("en", changes), lines("de")
    assert_stored(prepared(write(tmp_path, english, german)), expected(english, german))


@pytest.mark.soak
def test_train_drops_lines_of_a_million_characters(call, tmp_path):
    changes = {7: b"en 7 " + b"49 " * 333_333, 9: b"81" * 500_000}
    arguments = write(tmp_path, lines("en", changes), lines("de"))
    prepared(arguments)
    flags = ("--problem=parallel_text", *(f"--{name}={value}" for name, value in arguments.items()))
    flags = (*flags, *commands.SMALL, "--hparams=toy", "--train_steps=2", f"--output_dir={tmp_path}/run")
    out = call("train", *flags, "--set=problem.vocab_size=60").succeeded_with_warnings()
    assert [line for line in out if "training drops 2 pairs longer than max_length=" in line]


@pytest.mark.parametrize("both", [False, True])
def test_prepare_rejects_file_that_shrinks(call, tmp_path, monkeypatch, both):
    arguments = write(tmp_path, lines("en"), lines("de"))
    problem_class = type(load_problem("parallel_text", **arguments))
    pairs = problem_class.pairs

    def shrink(self, split):
        for number, pair in enumerate(pairs(self, split)):
            yield pair
            if split == "train" and number == 20:
                for language in ("en", "de") if both else ("en",):
                    with open(tmp_path / "raw" / f"train.{language}", "rb+") as file:
                        file.truncate(lines(language).index(b"\n" + language.encode() + b" 100 ") + 1)

    monkeypatch.setattr(problem_class, "pairs", shrink)
    flags = [f"--{name}={value}" for name, value in arguments.items()]
    outcome = call("prepare", "--problem=parallel_text", "--set=problem.vocab_size=40", *flags)
    assert outcome.status == 2 and "Traceback" not in outcome.err
    assert "train.en" in outcome.err.splitlines()[-1] and not list((tmp_path / "data").glob("*"))


CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\n")
TEXT = st.lists(st.text(CHARACTERS, max_size=12).map(str.encode), min_size=1, max_size=12)
LINES = st.one_of(TEXT, TEXT, st.lists(st.binary(max_size=12), max_size=12))


@settings(suppress_health_check=list(HealthCheck))
@given(english=LINES, german=LINES, same=st.booleans(), ended=st.booleans())
def test_prepare_stores_or_rejects_arbitrary_bytes(tmp_path_factory, english, german, same, ended):
    if same:  # otherwise, the sides usually have different numbers of lines
        german = (german + [b"x"] * len(english))[: len(english)]
    sides = [b"\n".join(side) + b"\n" * (ended and bool(side)) for side in (english, german)]
    arguments = write(tmp_path_factory.mktemp("fuzz"), *sides)
    try:
        problem = prepared(arguments, vocab_size=40)
    except UserError as error:
        assert "\n" not in str(error)
        return
    assert_stored(problem, expected(*sides))


def test_prepare_report_lists_dropped_pairs(call, tmp_path):
    english = lines("en") + b"Photo: Reuters\nPhoto: Reuters\n"
    arguments = write(tmp_path, english, lines("de") + b"Photo: Reuters\nFoto\n")
    flags = [f"--{name}={value}" for name, value in arguments.items()]
    flags += ["--set=problem.drop_copies=true", "--set=problem.vocab_size=60", "--report"]
    for _ in range(2):  # the first call counts pairs, the second reads the counts from the manifest
        report = call("prepare", "--problem=parallel_text", *flags).succeeded()
        assert "  1 dropped as copies" in report and "    'Photo: Reuters' | 'Photo: Reuters'" in report
        assert any(line.startswith("train: ") and line.endswith("pairs kept, 1 dropped") for line in report)
