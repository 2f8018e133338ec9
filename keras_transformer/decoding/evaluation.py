"""A run's scores on a split."""

import dataclasses
import json
import time
from pathlib import Path

from keras_transformer.decoding.translator import Translator
from keras_transformer.files import sha256
from keras_transformer.hyperparameters import load_hparams
from keras_transformer.runs.directory import Run
from keras_transformer.runs.manifest import command, git_revision, machine


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found.

    Attributes:
        run: The `Run`.
        split: Name of the split.
        checkpoint: {"name", "steps"}: which weights.
        decoding: {"beam_size", "alpha", "extra_length"}.
        sources, outputs, references: Lists of texts.
        scores: `Score`s, the one that counts last.
        seconds: Time of the decoding.
    """

    run: Run
    split: str
    checkpoint: dict
    decoding: dict
    sources: list
    outputs: list
    references: list
    scores: list
    seconds: float

    def examples(self):
        """Returns triples (source, output, reference)."""
        return list(zip(self.sources, self.outputs, self.references))

    def overrides(self):
        """Returns {field: value} of the hparams that differ from their preset's."""
        preset, used = self.run.config["preset"], self.run.config["hparams"]
        if not preset:
            return used
        usual = dataclasses.asdict(load_hparams(preset))
        return {field: value for field, value in used.items() if value != usual[field]}

    def append_row(self, path):
        """Adds the result as a line of JSON to the file `path`, with all that made it."""
        row = {
            "problem": self.run.problem.name,
            "preset": self.run.config["preset"],
            "seed": self.run.hparams.seed,
            "split": self.split,
            **{score.name.lower().replace(" ", "_"): round(score.value, 2) for score in self.scores},
            "signatures": {score.name: score.signature for score in self.scores},
            "checkpoint": self.checkpoint,
            "decoding": self.decoding,
            "decoding_seconds": round(self.seconds, 1),
            "training": training_summary(self.run.metrics()),
            "hparams": self.run.config["hparams"],
            "overrides": self.overrides(),
            "commands": {"train": self.run.manifest()["command"], "evaluate": command()},
            "commit": self.run.manifest()["git_revision"],
            "evaluation_commit": git_revision(),
            "manifest_sha256": sha256(self.run.path / "manifest.json"),
            "machine": machine(),
            "date": time.strftime("%Y-%m-%d"),
        }
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def training_summary(rows):
    """Returns what the lines of metrics.jsonl tell of a training: its cost and its validation curve.

    An update that was made again after a crash is logged twice; the later line counts.
    """
    updates = {row["step"]: row for row in rows if row["kind"] == "train"}
    validations = {row["step"]: row for row in rows if row["kind"] == "validation"}
    return {
        "steps": max(updates, default=0),
        "tokens": sum(row["tokens"] for row in updates.values()),
        "seconds": round(sum(row["seconds"] for row in updates.values())),
        "evaluation_seconds": round(sum(row["seconds"] for row in validations.values())),
        "curve": [{"step": step, "score": round(row["score"], 2)} for step, row in sorted(validations.items())],
    }


def evaluate(run_dir, checkpoint=None, split="test", beam_size=None, alpha=None, extra_length=None):
    """Decodes a split of a run's problem and scores it.

    Args:
        run_dir: Run directory.
        checkpoint: "best", "last", "averaged" or a step.
        split: Name of the split.
        beam_size, alpha, extra_length: Of the beam search; the run's by default.

    Returns:
        `Evaluation`.
    """
    run = Run.open(run_dir)
    examples = list(run.problem.examples(split))
    arrays, state = run.checkpoints.load(checkpoint, parts=("weights",))
    translator = Translator(run.make_model(arrays["weights"]), run.tokenizer, run.hparams)
    sources, references = map(list, zip(*examples))
    began = time.monotonic()
    translations = translator.translate(sources, beam_size, alpha, extra_length=extra_length)
    seconds = time.monotonic() - began
    outputs = [hypotheses[0].text for hypotheses in translations]
    hparams = run.hparams
    decoding = {
        "beam_size": beam_size or hparams.beam_size,
        "alpha": hparams.alpha if alpha is None else alpha,
        "extra_length": extra_length or hparams.extra_length,
    }
    used = {"name": checkpoint or run.checkpoints.default(), "steps": state.get("steps") or [state["step"]]}
    scores = run.problem.score(outputs, references)
    return Evaluation(run, split, used, decoding, sources, outputs, references, scores, seconds)
