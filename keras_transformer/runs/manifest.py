"""What a run was made of: versions, machine, corpus, parameters."""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import keras

from keras_transformer.registry import PACKAGE

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
        "config_identity": run.identity,
        "corpus": {**store.manifest["corpus"], "splits": store.manifest["splits"]},
        "store_sha256": store.fingerprint,
        "store_files": store.manifest["files"],
        "tokenizer_sha256": store.manifest["tokenizer"],
        "parameters": {
            "total": model.count_params(),
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


def machine():
    """Returns a short description of the machine."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{os.cpu_count()} × {name}, {platform.system()}"


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
    """Adds a dictionary, and today's date, as a line of JSON to the file `path`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({**row, "date": time.strftime("%Y-%m-%d")}, ensure_ascii=False) + "\n")
