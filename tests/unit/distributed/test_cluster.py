"""Tests of the addresses of a cluster, of waiting for other workers, and of invalid flags and environment variables."""

import json
import socket
import threading
import time

import keras
import pytest
from helpers.logs import logged_lines
from helpers.workers import free_ports, tf_config

import keras_transformer as kt
from keras_transformer.distributed import cluster
from keras_transformer.distributed.cluster import read_tf_config, wait_for_others

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"


@pytest.mark.skipif(not ON_TENSORFLOW, reason="only TensorFlow reads TF_CONFIG")
@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "--strategy=multiworker needs TF_CONFIG"),
        ("{", ", got {"),
        ('{"cluster": {"worker": ["a:1"]}}', "TF_CONFIG must look like"),
        ('{"cluster": ["a:1"], "task": {"type": "worker", "index": 0}}', "TF_CONFIG must look like"),
        (tf_config(["a:1", "b:1"], 2), "from 0 to 1, got 2. The cluster has 2 addresses for 'worker'."),
        (tf_config(["a:1", "b:1"], -1), "from 0 to 1, got -1. The cluster has 2 addresses for 'worker'."),
        (tf_config(["a:1"], 1), "from 0 to 0, got 1. The cluster has 1 address for 'worker'."),
        (tf_config(["a", "b:1"], 0), "'a' is not a valid address; use HOST:PORT"),
        (tf_config(["a:99999", "b:1"], 0), "'a:99999' is not a valid address"),
        (tf_config(["a:1", "a:1"], 0), "addresses must be unique, got a:1 twice"),
        (tf_config([], 0), "must be a job that has addresses in the cluster, got 'worker'"),
        ('{"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}', "got 'ps'"),
        (
            '{"cluster": {"worker": ["b:1"]}, "task": {"type": "chief", "index": 0}}',
            "must be a job that has addresses in the cluster, got 'chief'",
        ),
    ],
)
def test_train_rejects_wrong_tf_config(call, monkeypatch, tmp_path, config, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if config is not None:
        monkeypatch.setenv("TF_CONFIG", config)
    call("train", "--strategy=multiworker").refused(said)
    assert not list(tmp_path.iterdir())


def test_tf_config_numbers_workers_from_chief(monkeypatch):
    config = {"cluster": {"worker": ["b:1", "c:1"], "chief": ["a:1"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert read_tf_config() == (["a:1", "b:1", "c:1"], 2)


def test_workers_wait_for_each_other():
    addresses = [f"localhost:{port}" for port in free_ports(3)]
    all_met = threading.Event()

    def come(number):
        wait_for_others(addresses, number, 60)
        with socket.create_server(("", int(addresses[number].rpartition(":")[2]))):  # replaces TensorFlow's server
            all_met.wait(60)

    threads = [threading.Thread(target=come, args=(number,)) for number in range(3)]
    starts = [threading.Timer(seconds, thread.start) for seconds, thread in zip((0, 0.1, 4), threads)]
    with logged_lines() as lines:
        for start in starts:
            start.start()
        for start in starts:
            start.join()
        time.sleep(3 * cluster.POLL_SECONDS)
        all_met.set()
        for thread in threads:
            thread.join()
    assert sorted(lines) == [f"worker {number} is waiting for worker 2 at {addresses[2]}" for number in (0, 1)]


def test_waiting_reports_unresponsive_worker():
    addresses = [f"localhost:{port}" for port in free_ports(2)]
    with pytest.raises(kt.UserError, match=f"worker 1 at {addresses[1]} did not answer within 0.5 seconds"):
        wait_for_others(addresses, 0, 0.5)
    with pytest.raises(kt.UserError, match="worker 1 at nowhere.invalid:1 did not answer"):
        wait_for_others([addresses[0], "nowhere.invalid:1"], 0, 0)


def test_waiting_reports_port_in_use():
    with socket.create_server(("", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(kt.UserError, match=f"worker 0 cannot listen on {address}: Address already in use"):
            wait_for_others([address, "localhost:1"], 0, 1)


@pytest.mark.backend
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--coordinator=a:1"], "must be used together"),
        (["--coordinator=a:1", "--num_processes=2", "--process_id=2"], "--process_id must be from 0 to 1, got 2"),
        (["--coordinator=a", "--num_processes=2", "--process_id=1"], "--coordinator=a is not a valid address"),
    ],
)
def test_train_rejects_wrong_numbers_of_processes(call, given, said):
    call("train", *given).refused(said)


@pytest.mark.backend
def test_train_rejects_conflicting_strategy_flags(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    together = ["--coordinator=localhost:1", "--num_processes=2", "--process_id=1"]
    if ON_TENSORFLOW:
        call("train", *together).refused("--coordinator needs KERAS_BACKEND=jax")
        call("train", "--strategy=jax").refused("--strategy=jax needs KERAS_BACKEND=jax, got tensorflow")
        call("train", "--strategy=mirrored", "--jit_compile=on").refused("--jit_compile=on needs --strategy=one")
        call("train", "--strategy=mirrored", "--devices=5").refused("got 5; tensorflow finds 4: ")
    else:
        call("train", "--strategy=mirrored").refused("--strategy=mirrored needs KERAS_BACKEND=tensorflow, got jax")
        call("train", *together, "--strategy=one").refused(
            "--coordinator needs --strategy=multiworker, got --strategy=one"
        )
        keras.ops.zeros(1)  # JAX refuses to join after it has computed anything
        call("train", *together, "--worker_patience=60").refused("cannot join the other processes at localhost:1")
        with socket.create_server(("", 0)) as used:
            address = f"localhost:{used.getsockname()[1]}"
            call("train", f"--coordinator={address}", "--num_processes=2", "--process_id=0").refused(
                f"worker 0 cannot listen on {address}: Address already in use"
            )
        call("train", "--strategy=jax", "--devices=3").refused("got 3; jax finds 2: ")
    call("train", "--strategy=one", "--devices=2").refused("--strategy=one needs --devices=1, got --devices=2")
    name = "mirrored" if ON_TENSORFLOW else "jax"
    call("train", f"--strategy={name}", "--batch_tokens=32", "--max_length=32", "--devices=2").refused(
        "too few for 2 devices"
    )
