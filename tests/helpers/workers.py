"""Functions that start training runs with several worker processes."""

import json
import socket

import keras

from helpers.commands import spawn

BACKEND = keras.backend.backend()
DEVICES = 1 if BACKEND == "tensorflow" else 2
"""Number of devices per worker. A TensorFlow worker has one, because no environment variable makes TensorFlow split the
CPU into several devices."""


def free_ports(count):
    """Return `count` free TCP ports."""
    listeners = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def tf_config(addresses, index):
    """Return the value of TF_CONFIG for the worker with this index."""
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})


def spawn_workers(count, *arguments, cwd):
    """Start `train` in `count` worker processes and return the processes. Each one prepares its own corpus."""
    addresses = [f"localhost:{port}" for port in free_ports(count)]
    processes = []
    for number in range(count):
        variables = {"KERAS_BACKEND": BACKEND, "TF_CPP_MIN_LOG_LEVEL": "3"}
        flags = ["--strategy=multiworker", f"--data_dir={cwd}/data-{number}"]  # as on machines without a shared disk
        if BACKEND == "tensorflow":
            variables["TF_CONFIG"] = tf_config(addresses, number)
        else:
            flags += [f"--coordinator={addresses[0]}", f"--num_processes={count}", f"--process_id={number}"]
            variables["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
        processes.append(spawn("train", *arguments, *flags, cwd=cwd, variables=variables))
    return processes


def outcomes(processes, timeout):
    """Wait for the processes and return their (status, stdout, stderr). On a timeout, kill them.

    Args:
        processes: The worker processes.
        timeout: Maximum number of seconds to wait for each process.

    Raises:
        subprocess.TimeoutExpired: A process did not end in time.
    """
    found = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=timeout)
            found.append((process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
    return found
