"""What this process computes on."""

import keras


def on_cpu():
    """Returns whether all that is computed in this process is computed on CPUs."""
    if keras.backend.backend() == "jax":
        import jax

        return all(device.platform == "cpu" for device in jax.local_devices())
    import tensorflow as tf

    return not tf.config.list_physical_devices("GPU")
