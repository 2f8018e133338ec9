"""Preparing large corpora: worker processes, preparations that are killed or broken off, lines of progress."""

import functools
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.commands import spawn

from keras_transformer import files, registry
from keras_transformer.data import encoding, preparation
from keras_transformer.data.filters import PairFilter
from keras_transformer.data.token_store import TokenStore
from keras_transformer.data.tokenizer import SentencePieceTokenizer, SymbolTokenizer
from keras_transformer.errors import UserError
from keras_transformer.files import work_directory
from keras_transformer.tasks import load_problem

# A problem in a plug-in, and few enough pairs to make a large corpus. TROUBLE is what happens at which pair of all that
# `pairs` yields, first for the vocabulary (0 to 1999), then for the store; or at which use of a file.
PLUGIN = '''
import dataclasses, os, random, signal, sys, time
from keras_transformer import TranslationProblem, register_problem
from keras_transformer.data import encoding, preparation

encoding.SERIAL_PAIRS = preparation.SERIAL_PAIRS = 200
encoding.CHUNK_PAIRS, preparation.SECONDS = 50, 0
trouble, _, when = os.environ.get("TROUBLE", "none 0").partition(" ")
count, uses = 0, 0

def happen():
    if trouble == "sleep":
        time.sleep(60)
    if trouble == "fail":
        raise ConnectionError("the server has gone")
    if trouble != "none":
        os.kill(os.getpid(), signal.SIGKILL)

def watch(event, arguments):
    global uses
    if trouble == "use" and (event.startswith("os.") or event == "open" and ".work" in str(arguments[0])):
        uses += 1
        if uses == int(when):
            happen()

sys.addaudithook(watch)

@register_problem("numbers")
@dataclasses.dataclass(kw_only=True)
class Numbers(TranslationProblem):
    """Sentences of numbers."""

    vocab_size: int = 60

    def pairs(self, split):
        global count
        rng = random.Random(split)
        for i in range({"train": 2000, "validation": 130, "test": 0}[split]):
            if trouble != "use" and count == int(when):
                happen()
            count += 1
            source = " ".join(str(rng.randrange(100)) for _ in range(rng.randrange(120)))
            yield source, f"{rng.randrange(int(os.environ['LARGEST']))} ."
'''
LETTERS = [f"s{i}" for i in range(20)]
SYMBOLS = SymbolTokenizer(LETTERS)
CHECKED = "--set problem.max_length_ratio=60 --set problem.drop_duplicates=true".split()


@pytest.fixture
def small_chunks(monkeypatch):
    """Makes a large corpus of few pairs."""
    monkeypatch.setattr(encoding, "CHUNK_PAIRS", 7)
    for module in (encoding, preparation):
        monkeypatch.setattr(module, "SERIAL_PAIRS", 20)


def pairs_of(count, seed=1, longest=6):
    rng = random.Random(seed)
    return [tuple(" ".join(rng.choices(LETTERS, k=rng.randint(0, longest))) for _ in range(2)) for _ in range(count)]


