"""Ahead-of-time compilation of the update on JAX, for all batch shapes of a run in parallel."""

import concurrent.futures
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
        self._tasks, self._others = {}, len(self._shapes) - 1

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._pool.shutdown(wait=False, cancel_futures=True)

    def on_train_begin(self, logs=None):
        # Each access to `self.model` makes Keras write to the variables. The compilation threads must not do this.
        model = self.model
        state = _state_types(model)  # read now, because `fit` later removes the values from the variables
        self._tasks = {shape: self._pool.submit(self._compile, model, state, shape) for shape in self._shapes}

    def on_train_batch_begin(self, batch, logs=None):
        seconds = self._tasks[self._batches.shape(self.step - self._start)].result()
        others, self._others = self._others, 0  # log the message only once
        if others and seconds >= QUICK:
            logger.info(
                f"  compiled the update for the first of {others + 1} batch shapes in {seconds:.1f} s; the others take "
                f"about {duration(seconds * others / self._threads)} in {self._threads} "
                f"thread{'s' * (self._threads > 1)}, during the first updates"
            )

    def _compile(self, model, state, shape):
        """Compile the update for a shape. Return the time in seconds."""
        began = time.monotonic()
        with self._tracing, model.device_scope():
            lowered = model.jitted_train_step.lower(state, _data_types(model, *shape))
        lowered.compile()
        return time.monotonic() - began


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
