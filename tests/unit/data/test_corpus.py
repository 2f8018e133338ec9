"""Tests of reading corpus files: line ends and errors about damaged files."""

import gzip
import io

import pytest
from helpers.errors import complaint
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data.corpus import read_lines, read_pairs

ENDINGS = ["txt", "txt.gz"]


def write(path, content):
    """Write bytes to a file, compressed if its name ends in `.gz`. Return the path."""
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("one\ntwo\n", ["one", "two"]),
        ("one\ntwo", ["one", "two"]),  # no final newline
        ("one\r\ntwo\r\n", ["one", "two"]),
        ("\ufeffone\ntwo\n", ["one", "two"]),
        ("one\n\ufefftwo\n", ["one", "\ufefftwo"]),  # U+FEFF is a byte order mark only at the start of a file
        ("a\u2028b\x0cc\x0bd\x85e\rf\n2\n", ["a\u2028b\x0cc\x0bd\x85e\rf", "2"]),
        ("one\n\n \nfour\n", ["one", "", " ", "four"]),
        ("\n", [""]),
    ],
)
def test_read_lines_splits_at_newlines_only(tmp_path, ending, content, lines):
    assert list(read_lines(write(tmp_path / f"corpus.{ending}", content.encode()))) == lines


@pytest.mark.parametrize("ending", ENDINGS)
@given(lines=st.lists(st.text().filter(lambda text: not set("\r\n\ufeff") & set(text)), min_size=1))
def test_read_lines_returns_any_text_unchanged(tmp_path_factory, ending, lines):
    path = tmp_path_factory.mktemp("corpus") / f"corpus.{ending}"
    write(path, "".join(f"{line}\n" for line in lines).encode())
    assert list(read_lines(path)) == lines


def test_missing_file_is_named(tmp_path):
    assert str(tmp_path / "train.en") in complaint(read_lines, tmp_path / "train.en")


def test_directory_is_rejected(tmp_path):
    assert "Is a directory" in complaint(read_lines, tmp_path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_empty_file_is_named(tmp_path, ending):
    path = write(tmp_path / f"corpus.{ending}", b"")
    assert complaint(read_lines, path).startswith(f"{path} is empty")


@pytest.mark.parametrize("ending", ENDINGS)
def test_invalid_utf8_is_located(tmp_path, ending):
    path = write(tmp_path / f"corpus.{ending}", "schön\n".encode() + "schön\n".encode("latin-1"))
    assert complaint(read_lines, path).startswith(f"{path}:2: not UTF-8 at byte 4")


WHOLE = gzip.compress("".join(f"line {i}\n" for i in range(1000)).encode())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (WHOLE[:-20], ": the compressed file is truncated"),
        (b"plain text\n", " is not a valid compressed file"),
        (b"\x1f\x8b\x08\x00" + bytes(6) + b"\xff\xff\xff", " is not a valid compressed file"),
        (WHOLE[:-8] + bytes([WHOLE[-8] ^ 1]) + WHOLE[-7:], " is not a valid compressed file"),  # a wrong checksum
    ],
)
def test_damaged_gzip_file_is_named(tmp_path, content, said):
    path = tmp_path / "corpus.gz"
    path.write_bytes(content)
    assert complaint(read_lines, path).startswith(f"{path}{said}")


def test_read_pairs_joins_lines(tmp_path):
    source = write(tmp_path / "a", b"one\n\nthree\n")
    target = write(tmp_path / "b.gz", b"eins\nzwei\ndrei")
    assert list(read_pairs(source, target)) == [("one", "eins"), ("", "zwei"), ("three", "drei")]


@pytest.mark.parametrize(("first", "second"), [(3, 5), (5, 3), (1, 2)])
def test_read_pairs_names_different_line_counts(tmp_path, first, second):
    source, target = write(tmp_path / "a", b"x\n" * first), write(tmp_path / "b", b"x\n" * second)
    counts = f"the same number of lines, got {first} and {second};"
    assert complaint(read_pairs, source, target).startswith(f"{source} and {target} must have {counts}")


def test_read_pairs_counts_lines_of_stdin(tmp_path, monkeypatch):
    (tmp_path / "target").write_text("a\nb\nc\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"1\n2\n")))
    expected = f"stdin and {tmp_path}/target must have the same number of lines, got 2 and 3;"
    assert complaint(read_pairs, "-", tmp_path / "target").startswith(expected)
