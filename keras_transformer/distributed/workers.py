"""Processes that train together, possibly on several machines, and their communication between updates.

Only worker 0, the chief, writes the run directory. It broadcasts the state that the others need.
Events that only one worker sees, such as signals, reach the others through all-reduce operations.
"""

import atexit
import contextlib
import hashlib
import json
import math
import os
import re
import sys
import threading

import keras
import numpy as np

from keras_transformer.distributed.cluster import Coordinator, listen, read_tf_config, wait_for_others
from keras_transformer.distributed.heartbeat import SILENCE, Heartbeat
from keras_transformer.distributed.strategy import make_strategy
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.progress import stop_bars

HEARTBEAT = 60
"""Seconds of silence from a worker after which JAX aborts. Must be longer than `SILENCE`, the limit of `Heartbeat`."""
JAX_EXTRA_PATIENCE = 60
"""Seconds that JAX waits for missing workers beyond the limit of `join`."""
CHUNK = 1 << 24
"""Maximum number of bytes in a broadcast."""
LOST = re.compile(
    r"[Gg]loo|NCCL|heartbeat|unhealthy|[Ss]ocket closed|[Cc]onnection (reset|closed|refused)|[Ff]ailed to connect"
)
"""Pattern that matches the backends' error messages for a lost worker."""


class WorkerLost(UserError):
    """Error for a lost worker. To resume from a checkpoint, rerun the same command on all workers."""

    status = os.EX_TEMPFAIL


class Workers:
    """The workers of a training run. This base class is for runs with a single worker.

    Attributes:
        number: Index of this worker, starting at 0.
        count: Number of workers.
    """

    number, count = 0, 1

    @property
    def is_chief(self):
        """True for the worker that writes the run directory."""
        return self.number == 0

    def all_reduce_sum(self, values):
        """Return the sum of `values`, int32 `[n]`, over all workers. All workers must call this method."""
        return np.asarray(values, np.int32)

    def any(self, condition):
        """Return whether the bool `condition` is true on any worker."""
        return bool(self.all_reduce_sum([int(condition)])[0])

    def broadcast(self, value):
        """Return the `value` of the chief, which must be JSON-serializable, on all workers."""
        return value

    def broadcast_arrays(self, arrays):
        """Return the `arrays` of the chief, {name: array}, on all workers."""
        return arrays

    def check_same(self, facts):
        """Raise a `UserError` on all workers if `facts`, {name: value}, differ between a worker and the chief."""
        own = {name: _digest(value) for name, value in facts.items()}
        expected = self.broadcast(own)
        differing = [name for name in own if own[name] != expected[name]]
        counts = np.zeros(self.count)
        counts[self.number] = len(differing)
        others = np.flatnonzero(self.all_reduce_sum(counts))
        if len(others):
            worker, names = (self.number, f" in {', '.join(differing)}") if differing else (others[0], "")
            raise UserError(
                f"worker {worker} differs from worker 0{names}; run the same command with the same corpus and "
                "package version on all workers"
            )

    def watch(self):
        """Start monitoring the other workers, unless the backend monitors them. Call this after corpus preparation."""

    @contextlib.contextmanager
    def together(self):
        """Convert the backend's error for a lost worker inside a `with` block to `WorkerLost`."""
        yield

    @contextlib.contextmanager
    def leaving(self):
        """After a `with` block, announce that this worker exits. If the block fails, do not wait for others at exit."""
        yield


