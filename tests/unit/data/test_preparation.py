"""Tests of the preparation of large corpora: worker processes, work directories and the progress log."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from helpers.encoders import workers_of
from helpers.logs import logged_lines
from helpers.stores import new_store
from helpers.waiting import wait_for

from keras_transformer.config.registry import PACKAGE
from keras_transformer.data import encoding, preparation
from keras_transformer.data.filters import PairFilter
from keras_transformer.data.token_store import VERIFIED, TokenStore
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import work_directory

LETTERS = [f"s{i}" for i in range(20)]
SYMBOLS = SymbolTokenizer(LETTERS)


@pytest.fixture
def small_chunks(monkeypatch):
    """Lower the limits, so that a few pairs count as a large corpus."""
    monkeypatch.setattr(encoding, "CHUNK_PAIRS", 7)
    for module in (encoding, preparation):
        monkeypatch.setattr(module, "SERIAL_PAIRS", 20)


def pairs_of(count, seed=1, longest=6):
    rng = random.Random(seed)
    return [tuple(" ".join(rng.choices(LETTERS, k=rng.randint(0, longest))) for _ in range(2)) for _ in range(count)]


def contents(folder):
    """Return {name: content} of the files in a folder."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name != VERIFIED}


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


# Worker processes


@pytest.mark.parametrize("filters", [{}, {"train": PairFilter(max_length_ratio=2.5, drop_duplicates=True)}])
def test_workers_write_same_store_as_one_process(tmp_path, small_chunks, filters):
    splits = {"train": pairs_of(500, longest=2), "validation": pairs_of(30, seed=2)}
    for workers in (0, 1, 3):
        new_store(tmp_path / f"{workers}", splits, SYMBOLS, filters=filters, workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "3") == contents(tmp_path / "0")
    assert names(tmp_path) == ["0", "1", "3"]


def test_workers_load_the_saved_tokenizer(tmp_path, small_chunks):
    pairs = [(f"ein Haus {i}", "日本 " * (i % 3)) for i in range(300)]
    tokenizer = SentencePieceTokenizer.train([text for pair in pairs for text in pair], 60)
    split = new_store(tmp_path / "store", {"train": pairs}, tokenizer, workers=2).split("train")
    for side, texts in zip((split.source, split.target), zip(*pairs)):
        assert [side[i].tolist() for i in range(300)] == [[*ids, 1] for ids in tokenizer.encode(list(texts))]


def test_killed_worker_raises_user_error(tmp_path, small_chunks):
    def pairs():
        yield from pairs_of(100)
        for process in workers_of(os.getpid()):
            os.kill(process, signal.SIGKILL)
        yield from pairs_of(100)

    with pytest.raises(UserError, match="a process that encodes the corpus was killed"):
        new_store(tmp_path / "store", {"train": pairs()}, SYMBOLS, workers=2)
    assert not names(tmp_path) and not workers_of(os.getpid())


def test_exception_in_worker_is_raised(tmp_path, small_chunks):
    pairs = [*pairs_of(50), ("\ud800", "s1")]  # a lone surrogate is not valid Unicode
    tokenizer = SentencePieceTokenizer.train(["s1 s2"] * 9, 9)
    with pytest.raises(RuntimeError, match="Unable to cast"):
        new_store(tmp_path / "store", {"train": pairs}, tokenizer, workers=1)
    assert not names(tmp_path) and not workers_of(os.getpid())


def test_workers_do_not_run_user_program(tmp_path):
    """Prepare a large corpus from a script that has no `if __name__ == "__main__"`."""
    script = tmp_path / "script.py"
    script.write_text(
        "from keras_transformer.data import encoding, preparation\n"
        "from keras_transformer.data.tokenizers import SymbolTokenizer\n"
        "from keras_transformer.utils.files import work_directory\n"
        "print('runs')\n"
        "encoding.CHUNK_PAIRS = encoding.SERIAL_PAIRS = 10\n"
        "pairs = [('a', 'b')] * 100\n"
        "with work_directory('store', 'identity') as work:\n"
        "    preparation.write_store(work, {'train': pairs}, SymbolTokenizer(['a', 'b']), {}, workers=2)\n"
        "    work.finish()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs\n", "")
    assert len(TokenStore(tmp_path / "store").split("train")) == 100


