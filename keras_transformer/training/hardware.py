"""Measurements of the speed of devices and of peak memory."""

import functools
import resource
import sys
import time

import keras
import numpy as np
from keras import ops

from keras_transformer.utils.machine import proc_entries

SIDE = 2048
"""Number of rows and columns of the matrices in the timed product."""
LONG_ENOUGH = 0.1
"""Minimum duration of a measurement in seconds."""


@functools.cache
def device_rate(dtype):
    """Return the floating-point operations per second that one device sustains in matrix products.

    In float32, the rate is comparable to the paper's estimates for its GPUs: K80 2.8, K40 3.7, M40 6.0, P100 9.5
    TFLOP/s (§6, Table 2). The rate is approximate: other load on the machine lowers it, and GPUs may compute float32
    products with reduced precision. Each process measures the rate once per dtype.

    Args:
        dtype: Type of the matrices: "float32", "bfloat16" or "float16".
    """
    # With this matrix, x @ x equals x, so repeated products do not overflow.
    x = ops.cast(ops.convert_to_tensor(np.full((SIDE, SIDE), 1 / SIDE, dtype="float32")), dtype)
    seconds, products = 0.0, 1
    ops.convert_to_numpy(ops.cast(ops.matmul(x, x), "float32"))  # the first product includes compilation
    while seconds < LONG_ENOUGH:
        products *= 2
        began, y = time.monotonic(), x
        for _ in range(products):
            y = ops.matmul(y, x)
        ops.convert_to_numpy(ops.cast(y[0, 0], "float32"))
        seconds = time.monotonic() - began
    return products * 2 * SIDE**3 / seconds


def peak_memory():
    """Return {"peak_memory_mb": peak memory of this process in MiB}.

    With accelerators, the dict also contains "peak_device_memory_mb", the largest peak memory of any device in MiB.
    """
    peak = {"peak_memory_mb": round(_process_peak() / 2**20)}
    if on_devices := _device_peaks():
        peak["peak_device_memory_mb"] = round(max(on_devices) / 2**20)
    return peak


def _process_peak():
    """Return the peak memory of this process in bytes."""
    # Prefer VmHWM: on Linux, getrusage also counts the memory of the parent process before exec.
    if peak := proc_entries("/proc/self/status").get("VmHWM:"):
        return int(peak) << 10
    unit = 1024 if sys.platform != "darwin" else 1  # Linux counts in KiB, macOS in bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _device_peaks():
    """Return the peak memory of each accelerator in bytes."""
    if keras.backend.backend() == "jax":
        import jax

        statistics = [device.memory_stats() or {} for device in jax.local_devices()]
        return [device["peak_bytes_in_use"] for device in statistics if "peak_bytes_in_use" in device]
    import tensorflow as tf

    names = [device.name for device in tf.config.list_logical_devices("GPU")]
    return [tf.config.experimental.get_memory_info(name.split("device:")[-1])["peak"] for name in names]
