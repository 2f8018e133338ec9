"""Processes that train together, perhaps on several machines: what they tell each other between updates.

Worker 0 alone reads and writes the run directory. What the others have to know of it, and what each worker alone
knows, such as that a signal came, is told through sums over all workers.
"""

import atexit
import contextlib
import hashlib
import json
import math
import os
import re
import sys

import keras
import numpy as np

from keras_transformer.distributed.cluster import Coordinator, read_tf_config, wait_for_others
from keras_transformer.distributed.heartbeat import SILENCE, Heartbeat
from keras_transformer.distributed.strategy import make_strategy
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.progress import stop_bars

HEARTBEAT = 60
"""Seconds after which JAX itself gives up a worker that gives no sign of life, later than `Heartbeat` does; on
TensorFlow about 20, its own choice."""
PIECE = 1 << 24
"""Bytes that are told at once."""
LOST = re.compile(
    r"[Gg]loo|NCCL|heartbeat|unhealthy|[Ss]ocket closed|[Cc]onnection (reset|closed|refused)|[Ff]ailed to connect"
)
"""What the backends say when a worker is gone."""


class WorkerLost(UserError):
    """Another worker is gone; the same command, started again on all workers, goes on from the last checkpoint."""

    status = os.EX_TEMPFAIL


class Workers:
    """The workers of a training; this class is of one that is alone.

    Attributes:
        number: Which one this is, from 0.
        count: How many there are.
    """

    number, count = 0, 1

    @property
    def is_chief(self):
        """Whether this is the worker that has the run directory."""
        return self.number == 0

    def all_reduce_sum(self, values):
        """Returns the sum over workers of int32 `[n]`; all of them must call it."""
        return np.asarray(values, np.int32)

    def any(self, fact):
        """Returns whether a fact, a bool, is true of any worker."""
        return bool(self.all_reduce_sum([int(fact)])[0])

    def broadcast(self, value):
        """Returns the first worker's value, of what JSON can hold."""
        return value

    def broadcast_arrays(self, arrays):
        """Returns the first worker's {name: array}."""
        return arrays

    def check_same(self, facts):
        """Raises a `UserError` on all workers if one has other facts, {what they are: value}, than the first."""
        expected = self.broadcast({what: _digest(value) for what, value in facts.items()})
        differing = [what for what, value in facts.items() if _digest(value) != expected[what]]
        of_each = np.zeros(self.count)
        of_each[self.number] = len(differing)
        others = np.flatnonzero(self.all_reduce_sum(of_each))
        if len(others):
            what = f"its {differing[0]}" if differing else "what it trains on"
            raise UserError(
                f"worker {others[0]} would train something else than worker 0 ({what} differs); all workers need the "
                "same command, corpus and version of this package"
            )

    def watch(self):
        """Begins to watch whether the others are there, where the backend does not; once nothing holds Python up."""

    @contextlib.contextmanager
    def together(self):
        """Makes a `with` block, in which workers wait for each other, raise `WorkerLost` when another one is gone."""
        yield

    @contextlib.contextmanager
    def leaving(self):
        """Takes leave of the others after a `with` block; when it raises, the process will end without delay."""
        yield


