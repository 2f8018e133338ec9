"""Test of a training run on JAX with two workers, one of which hangs."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading

import keras
import pytest
from helpers.workers import free_ports

from keras_transformer.distributed.heartbeat import SILENCE
from keras_transformer.distributed.workers import WorkerLost

JOINED = """
    import sys
    from keras_transformer.distributed.cluster import Coordinator
    from keras_transformer.distributed.workers import join
    workers = join("multiworker", coordinator=Coordinator(sys.argv[1], 2, int(sys.argv[2])))
    workers.watch()
    print("joined", flush=True)
    with workers.leaving(), workers.together():
        while True:
            workers.all_reduce_sum([1])
"""


@pytest.mark.backend
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="TensorFlow itself detects a worker that hangs")
def test_hanging_worker_stops_others_with_remedy():
    (port,) = free_ports(1)
    command = [sys.executable, "-c", textwrap.dedent(JOINED), f"localhost:{port}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first, second = (subprocess.Popen([*command, str(number)], **pipes) for number in range(2))
    drained = threading.Thread(target=second.stderr.read)
    drained.start()
    try:
        assert all(process.stdout.readline() == "joined\n" for process in (first, second))
        second.send_signal(signal.SIGSTOP)
        _, err = first.communicate(timeout=2 * SILENCE)
    finally:
        first.kill()
        second.kill()
        drained.join()
    assert first.returncode == WorkerLost.status == os.EX_TEMPFAIL, err
    # Usually the heartbeat detects the hanging worker. On a busy machine, JAX may detect it first.
    said = r"another worker is lost \((no heartbeat from worker 1|.*Gloo).* to resume from"
    assert re.search(said, err.splitlines()[-1]), err
