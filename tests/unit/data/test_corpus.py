"""Tests of corpus files: line ends, errors about damaged files, and downloads with a checksum."""

import gzip
import hashlib
import http.server
import io
import threading

import pytest
from helpers.errors import complaint
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data.corpus import download, existing_file, read_lines, read_pairs
from keras_transformer.utils.errors import UserError

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


def test_corpus_file_may_be_gzip(tmp_path):
    assert existing_file(tmp_path, "train.en") is None
    path = write(tmp_path / "train.en.gz", b"one\n")
    assert existing_file(tmp_path, "train.en") == path
    plain = write(tmp_path / "train.en", b"one\n")
    assert existing_file(tmp_path, "train.en") == plain


CONTENT = b"a corpus\n" * 1000
CHECKSUM = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def without_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture(scope="module")
def server():
    """Address of a local web server. It serves /corpus, truncates /cut, and answers other paths with 404."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path in ("/corpus", "/cut") else 404)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT if self.path == "/corpus" else CONTENT[:100])

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_download_with_right_checksum_is_kept(tmp_path, server):
    path = tmp_path / "downloads" / "corpus"
    download(f"{server}/corpus", path, CHECKSUM)
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]


def test_download_skips_existing_file(tmp_path):
    path = write(tmp_path / "corpus", b"already here")
    download("http://127.0.0.1:9/unreachable", path, CHECKSUM)
    assert path.read_bytes() == b"already here"


@pytest.mark.parametrize(
    ("page", "checksum", "reason"),
    [("corpus", "0" * 64, f"got {CHECKSUM}"), ("cut", CHECKSUM, "SHA-256"), ("missing", CHECKSUM, "Not Found")],
)
def test_bad_download_is_rejected_and_removed(tmp_path, server, page, checksum, reason):
    with pytest.raises(UserError, match=reason) as caught:
        download(f"{server}/{page}", tmp_path / "corpus", checksum)
    assert f"{server}/{page}" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_download_reports_unreachable_server(tmp_path):
    with pytest.raises(UserError, match="cannot download .* download it on another computer"):
        download("http://127.0.0.1:9/corpus", tmp_path / "corpus", CHECKSUM)
    assert not list(tmp_path.iterdir())
