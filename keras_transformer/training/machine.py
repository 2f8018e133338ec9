"""What the devices can do and what is used of them."""

import resource
import sys
import time

import keras
import numpy as np
from keras import ops

from keras_transformer.training.memory import proc_entries

SIDE = 2048
"""Rows and columns of the matrices whose product is timed."""
LONG_ENOUGH = 0.1
"""Seconds."""


def device_rate():
    """Returns the floating point operations a second of one device, sustained by float32 matrix products.

    It stands for what the paper estimates of its GPUs: K80 2.8, K40 3.7, M40 6.0, P100 9.5 TFLOP/s (§6, Table 2). It is
    a rough figure: on a busy machine it is too low, and GPUs may compute float32 products with fewer bits.
    """
    x = ops.convert_to_tensor(np.full((SIDE, SIDE), 1 / SIDE, dtype="float32"))  # its powers are itself
    seconds, products = 0.0, 1
    ops.convert_to_numpy(ops.matmul(x, x))  # the first one is compiled
    while seconds < LONG_ENOUGH:
        products *= 2
        began, y = time.monotonic(), x
        for _ in range(products):
            y = ops.matmul(y, x)
        ops.convert_to_numpy(y[0, 0])
        seconds = time.monotonic() - began
    return products * 2 * SIDE**3 / seconds


def peak_memory():
    """Returns {"peak_memory_mb"} of this process and, on accelerators, {"peak_device_memory_mb"} of the fullest."""
    peak = {"peak_memory_mb": round(_process_peak() / 2**20)}
    on_devices = _device_peaks()
    if on_devices:
        peak["peak_device_memory_mb"] = round(max(on_devices) / 2**20)
    return peak


def _process_peak():
    """Bytes at most in use of this process."""
    # What Linux tells by getrusage begins with the memory of the process that started this one.
    known = proc_entries("/proc/self/status").get("VmHWM:")
    if known:
        return int(known) << 10
    # Linux counts in KiB, macOS in bytes.
    unit = 1024 if sys.platform != "darwin" else 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _device_peaks():
    """Bytes at most in use, of each accelerator."""
    if keras.backend.backend() == "jax":
        import jax

        statistics = [device.memory_stats() for device in jax.local_devices()]
        return [found["peak_bytes_in_use"] for found in statistics if found and "peak_bytes_in_use" in found]
    import tensorflow as tf

    names = [device.name for device in tf.config.list_logical_devices("GPU")]
    return [tf.config.experimental.get_memory_info(name.split("device:")[-1])["peak"] for name in names]
