"""Which devices train together. The update is the same on any number of them."""

import functools

import keras

from keras_transformer.utils.errors import UserError, unknown

STRATEGIES = {
    "auto": "tensorflow jax", "one": "tensorflow jax", "mirrored": "tensorflow", "jax": "jax",
    "multiworker": "tensorflow jax",
}  # fmt: skip
"""The backends that have each strategy."""


def check_strategy(name, devices=None, jit_compile="auto"):
    """Raises a `UserError` where there is no such strategy, or the backend has another; touches no device."""
    backend = keras.backend.backend()
    if name not in STRATEGIES:
        raise unknown("strategy", name, STRATEGIES)
    if backend not in STRATEGIES[name].split():
        other = next(one for one, backends in STRATEGIES.items() if backends == backend)
        raise UserError(
            f"--strategy={name} needs KERAS_BACKEND={STRATEGIES[name]}, not {backend}, whose own is --strategy={other}"
        )
    if name == "one" and devices not in (None, 1):
        raise UserError(f"--strategy=one is of one device, not of --devices={devices}")
    if name in ("mirrored", "multiworker") and backend == "tensorflow" and jit_compile is True:
        raise UserError(
            f"--jit_compile=on needs --strategy=one: XLA cannot compile TensorFlow's reductions of --strategy={name}"
        )


def make_strategy(name, number=None):
    """Returns what joins devices, within whose `scope()` a model is to be made, or None for one device.

    Args:
        name: "one"; "mirrored" takes all GPUs, or all logical CPU devices where there is none, "jax" all devices that
            JAX has; "auto" takes all accelerators if there are several; "multiworker" those of all processes, which
            have to be met first: see `workers.join`.
        number: How many devices of this process to take; None: all.

    Returns:
        On TensorFlow a `tf.distribute.MirroredStrategy` or `MultiWorkerMirroredStrategy`, on JAX a
        `keras.distribution.DataParallel`.

    Raises:
        UserError: Of `check_strategy`, or there are fewer devices.
    """
    check_strategy(name, number)
    return None if name == "one" else _strategy(name, number)


@functools.cache  # two strategies in one process would mix up their collective operations
def _strategy(name, number):
    return _of_tensorflow(name, number) if keras.backend.backend() == "tensorflow" else _of_jax(name, number)


def _of_tensorflow(name, number):
    import tensorflow as tf

    if name == "multiworker":
        # The first, as its collective operations have to be set up before anything is computed.
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        _check_all(strategy.extended.worker_devices, number)
        return strategy
    devices = [device.name for device in tf.config.list_logical_devices("GPU")]
    if name == "auto" and not _several(devices, number):
        return None
    if devices:
        return tf.distribute.MirroredStrategy(_taken(devices, number))
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
    return tf.distribute.MirroredStrategy(_taken(devices, number), tf.distribute.ReductionToOneDevice())


def _of_jax(name, number):
    devices = keras.distribution.list_devices()
    if name == "multiworker":
        import jax

        _check_all(jax.local_devices(), number)
        return keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    if name == "auto" and not _several([device for device in devices if not device.startswith("cpu")], number):
        return None
    return keras.distribution.DataParallel(devices=_taken(devices, number))


def _several(accelerators, number):
    """Whether "auto" is to take several devices."""
    if number is not None:
        _taken(accelerators, number)
        return number > 1
    return len(accelerators) > 1


def _taken(devices, number):
    """The first `number` of devices."""
    if number is not None and number > len(devices):
        raise UserError(f"--devices={number}, but {keras.backend.backend()} sees {_listed(devices)}")
    return devices[:number]


def _check_all(devices, number):
    if number not in (None, len(devices)):
        raise UserError(
            f"--devices={number}, but this worker has {_listed(devices)}; --strategy=multiworker takes all that one "
            "sees (fewer: CUDA_VISIBLE_DEVICES)"
        )


def _listed(devices):
    return f"{len(devices)}: {', '.join(map(str, devices))}" if devices else "none"


def count_replicas(strategy):
    """Returns how many devices share the rows of a batch."""
    if strategy is None:
        return 1
    on_tensorflow = keras.backend.backend() == "tensorflow"
    return strategy.num_replicas_in_sync if on_tensorflow else strategy.num_model_replicas


def count_accelerators(strategy):
    """Returns how many accelerators train together; logical CPU devices share one machine and are none."""
    if strategy is None:
        return 0
    if keras.backend.backend() == "tensorflow":
        on_cpu = any("CPU" in device for device in strategy.extended.worker_devices)
        return 0 if on_cpu else strategy.num_replicas_in_sync
    return sum(not device.startswith("cpu") for device in strategy.device_mesh.devices.flat)


def check_rows(plan, strategy):
    """Raises a `UserError` if the batches of a `BatchPlan` have fewer rows, in the mean, than there are devices."""
    replicas, rows = count_replicas(strategy), plan.num_pairs / plan.batches_per_epoch
    if rows < replicas:
        raise UserError(
            f"batch_tokens={plan.batch_tokens} makes batches of {rows:.1f} pairs in the mean, too few for {replicas} "
            "devices; raise it, or take fewer devices"
        )
