"""Contract 2 over processes: two workers make the update of one, and end and go on together."""

import json
import os
import signal
import socket
import threading
import time

import keras
import numpy as np
import pytest
from helpers.training_alike import small
from helpers.workers import DEVICES, free_ports, outcomes, spawn_workers, tf_config
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_transformer as kt
from keras_transformer.runs.directory import Run
from keras_transformer.runs.shadow import ShadowRun, state_of
from keras_transformer.training import cluster
from keras_transformer.training.cluster import Coordinator, read_tf_config, wait_for_others
from keras_transformer.training.signals import MEET_EVERY, SharedStop, StopRequest
from keras_transformer.training.trainer import train
from keras_transformer.training.workers import WorkerLost, Workers, _Together

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
PARAMETERS = {"num_symbols": 4, "longest": 5, "train_pairs": 30}
PATIENCE = 240
"""Seconds for a training of a few updates; machines may be busy, and each worker compiles."""


def flags(folder, run, **hparams):
    """The flags of a training that is small and uneven, and the `HParams` that they give."""
    changes = {"batch_tokens": 32, "beam_size": 1, "extra_length": 2, "checkpoint_minutes": 0, **hparams}
    own = small(**changes)
    names = ("num_layers", "d_model", "d_ff", "num_heads", "dropout", "warmup_steps", *changes)
    given = [f"--{name}={getattr(own, name)}" for name in names]
    given += [argument for name, value in PARAMETERS.items() for argument in ("--set", f"problem.{name}={value}")]
    return ["--problem=reverse", "--hparams=base", f"--data_dir={folder}/data", f"--output_dir={run}", *given], own


def trained_alone(folder, hparams, run):
    problem = kt.problem("reverse", data_dir=folder / "data", **PARAMETERS)
    return train(problem, hparams, run, preset="base", strategy="one", report=str)


@pytest.mark.backend
def test_multiworker_trains_as_one_does_and_a_run_may_change_between_them(tmp_path):
    arguments, _ = flags(tmp_path, "run", train_steps=4, eval_steps=4, checkpoint_steps=2)
    (status, out, err), second = outcomes(spawn_workers(2, *arguments, cwd=tmp_path), PATIENCE)
    assert (status, second[0]) == (0, 0), err + second[2]
    assert f"  devices   {2 * DEVICES} devices of 2 workers; " in out and "validation at step 4" in out
    assert "worker 1 of 2 trains along; worker 0 reports" in second[1].splitlines() and "step 4" not in second[1]
    _, hparams = flags(tmp_path, "run", train_steps=6, eval_steps=4, checkpoint_steps=2)
    runs = [trained_alone(tmp_path, hparams, tmp_path / name) for name in ("run", "alone")]
    assert runs[0].checkpoints.steps() == runs[1].checkpoints.steps() == [2, 4, 6]
    for step in (4, 6):
        (found, _), (expected, _) = (run.checkpoints.load(step) for run in runs)
        for part in expected:
            assert found[part].keys() == expected[part].keys()
            for path, value in expected[part].items():
                np.testing.assert_allclose(found[part][path], value, rtol=0, atol=1e-5, err_msg=path)
    names = {"train": ("loss", "nll", "gradient_norm"), "validation": ("loss", "nll", "score")}
    for kind, steps in (("train", [2, 4, 6]), ("validation", [4, 6])):
        found, expected = ([row for row in run.metrics() if row["kind"] == kind] for run in runs)
        assert [row["step"] for row in found] == [row["step"] for row in expected] == steps
        for row, wanted in zip(found, expected):
            for name in names[kind]:
                assert row[name] == pytest.approx(wanted[name], rel=1e-4), (kind, name)


def test_a_multiworker_job_ends_when_a_worker_dies_and_goes_on_until_one_is_asked_to_stop(tmp_path):
    arguments, _ = flags(tmp_path, "run", train_steps=100_000, eval_steps=100_000, checkpoint_steps=MEET_EVERY)
    first, second = spawn_workers(2, *arguments, cwd=tmp_path)
    steps = Run.planned(tmp_path / "run", *planned(tmp_path)).checkpoints.steps
    try:
        wait_until(lambda: steps() or first.poll() is not None)
        second.kill()
        began = time.monotonic()
        (status, _, err), _ = outcomes([first, second], PATIENCE)
    finally:
        first.kill()
    assert status == WorkerLost.status, err
    assert time.monotonic() - began < 60
    assert err.splitlines()[-1].startswith("error: another worker is gone") and "goes on from" in err

    before = steps()[-1]
    first, second = spawn_workers(2, *arguments, cwd=tmp_path)
    try:
        wait_until(lambda: steps()[-1] > before or first.poll() is not None)
        second.send_signal(signal.SIGTERM)
        found = outcomes([first, second], PATIENCE)
    finally:
        first.kill()
    assert [status for status, _, _ in found] == [128 + signal.SIGTERM] * 2, [err for _, _, err in found]
    out = found[0][1]
    assert any(line.startswith("  resuming after update ") for line in out.splitlines())
    assert f"SIGTERM: stopped after update {steps()[-1]:,}" in out


