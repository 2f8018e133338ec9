"""Which devices train together. The update is the same on any number of them."""

import functools

import keras

from keras_transformer.errors import UserError

STRATEGIES = ("auto", "one", "mirrored")


@functools.cache  # two strategies in one process would mix up their collective operations
def make_strategy(name):
    """Returns the `tf.distribute` strategy called `name`, or None for one device.

    Args:
        name: "one"; "mirrored" takes all GPUs, or all logical CPU devices where there is none; "auto" takes all
            GPUs if there are several.

    Raises:
        UserError: The backend has no such strategy.
    """
    if keras.backend.backend() != "tensorflow":
        if name == "mirrored":
            raise UserError(f"--strategy=mirrored needs KERAS_BACKEND=tensorflow, not {keras.backend.backend()}")
        return None
    import tensorflow as tf

    devices = tf.config.list_logical_devices("GPU")
    if name == "one" or (name == "auto" and len(devices) < 2):
        return None
    if devices:
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    devices = tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices], tf.distribute.ReductionToOneDevice())