def test_chunks_are_bounded_in_pairs_and_characters(monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 100)
    monkeypatch.setattr(encoding, "CHUNK_PAIRS", 4)
    pairs = [("a" * 30, "b" * 30)] * 4 + [("a", "b")] * 9
    assert [len(chunk) for chunk in encoding.cut_into_chunks(pairs)] == [2, 2, 4, 4, 1]


def test_bad_line_is_located_and_stops_workers(tmp_path, small_chunks):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for language in ("en", "de"):
        (corpus / f"train.{language}").write_bytes(b"".join(b"a b c d %d\n" % i for i in range(300)))
        (corpus / f"validation.{language}").write_bytes(b"a\n" * 150 + b"\xff\n" * (language == "de"))
    problem = load_problem("parallel_text", data_dir=tmp_path / "data", raw_dir=corpus, vocab_size=25)
    with pytest.raises(UserError, match="validation.de:151: not UTF-8"):
        problem.prepare()
    assert not workers_of(os.getpid())


# Work directories


def test_work_directory_is_reused_and_cleaned(tmp_path):
    for keep in (True, False):
        with pytest.raises(KeyboardInterrupt), work_directory(tmp_path / "store", "a") as work:
            (work.folder / "part").touch()
            (work.folder / ".part.x7").touch()
            work.keep = keep
            raise KeyboardInterrupt
        assert names(tmp_path) == [".store.a.work"] * keep
    with work_directory(tmp_path / "store", "a") as work:
        assert names(work.folder) == []
    (tmp_path / ".store.a.work").mkdir()
    with work_directory(tmp_path / "store", "b") as work:
        assert names(tmp_path) == [".store.b.work", ".store.lock"]


def test_process_waits_for_work_directory_in_use(tmp_path):
    def second():
        with work_directory(tmp_path / "store", "a") as work:
            order.append(((tmp_path / "store").is_dir(), names(work.folder)))

    with logged_lines() as order:
        with work_directory(tmp_path / "store", "a") as work:
            thread = threading.Thread(target=second)
            thread.start()
            wait_for(lambda: order)
            work.finish()
        thread.join()
    assert order == [f"waiting for another process, which has locked {tmp_path}/.store.lock", (True, [])]
    assert names(tmp_path) == ["store"] and names(tmp_path / "store") == []


def test_prepare_uses_store_of_other_process(tmp_path, monkeypatch):
    """Check that a process uses a corpus that another process prepares at the same time.

    The other process finishes after this process has found no corpus, and before this process starts to prepare one.
    """
    first, second = (load_problem("copy", data_dir=tmp_path, train_pairs=20) for _ in range(2))

    def late(path, identity):
        monkeypatch.undo()
        first.prepare()
        return work_directory(path, identity)

    monkeypatch.setattr("keras_transformer.tasks.prepared_corpus.work_directory", late)
    second.make_tokenizer = lambda: pytest.fail("prepared twice")
    assert second.prepare().store.fingerprint == first.store.fingerprint


# Progress lines


def test_progress_reports_speed_and_time_left(tmp_path, small_chunks, monkeypatch):
    monkeypatch.setattr(preparation, "SECONDS", 0)
    with logged_lines() as lines, work_directory(tmp_path / "store", "identity") as work:
        preparation.write_store(work, {"train": pairs_of(500)}, SYMBOLS, {}, expected={"train": 500})
        work.finish()
    speed = [line for line in lines if "pairs/s" in line]
    assert speed and all(
        re.fullmatch(r"  train: [\d,]+ pairs, [\d,]+ pairs/s, \d+:\d\d:\d\d left", line) for line in speed
    )


def test_progress_is_rare_and_absent_for_small_corpora(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(preparation.time, "monotonic", lambda: now[0])
    progress = preparation.Progress("train")
    with logged_lines() as lines:
        progress.update(60_000, skipped=True)
        for second in range(12):
            now[0] = second
            progress.update(1000, skipped=False)
    assert lines == [
        "  train: resuming after 60,000 pairs", "  train: 66,000 pairs, 1,200 pairs/s",
        "  train: 71,000 pairs, 1,100 pairs/s",
    ]  # fmt: skip
    monkeypatch.setattr(preparation, "SECONDS", 0)
    with logged_lines() as lines:
        new_store(tmp_path / "store", {"train": pairs_of(300)}, SYMBOLS)
    assert not lines and names(tmp_path) == ["store"]
