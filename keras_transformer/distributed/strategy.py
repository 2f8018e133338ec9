"""Strategies for training on several devices. The number of devices does not change the updates."""

import functools

import keras

from keras_transformer.utils.errors import UserError, unknown

STRATEGIES = {
    "auto": "tensorflow jax", "one": "tensorflow jax", "mirrored": "tensorflow", "jax": "jax",
    "multiworker": "tensorflow jax",
}  # fmt: skip
"""{name of a strategy: backends that support it}."""


def check_strategy(name, devices=None, jit_compile="auto"):
    """Raise a `UserError` if the backend does not support the strategy or an option. Do not initialize any device."""
    backend = keras.backend.backend()
    if name not in STRATEGIES:
        raise unknown("strategy", name, STRATEGIES)
    if backend not in STRATEGIES[name].split():
        other = next(one for one, backends in STRATEGIES.items() if backends == backend)
        raise UserError(
            f"--strategy={name} needs KERAS_BACKEND={STRATEGIES[name]}, got {backend}; use --strategy={other}"
        )
    if name == "one" and devices not in (None, 1):
        raise UserError(f"--strategy=one needs --devices=1, got --devices={devices}")
    if backend == "jax" and jit_compile is False:
        raise UserError("--jit_compile=off needs KERAS_BACKEND=tensorflow, because JAX always compiles updates")
    if name in ("mirrored", "multiworker") and backend == "tensorflow" and jit_compile is True:
        raise UserError(
            f"--jit_compile=on needs --strategy=one: XLA cannot compile the reductions of --strategy={name} on "
            "TensorFlow"
        )


def make_strategy(name, number=None):
    """Return the strategy in whose `scope()` the caller must build the model, or None for a single device.

    Args:
        name: "one" uses one device. "mirrored" uses all GPUs, or all logical CPU devices if there is no GPU. "jax" uses
            all JAX devices. "auto" uses all accelerators if there are several. "multiworker" uses the devices of
            all processes and needs `workers.join` first.
        number: Number of devices that this process uses, or None for all.

    Returns:
        A `tf.distribute.MirroredStrategy` or `MultiWorkerMirroredStrategy` on TensorFlow, a
        `keras.distribution.DataParallel` on JAX.

    Raises:
        UserError: `check_strategy` rejects the strategy, or there are too few devices.
    """
    check_strategy(name, number)
    return None if name == "one" else _strategy(name, number)


@functools.cache  # the collective operations of two strategies would interfere
def _strategy(name, number):
    on_tensorflow = keras.backend.backend() == "tensorflow"
    return _tensorflow_strategy(name, number) if on_tensorflow else _jax_distribution(name, number)


def _tensorflow_strategy(name, number):
    import tensorflow as tf

    if name == "multiworker":
        # The strategy sets up collective operations. It must do so before any other use of TensorFlow.
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        _check_all(strategy.extended.worker_devices, number)
        return strategy
    devices = [device.name for device in tf.config.list_logical_devices("GPU")]
    cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
    if name == "auto" and not _several(devices, cpus, number, "mirrored"):
        return None
    if devices:
        return tf.distribute.MirroredStrategy(_first(devices, number))
    return tf.distribute.MirroredStrategy(_first(cpus, number), tf.distribute.ReductionToOneDevice())


def _jax_distribution(name, number):
    devices = keras.distribution.list_devices()
    if name == "multiworker":
        import jax

        _check_all(jax.local_devices(), number)
        return keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    cpus = [device for device in devices if device.startswith("cpu")]
    if name == "auto" and not _several([device for device in devices if device not in cpus], cpus, number, "jax"):
        return None
    return keras.distribution.DataParallel(devices=_first(devices, number))


def _several(accelerators, cpus, number, strategy):
    """Return whether the strategy "auto" uses several devices.

    Raises:
        UserError: There are fewer than `number` accelerators. If there are enough `cpus`, the message names `strategy`,
            which can use them.
    """
    if number == 1:  # the accelerator or, without accelerators, the CPU
        return False
    if number is not None and number > len(accelerators):
        other = f", or use --strategy={strategy} to train on CPU devices" * (not accelerators and number <= len(cpus))
        raise UserError(_too_few("accelerators", accelerators, number) + f". Lower --devices{other}.")
    return len(accelerators[:number]) > 1


def _first(devices, number):
    """Return the first `number` devices, or all devices if `number` is None."""
    if number is not None and number > len(devices):
        raise UserError(_too_few("available devices", devices, number) + ". Lower --devices.")
    return devices[:number]


def _too_few(kind, devices, number):
    found = f"{len(devices)}: {', '.join(map(str, devices))}" if devices else "none"
    return f"--devices must not exceed the number of {kind}, got {number}; {keras.backend.backend()} finds {found}"


def _check_all(devices, number):
    if number not in (None, len(devices)):
        raise UserError(
            f"--strategy=multiworker uses all devices of a worker, so --devices must be {len(devices)}, got {number}. "
            "Set CUDA_VISIBLE_DEVICES to use fewer."
        )


def count_replicas(strategy):
    """Return the number of devices that share the rows of a batch."""
    if strategy is None:
        return 1
    on_tensorflow = keras.backend.backend() == "tensorflow"
    return strategy.num_replicas_in_sync if on_tensorflow else strategy.num_model_replicas


def count_accelerators(strategy):
    """Return the number of accelerators that train together, or 0 on CPUs."""
    if strategy is None:
        return 0
    if keras.backend.backend() == "tensorflow":
        on_cpu = any("CPU" in device for device in strategy.extended.worker_devices)
        return 0 if on_cpu else strategy.num_replicas_in_sync
    return sum(not device.startswith("cpu") for device in strategy.device_mesh.devices.flat)


def check_rows(plan, strategy):
    """Raise a `UserError` if the average batch of a `BatchPlan` has fewer rows than there are devices."""
    replicas, rows = count_replicas(strategy), plan.num_pairs / plan.batches_per_epoch
    if rows < replicas:
        raise UserError(
            f"batch_tokens={plan.batch_tokens} gives batches of {rows:.1f} pairs on average, too few for {replicas} "
            "devices; raise batch_tokens, or use fewer devices"
        )
