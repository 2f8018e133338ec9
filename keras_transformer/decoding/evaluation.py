"""A run's scores on a split."""

import dataclasses
import math
import time
from pathlib import Path

from keras_transformer.config.hparams import changed_fields
from keras_transformer.data.corpus import read_lines
from keras_transformer.decoding.search_options import SearchOptions
from keras_transformer.decoding.translator import Translator
from keras_transformer.metrics.lengths import length_buckets, length_ratio
from keras_transformer.metrics.paper_bleu import check_installed, paper_bleu
from keras_transformer.metrics.perplexity import nats_per_token, perplexity
from keras_transformer.metrics.significance import Comparison, check_comparable, paired_bootstrap
from keras_transformer.runs.checkpoint import assign_model
from keras_transformer.runs.manifest import append_row, command, git_revision, machine
from keras_transformer.runs.run import Run
from keras_transformer.runs.summary import training_summary
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import sha256
from keras_transformer.utils.progress import progress_bar


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found.

    Attributes:
        run: The `Run`.
        split: Name of the split.
        checkpoint: {"name", "steps"}: which weights.
        decoding: {"beam_size", "alpha", "extra_length"}.
        sources, outputs, references: Lists of texts.
        scores: List of `Score`; the last one counts.
        seconds: Time of the decoding.
        table: The problem's longer report, text, or None.
        scored: The references as `Hypothesis`, with their log-probabilities, teacher-forced.
        compared_with: File of another system's outputs, or None.
        comparison: `Comparison` with that system by the score that counts, or None.
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
    table: str | None
    scored: list
    compared_with: str | None = None
    comparison: Comparison | None = None

    def examples(self):
        """Return triples (source, output, reference)."""
        return list(zip(self.sources, self.outputs, self.references))

    def nll(self, rows=None):
        """Return the mean nats a token of the references: EOS counted, no smoothing, teacher-forced.

        A blank reference is its EOS alone, and a blank source its EOS; both count as any other.

        Args:
            rows: Numbers of the lines; all by default.
        """
        scored = self.scored if rows is None else [self.scored[row] for row in rows]
        return nats_per_token([one.log_probability for one in scored], [len(one.tokens) for one in scored])

    @property
    def perplexity(self):
        """e to the mean nats a token of the references, see `nll`."""
        return perplexity(self.nll())

    def by_length(self):
        """Return a row for each bucket of source length, in words, that is not empty.

        Returns:
            [{"words", "lines", "score", "perplexity", "length_ratio"}, …]: the score is the one that counts, the
            ratio is words of the outputs / words of the references, None where the references have none.
        """
        table = []
        for words, rows in length_buckets([len(source.split()) for source in self.sources]).items():
            outputs, references = [self.outputs[row] for row in rows], [self.references[row] for row in rows]
            table.append(
                {
                    "words": words,
                    "lines": len(rows),
                    "score": self.run.problem.score(outputs, references)[-1].value,
                    "perplexity": perplexity(self.nll(rows)),
                    "length_ratio": length_ratio(outputs, references),
                }
            )
        return table

    def summary(self, samples=0):
        """Return all figures as one object for JSON; a figure that is not finite is None.

        Args:
            samples: How many of the examples are in it.
        """
        summary = {
            "problem": self.run.problem.name,
            "split": self.split,
            "checkpoint": self.checkpoint,
            "decoding": self.decoding,
            "lines": len(self.outputs),
            "seconds": self.seconds,
            "scores": {score.name: {"value": score.value, "signature": score.signature} for score in self.scores},
            "score_that_counts": self.scores[-1].name,
            "perplexity": _finite(self.perplexity),
            "nll": _finite(self.nll()),
            "by_length": [{**row, "perplexity": _finite(row["perplexity"])} for row in self.by_length()],
        }
        if self.comparison:
            summary["comparison"] = {
                "file": self.compared_with,
                **dataclasses.asdict(self.comparison),
                "difference": self.comparison.difference,
            }
        if samples:
            names = ("source", "output", "reference")
            summary["samples"] = [dict(zip(names, example)) for example in self.examples()[:samples]]
        return summary

    def settings(self):
        """Return {parameter: value} of the problem's parameters that differ from their defaults."""
        usual = {field.name: field.default for field in dataclasses.fields(self.run.problem)}
        return {name: value for name, value in self.run.problem.parameters.items() if value != usual[name]}

    def append_row(self, path):
        """Add the result as a line of JSON to the file `path`, with all that made it."""
        row = {
            "problem": self.run.problem.name,
            "settings": self.settings(),
            "preset": self.run.config["preset"],
            "seed": self.run.hparams.seed,
            "split": self.split,
            **{score.name.lower().replace(" ", "_"): round(score.value, 2) for score in self.scores},
            "signatures": {score.name: score.signature for score in self.scores},
            "perplexity": _rounded(self.perplexity),
            "by_length": [{name: _rounded(cell) for name, cell in part.items()} for part in self.by_length()],
            "checkpoint": self.checkpoint,
            "decoding": self.decoding,
            "decoding_seconds": round(self.seconds, 1),
            "training": training_summary(self.run.metrics()),
            "parameters": self.run.manifest()["parameters"]["total"],
            "hparams": dataclasses.asdict(self.run.hparams),
            "overrides": changed_fields(self.run.config["preset"], dataclasses.asdict(self.run.hparams)),
            "commands": {"train": self.run.manifest()["command"], "evaluate": command()},
            "backend": self.run.manifest()["backend"],
            "commit": self.run.manifest()["git_revision"],
            "evaluation_commit": git_revision(),
            "manifest_sha256": sha256(self.run.path / "manifest.json"),
            "machine": machine(),
        }
        append_row(path, row)


