"""Tests of the heartbeat of workers, which detects that another worker has died or hangs."""

import contextlib
import signal
import time

import keras
import pytest

from keras_transformer.distributed import heartbeat as heartbeat_module
from keras_transformer.distributed import workers as workers_module
from keras_transformer.distributed.heartbeat import DONE, Heartbeat
from keras_transformer.distributed.workers import _JaxWorkers
from keras_transformer.training.signals import Interrupted


class Store(dict):
    """Key-value store like that of a JAX coordinator. Writing fails once `open` is False."""

    open = True

    def key_value_set(self, key, value, allow_overwrite):
        if not self.open or not allow_overwrite:
            raise RuntimeError("UNAVAILABLE")
        self[key] = value

    def key_value_dir_get(self, folder):
        return [(key, value) for key, value in sorted(self.items()) if key.startswith(folder)]


def started(store, number, count, **seconds):
    """Start a `Heartbeat`. Return the heartbeat, and the list to which it adds lost processes."""
    lost = []
    heartbeat = Heartbeat(store, number, count, lost.append, **seconds)
    heartbeat.start()
    return heartbeat, lost


def test_heartbeat_runs_until_store_closes():
    store = Store()
    all_of_them = [started(store, number, 3, every=0.01, silence=60) for number in range(3)]
    deadline = time.monotonic() + 30
    while len(store) < 3 or min(map(int, store.values())) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert all(heartbeat.is_alive() for heartbeat, _ in all_of_them)
    store.open = False
    for heartbeat, lost in all_of_them:
        heartbeat.join(5)
        assert not heartbeat.is_alive() and not lost


def test_heartbeat_reports_silent_worker():
    store = Store({"present/1": "7"})
    began = time.monotonic()
    heartbeat, lost = started(store, 0, 3, every=0.01, silence=0.5)
    other, _ = started(store, 2, 3, every=0.01, silence=60)
    heartbeat.join(10)
    assert lost == [1] and time.monotonic() - began >= 0.5 and other.is_alive()
    store.open = False


def test_heartbeat_waits_for_workers_to_start():
    store = Store()
    heartbeat, lost = started(store, 0, 2, every=0.01, silence=0.2)
    time.sleep(1)
    assert heartbeat.is_alive() and not lost
    store["present/1"] = "1"
    heartbeat.join(10)
    assert lost == [1]


def test_heartbeat_ignores_its_own_pause(monkeypatch):
    """Advance the clock by an hour, as if the machine had been suspended."""
    clock = {"now": 0.0}
    monkeypatch.setattr(heartbeat_module.time, "monotonic", lambda: clock["now"])
    naps = iter([1, 1, 3600, 1, 1])

    def sleep(seconds):
        clock["now"] += next(naps, None) or stop()

    def stop():
        raise SystemExit

    lost = []
    heartbeat = Heartbeat(Store({"present/1": "7"}), 0, 2, lost.append)
    monkeypatch.setattr(heartbeat.over, "wait", sleep)
    with pytest.raises(SystemExit):
        heartbeat.run()
    assert not lost


def test_heartbeat_does_not_miss_finished_worker():
    store = Store()
    heartbeat, lost = started(store, 0, 2, every=0.01, silence=0.2)
    other, _ = started(store, 1, 2, every=60, silence=60)
    while "present/1" not in store:
        time.sleep(0.01)
    other.end()
    assert not other.is_alive() and store["present/1"] == DONE
    time.sleep(1)
    assert heartbeat.is_alive() and not lost
    heartbeat.end()


@pytest.mark.parametrize("watches", [True, False])
def test_heartbeat_stops_silently_after_an_error(monkeypatch, watches):
    """Check that the others notice an error of a worker whose caller catches the error and keeps the process alive."""
    monkeypatch.setattr(workers_module.atexit, "register", lambda *_: None)
    worker, store = object.__new__(_JaxWorkers), Store()
    worker.heartbeat = Heartbeat(store, 1, 2, None, every=0.01)
    with contextlib.suppress(ValueError), worker.leaving():
        if watches:
            worker.watch()
            while "present/1" not in store:
                time.sleep(0.01)
        raise ValueError
    other, lost = started(store, 0, 2, every=0.01, silence=0.5)
    other.join(10)
    assert lost == [1] and store["present/1"] != DONE


@pytest.mark.backend
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="TensorFlow watches its workers by itself")
@pytest.mark.parametrize("ending", [None, Interrupted(signal.SIGTERM)])
def test_heartbeat_ends_before_python_exits(ending):
    """Check that the thread stops in time. Python would abort if a call to JAX's store returned during exit."""
    workers = _JaxWorkers(Store())
    with contextlib.suppress(Interrupted), workers.leaving():
        workers.watch()
        assert workers.heartbeat.is_alive()
        if ending:
            raise ending
    assert not workers.heartbeat.is_alive() and workers.heartbeat.store["present/0"] == DONE
