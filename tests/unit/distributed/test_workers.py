"""Tests that the workers of a training run agree on values, arrays, signals and results.

Each worker is a thread instead of a process.
"""

import json
import os
import signal
import threading

import numpy as np
import pytest
from helpers.quick import quick_runs
from helpers.training_alike import small
from hypothesis import given
from hypothesis import strategies as st

import keras_transformer as kt
from keras_transformer.distributed.in_memory_run import InMemoryRun, state_of
from keras_transformer.distributed.workers import WorkerLost, Workers, _SeveralWorkers
from keras_transformer.runs.run import Run
from keras_transformer.training import trainer
from keras_transformer.training.signals import MEET_EVERY, SharedStop, StopRequest


class Meeting(_SeveralWorkers):
    """Workers that run as threads of this process."""

    def __init__(self, number, count, board):
        self.number, self.count, self.board = number, count, board

    def all_reduce_sum(self, values):
        barrier, parts = self.board
        parts[self.number] = np.asarray(values, np.int32)
        barrier.wait(60)
        found = sum(parts.values())
        barrier.wait(60)
        return found


def in_threads(count, function):
    """Call `function` in `count` threads, each with its own `Workers`. Return the list of results and errors."""
    board, found = (threading.Barrier(count), {}), {}

    def work(number):
        try:
            found[number] = function(Meeting(number, count, board))
        except kt.UserError as error:
            found[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in range(count)]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(values, st.integers(2, 4))
def test_workers_receive_values_of_chief(value, count):
    found = in_threads(count, lambda workers: workers.broadcast(value if workers.is_chief else "another"))
    assert found == [value] * count
    assert Workers().broadcast(value) == value


@pytest.mark.parametrize("piece", (8, 1 << 20))
def test_workers_receive_arrays_bit_for_bit(monkeypatch, piece, fresh_seed):
    monkeypatch.setattr("keras_transformer.distributed.workers.CHUNK", piece)
    random = np.random.default_rng(fresh_seed)
    arrays = {
        "weights": random.normal(size=(3, 5)).astype("float32"),
        "rare": np.array([-0.0, np.nan, np.inf, 1e-45], "float32"),
        "step": np.array(7, "int64"),
        "seed": random.integers(2**32, size=3).astype("uint32"),
        "flags": np.array([True, False, True]),
        "nothing": np.zeros((0, 4), "float32"),
    }
    for found in in_threads(3, lambda workers: workers.broadcast_arrays(arrays if workers.is_chief else None)):
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
            assert found[name].tobytes() == array.tobytes()


def test_workers_with_different_settings_all_fail():
    def check(workers):
        corpus = {"train": "a" if workers.number != 2 else "b"}
        workers.check_same({"settings": [1, 2], "corpus": corpus, "first weights": {"w": np.ones(3)}})

    found = in_threads(3, check)
    assert all("worker 2 differs from worker 0" in str(error) for error in found)
    assert "in corpus; " in str(found[2])
    assert in_threads(2, lambda workers: workers.check_same({"weights": {"w": np.ones(3)}})) == [None, None]


def test_workers_see_signal_at_the_same_update():
    def seen(workers):
        stop = StopRequest()
        shared = SharedStop(stop, workers)
        found = []
        for step in range(1, 2 * MEET_EVERY + 1):
            if workers.number == 1 and step == MEET_EVERY + 1:
                stop.receive(signal.SIGINT)
            found.append(shared.look(step))
        return found

    for found in in_threads(3, seen):
        assert found == [None] * (2 * MEET_EVERY - 1) + [signal.SIGINT]
    assert in_threads(2, lambda workers: workers.any(workers.number == 1)) == [True, True]


def test_in_memory_run_matches_run_and_writes_nothing(home, tmp_path):
    run = Run.open(home.run)
    shadow = InMemoryRun(tmp_path / "shadow", json.loads(json.dumps(state_of(run))))
    for one in ("best", "steps"):
        assert getattr(shadow.checkpoints, one)() == getattr(run.checkpoints, one)()
    assert [row for row in run.metrics() if row["kind"] == "validation"] == shadow.metrics()
    assert (shadow.config, shadow.hparams) == (run.config, run.hparams)
    shadow.log(kind="validation", step=9)
    shadow.checkpoints.save(9, {}, {})
    shadow.checkpoints.mark_best(9, {"score": 1.0})
    shadow.checkpoints.prune(1)
    assert shadow.metrics()[-1]["step"] == shadow.checkpoints.best_step() == shadow.checkpoints.steps()[-1] == 9
    assert not list(tmp_path.iterdir())


class Follower(Workers):
    """The second of two workers, whose chief computes the same values and starts a run with the given settings."""

    number, count = 1, 2

    def __init__(self, config):
        self.states = [{"config": config, "rows": [], "best": None, "steps": []}]

    def broadcast(self, value):
        return self.states.pop() if self.states else value


def test_worker_needs_no_paths_of_chief(tmp_path, monkeypatch):
    """Train as a worker that cannot read the directories of the chief."""
    own, hparams = {"num_symbols": 4, "longest": 5, "train_pairs": 30}, small(train_steps=2, beam_size=1)
    problem = kt.problem("reverse", data_dir=tmp_path / "data", **own)
    chief = kt.problem("reverse", data_dir="/chief/data", **own)
    workers = Follower(Run.configure(tmp_path / "run", chief, "", hparams).config)
    monkeypatch.setattr(trainer, "join", lambda *_: workers)
    with quick_runs():
        run = trainer.train_model(problem, hparams, tmp_path / "run")
    assert run.config["problem"]["data_dir"] == "/chief/data" and not hasattr(run, "problem")
    assert [row["step"] for row in run.metrics() if row["kind"] == "validation"] == [2] == run.checkpoints.steps()
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]


def test_worker_lost_is_raised_for_lost_connections_only():
    lost = ["Gloo all-reduce failed: Connection reset by peer", "The following tasks are unhealthy (stopped sending)"]
    for text in lost:
        with pytest.raises(WorkerLost, match="another worker is lost"), Meeting(0, 2, None).together():
            raise RuntimeError(text)
    for error in (ValueError("shapes differ"), kt.UserError("connection reset"), SystemExit(1)):
        with pytest.raises(type(error)) as found, Meeting(0, 2, None).together():
            raise error
        assert found.value is error
    assert WorkerLost.status == os.EX_TEMPFAIL != kt.UserError.status == 2