def planned(folder):
    problem = kt.problem("reverse", data_dir=folder / "data", **PARAMETERS)
    return problem, "transformer", "base", small()


def wait_until(true):
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.skipif(not ON_TENSORFLOW, reason="TF_CONFIG is TensorFlow's")
@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "--strategy=multiworker needs TF_CONFIG"),
        ("{", "TF_CONFIG={ is none; it looks like"),
        ('{"cluster": {"worker": ["a:1"]}}', "is none; it looks like"),
        ('{"cluster": ["a:1"], "task": {"type": "worker", "index": 0}}', "is none; it looks like"),
        (tf_config(["a:1", "b:1"], 2), "index 2 is out of range; the cluster has 2"),
        (tf_config(["a:1", "b:1"], -1), "index -1 is out of range"),
        (tf_config(["a", "b:1"], 0), "'a' is no address; it is HOST:PORT"),
        (tf_config(["a:99999", "b:1"], 0), "'a:99999' is no address"),
        (tf_config(["a:1", "a:1"], 0), "a:1 stands there twice"),
        (tf_config([], 0), "index 0 is out of range; the cluster has 0"),
        ('{"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}', "the job 'ps'"),
        ('{"cluster": {"worker": ["b:1"]}, "task": {"type": "chief", "index": 0}}', "type 'chief' is no job"),
    ],
)
def test_a_tf_config_that_cannot_be_is_told(call, monkeypatch, tmp_path, config, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if config is not None:
        monkeypatch.setenv("TF_CONFIG", config)
    call("train", "--strategy=multiworker").refused(said)
    assert not list(tmp_path.iterdir())


def test_workers_are_counted_from_the_chief(monkeypatch):
    config = {"cluster": {"worker": ["b:1", "c:1"], "chief": ["a:1"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert read_tf_config() == (["a:1", "b:1", "c:1"], 2)


def test_workers_wait_for_each_other():
    addresses = [f"localhost:{port}" for port in free_ports(3)]
    said, all_met = [], threading.Event()

    def come(number, report=str):
        wait_for_others(addresses, number, 60, report)
        with socket.create_server(("", int(addresses[number].rpartition(":")[2]))):  # as TensorFlow's does from now on
            all_met.wait(60)

    others = [threading.Thread(target=come, args=(number,)) for number in (1, 2)]
    starts = [threading.Timer(seconds, thread.start) for seconds, thread in zip((0.1, 8), others)]
    for start in starts:
        start.start()
    own = threading.Thread(target=come, args=(0, said.append))
    own.start()
    for start in starts:
        start.join()
    time.sleep(3 * cluster.BETWEEN)
    all_met.set()
    for thread in (own, *others):
        thread.join()
    assert said == [f"worker 0 waits for 2 at {addresses[2]}"]


def test_a_worker_that_does_not_come_is_told():
    addresses = [f"localhost:{port}" for port in free_ports(2)]
    with pytest.raises(kt.UserError, match=f"worker 1 at {addresses[1]} does not answer after 0.5 seconds"):
        wait_for_others(addresses, 0, 0.5, str)
    with pytest.raises(kt.UserError, match="worker 1 at nowhere.invalid:1 does not answer"):
        wait_for_others([addresses[0], "nowhere.invalid:1"], 0, 0, str)


def test_a_port_that_is_taken_is_told():
    with socket.create_server(("", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(kt.UserError, match=f"worker 0 cannot listen at {address}: Address already in use"):
            wait_for_others([address, "localhost:1"], 0, 1, str)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--coordinator=a:1"], "belong together"),
        (["--coordinator=a:1", "--num_processes=2", "--process_id=2"], "--process_id=2 is none of 2 processes"),
        (["--coordinator=a", "--num_processes=2", "--process_id=1"], "--coordinator=a is no address"),
    ],
)
def test_processes_that_cannot_be_are_told(call, given, said):
    call("train", *given).refused(said)


def test_strategies_that_do_not_go_together_are_told(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    together = ["--coordinator=localhost:1", "--num_processes=2", "--process_id=1"]
    if ON_TENSORFLOW:
        call("train", *together).refused("--coordinator needs KERAS_BACKEND=jax")
        call("train", "--strategy=mirrored", "--jit_compile=on").refused("--jit_compile=on needs --strategy=one")
        call("train", "--strategy=mirrored", "--devices=5").refused("--devices=5, but tensorflow sees 4")
    else:
        call("train", *together, "--strategy=one").refused("--coordinator is of several processes")
        call("train", *together, "--worker_patience=1").refused("cannot join the other processes at localhost:1")
        call("train", "--strategy=jax", "--devices=3").refused("--devices=3, but jax sees 2")
    call("train", "--strategy=one", "--devices=2").refused("--strategy=one is of one device")
    call("train", "--strategy=multiworker", "--memory_trial=on").refused("--memory_trial=on is of one process")
    name = "mirrored" if ON_TENSORFLOW else "jax"
    call("train", f"--strategy={name}", "--batch_tokens=32", "--max_length=32", "--devices=2").refused(
        "too few for 2 devices"
    )
    assert Coordinator().check() is None


class Meeting(_Together):
    """Workers that are threads."""

    def __init__(self, number, count, board):
        self.number, self.count, self.board = number, count, board

    def total(self, values):
        barrier, parts = self.board
        parts[self.number] = np.asarray(values, np.int32)
        barrier.wait(60)
        found = sum(parts.values())
        barrier.wait(60)
        return found


def in_threads(count, function):
    """Returns what a function of `Workers` returns, or raises, on each of several."""
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


@settings(deadline=None, max_examples=30)
@given(values, st.integers(2, 4))
def test_all_workers_are_told_what_the_first_one_knows(value, count):
    found = in_threads(count, lambda workers: workers.told(value if workers.is_first else "another"))
    assert found == [value] * count
    assert Workers().told(value) == value


@pytest.mark.parametrize("piece", (8, 1 << 20))
def test_all_workers_are_told_the_same_bits(monkeypatch, piece, fresh_seed):
    monkeypatch.setattr("keras_transformer.training.workers.PIECE", piece)
    random = np.random.default_rng(fresh_seed)
    arrays = {
        "weights": random.normal(size=(3, 5)).astype("float32"),
        "rare": np.array([-0.0, np.nan, np.inf, 1e-45], "float32"),
        "step": np.array(7, "int64"),
        "seed": random.integers(2**32, size=3).astype("uint32"),
        "flags": np.array([True, False, True]),
        "nothing": np.zeros((0, 4), "float32"),
    }
    for found in in_threads(3, lambda workers: workers.told_arrays(arrays if workers.is_first else None)):
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
            assert found[name].tobytes() == array.tobytes()


def test_workers_that_would_train_something_else_are_told_on_all():
    def check(workers):
        corpus = {"train": "a" if workers.number != 2 else "b"}
        workers.check_same({"settings": [1, 2], "corpus": corpus, "first weights": {"w": np.ones(3)}})

    found = in_threads(3, check)
    assert all("worker 2 would train something else than worker 0" in str(error) for error in found)
    assert "its corpus differs" in str(found[2])
    assert in_threads(2, lambda workers: workers.check_same({"weights": {"w": np.ones(3)}})) == [None, None]


def test_a_signal_to_one_worker_is_seen_by_all_at_once():
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


def test_a_shadow_of_a_run_decides_as_it_does_and_writes_nothing(home, tmp_path):
    run = Run.open(home.run)
    shadow = ShadowRun(tmp_path / "shadow", run.config, json.loads(json.dumps(state_of(run))))
    for one in ("best", "steps"):
        assert getattr(shadow.checkpoints, one)() == getattr(run.checkpoints, one)()
    assert [row for row in run.metrics() if row["kind"] == "validation"] == shadow.metrics()
    with shadow.locked(), shadow.written("file") as file:
        file.write("text")
    shadow.create()
    shadow.describe({})
    shadow.log(kind="validation", step=9)
    shadow.checkpoints.save(9, {}, {})
    shadow.checkpoints.mark_best(9, {"score": 1.0})
    shadow.checkpoints.prune(1)
    assert shadow.metrics()[-1]["step"] == shadow.checkpoints.best_step() == shadow.checkpoints.steps()[-1] == 9
    assert not list(tmp_path.iterdir())


def test_only_a_lost_worker_is_taken_for_one():
    lost = ["Gloo all-reduce failed: Connection reset by peer", "The following tasks are unhealthy (stopped sending)"]
    for text in lost:
        with pytest.raises(WorkerLost, match="another worker is gone"), Meeting(0, 2, None).together():
            raise RuntimeError(text)
    for error in (ValueError("shapes differ"), kt.UserError("connection reset"), SystemExit(1)):
        with pytest.raises(type(error)) as found, Meeting(0, 2, None).together():
            raise error
        assert found.value is error
    assert WorkerLost.status == os.EX_TEMPFAIL != kt.UserError.status == 2
