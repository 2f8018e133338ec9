"""What a run was made of: versions, machine, corpus, parameters."""

import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import keras

from keras_transformer.config.registry import PACKAGE
from keras_transformer.utils.files import append_line

PACKAGES = ("keras", "tensorflow", "tensorflow-text", "jax", "jaxlib", "numpy", "sacrebleu", "sentencepiece")


def make_manifest(run, model):
    """Returns the manifest of a run, for JSON.

    Args:
        run: `Run`; its problem is prepared.
        model: The built model.
    """
    store = run.problem.store
    return {
        "command": command(),
        "git_revision": git_revision(),
        "versions": versions(),
        "machine": machine(),
        "backend": keras.backend.backend(),
        "seed": run.hparams.seed,
        "config_hash": run.config_hash,
        "corpus": {**store.manifest["corpus"], "splits": store.manifest["splits"]},
        "store_sha256": store.fingerprint,
        "store_files": store.manifest["files"],
        "tokenizer_sha256": store.manifest["tokenizer"],
        "parameters": {
            "total": sum(math.prod(variable.shape) for variable in model.trainable_variables),
            "by_variable": {variable.path: list(variable.shape) for variable in model.trainable_variables},
        },
    }


def command():
    """Returns the command that runs, for the record: [file name, arguments…]."""
    return [os.path.basename(sys.argv[0]), *sys.argv[1:]]


def versions():
    """Returns {package: version} of what is installed, and Python's."""
    found = {"python": platform.python_version()}
    for package in ("keras-transformer-toolkit", *PACKAGES):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


VECTORS = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 with bfloat16", "avx512f": "AVX-512", "avx2": "AVX2"}
"""Instructions of x86 that decide how fast it multiplies, as Linux calls them and as we do, the fastest first."""


def machine():
    """Returns a short description of the machine: cores, processor, its vector instructions, system."""
    name, vectors = platform.processor() or platform.machine(), None
    try:
        fields = dict(re.findall(r"^([^\t:]+)\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M))
        name = fields.get("model name", name)
        vectors = next((ours for flag, ours in VECTORS.items() if flag in fields.get("flags", "").split()), None)
    except OSError:
        pass
    return f"{os.cpu_count()} × {name}{f' ({vectors})' if vectors else ''}, {platform.system()}"


def git_revision():
    """Returns the checkout's commit, with "+" where files were changed, or None outside of one."""
    if not (PACKAGE.parent / ".git").exists():
        return None  # installed; git would answer for a checkout around the environment
    try:
        status = subprocess.run(
            ["git", "-C", PACKAGE.parent, "describe", "--always", "--abbrev=12", "--dirty=+"],
            capture_output=True, text=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return status.stdout.strip() or None


def append_row(path, row):
    """Adds a dictionary, and today's date, as a line of JSON to the file `path`; several processes may."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    append_line(path, json.dumps({**row, "date": time.strftime("%Y-%m-%d")}, ensure_ascii=False))
