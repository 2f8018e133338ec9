"""Tests of file writing."""

from concurrent.futures import ThreadPoolExecutor, wait

from keras_transformer.utils.files import append_line, lock_file


def test_append_line_waits_for_another_writer(tmp_path):
    path = tmp_path / "rows.jsonl"
    with ThreadPoolExecutor() as pool, lock_file(path) as other:
        print("fir", end="", file=other, flush=True)
        future = pool.submit(append_line, path, "second")
        wait([future], timeout=0.1)
        print("st", file=other)
    assert path.read_text() == "first\nsecond\n"
