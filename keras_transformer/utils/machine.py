"""Properties of this machine: CPU cores, processor, GPUs, and values that Linux reports in /proc."""

import collections
import os
import platform
import re
from pathlib import Path

VECTORS = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 with bfloat16", "avx512f": "AVX-512", "avx2": "AVX2"}
"""Vector instructions of x86 processors, {flag in /proc/cpuinfo: display name}, fastest first."""
NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
"""Folder in which the NVIDIA driver describes each GPU in a file `information`."""


def usable_cores():
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def proc_entries(path):
    """Return {first word: second word} for each line of a file in /proc, or {} if the file cannot be read."""
    try:
        return dict([*line.split(), ""][:2] for line in Path(path).read_text().splitlines())
    except OSError:
        return {}


def cpu_has_bfloat16():
    """Return whether the CPU has bfloat16 instructions, or None if the operating system is not Linux."""
    flags = _processor()[1]
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags) if flags else None


def describe_machine():
    """Return a short description of the machine: NVIDIA GPUs, cores, processor, vector instructions, system."""
    name, flags = _processor()
    vectors = next((f" ({label})" for flag, label in VECTORS.items() if flag in flags), "")
    gpus = [f"{count} × {gpu}" for gpu, count in collections.Counter(_nvidia_gpus()).items()]
    return ", ".join([*gpus, f"{os.cpu_count()} × {name}{vectors}", platform.system()])


def _nvidia_gpus():
    """Return the model names of the NVIDIA GPUs that the Linux driver lists in `NVIDIA_GPUS`."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(NVIDIA_GPUS.glob("*/information"))]
    return re.findall(r"^Model:\s*(.*)$", "\n".join(texts), re.M)


def _processor():
    """Return the name of the processor and the list of its flags in /proc/cpuinfo, which is empty without that file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    fields = dict(re.findall(r"^([^\t:]+)\s*: (.*)$", text, re.M))
    flags = fields.get("flags") or fields.get("Features", "")  # x86 or ARM
    return fields.get("model name") or platform.processor() or platform.machine(), flags.split()
