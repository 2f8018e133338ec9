"""Devices of this process, and properties of the machine that Linux reports in /proc."""

from pathlib import Path


def on_cpu():
    """Return whether this process computes on CPUs only."""
    import keras

    if keras.backend.backend() == "jax":
        import jax

        return all(device.platform == "cpu" for device in jax.local_devices())
    import tensorflow as tf

    return not tf.config.list_physical_devices("GPU")


def proc_entries(path):
    """Return {first word: second word} for each line of a file in /proc, or {} if the file cannot be read."""
    try:
        return dict([*line.split(), ""][:2] for line in Path(path).read_text().splitlines())
    except OSError:
        return {}


def cpu_has_bfloat16():
    """Return whether Linux reports that the CPU has bfloat16 instructions. On other operating systems, return False."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)
