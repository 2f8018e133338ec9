"""Tests of `prepare` processes that are killed or interrupted, run out of disk space, or run concurrently."""

import functools
import json
import os
import random
import resource
import signal
import subprocess
import sys

import pytest
from helpers.commands import spawn
from helpers.encoders import workers_of
from helpers.waiting import wait_for

from keras_transformer.config import registry
from keras_transformer.data.token_store import VERIFIED

# `prepare` treats this problem like a large corpus. TROUBLE contains a fault and the pair or file access at which the
# fault occurs. The training pairs count as pairs 0 to 1999 for the tokenizer, and as pairs 2000 to 3999 for encoding.
PLUGIN = '''
import dataclasses, os, random, signal, sys, time
from keras_transformer import TranslationProblem, register_problem
from keras_transformer.data import encoding, preparation

encoding.SERIAL_PAIRS = preparation.SERIAL_PAIRS = 200
encoding.CHUNK_PAIRS, preparation.SECONDS = 50, 0
encoding.MAX_WORKERS = 2
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

    source, target = "en", "de"
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
CHECKED = "--set problem.max_length_ratio=60 --set problem.drop_duplicates=true".split()


def contents(folder):
    """Return the files in a folder as {name: content}."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != VERIFIED}


class Home:
    """Folder with the plug-in, and methods that prepare its problem in a new process."""

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
        """Run `prepare` and return (exit status, lines of stdout, stderr)."""
        process = self.popen(*flags, **options)
        out, err = process.communicate()
        return process.returncode, out.splitlines(), err

    def works(self):
        return [path for path in self.data.iterdir() if path.name.endswith(".work")] if self.data.is_dir() else []

    def store(self):
        """Return the files of the prepared directory as {name: content}. There must be only one directory."""
        (folder,) = self.data.iterdir()
        return contents(folder)


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the lines of stdout and the files of an uninterrupted preparation."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "home").mkdir()
    home = Home(folder / "home")
    status, lines, err = home.prepare()
    assert (status, err) == (0, "")
    return lines, home.store()


def assert_same_store(home, whole):
    """Assert that the files are identical to those of the uninterrupted preparation.

    In the manifest, compare only "files".
    """
    ours, theirs = home.store(), whole[1].copy()
    assert json.loads(ours.pop("manifest.json"))["files"] == json.loads(theirs.pop("manifest.json"))["files"]
    assert ours == theirs


@pytest.mark.parametrize("pair", [1000, 2001, 3333, 4090, 4129])
def test_killed_preparation_resumes(home, whole, pair):
    assert home.prepare(trouble=f"kill {pair}")[0] == -signal.SIGKILL
    (work,) = home.works()
    assert work.name.startswith(".numbers-") and work.name.endswith(".work")
    status, lines, err = home.prepare()
    assert (status, err) == (0, "")
    assert_same_store(home, whole)
    if pair == 3333:
        done = int(next(line for line in lines if "resuming after" in line).split()[-2].replace(",", ""))
        assert 1000 <= done <= 1333 and done % 50 == 0


def test_preparation_killed_anywhere_resumes(home, whole, fresh_seed):
    rng = random.Random(fresh_seed)
    for _ in range(5):
        status, _, err = home.prepare(trouble=f"use {rng.randint(1, 260)}")  # a preparation makes 264 file accesses
        if status == 0:
            break
        assert (status, err) == (-signal.SIGKILL, "")
    assert home.prepare()[0] == 0
    assert_same_store(home, whole)


def test_preparation_ignores_chunks_of_other_texts(home, whole):
    assert home.prepare(trouble="kill 3333", largest=200)[0] == -signal.SIGKILL
    status, lines, _ = home.prepare()
    changed = "the texts of numbers have changed since the interrupted preparation; starting again"
    assert status == 0 and changed in lines
    assert_same_store(home, whole)


def test_preparation_removes_chunks_of_other_corpora(home):
    assert home.prepare(trouble="kill 3333")[0] == -signal.SIGKILL
    (old,) = home.works()
    (home.path / "plugin.py").write_text(PLUGIN + "\n# changed\n")
    assert home.prepare(trouble="kill 3333")[0] == -signal.SIGKILL
    (new,) = home.works()
    assert new != old


def test_exception_in_pairs_is_raised_and_keeps_chunks(home, whole):
    status, _, err = home.prepare(trouble="fail 3333")
    assert status == 1 and "ConnectionError: the server has gone" in err and "plugin.py:" in err.splitlines()[-1]
    assert len(home.works()) == len(list(home.data.iterdir())) == 1
    assert any("resuming after" in line for line in home.prepare()[1])
    assert_same_store(home, whole)


def test_full_disk_leaves_no_finished_store(home, whole):
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (250_000, 250_000))
    status, _, err = home.prepare(preexec_fn=limit)
    assert (status, err) == (2, "error: File too large; free some space and run the command again\n")
    assert len(home.works()) == len(list(home.data.iterdir())) == 1
    assert home.prepare()[0] == 0
    assert_same_store(home, whole)


@pytest.mark.parametrize(("end", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_workers_end_with_command(home, end, status):
    process = home.popen(trouble="sleep 3900", start_new_session=True)
    wait_for(lambda: home.works() and [*home.works()[0].glob("train.*.npz")] and workers_of(process.pid))
    workers = workers_of(process.pid)
    os.killpg(process.pid, end)
    assert process.communicate()[1] == ("interrupted\n" if end == signal.SIGINT else "")
    assert process.returncode == status
    wait_for(lambda: not any(os.path.exists(f"/proc/{worker}") for worker in workers))


def test_second_preparation_waits_for_first(home, whole):
    processes = [home.popen(), home.popen()]
    outs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert_same_store(home, whole)
    assert sum("pairs/s" in out for out in outs) == 1


def test_preparation_continues_without_reader(tmp_path):
    process = spawn("prepare", "--problem=copy", f"--data_dir={tmp_path}/data", cwd=tmp_path)
    process.stdout.close()
    assert process.wait(timeout=120) == 0 and process.stderr.read() == ""
    process.stderr.close()
    assert list(tmp_path.glob("data/copy-*/manifest.json"))