def contents(folder):
    """Returns {name: content} of the files in a folder."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


# Worker processes


@pytest.mark.parametrize("filters", [{}, {"train": PairFilter(max_length_ratio=2.5, drop_duplicates=True)}])
def test_workers_write_what_one_process_writes(tmp_path, small_chunks, filters):
    splits = {"train": pairs_of(500, longest=2), "validation": pairs_of(30, seed=2)}
    for workers in (0, 1, 3):
        TokenStore.write(tmp_path / f"{workers}", splits, SYMBOLS, {}, filters=filters, workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "3") == contents(tmp_path / "0")
    assert names(tmp_path) == ["0", "1", "3"]


def test_workers_need_subwords_no_more_than_their_file(tmp_path, small_chunks):
    pairs = [(f"ein Haus {i}", "日本 " * (i % 3)) for i in range(300)]
    tokenizer = SentencePieceTokenizer.train([text for pair in pairs for text in pair], 60)
    TokenStore.write(tmp_path / "store", {"train": pairs}, tokenizer, {}, workers=2)
    split = TokenStore(tmp_path / "store").split("train")
    for side, texts in zip((split.source, split.target), zip(*pairs)):
        assert [side[i].tolist() for i in range(300)] == [[*ids, 1] for ids in tokenizer.encode(list(texts))]


def test_a_worker_imports_no_keras(tmp_path):
    script = "import sys, keras_transformer.data.encoding as e; print(*{'keras', 'tensorflow', 'jax'} & {*sys.modules})"
    environment = {"PYTHONPATH": str(registry.PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")


def test_a_worker_that_is_killed_is_said(tmp_path, small_chunks):
    def pairs():
        yield from pairs_of(100)
        for process in workers_of(tmp_path):
            os.kill(process, signal.SIGKILL)
        yield from pairs_of(100)

    with pytest.raises(UserError, match=r"a process that encodes the corpus was ended \(status -9\)"):
        TokenStore.write(tmp_path / "store", {"train": pairs()}, SYMBOLS, {}, workers=2)
    assert not names(tmp_path) and not workers_of(tmp_path)


def test_an_exception_in_a_worker_is_passed_on(tmp_path, small_chunks):
    pairs = [*pairs_of(50), ("\ud800", "s1")]  # a lone surrogate, which is no Unicode
    tokenizer = SentencePieceTokenizer.train(["s1 s2"] * 9, 9)
    with pytest.raises(RuntimeError, match="TypeError: List elements must be str"):
        TokenStore.write(tmp_path / "store", {"train": pairs}, tokenizer, {}, workers=1)
    assert not names(tmp_path) and not workers_of(tmp_path)


def test_chunks_are_bounded_in_pairs_and_characters(monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 100)
    monkeypatch.setattr(encoding, "CHUNK_PAIRS", 4)
    pairs = [("a" * 30, "b" * 30)] * 4 + [("a", "b")] * 9
    assert [len(chunk) for chunk in encoding.cut_into_chunks(pairs)] == [2, 2, 4, 4, 1]


def workers_of(folder):
    """Returns the ids of the worker processes that encode to a directory in a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            *command, place, _ = (entry / "cmdline").read_text().split("\0")
            place = (entry / "cwd").readlink() / place
        except (OSError, ValueError):  # it has ended
            continue
        if "import answer" in str(command) and place.is_relative_to(folder):
            found.append(int(entry.name))
    return found


# Preparations that are broken off


class Home:
    """A folder with the plug-in, whose problem is prepared by the command in a process of its own."""

    def __init__(self, path):
        self.path, self.data = path, path / "data"
        (path / "plugin.py").write_text(PLUGIN)

    def popen(self, *flags, trouble="none 0", largest=300, **options):
        environment = {"PYTHONPATH": str(registry.PACKAGE.parent), "TROUBLE": trouble, "LARGEST": str(largest)}
        command = [sys.executable, "-m", "keras_transformer.prepare", "--plugin=plugin.py", "--problem=numbers"]
        return subprocess.Popen(
            [*command, *CHECKED, *flags], cwd=self.path, env=environment, encoding="utf-8",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
        )  # fmt: skip

    def prepare(self, *flags, **options):
        """Returns (status, lines of stdout, stderr)."""
        process = self.popen(*flags, **options)
        out, err = process.communicate()
        return process.returncode, out.splitlines(), err

    def works(self):
        return [path for path in self.data.iterdir() if path.name.endswith(".work")] if self.data.is_dir() else []

    def store(self):
        """Returns the contents of the one directory that must be there."""
        (folder,) = self.data.iterdir()
        return contents(folder)


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The lines and the store of a preparation that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "home").mkdir()
    home = Home(folder / "home")
    status, lines, err = home.prepare()
    assert (status, err) == (0, "")
    return lines, home.store()


def assert_same_store(home, whole):
    """Asserts that the store is the undisturbed one but for the plug-in's path and time."""
    ours, theirs = home.store(), whole[1].copy()
    assert json.loads(ours.pop("manifest.json"))["files"] == json.loads(theirs.pop("manifest.json"))["files"]
    assert ours == theirs


