"""Manifest of a run: versions, machine, corpus, parameters."""

import contextlib
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
    """Return the manifest of a run as a JSON-serializable dict.

    Args:
        run: `Run` whose problem is prepared.
        model: `Seq2SeqModel`, built.
    """
    store = run.problem.store
    return {
        **describe_program(run, model),
        "corpus": {**store.manifest["corpus"], "splits": store.manifest["splits"]},
        "store_sha256": store.fingerprint,
        "store_files": store.manifest["files"],
        "tokenizer_sha256": store.manifest["tokenizer"],
    }


def describe_program(run, model):
    """Return the part of a manifest that does not depend on the corpus: versions, machine, settings, parameters."""
    return {
        "command": command(),
        "git_revision": git_revision(),
        "versions": versions(),
        "machine": machine(),
        "backend": keras.backend.backend(),
        "seed": run.hparams.seed,
        "config_hash": run.config_hash,
        "parameters": {
            "total": sum(math.prod(variable.shape) for variable in model.trainable_variables),
            "by_variable": {variable.path: list(variable.shape) for variable in model.trainable_variables},
        },
    }


def command():
    """Return the command line of this process: [file name, arguments…]."""
    return [os.path.basename(sys.argv[0]), *sys.argv[1:]]


def versions():
    """Return {package: version} for Python, this package and its most important dependencies, if installed."""
    installed = {"python": platform.python_version()}
    for package in ("keras-transformer-toolkit", *PACKAGES):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[package] = importlib.metadata.version(package)
    return installed


VECTORS = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 with bfloat16", "avx512f": "AVX-512", "avx2": "AVX2"}
"""Vector instructions of x86 processors, {flag in /proc/cpuinfo: display name}, fastest first."""


def machine():
    """Return a short description of the machine: cores, processor, vector instructions, system."""
    name, vectors = platform.processor() or platform.machine(), None
    try:
        fields = dict(re.findall(r"^([^\t:]+)\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M))
        name = fields.get("model name", name)
        vectors = next((label for flag, label in VECTORS.items() if flag in fields.get("flags", "").split()), None)
    except OSError:
        pass
    return f"{os.cpu_count()} × {name}{f' ({vectors})' if vectors else ''}, {platform.system()}"


def git_revision(folder=PACKAGE.parent):
    """Return the commit of a checkout, with "+" if files have changed, or None if the folder is not a checkout."""
    if not (folder / ".git").exists():
        return None  # so that a package inside another checkout does not report the commit of that checkout
    try:
        status = subprocess.run(
            ["git", "-C", folder, "describe", "--always", "--abbrev=12", "--dirty=+"],
            capture_output=True, text=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return status.stdout.strip() or None


def append_row(path, row):
    """Add today's date to a dictionary and append it to a file as a line of JSON. Processes may append concurrently."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    append_line(path, json.dumps({**row, "date": time.strftime("%Y-%m-%d")}, ensure_ascii=False))
