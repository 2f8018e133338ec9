"""Manifest of a run: versions, machine, corpus, parameters."""

import contextlib
import importlib.metadata
import math
import platform

import keras

from keras_transformer.runs.provenance import command, git_revision
from keras_transformer.utils.machine import describe_machine

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
        "machine": describe_machine(),
        "backend": keras.backend.backend(),
        "seed": run.hparams.seed,
        "config_hash": run.config_hash,
        "parameters": {
            "total": sum(math.prod(variable.shape) for variable in model.trainable_variables),
            "by_variable": {variable.path: list(variable.shape) for variable in model.trainable_variables},
        },
    }


def versions():
    """Return {package: version} for Python, this package and its most important dependencies, if installed."""
    installed = {"python": platform.python_version()}
    for package in ("keras-transformer-toolkit", *PACKAGES):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[package] = importlib.metadata.version(package)
    return installed