def evaluate(run_dir, checkpoint=None, split="test", options=None, compare_with=None, with_paper_bleu=False):
    """Decode a split of a run's problem and score it.

    Args:
        run_dir: Run directory.
        checkpoint: "best", "last", "averaged", "ema" or a step.
        split: Name of the split.
        options: `SearchOptions`.
        compare_with: File of another system's outputs for the same lines, plain or `.gz`.
        with_paper_bleu: Whether to add the paper's own metric to the scores.

    Returns:
        `Evaluation`.

    Raises:
        UserError: There is no such run, checkpoint, split or file, or the file has not one line for each of the
            split's, or the paper's metric does not fit; it is said before anything is decoded.
    """
    run = Run.open(run_dir)
    if with_paper_bleu:
        check_paper_bleu(run.problem)
    sources, references = _examples(run.problem, split)
    others = None if compare_with is None else _read_outputs(compare_with, run.problem, split, references)
    arrays, state = run.checkpoints.load(checkpoint, parts=("weights",))
    translator = Translator(run.make_model(arrays["weights"]), run.tokenizer, run.hparams)
    options = (options or SearchOptions()).complete(run.hparams, run.tokenizer.constraint)
    began = time.monotonic()
    with progress_bar("decoding", len(sources), unit="sentences") as advance:
        translations = translator.translate(sources, **vars(options), report=lambda done, total: advance(done))
    seconds = time.monotonic() - began
    outputs = [hypotheses[0].text for hypotheses in translations]
    decoding = {name: getattr(options, name) for name in ("beam_size", "alpha", "extra_length")}
    if run.tokenizer.constraint:
        decoding["constraint"] = options.constraint is not None
    used = {"name": checkpoint or run.checkpoints.default(), "steps": state.get("steps") or [state["step"]]}
    scores = run.problem.all_scores(outputs, references)
    if with_paper_bleu:
        scores.insert(-1, paper_bleu(outputs, references, run.problem.output_language))
    return Evaluation(
        run, split, used, decoding, sources, outputs, references, scores, seconds,
        table=run.problem.table(outputs, references), scored=translator.score(sources, references),
        compared_with=compare_with and str(compare_with),
        comparison=others
        and paired_bootstrap(scores[-1].name, outputs, others, references, run.problem.sacrebleu_tokenizer),
    )  # fmt: skip


def check_paper_bleu(problem):
    """Raise a `UserError` unless the paper's BLEU can be computed of a problem's outputs."""
    if getattr(problem, "tokenized", True):  # no translation, or one of tokens
        raise UserError(f"--paper_bleu: {problem.name} has no plain text of a language, which Moses could tokenise")
    check_installed()


def score_checkpoints(run, names, split="validation"):
    """Decode a split with several checkpoints of a run, with one model.

    Args:
        run: `Run`.
        names: "best", "last", "averaged", "ema" or steps.
        split: Name of the split.

    Yields:
        (name, `Score`), the score that counts.

    Raises:
        UserError: A checkpoint is missing or damaged.
    """
    sources, references = _examples(run.problem, split)
    translator = None
    for name in names:
        weights = run.checkpoints.load(name, parts=("weights",))[0]["weights"]
        if translator is None:
            translator = Translator(run.make_model(weights), run.tokenizer, run.hparams)
        else:
            assign_model(translator.model, weights, f"checkpoint {name} of {run.path}")
        outputs = [hypotheses[0].text for hypotheses in translator.translate(sources)]
        yield name, run.problem.score(outputs, references)[-1]


def _examples(problem, split):
    """The sources and the references of a split, two lists."""
    pairs = list(problem.examples(split))
    if not pairs:
        raise UserError(f"{split} of {problem.name} has no pair, so there is nothing to score; see {problem.raw_dir}")
    return [list(side) for side in zip(*pairs)]


def _read_outputs(path, problem, split, references):
    """The lines of another system's outputs, which must be as many as there are references."""
    if not Path(path).exists():
        raise UserError(f"{path} does not exist; --compare takes the file of another system's outputs")
    lines = list(read_lines(path, may_be_empty=True))
    if len(lines) != len(references):
        raise UserError(
            f"{path} has {len(lines):,} lines and {split} of {problem.name} has {len(references):,}; "
            "line n of one must be the output for line n of the other"
        )
    check_comparable(problem.score(lines, references)[-1].name)
    return lines


def _finite(value):
    """The value, or None: JSON knows neither infinity nor NaN."""
    return value if math.isfinite(value) else None


def _rounded(cell):
    """A cell of a row: a number that is not whole with four decimals."""
    return _finite(round(cell, 4)) if isinstance(cell, float) else cell
