"""Ahead-of-time compilation of the update on JAX, for all batch shapes of a run in parallel."""

import concurrent.futures
import functools
import logging
import threading
import time

import jax

from keras_transformer.training.callbacks.base import StepCallback
from keras_transformer.utils.machine import usable_cores
from keras_transformer.utils.timing import duration

logger = logging.getLogger(__name__)

MAX_THREADS = 16
"""Maximum number of compilation threads. More threads could need more memory than the update itself."""
QUICK = 1.0
"""Minimum compilation time, in seconds, for a log message."""
CACHE_HIT = "/jax/compilation_cache/cache_hits"

_cache_hits = threading.local()


class CompileAhead(StepCallback):
    """Callback and context manager that compiles the update for all batch shapes, in the order of their first use.

    Each update starts as soon as its batch shape is compiled. Keras calls the same jitted function as without
    this callback, so results do not change. JAX also caches executables in `jax_compilation_cache_dir`.

    Args:
        start: Number of updates before this call to `fit`.
        batches: Training `TokenBatches`, adapted to the devices of the model.
        updates: Maximum number of updates in this call to `fit`.
    """

    def __init__(self, start, batches, updates):
        super().__init__(start)
        self._start, self._batches, self._shapes = start, batches, batches.shapes(updates)
        self._threads = max(1, min(len(self._shapes), usable_cores(), MAX_THREADS))
        self._pool = concurrent.futures.ThreadPoolExecutor(self._threads, "compile")
        self._tracing = threading.Lock()  # tracing holds the GIL, and layers do not support concurrent traces
        self._tasks = {}

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._pool.shutdown(wait=False, cancel_futures=True)

    def on_train_begin(self, logs=None):
        _listen()
        # Each access to `self.model` makes Keras write to the variables. The compilation threads must not do this.
        model, self._began = self.model, time.monotonic()
        state = _state_types(model)  # read now, because `fit` later removes the values from the variables
        self._tasks = {shape: self._pool.submit(self._compile, model, state, shape) for shape in self._shapes}
        self._is_announced = False

    def on_train_batch_begin(self, batch, logs=None):
        if not self._tasks:
            return
        first = self._tasks[self._batches.shape(self.step - self._start)].result()[0]
        if not self._is_announced and first >= QUICK and len(self._tasks) > 1:
            left = first * (len(self._tasks) - 1) / self._threads
            logger.info(
                f"  compiled the update for the first of {len(self._tasks)} batch shapes in {first:.1f} s; the others "
                f"take about {duration(left)} in {self._threads} thread{'s' * (self._threads > 1)}, during the first "
                "updates"
            )
        self._is_announced = True
        if all(task.done() for task in self._tasks.values()):
            self._report()

    def on_end(self, step):
        if self._tasks and not self.model.stop_training:
            self._report()

    def _report(self):
        """Log the total compilation time, and clear the tasks."""
        results = [task.result() for task in self._tasks.values()]
        seconds, hits = max(ended for _, _, ended in results) - self._began, sum(hit for _, hit, _ in results)
        if seconds >= QUICK:
            cached = f", {hits} of them from {jax.config.jax_compilation_cache_dir}" if hits else ""
            logger.info(f"  compiled the update for {len(results)} batch shapes in {seconds:.1f} s{cached}")
        self._tasks = {}

    def _compile(self, model, state, shape):
        """Compile the update for a shape.

        Returns:
            A tuple (duration in seconds, whether JAX's cache had the executable, `time.monotonic()` at the end).
        """
        began, _cache_hits.count = time.monotonic(), 0
        with self._tracing, model.device_scope():
            lowered = model.jitted_train_step.lower(state, _data_types(model, *shape))
        lowered.compile()
        return time.monotonic() - began, _cache_hits.count > 0, time.monotonic()


def _state_types(model):
    """Return the shape, dtype and sharding of each variable in the state of a training step; see `JaxSteps`."""
    parts = model.trainable_variables, model.non_trainable_variables, model.optimizer.variables, model.metrics_variables

    def type_of(variable):
        sharding = variable.value.sharding if model.distribution else None
        return jax.ShapeDtypeStruct(variable.shape, variable.dtype, sharding=sharding)

    return tuple([type_of(variable) for variable in part] for part in parts)


def _data_types(model, rows, source_length, target_length):
    """Return the shape, dtype and sharding of each array in a batch of `TokenBatches`."""

    def type_of(length, dtype):
        layout = model.distribution.get_data_layout((rows, length)).backend_layout if model.distribution else None
        return jax.ShapeDtypeStruct((rows, length), dtype, sharding=layout)

    inputs = type_of(source_length, "int32"), type_of(target_length, "int32")
    return inputs, type_of(target_length, "int32"), type_of(target_length, "float32")


@functools.cache
def _listen():
    """Register a listener that counts the hits of JAX's compilation cache, separately for each thread."""

    def count(event, **_):
        if event == CACHE_HIT:
            _cache_hits.count = getattr(_cache_hits, "count", 0) + 1

    jax.monitoring.register_event_listener(count)
