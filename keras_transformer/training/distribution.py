"""Which devices train together. The update is the same on any number of them."""

import functools

import keras

from keras_transformer.errors import UserError, unknown

STRATEGIES = {"auto": "tensorflow jax", "one": "tensorflow jax", "mirrored": "tensorflow", "jax": "jax"}
"""The backends that have each strategy."""


def check_strategy(name):
    """Raises a `UserError` where there is no such strategy, or the backend has another; touches no device."""
    backend = keras.backend.backend()
    if name not in STRATEGIES:
        raise unknown("strategy", name, STRATEGIES)
    if backend not in STRATEGIES[name].split():
        other = next(one for one, backends in STRATEGIES.items() if backends == backend)
        raise UserError(
            f"--strategy={name} needs KERAS_BACKEND={STRATEGIES[name]}, not {backend}, whose own is --strategy={other}"
        )


@functools.cache  # two strategies in one process would mix up their collective operations
def make_strategy(name):
    """Returns what joins devices, within whose `scope()` a model is to be made, or None for one device.

    Args:
        name: "one"; "mirrored" takes all GPUs, or all logical CPU devices where there is none, "jax" all devices that
            JAX has; "auto" takes all accelerators if there are several.

    Returns:
        On TensorFlow a `tf.distribute.MirroredStrategy`, on JAX a `keras.distribution.DataParallel`.

    Raises:
        UserError: Of `check_strategy`.
    """
    check_strategy(name)
    if name == "one":
        return None
    return _mirrored(name) if keras.backend.backend() == "tensorflow" else _data_parallel(name)


def _mirrored(name):
    import tensorflow as tf

    devices = tf.config.list_logical_devices("GPU")
    if name == "auto" and len(devices) < 2:
        return None
    if devices:
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    devices = tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices], tf.distribute.ReductionToOneDevice())


def _data_parallel(name):
    devices = keras.distribution.list_devices()
    if name == "auto" and (len(devices) < 2 or devices[0].startswith("cpu")):
        return None
    return keras.distribution.DataParallel(devices=devices)


def count_accelerators(strategy):
    """Returns how many accelerators train together; logical CPU devices share one machine and are none."""
    if strategy is None:
        return 0
    if keras.backend.backend() == "tensorflow":
        return sum("GPU" in device for device in strategy.extended.worker_devices)
    return sum(not device.startswith("cpu") for device in strategy.device_mesh.devices.flat)