class _Together(Workers):
    """More than one."""

    def broadcast(self, value):
        data = np.frombuffer(json.dumps(value).encode(), np.uint8) if self.is_chief else np.zeros(0, np.uint8)
        return json.loads(self._broadcast_bytes(data, int(self.all_reduce_sum([len(data)])[0])).tobytes())

    def broadcast_arrays(self, arrays):
        kinds = {name: [array.shape, array.dtype.str] for name, array in arrays.items()} if self.is_chief else None
        found = {}
        for name, (shape, dtype) in self.broadcast(kinds).items():
            size = np.dtype(dtype).itemsize * math.prod(shape)
            data = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8) if self.is_chief else None
            found[name] = self._broadcast_bytes(data, size).view(dtype).reshape(shape)
        return found

    def _broadcast_bytes(self, data, size):
        """The first worker's bytes, uint8 `[size]`, piece by piece."""
        found = np.empty(size, np.uint8)
        for start in range(0, size, PIECE):
            length = min(PIECE, size - start)
            words = np.zeros(-(-length // 4), np.int32)
            if self.is_chief:
                words.view(np.uint8)[:length] = data[start : start + length]
            found[start : start + length] = self.all_reduce_sum(words).view(np.uint8)[:length]
        return found

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


class _TensorFlowWorkers(_Together):
    """Workers of a `tf.distribute.MultiWorkerMirroredStrategy`."""

    def __init__(self, strategy, number, count):
        self.strategy, self.number, self.count = strategy, number, count

    def all_reduce_sum(self, values):
        values = np.asarray(values, np.int64)  # TensorFlow keeps int32 away from GPUs
        local = self.strategy.num_replicas_in_sync // self.count

        def of_replica(context):
            return values * (context.replica_id_in_sync_group % local == 0)

        each = self.strategy.experimental_distribute_values_from_function(of_replica)
        return self.strategy.reduce("SUM", each, axis=None).numpy().astype(np.int32)


class _JaxWorkers(_Together):
    """Processes of `jax.distributed`."""

    def __init__(self, store):
        import jax

        self.number, self.count = jax.process_index(), jax.process_count()
        self.heartbeat = Heartbeat(store, self.number, self.count, _leave_without)

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
            # JAX would wait for the others for minutes first, and they for us.
            atexit.register(_leave, getattr(error, "status", 1))
            raise
        except BaseException:  # a signal came
            self.heartbeat.end()
            raise
        self.heartbeat.end()


def _leave(status):
    stop_bars()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def join(strategy, devices=None, coordinator=None, patience=300):
    """Meets the other workers, before the backend computes anything; returns the `Workers`.

    Args:
        strategy: Of `make_strategy`; all but "multiworker" are of one process.
        devices: How many devices of this process, likewise.
        coordinator: On JAX, the `Coordinator`; None: the cluster's environment.
        patience: Seconds to wait for the others.

    Raises:
        UserError: There are none to be met, or they do not come.
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

    coordinator.check()
    where = coordinator.address or "the cluster"
    try:
        jax.distributed.initialize(
            coordinator.address, coordinator.num_processes, coordinator.process_id,
            initialization_timeout=int(patience), heartbeat_timeout_seconds=HEARTBEAT,
        )  # fmt: skip
    except ValueError:  # nothing in the environment
        raise UserError(
            "--strategy=multiworker needs a cluster that JAX knows, such as Slurm's, or "
            "--coordinator=HOST:PORT --num_processes=N --process_id=K"
        ) from None
    except RuntimeError as error:
        raise UserError(f"cannot join the other processes at {where}: {' '.join(str(error).split())}") from None
    if jax.process_count() == 1:
        return Workers()
    from jax._src.distributed import global_state  # JAX has no public way to its store

    return _JaxWorkers(global_state.client)


def _lost(why):
    return WorkerLost(
        f"another worker is gone ({why}); start the same command again on all workers: it goes on from the last "
        "checkpoint"
    )


def _leave_without(other):
    """Ends this process, whose main thread may wait for the lost one forever, as commands end at a `WorkerLost`."""
    print(f"error: {_lost(f'nothing was heard of worker {other} for {SILENCE} seconds')}", file=sys.stderr)
    _leave(WorkerLost.status)


def _digest(value):
    """A hash of what JSON can hold, or of {name: array}."""
    digest = hashlib.sha256()
    if isinstance(value, dict) and any(isinstance(part, np.ndarray) for part in value.values()):
        for name in sorted(value):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(value[name]))
    else:
        digest.update(json.dumps(value, sort_keys=True).encode())
    return digest.hexdigest()
