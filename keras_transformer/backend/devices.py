"""Devices of this process."""


def on_cpu():
    """Return whether this process computes on CPUs only."""
    import keras

    if keras.backend.backend() == "jax":
        import jax

        return all(device.platform == "cpu" for device in jax.local_devices())
    import tensorflow as tf

    return not tf.config.list_physical_devices("GPU")
