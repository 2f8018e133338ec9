"""Records of an evaluation: the JSON object printed by `evaluate --json`, and the row appended by `--results`."""

import dataclasses
import math

from keras_transformer.config.hparams import changed_fields
from keras_transformer.runs.manifest import append_row, command, git_revision, machine
from keras_transformer.runs.summary import training_summary
from keras_transformer.utils.files import sha256


def summary(result, samples=0):
    """Return the results as a JSON-serializable dict. Non-finite values become None.

    Args:
        result: `Evaluation`.
        samples: Number of examples to include.
    """
    row = {
        "problem": result.run.problem.name,
        "split": result.split,
        "checkpoint": result.checkpoint,
        "decoding": result.decoding,
        "lines": len(result.outputs),
        "seconds": result.seconds,
        "scores": _named(result.scores),
        "score_that_counts": result.scores[-1].name,
        "perplexity": _finite(result.perplexity),
        "nll": _finite(result.nll()),
        "by_length": [{**part, "perplexity": _finite(part["perplexity"])} for part in result.by_length()],
    }
    if result.part_scores:
        row["directions"] = {name: _named(scores) for name, scores in result.part_scores.items()}
    if result.comparison:
        row["comparison"] = {
            "file": result.compared_with,
            **dataclasses.asdict(result.comparison),
            "difference": result.comparison.difference,
        }
    if samples:
        names = ("source", "output", "reference")
        row["samples"] = [dict(zip(names, example)) for example in result.examples()[:samples]]
    return row


def append_result(path, result):
    """Append one line of JSON with the scores of an `Evaluation` and their provenance to the file `path`."""
    run, manifest = result.run, result.run.manifest()
    defaults = {field.name: field.default for field in dataclasses.fields(run.problem)}
    hparams = dataclasses.asdict(run.hparams)
    row = {
        "problem": run.problem.name,
        "settings": {name: value for name, value in run.problem.parameters.items() if value != defaults[name]},
        "preset": run.config["preset"],
        "seed": run.hparams.seed,
        "split": result.split,
        **_columns(result.scores),
        "signatures": {score.name: score.signature for score in result.scores},
        "perplexity": _rounded(result.perplexity),
        "by_length": [{name: _rounded(cell) for name, cell in part.items()} for part in result.by_length()],
        "checkpoint": result.checkpoint,
        "decoding": result.decoding,
        "decoding_seconds": round(result.seconds, 1),
        "training": training_summary(run.metrics()),
        "parameters": manifest["parameters"]["total"],
        "hparams": hparams,
        "overrides": changed_fields(run.config["preset"], hparams),
        "commands": {"train": manifest["command"], "evaluate": command()},
        "backend": manifest["backend"],
        "commit": manifest["git_revision"],
        "evaluation_commit": git_revision(),
        "manifest_sha256": sha256(run.path / "manifest.json"),
        "machine": machine(),
    }
    if result.part_scores:
        row["directions"] = {name: _columns(scores) for name, scores in result.part_scores.items()}
    append_row(path, row)


def _named(scores):
    """Convert a list of `Score` to {name: {"value", "signature"}}."""
    return {score.name: {"value": score.value, "signature": score.signature} for score in scores}


def _columns(scores):
    """Convert a list of `Score` to {column name: rounded value}."""
    return {score.name.lower().replace(" ", "_"): round(score.value, 2) for score in scores}


def _finite(value):
    """Return the value, or None if it is infinite or NaN, which JSON cannot represent."""
    return value if math.isfinite(value) else None


def _rounded(cell):
    """Round a float to four decimals, or return None if it is not finite. Return other values unchanged."""
    return _finite(round(cell, 4)) if isinstance(cell, float) else cell