@pytest.mark.parametrize("pair", [1000, 2001, 3333, 4090, 4129])
def test_a_preparation_that_is_killed_goes_on(home, whole, pair):
    assert home.prepare(trouble=f"kill {pair}")[0] == -signal.SIGKILL
    (work,) = home.data.iterdir()
    assert work.name.startswith(".numbers-") and work.name.endswith(".work")
    status, lines, err = home.prepare()
    assert (status, err) == (0, "")
    assert_same_store(home, whole)
    if pair == 3333:
        done = int(next(line for line in lines if "going on after" in line).split()[-2].replace(",", ""))
        assert 1000 <= done <= 1333 and done % 50 == 0


def test_a_preparation_that_is_killed_anywhere_goes_on(home, whole, fresh_seed):
    rng = random.Random(fresh_seed)
    for _ in range(5):
        status, _, err = home.prepare(trouble=f"use {rng.randint(1, 170)}")  # a run uses files 172 times
        if status == 0:
            break
        assert (status, err) == (-signal.SIGKILL, "")
    assert home.prepare()[0] == 0
    assert_same_store(home, whole)


def test_parts_of_other_texts_are_not_used(home, whole):
    assert home.prepare(trouble="kill 3333", largest=200)[0] == -signal.SIGKILL
    status, lines, _ = home.prepare()
    assert status == 0 and "the texts of numbers have changed since they were prepared in part; beginning anew" in lines
    assert_same_store(home, whole)


def test_parts_of_other_corpora_are_removed(home):
    assert home.prepare(trouble="kill 3333")[0] == -signal.SIGKILL
    (old,) = home.works()
    (home.path / "plugin.py").write_text(PLUGIN + "\n# changed\n")
    assert home.prepare(trouble="kill 3333")[0] == -signal.SIGKILL
    (new,) = home.works()
    assert new != old


def test_damaged_parts_are_made_again(home, whole):
    assert home.prepare(trouble="kill 3900")[0] == -signal.SIGKILL
    (work,) = home.works()
    with open(work / "train.target.ids", "rb+") as file:  # as after a crash of the machine
        file.seek(5000)
        file.write(bytes(100))
    with open(work / "journal.jsonl", "a") as file:
        file.write('["part", "tra')
    assert home.prepare()[0] == 0
    assert_same_store(home, whole)


def test_an_exception_of_pairs_is_passed_on_and_leaves_parts(home, whole):
    status, _, err = home.prepare(trouble="fail 3333")
    assert status == 1 and "ConnectionError: the server has gone" in err and "plugin.py:" in err.splitlines()[-1]
    assert len(home.works()) == len(list(home.data.iterdir())) == 1 and not workers_of(home.path)
    assert any("going on after" in line for line in home.prepare()[1])
    assert_same_store(home, whole)


def test_a_full_disk_leaves_nothing_that_is_taken_for_whole(home, whole):
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (250_000, 250_000))
    status, _, err = home.prepare(preexec_fn=limit)
    assert (status, err) == (2, "error: File too large; make room and run the command again\n")
    assert len(home.works()) == len(list(home.data.iterdir())) == 1
    assert home.prepare()[0] == 0
    assert_same_store(home, whole)


