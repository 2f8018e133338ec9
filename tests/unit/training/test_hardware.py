"""Tests of the measured speed and memory use of the device."""

import contextlib
from pathlib import Path

import keras
import numpy as np

from keras_transformer.training.hardware import device_rate, peak_memory
from keras_transformer.utils.timing import Stopwatch


def test_device_rate_matches_matrix_products():
    x = keras.ops.convert_to_tensor(np.full((1024, 1024), 0.5, dtype="float32"))
    keras.ops.convert_to_numpy(keras.ops.matmul(x, x))
    seconds = []
    for _ in range(3):  # take the fastest round, because other processes may slow down the other two
        with Stopwatch() as stopwatch:
            for _ in range(8):
                x = keras.ops.matmul(x, x) / 1024
            keras.ops.convert_to_numpy(x)
        seconds.append(stopwatch.seconds)
    assert 0.1 < device_rate("float32") / (8 * 2 * 1024**3 / min(seconds)) < 10


def test_peak_memory_is_in_megabytes():
    lowered = False
    with contextlib.suppress(OSError):  # on Linux, reset the peak to the current memory use
        lowered = bool(Path("/proc/self/clear_refs").write_text("5"))
    before = peak_memory()["peak_memory_mb"]
    assert 50 < before < 20_000
    new = 300 if lowered else before + 200
    np.ones((new, 2**20), dtype="uint8")
    peak = peak_memory()["peak_memory_mb"]
    assert before + 200 <= peak <= before + new + 100
    assert peak_memory()["peak_memory_mb"] == peak
