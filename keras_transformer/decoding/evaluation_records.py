"""Records of an evaluation: the JSON object printed by `evaluate --json`, and the row appended by `--results`."""

import dataclasses

from keras_transformer.config.hparams import changed_fields
from keras_transformer.runs.provenance import append_row, command, git_revision
from keras_transformer.runs.totals import training_summary
from keras_transformer.utils.files import finite_or_null, sha256
from keras_transformer.utils.machine import describe_machine


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
        "perplexity": result.perplexity,
        "nll": result.nll(),
        "by_length": [finite_or_null(part) for part in result.by_length()],
    }
    if result.part_scores:
        row["directions"] = {name: _named(scores) for name, scores in result.part_scores.items()}
    if result.comparison:
        row["comparison"] = {"file": result.compared_with, **result.comparison.figures()}
    if samples:
        names = ("source", "output", "reference")
        row["samples"] = [dict(zip(names, example)) for example in result.examples()[:samples]]
    return finite_or_null(row)


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
        "perplexity": round(result.perplexity, 4),
        "by_length": [_rounded(part) for part in result.by_length()],
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
        "machine": describe_machine(),
    }
    if result.part_scores:
        row["directions"] = {name: _columns(scores) for name, scores in result.part_scores.items()}
    append_row(path, finite_or_null(row))


def _named(scores):
    """Convert a list of `Score` to {name: {"value", "signature"}}."""
    return {score.name: {"value": score.value, "signature": score.signature} for score in scores}


def _columns(scores):
    """Convert a list of `Score` to {column name: rounded value}."""
    return {score.name.lower().replace(" ", "_"): round(score.value, 2) for score in scores}


def _rounded(part):
    """Round the floats of a dictionary to four decimals. Replace NaN and infinities with None."""
    return finite_or_null({name: round(cell, 4) if isinstance(cell, float) else cell for name, cell in part.items()})