@pytest.mark.parametrize(("end", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_the_workers_end_with_the_command(home, end, status):
    process = home.popen(trouble="sleep 3900", start_new_session=True)
    wait_for(lambda: home.works() and (home.works()[0] / "journal.jsonl").is_file() and workers_of(home.path))
    os.killpg(process.pid, end)
    assert process.communicate()[1] == ("interrupted\n" if end == signal.SIGINT else "")
    assert process.returncode == status
    wait_for(lambda: not workers_of(home.path))


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_second_process_waits_for_the_first(home, whole):
    processes = [home.popen(), home.popen()]
    outs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert_same_store(home, whole)
    assert sum("pairs/s" in out for out in outs) == 1


def test_bad_lines_are_located_and_leave_no_workers(tmp_path, small_chunks):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for language in ("en", "de"):
        (corpus / f"train.{language}").write_bytes(b"".join(b"a b c d %d\n" % i for i in range(300)))
        (corpus / f"validation.{language}").write_bytes(b"a\n" * 150 + b"\xff\n" * (language == "de"))
    problem = load_problem("parallel_text", data_dir=tmp_path / "data", raw_dir=corpus, vocab_size=25)
    with pytest.raises(UserError, match="validation.de:151: not UTF-8"):
        problem.prepare()
    assert not workers_of(tmp_path)


# Work directories


def test_a_work_directory_is_found_again_and_cleaned(tmp_path):
    for keep in (True, False):
        with pytest.raises(KeyboardInterrupt), work_directory(tmp_path / "store", "a") as work:
            (work.folder / "part").touch()
            (work.folder / ".part.x7").touch()
            work.keep = keep
            raise KeyboardInterrupt
        assert names(tmp_path) == [".store.a.work"] * keep
    with work_directory(tmp_path / "store", "a") as work:
        assert names(work.folder) == ["lock"]


def test_a_work_directory_in_use_is_waited_for_and_not_removed(tmp_path):
    order = []

    def second():
        with work_directory(tmp_path / "store", "a", order.append) as work:
            order.append((work.waited, (tmp_path / "store").is_dir(), names(work.folder)))

    with work_directory(tmp_path / "store", "a") as work:
        thread = threading.Thread(target=second)
        thread.start()
        wait_for(lambda: order)
        with work_directory(tmp_path / "store", "b"):
            assert work.folder.is_dir()
        work.finish()
    thread.join()
    assert order == [f"waiting for another process that works in {work.folder}", (True, True, ["lock"])]
    assert names(tmp_path) == ["store"] and names(tmp_path / "store") == []


def test_a_finished_directory_is_not_one_of_work_before_it_is_in_its_place(tmp_path, monkeypatch):
    """Another process, with another content, which begins between the end of the work and the renaming."""
    put = files._put_in_place

    def between(folder, path):
        with work_directory(path, "b"):
            pass
        put(folder, path)

    with work_directory(tmp_path / "store", "a") as work:
        (work.folder / "part").touch()
        monkeypatch.setattr(files, "_put_in_place", between)
        work.finish()
    assert names(tmp_path) == ["store"] and names(tmp_path / "store") == ["part"]


def test_what_another_process_prepares_meanwhile_is_taken(tmp_path, monkeypatch):
    """It ends after this process has found nothing prepared, and before it begins."""
    first, second = (load_problem("copy", data_dir=tmp_path, train_pairs=20) for _ in range(2))

    def late(path, identity, report):
        monkeypatch.undo()
        first.prepare()
        return work_directory(path, identity, report)

    monkeypatch.setattr("keras_transformer.tasks.work_directory", late)
    second._write = lambda *arguments: pytest.fail("prepared twice")
    assert second.prepare().store.fingerprint == first.store.fingerprint


# Lines of progress


def test_a_preparation_goes_on_without_a_reader(tmp_path):
    process = spawn("prepare", "--problem=copy", f"--data_dir={tmp_path}/data", cwd=tmp_path)
    process.stdout.close()
    assert process.wait(timeout=120) == 0 and process.stderr.read() == ""
    process.stderr.close()
    assert list(tmp_path.glob("data/copy-*/manifest.json"))


def test_progress_is_told(whole):
    lines = [line for line in whole[0] if "pairs/s" in line]
    assert lines and all(
        re.fullmatch(r"  train: [\d,]+ pairs, [\d,]+ pairs/s, \d+:\d\d:\d\d left", line) for line in lines
    )
    assert any(
        re.search("train: .* pairs, .* dropped for their length ratio, .* dropped as duplicates", line)
        for line in whole[0]
    )


def test_progress_is_seldom_and_of_small_corpora_none(tmp_path, monkeypatch):
    said, now = [], [0.0]
    monkeypatch.setattr(preparation.time, "monotonic", lambda: now[0])
    progress = preparation.Progress(said.append, "train", done=60_000)
    for second in range(12):
        now[0] = second
        progress.update(60_000 + 1000 * second)
    assert said == ["  train: 65,000 pairs, 1,000 pairs/s", "  train: 70,000 pairs, 1,000 pairs/s"]
    monkeypatch.setattr(preparation, "SECONDS", 0)
    TokenStore.write(tmp_path / "store", {"train": pairs_of(300)}, SYMBOLS, {}, report=said.append)
    assert len(said) == 2 and names(tmp_path) == ["store"]