class _SeveralWorkers(Workers):
    """Base class for two or more workers."""

    def broadcast(self, value):
        data = np.frombuffer(json.dumps(value).encode(), np.uint8) if self.is_chief else np.zeros(0, np.uint8)
        return json.loads(self._broadcast_bytes(data, int(self.all_reduce_sum([len(data)])[0])).tobytes())

    def broadcast_arrays(self, arrays):
        types = {name: [array.shape, array.dtype.str] for name, array in arrays.items()} if self.is_chief else None
        received = {}
        for name, (shape, dtype) in self.broadcast(types).items():
            size = np.dtype(dtype).itemsize * math.prod(shape)
            data = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8) if self.is_chief else None
            received[name] = self._broadcast_bytes(data, size).view(dtype).reshape(shape)
        return received

    def _broadcast_bytes(self, data, size):
        """Broadcast the chief's bytes, uint8 `[size]`, in chunks, and return them."""
        received = np.empty(size, np.uint8)
        for start in range(0, size, CHUNK):
            length = min(CHUNK, size - start)
            words = np.zeros(-(-length // 4), np.int32)
            if self.is_chief:
                words.view(np.uint8)[:length] = data[start : start + length]
            received[start : start + length] = self.all_reduce_sum(words).view(np.uint8)[:length]
        return received

    @contextlib.contextmanager
    def together(self):
        try:
            yield
        except (UserError, SystemExit):
            raise
        except Exception as error:
            if not LOST.search(f"{type(error).__name__}: {error}"):
                raise
            raise _lost(" ".join(str(error).split())[:200]) from error


class _TensorFlowWorkers(_SeveralWorkers):
    """Workers of a `tf.distribute.MultiWorkerMirroredStrategy`."""

    def __init__(self, strategy, number, count):
        self.strategy, self.number, self.count = strategy, number, count

    def all_reduce_sum(self, values):
        values = np.asarray(values, np.int64)  # int64, because TensorFlow does not place int32 on GPUs
        local = self.strategy.num_replicas_in_sync // self.count

        def replica_values(context):
            return values * (context.replica_id_in_sync_group % local == 0)

        per_replica = self.strategy.experimental_distribute_values_from_function(replica_values)
        return self.strategy.reduce("SUM", per_replica, axis=None).numpy().astype(np.int32)


class _JaxWorkers(_SeveralWorkers):
    """Processes of `jax.distributed`."""

    def __init__(self, store):
        import jax

        self.number, self.count = jax.process_index(), jax.process_count()
        self.heartbeat = Heartbeat(store, self.number, self.count, _exit_without)

    def watch(self):
        self.heartbeat.start()

    def all_reduce_sum(self, values):
        from jax.experimental.multihost_utils import process_allgather

        return np.asarray(process_allgather(np.asarray(values, np.int32), tiled=False)).sum(axis=0, dtype=np.int32)

    @contextlib.contextmanager
    def leaving(self):
        try:
            yield
        except Exception as error:
            # Otherwise JAX would wait for the others at exit for minutes, while they wait for this process.
            atexit.register(_exit_now, getattr(error, "status", 1))
            self.heartbeat.abandon()  # the caller may catch the error and keep this process alive
            raise
        except BaseException:  # a signal arrived
            self.heartbeat.end()
            raise
        self.heartbeat.end()


def _exit_now(status):
    """Exit without running JAX's exit handlers."""
    stop_bars()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def join(strategy, devices=None, coordinator=None, patience=300):
    """Connect to the other workers and return the `Workers`. Call this before the backend computes anything.

    Args:
        strategy: Name of the strategy, as in `make_strategy`. All except "multiworker" use a single process.
        devices: Number of devices of this process, or None for all.
        coordinator: `Coordinator` of JAX processes, or None to read it from the cluster's environment.
        patience: Maximum time to wait for the other workers, in seconds.

    Raises:
        UserError: The configuration is missing or invalid, or a worker does not respond.
    """
    if strategy != "multiworker":
        return Workers()
    if keras.backend.backend() == "jax":
        return _join_on_jax(coordinator or Coordinator(), patience)
    addresses, number = read_tf_config()
    wait_for_others(addresses, number, patience)
    strategy = make_strategy(strategy, devices)
    return _TensorFlowWorkers(strategy, number, len(addresses)) if len(addresses) > 1 else Workers()


def _join_on_jax(coordinator, patience):
    import jax

    address = coordinator.address or "the cluster"
    if coordinator.process_id == 0:
        listen(coordinator.address, 0).close()  # if the port is in use, JAX crashes
    # When JAX's own time limit is over, JAX aborts the process. Exit with an error message before.
    limit = threading.Timer(patience, _exit_alone, [address, patience])
    limit.daemon = True
    limit.start()
    try:
        jax.distributed.initialize(
            coordinator.address, coordinator.num_processes, coordinator.process_id,
            initialization_timeout=int(patience) + JAX_EXTRA_PATIENCE, heartbeat_timeout_seconds=HEARTBEAT,
        )  # fmt: skip
    except ValueError:  # the environment does not describe a cluster
        raise UserError(
            "--strategy=multiworker needs a cluster that JAX detects, such as Slurm, or "
            "--coordinator=HOST:PORT --num_processes=N --process_id=K"
        ) from None
    except RuntimeError as error:
        raise UserError(f"cannot join the other processes at {address}: {' '.join(str(error).split())}") from None
    finally:
        limit.cancel()
    if jax.process_count() == 1:
        return Workers()
    from jax._src.distributed import global_state  # JAX has no public API for its key-value store

    return _JaxWorkers(global_state.client)


def _exit_alone(address, patience):
    """Print an error for missing workers and exit, because the main thread waits for them inside JAX."""
    print(
        f"error: not all processes joined at {address} within {patience:g} seconds; check that all of them are running "
        "and that the address is right, or use --worker_patience=SECONDS to wait longer",
        file=sys.stderr,
    )
    _exit_now(UserError.status)


def _lost(why):
    return WorkerLost(
        f"another worker is lost ({why}); rerun the same command on all workers to resume from the last checkpoint"
    )


def _exit_without(other):
    """Print the error for a lost worker and exit, because the main thread may wait for that worker forever."""
    print(f"error: {_lost(f'no heartbeat from worker {other} for {SILENCE} seconds')}", file=sys.stderr)
    _exit_now(WorkerLost.status)


def _digest(value):
    """Return a hash of a JSON-serializable value, or of {name: array}."""
    digest = hashlib.sha256()
    if isinstance(value, dict) and any(isinstance(part, np.ndarray) for part in value.values()):
        for name in sorted(value):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(value[name]))
    else:
        digest.update(json.dumps(value, sort_keys=True).encode())
    return digest.hexdigest()
