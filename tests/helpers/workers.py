"""Several workers of one training, each a process of its own, as a cluster starts them."""

import json
import socket

import keras

from helpers.commands import spawn

BACKEND = keras.backend.backend()
DEVICES = 1 if BACKEND == "tensorflow" else 2
"""Of each worker; TensorFlow cannot be told from outside to split a CPU."""


def free_ports(count):
    """Returns ports that nobody listens at."""
    listeners = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def tf_config(addresses, index):
    """Returns TF_CONFIG of a worker."""
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})


def spawn_workers(count, *arguments, cwd):
    """Starts `train` in as many processes, and returns them."""
    addresses = [f"localhost:{port}" for port in free_ports(count)]
    processes = []
    for number in range(count):
        variables = {"KERAS_BACKEND": BACKEND, "TF_CPP_MIN_LOG_LEVEL": "3"}
        flags = ["--strategy=multiworker"]
        if BACKEND == "tensorflow":
            variables["TF_CONFIG"] = tf_config(addresses, number)
        else:
            flags += [f"--coordinator={addresses[0]}", f"--num_processes={count}", f"--process_id={number}"]
            variables["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
        processes.append(spawn("train", *arguments, *flags, cwd=cwd, variables=variables))
    return processes


def outcomes(processes, timeout):
    """Waits for processes; returns their (status, stdout, stderr). What is left after `timeout` seconds is killed."""
    found = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=timeout)
            found.append((process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
    return found
