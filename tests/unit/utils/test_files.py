"""Tests of file writing."""

import io
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

import keras_transformer as kt
from keras_transformer.utils.files import append_line, atomic_directory, lock_file, open_partial


def test_append_line_waits_for_another_writer(tmp_path):
    path = tmp_path / "rows.jsonl"
    with ThreadPoolExecutor() as pool, lock_file(path) as other:
        print("fir", end="", file=other, flush=True)
        future = pool.submit(append_line, path, "second")
        wait([future], timeout=0.1)
        print("st", file=other)
    assert path.read_text() == "first\nsecond\n"


@pytest.mark.parametrize("dangling", [False, True])
def test_atomic_directory_follows_a_symbolic_link(tmp_path, dangling):
    target, link = tmp_path / "target", tmp_path / "link"
    if not dangling:
        target.mkdir()
    link.symlink_to(target)
    with atomic_directory(link) as folder:
        (folder / "file").write_text("text")
    assert link.is_symlink() and (target / "file").read_text() == "text"
    assert {*tmp_path.iterdir()} == {link, target}


def test_open_partial_holds_its_lock_while_it_reports(tmp_path, monkeypatch):
    path, locked = tmp_path / "out.txt", []

    class Terminal(io.StringIO):
        def write(self, text):
            with lock_file(f"{path}.partial") as file:
                locked.append(file is None)

    monkeypatch.setattr("sys.stderr", Terminal())
    with pytest.raises(KeyboardInterrupt), open_partial(path) as file:
        file.write("one\n")
        raise KeyboardInterrupt
    assert locked and all(locked)
    assert Path(f"{path}.partial").read_text() == "one\n"


def test_open_partial_rejects_a_second_writer(tmp_path):
    path = tmp_path / "output.txt"
    with open_partial(path) as file:
        print("first", file=file, flush=True)
        with pytest.raises(kt.UserError, match="another process is writing"), open_partial(path):
            pass
    assert path.read_text() == "first\n"
    with open_partial(path) as file:
        print("second", file=file)
    assert path.read_text() == "second\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["output.txt"]
