"""Which processes train together, as the user or the cluster says it."""

import dataclasses
import json
import logging
import os
import socket
import time

from keras_transformer.utils.errors import UserError

logger = logging.getLogger(__name__)

EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
BETWEEN = 0.2
"""Seconds from one look for the others to the next."""


@dataclasses.dataclass(frozen=True)
class Coordinator:
    """Where JAX's processes meet; each None where the cluster's environment says it, such as Slurm's.

    Attributes:
        address: "host:port" of process 0.
        num_processes: How many there are.
        process_id: The number of this one, from 0.
    """

    address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None

    def check(self):
        """Raises a `UserError` if it cannot be."""
        given = [value is not None for value in (self.address, self.num_processes, self.process_id)]
        if any(given) and not all(given):
            raise UserError("--coordinator, --num_processes and --process_id belong together; give all three, or none")
        if not any(given):
            return
        _split(self.address, f"--coordinator={self.address}")
        if self.num_processes < 1:
            raise UserError(f"--num_processes={self.num_processes} must be at least 1")
        if not 0 <= self.process_id < self.num_processes:
            raise UserError(
                f"--process_id={self.process_id} is none of {self.num_processes} processes; they are counted from 0"
            )


def read_tf_config():
    """Returns the addresses of all workers and the number of this one, from the environment's TF_CONFIG.

    Raises:
        UserError: There is none, or it cannot be.
    """
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise UserError(f"--strategy=multiworker needs TF_CONFIG in the environment, such as {EXAMPLE}")
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        kind, index = task["type"], task["index"]
        jobs = {name: [str(address) for address in addresses] for name, addresses in cluster.items()}
        index = int(index)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"TF_CONFIG={text} is none; it looks like {EXAMPLE}") from None
    if others := sorted(jobs.keys() - {"chief", "worker"}):
        raise UserError(f"TF_CONFIG has the job {others[0]!r}; --strategy=multiworker has workers (and a chief) only")
    if kind not in jobs:
        raise UserError(f"TF_CONFIG: the task's type {kind!r} is no job of the cluster")
    if not 0 <= index < len(jobs[kind]):
        raise UserError(
            f"TF_CONFIG: the task's index {index} is out of range; the cluster has {len(jobs[kind])} of type {kind!r}, "
            "counted from 0"
        )
    chiefs, workers = jobs.get("chief", []), jobs.get("worker", [])
    addresses = chiefs + workers
    for address in addresses:
        _split(address, f"TF_CONFIG: {address!r}")
        if addresses.count(address) > 1:
            raise UserError(f"TF_CONFIG: {address} stands there twice; each worker needs an address of its own")
    return addresses, index + (len(chiefs) if kind == "worker" else 0)


def wait_for_others(addresses, number, patience):
    """Waits until all other workers answer at their addresses, as this one does at its own meanwhile.

    Args:
        addresses: "host:port" of each worker.
        number: That of this one.
        patience: Seconds to wait at most.

    Raises:
        UserError: One does not answer in time, or this one's port is taken.
    """
    port = _split(addresses[number], addresses[number])[1]
    began, told = time.monotonic(), False
    both = {"family": socket.AF_INET6, "dualstack_ipv6": True} if socket.has_dualstack_ipv6() else {}
    try:
        own = socket.create_server(("", port), **both)
    except OSError as error:
        raise UserError(f"worker {number} cannot listen at {addresses[number]}: {error.strerror}") from None
    with own:
        missing = {other: "" for other in range(len(addresses)) if other != number}
        while missing:
            missing = {other: why for other in missing if (why := _silence(addresses[other]))}
            waited = time.monotonic() - began
            if missing and waited >= patience:
                other, why = next(iter(missing.items()))
                raise UserError(
                    f"worker {other} at {addresses[other]} does not answer after {patience:g} seconds ({why}); see "
                    "whether it runs and the address is right, or wait longer: --worker_patience=SECONDS"
                )
            if missing and waited > 2 and not told:
                others = ", ".join(f"{other} at {addresses[other]}" for other in missing)
                logger.info(f"worker {number} waits for {others}")
                told = True
            time.sleep(BETWEEN if missing else 0)


def _silence(address):
    """Why nobody answers at an address; nothing if somebody does."""
    try:
        socket.create_connection(_split(address, address), timeout=2).close()
    except OSError as error:
        return error.strerror or str(error)


def _split(address, what):
    """("host", port) of "host:port"."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 1 << 16):
        raise UserError(f"{what} is no address; it is HOST:PORT, with a port from 1 to 65535")
    return host.strip("[]"), int(port)
