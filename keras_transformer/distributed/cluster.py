"""Addresses of the processes that train together, given by flags or by the environment of the cluster."""

import dataclasses
import json
import logging
import os
import socket
import time

from keras_transformer.utils.errors import UserError

logger = logging.getLogger(__name__)

EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
POLL_SECONDS = 0.2
"""Seconds between attempts to reach the other workers."""


@dataclasses.dataclass(frozen=True)
class Coordinator:
    """Address at which JAX processes connect, number of processes, and index of this process.

    If all values are None, JAX reads them from the environment of a cluster manager such as Slurm.

    Attributes:
        address: "host:port" of process 0.
        num_processes: Number of processes.
        process_id: Index of this process, starting at 0.

    Raises:
        UserError: The values are incomplete or invalid.
    """

    address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None

    def __post_init__(self):
        given = [value is not None for value in (self.address, self.num_processes, self.process_id)]
        if any(given) and not all(given):
            raise UserError(
                "--coordinator, --num_processes and --process_id must be used together. Set all three or none."
            )
        if not any(given):
            return
        _split(self.address, f"--coordinator={self.address}")
        if self.num_processes < 1:
            raise UserError(f"--num_processes must be at least 1, got {self.num_processes}")
        if not 0 <= self.process_id < self.num_processes:
            raise UserError(f"--process_id must be from 0 to {self.num_processes - 1}, got {self.process_id}")


def read_tf_config():
    """Parse the environment variable TF_CONFIG. Return the addresses of all workers and the index of this worker.

    Raises:
        UserError: TF_CONFIG is missing or invalid.
    """
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise UserError(f"--strategy=multiworker needs TF_CONFIG in the environment, for example {EXAMPLE}")
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        kind, index = task["type"], task["index"]
        jobs = {name: [str(address) for address in addresses] for name, addresses in cluster.items()}
        index = int(index)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"TF_CONFIG must look like {EXAMPLE}, got {text}") from None
    if others := sorted(jobs.keys() - {"chief", "worker"}):
        raise UserError(
            f"TF_CONFIG: jobs must be 'chief' or 'worker' for --strategy=multiworker, got {others[0]!r}; remove it"
        )
    if not jobs.get(kind):
        raise UserError(f"TF_CONFIG: the task type must be a job that has addresses in the cluster, got {kind!r}")
    count = len(jobs[kind])
    if not 0 <= index < count:
        raise UserError(
            f"TF_CONFIG: the task index must be from 0 to {count - 1}, got {index}. The cluster has {count} "
            f"address{'es' * (count > 1)} for {kind!r}."
        )
    chiefs, workers = jobs.get("chief", []), jobs.get("worker", [])
    addresses = chiefs + workers
    for address in addresses:
        _split(address, f"TF_CONFIG: {address!r}")
        if addresses.count(address) > 1:
            raise UserError(f"TF_CONFIG: addresses must be unique, got {address} twice")
    return addresses, index + (len(chiefs) if kind == "worker" else 0)


def wait_for_others(addresses, number, patience):
    """Wait until all other workers accept connections. Meanwhile, accept connections from them.

    Args:
        addresses: "host:port" of each worker.
        number: Index of this worker.
        patience: Maximum waiting time in seconds.

    Raises:
        UserError: A worker does not respond in time, or this worker cannot listen on its port.
    """
    began, logged = time.monotonic(), False
    with listen(addresses[number], number):
        missing = {other: "" for other in range(len(addresses)) if other != number}
        while missing:
            missing = {other: why for other in missing if (why := _connection_error(addresses[other]))}
            waited = time.monotonic() - began
            if missing and waited >= patience:
                other, why = next(iter(missing.items()))
                raise UserError(
                    f"worker {other} at {addresses[other]} did not answer within {patience:g} seconds ({why}); check "
                    "that it is running and that the address is right, or use --worker_patience=SECONDS to wait longer"
                )
            if missing and waited > 2 and not logged:
                others = ", ".join(f"{other} at {addresses[other]}" for other in missing)
                logger.info(f"worker {number} is waiting for worker {others}")
                logged = True
            time.sleep(POLL_SECONDS if missing else 0)


def listen(address, number):
    """Return a socket that accepts connections on the port of an address. `number` is the index of this worker.

    Raises:
        UserError: The port is in use, or is not allowed.
    """
    both = {"family": socket.AF_INET6, "dualstack_ipv6": True} if socket.has_dualstack_ipv6() else {}
    try:
        return socket.create_server(("", _split(address, address)[1]), **both)
    except OSError as error:
        raise UserError(f"worker {number} cannot listen on {address}: {error.strerror}") from None


def _connection_error(address):
    """Try to connect to an address. Return the error message, or None if the connection succeeds."""
    try:
        socket.create_connection(_split(address, address), timeout=2).close()
    except OSError as error:
        return error.strerror or str(error)


def _split(address, what):
    """Split "host:port" into ("host", port). `what` describes the address in error messages."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 1 << 16):
        raise UserError(f"{what} is not a valid address; use HOST:PORT with a port from 1 to 65535")
    return host.strip("[]"), int(port)
