"""Evaluation of a run, which decodes a split and scores the outputs."""

import dataclasses
import logging
import time
from pathlib import Path

from keras_transformer.data.corpus import read_lines
from keras_transformer.data.language_tags import without_tag
from keras_transformer.decoding.base_translator import BaseTranslator
from keras_transformer.decoding.ctranslate2_translator import CTranslate2Translator
from keras_transformer.decoding.engines import choose_engine
from keras_transformer.decoding.search_options import SearchOptions
from keras_transformer.decoding.translator import Translator
from keras_transformer.metrics.lengths import length_buckets, length_ratio
from keras_transformer.metrics.paper_bleu import check_installed, paper_bleu
from keras_transformer.metrics.perplexity import nats_per_token, perplexity
from keras_transformer.metrics.significance import Comparison, check_comparable, paired_bootstrap
from keras_transformer.runs.checkpoint import assign_model
from keras_transformer.runs.run import Run
from keras_transformer.tasks.parts import in_directions, score_parts
from keras_transformer.tasks.prepared_corpus import changed_since
from keras_transformer.tasks.problem import Problem
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.progress import progress_bar

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Result of `evaluate`.

    Attributes:
        run: The `Run`.
        problem: The run's `Problem`, or a copy of this problem with the requested directions.
        split: Name of the split.
        checkpoint: The evaluated checkpoint, {"name", "steps"}.
        decoding: Search options, {"beam_size", "alpha", "extra_length", …}.
        sources, outputs, references: Lists of texts.
        scores: List of `Score`s, with the main score last. With several directions, each score is a mean over them.
        part_names: List with the direction of each line for a multilingual problem, or None.
        part_scores: {direction: list of `Score`} for a multilingual problem, or {}.
        seconds: Decoding time in seconds.
        table: Detailed report from the problem as text, or None.
        scored: List with a `Hypothesis` for each reference, with the reference's teacher-forced log-probability.
        compared_with: File with the outputs of another system, or None.
        comparison: `Comparison` of the main scores of the run and of the other system, or None.
    """

    run: Run
    problem: Problem
    split: str
    checkpoint: dict
    decoding: dict
    sources: list
    outputs: list
    references: list
    scores: list
    part_names: list | None
    part_scores: dict
    seconds: float
    table: str | None
    scored: list
    compared_with: str | None = None
    comparison: Comparison | None = None

    def examples(self):
        """Return a list of triples (source, output, reference)."""
        return list(zip(self.sources, self.outputs, self.references))

    def nll(self, rows=None):
        """Return the mean negative log-likelihood of the references in nats per token, including EOS.

        The computation is teacher-forced, without label smoothing. A blank source or reference consists only of EOS.

        Args:
            rows: Indices of the lines (default: all lines).
        """
        scored = self.scored if rows is None else [self.scored[row] for row in rows]
        return nats_per_token([one.log_probability for one in scored], [len(one.tokens) for one in scored])

    @property
    def perplexity(self):
        """Perplexity of the references, exp(`nll`)."""
        return perplexity(self.nll())

    def by_length(self):
        """Group the lines by source length in words. Return a row of results for each non-empty bucket.

        Returns:
            [{"words", "lines", "score", "perplexity", "length_ratio"}, …], where "score" is the main score.
            "length_ratio" is the number of words in the outputs divided by the number of words in the references. It
            is None if the references have no words.
        """
        table = []
        for words, rows in length_buckets([len(without_tag(source).split()) for source in self.sources]).items():
            outputs, references = [self.outputs[row] for row in rows], [self.references[row] for row in rows]
            names = self.part_names and [self.part_names[row] for row in rows]
            table.append(
                {
                    "words": words,
                    "lines": len(rows),
                    "score": score_parts(self.problem, names, outputs, references)[0][-1].value,
                    "perplexity": perplexity(self.nll(rows)),
                    "length_ratio": length_ratio(outputs, references),
                }
            )
        return table


def evaluate(
    run_dir, checkpoint=None, split="test", options=None, compare_with=None, with_paper_bleu=False, engine="keras",
    directions=None,
):  # fmt: skip
    """Decode a split of a run's problem and score it.

    Args:
        run_dir: Run directory.
        checkpoint: "best", "last", "averaged", "ema" or a step.
        split: Name of the split.
        options: `SearchOptions`.
        compare_with: File with another system's outputs for the split, one per line, plain or compressed.
        with_paper_bleu: Whether to also compute BLEU as in the paper.
        engine: "keras", "ctranslate2" or "auto" (see `choose_engine`).
        directions: Directions of a multilingual problem to evaluate, such as "de-fr" (default: the run's directions).

    Returns:
        `Evaluation`.

    Raises:
        UserError: The run, checkpoint, split or file is missing, the file and the split have different numbers of
            lines, or the paper's BLEU does not apply to the problem. These checks run before decoding starts.
    """
    run = Run.open(run_dir)
    problem = in_directions(run, directions)
    problem.check_metric("score")
    if with_paper_bleu:
        check_paper_bleu(problem)
    sources, references = _examples(run, problem, split)
    names = problem.part_names(split)
    if len(problem.parts) > 1 and (with_paper_bleu or compare_with is not None):
        flag = "--paper_bleu" if with_paper_bleu else "--compare"
        raise UserError(f"{flag} needs one direction, got {', '.join(problem.parts)}. Choose one with --directions.")
    others = None if compare_with is None else _read_outputs(compare_with, problem, split, references)
    options = (options or SearchOptions()).complete(run.hparams, run.tokenizer.constraint)
    arrays, state = run.checkpoints.load(checkpoint, parts=("weights",))
    if choose_engine(engine, [run], checkpoint, options=options) == "ctranslate2":
        translator: BaseTranslator = CTranslate2Translator.from_run(run, checkpoint)
    else:
        translator = Translator(run.make_model(arrays["weights"]), run.tokenizer, run.hparams)
    began = time.monotonic()
    with progress_bar("decoding", len(sources), unit="sentences") as advance:
        translations = translator.translate(sources, **vars(options), report=lambda done, total: advance(done))
    seconds = time.monotonic() - began
    outputs = [hypotheses[0].text for hypotheses in translations]
    decoding = {name: getattr(options, name) for name in ("beam_size", "alpha", "extra_length")}
    decoding |= options.against_repetition
    if run.tokenizer.constraint:
        decoding["constraint"] = options.constraint is not None
    if isinstance(translator, CTranslate2Translator):
        decoding["engine"] = "ctranslate2"
    used = {"name": checkpoint or run.checkpoints.default(), "steps": state.get("steps") or [state["step"]]}
    scores, part_scores = score_parts(problem, names, outputs, references, "all_scores")
    if with_paper_bleu:
        scores.insert(-1, paper_bleu(outputs, references, problem.output_language))
    return Evaluation(
        run, problem, split, used, decoding, sources, outputs, references, scores, names, part_scores, seconds,
        table=problem.table(outputs, references), scored=translator.score(sources, references),
        compared_with=compare_with and str(compare_with),
        comparison=others
        and paired_bootstrap(scores[-1].name, outputs, others, references, problem.sacrebleu_tokenizer),
    )  # fmt: skip


def check_paper_bleu(problem):
    """Check that the paper's BLEU applies to a problem, and that the packages for this BLEU are installed.

    Raises:
        UserError: The problem's outputs are not plain text, or a package is missing.
    """
    if getattr(problem, "tokenized", True):  # not a translation problem, or a problem with tokenized outputs
        raise UserError(
            f"--paper_bleu tokenizes plain text with Moses, but the outputs of {problem.name} are not plain text; "
            "omit the flag"
        )
    check_installed()


def score_checkpoints(run, names, split="validation"):
    """Decode a split with several checkpoints of a run, one after the other, and score the outputs.

    Args:
        run: `Run`.
        names: List of checkpoints, each "best", "last", "averaged", "ema" or a step.
        split: Name of the split.

    Yields:
        Pairs (name, main `Score`).

    Raises:
        UserError: A checkpoint is missing or damaged.
    """
    problem, translator = run.problem, None
    sources, references = _examples(run, problem, split)
    part_names = problem.part_names(split)
    for name in names:
        weights = run.checkpoints.load(name, parts=("weights",))[0]["weights"]
        if translator is None:
            translator = Translator(run.make_model(weights), run.tokenizer, run.hparams)
        else:
            assign_model(translator.model, weights, f"checkpoint {name} of {run.path}")
        outputs = [hypotheses[0].text for hypotheses in translator.translate(sources)]
        yield name, score_parts(problem, part_names, outputs, references)[0][-1]


def _examples(run, problem, split):
    """Return the list of sources and the list of references of a split.

    If a file has changed since training, so that the split may contain training pairs, log a warning.
    """
    problem.check_split(split)
    if (run.path / "manifest.json").is_file() and (
        remark := changed_since(problem, split, run.manifest().get("corpus", {}))
    ):
        logger.warning(f"{remark} since the run was trained, so the {split} split may contain training pairs")
    pairs = list(problem.examples(split))
    if not pairs:
        raise UserError(f"{problem.name} has no {split} pairs to score. Check the files in {problem.raw_dir}.")
    return [list(side) for side in zip(*pairs)]


def _read_outputs(path, problem, split, references):
    """Return the outputs of another system from a file with one line for each reference."""
    if not Path(path).exists():
        raise UserError(f"{path} does not exist; set --compare to a file with the outputs of another system")
    lines = list(read_lines(path, may_be_empty=True))
    if len(lines) != len(references):
        raise UserError(
            f"{path} must have as many lines as the {split} split of {problem.name} ({len(references):,}), "
            f"got {len(lines):,}"
        )
    check_comparable(problem.score(lines, references)[-1].name)
    return lines
