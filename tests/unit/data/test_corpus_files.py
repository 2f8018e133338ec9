"""Tests of finding corpus files, and of downloads with a checksum."""

import gzip
import hashlib
import http.server
import threading

import pytest
from helpers.errors import complaint

from keras_transformer.data.corpus_files import download, existing_file
from keras_transformer.utils.errors import UserError


def test_corpus_file_may_be_gzip(tmp_path):
    assert existing_file(tmp_path, "train.en") is None
    path = tmp_path / "train.en.gz"
    path.write_bytes(gzip.compress(b"one\n"))
    assert existing_file(tmp_path, "train.en") == path
    plain = tmp_path / "train.en"
    plain.write_bytes(b"one\n")
    assert existing_file(tmp_path, "train.en") == plain


def test_plain_and_gzip_file_must_be_equal(tmp_path):
    plain, packed = tmp_path / "train.en", tmp_path / "train.en.gz"
    plain.write_bytes(b"one\n" * 1000)
    packed.write_bytes(gzip.compress(b"one\n" * 1000))
    assert existing_file(tmp_path, "train.en") == plain
    cut = packed.read_bytes()[:-9]
    for content in (gzip.compress(b"one\n" * 999), gzip.compress(b"one\n" * 1001), b"no gzip", cut):
        packed.unlink()
        packed.write_bytes(content)
        said = complaint(existing_file, tmp_path, "train.en")
        assert said == f"{plain} and train.en.gz must have the same content, but differ; remove one of them"


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
    path = tmp_path / "corpus"
    path.write_bytes(b"already here")
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
