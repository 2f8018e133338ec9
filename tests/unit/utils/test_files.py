"""Tests of file writing."""

from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from keras_transformer.utils.files import append_line, atomic_directory, lock_file


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
