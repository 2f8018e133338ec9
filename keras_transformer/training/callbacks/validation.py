"""Evaluation on the validation split: loss, signs of a collapsed encoder, and the score of translations."""

import logging
import time

import keras

from keras_transformer.decoding.translator import Translator
from keras_transformer.tasks.parts import score_parts
from keras_transformer.training.callbacks.base import StepCallback
from keras_transformer.training.collapse import SourceHealth, collapse_warning
from keras_transformer.utils.errors import NonFiniteOutputs
from keras_transformer.utils.progress import progress_bar
from keras_transformer.utils.timing import duration

logger = logging.getLogger(__name__)

SAMPLES = 5
"""Number of sample translations in metrics.jsonl for each evaluation."""


class ValidationCallback(StepCallback):
    """Callback that evaluates every `eval_steps` updates and at the end.

    Some evaluations also decode and score the validation split (see `should_decode`).

    Args:
        start: Number of updates before this call to `fit`.
        run: `Run`.
        problem: `Problem`.
        batches: `TokenBatches` of the validation split.
        stop: `StopRequest`. A signal interrupts an evaluation, and the resumed run repeats it.
        workers: `Workers`. All of them evaluate, and the chief broadcasts its results.

    Attributes:
        latest: The latest metrics, or None.
    """

    def __init__(self, start, run, problem, batches, stop, workers):
        super().__init__(start)
        self.run, self.problem, self.batches, self.hparams = run, problem, batches, run.hparams
        self.stop, self.workers = stop, workers
        self.examples = list(problem.examples("validation"))
        self.part_names = problem.part_names("validation")
        self.translator = None
        self.latest = None

    def on_step(self, step):
        if step % self.hparams.eval_steps == 0:
            self.evaluate(step)

    def on_end(self, step):
        if not self.evaluated(step):
            self.evaluate(step)

    def evaluate_if_missing(self, step):
        """Set `latest` to the logged evaluation at `step`, the step from which the run resumes.

        If an evaluation is due at `step` but not in the log, a signal has interrupted it, and this method repeats it.
        If the previous process stopped before it marked the best checkpoint, `CheckpointCallback` uses `latest` to mark
        this checkpoint.
        """
        logged = [row for row in self.run.metrics() if row["kind"] == "validation" and row["step"] == step]
        if logged:
            self.latest = {name: value for name, value in logged[-1].items() if name != "kind"}
        elif step % self.hparams.eval_steps == 0 or step >= self.hparams.train_steps:
            self.evaluate(step)

    def should_decode(self, step):
        """Return whether to decode at `step`.

        Decode at the first evaluation at or after each multiple of `decoding_interval`, and at the end.
        """
        h, every = self.hparams, self.hparams.decoding_interval
        return step // every > (step - h.eval_steps) // every or step >= h.train_steps

    def evaluated(self, step):
        """Return whether the latest evaluation was at `step`."""
        return self.latest is not None and self.latest["step"] == step

    def evaluate(self, step):
        """Evaluate the model at `step` and keep the metrics in `latest`, unless a signal interrupts the evaluation."""
        try:
            latest, scores = self._measure(step)
        except _Interruption:
            return
        self.latest = latest = self.workers.broadcast(latest)
        self.run.log(kind="validation", **latest)
        values = f"loss {latest['loss']:.4f}", f"perplexity {latest['perplexity']:.2f}", *map(str, scores)
        logger.info(f"validation at step {step:,}: {'  '.join(values)}  ({duration(latest['seconds'])})")
        for sample in latest.get("samples", [])[:1]:
            logger.info(f"  e.g. {sample['source']} => {sample['output']}")
        if warning := collapse_warning(latest, self.hparams.norm):
            logger.warning(warning)

    def _measure(self, step):
        """Evaluate the model. Return a tuple (metrics for metrics.jsonl, scores for the terminal)."""
        began = time.monotonic()
        if self.translator is None:
            self.translator = Translator(self.model, self.problem, self.hparams)
            self.health = SourceHealth(self.model, self.batches)
        metrics = self.model.evaluate(self.batches, verbose=0, return_dict=True, callbacks=[_StopEvaluation(self.stop)])
        self.model.reset_metrics()
        self._raise_if_stopped()
        scores, decoded = self._decode() if self.should_decode(step) else ((), {})
        return {
            "step": step, "loss": metrics["loss"], "nll": metrics["nll"], "perplexity": metrics["perplexity"],
            **self.health.measure(), **decoded, "seconds": time.monotonic() - began,
        }, scores  # fmt: skip

    def _decode(self):
        """Decode and score the validation split.

        Returns:
            A tuple (scores for the terminal, dict for metrics.jsonl). If the outputs of the model are not finite, the
            tuple contains a message instead of scores, and the dict is empty.
        """
        sources, references = zip(*self.examples)
        with progress_bar("validation", len(sources), unit="sentences") as advance:

            def on_batch(done, total):
                advance(done)
                self._raise_if_stopped()

            try:
                translations = self.translator.translate(sources, report=on_batch)
            except NonFiniteOutputs:
                return ("no score: the model's outputs are not finite",), {}
        outputs = [hypotheses[0].text for hypotheses in translations]
        method = "all_scores" if self.hparams.best_metric == "chrf" else "score"
        scores, by_part = score_parts(self.problem, self.part_names, outputs, references, method)
        samples = [dict(zip(("source", "output", "reference"), texts)) for texts in zip(sources, outputs, references)]
        of_parts = {f"{one.name} {name}": one.value for name, several in by_part.items() for one in several}
        values = ", ".join(f"{name} {one[-1].value:.2f}" for name, one in by_part.items())
        return [*scores, *([f"({values})"] if len(by_part) > 1 else [])], {
            **of_parts, **{score.name: score.value for score in scores}, "score": scores[-1].value,
            "signatures": {score.name: score.signature for score in scores}, "samples": samples[:SAMPLES],
        }  # fmt: skip

    def _raise_if_stopped(self):
        if self.stop.look():
            raise _Interruption


class _Interruption(Exception):
    """Exception that aborts an evaluation after a signal."""


class _StopEvaluation(keras.callbacks.Callback):
    """Callback that stops `Model.evaluate` after a signal."""

    def __init__(self, stop):
        super().__init__()
        self.stop = stop

    def on_test_batch_begin(self, batch, logs=None):  # on_test_batch_end would make Keras wait for the batch's metrics
        if self.stop.look():
            self.model.stop_evaluating = True
