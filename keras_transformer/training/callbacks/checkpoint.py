"""Checkpoints at regular intervals, after each new best evaluation, and after a signal."""

import logging
import math
import time

from keras_transformer.metrics.bleu import TRANSLATION_METRICS
from keras_transformer.runs.checkpoint import training_arrays
from keras_transformer.training.callbacks.base import StepCallback
from keras_transformer.training.callbacks.early_stopping import ended_early
from keras_transformer.training.signals import MEET_EVERY, Interrupted
from keras_transformer.utils.files import finite_or_null
from keras_transformer.utils.timing import Stopwatch

logger = logging.getLogger(__name__)

BEST = ("score", *TRANSLATION_METRICS.values(), "nll", "loss")
"""Metrics recorded in best.json."""


class CheckpointCallback(StepCallback):
    """Callback that writes checkpoints as `checkpoint_steps` and `checkpoint_minutes` specify, and marks the best one.

    Args:
        start: Number of updates before this call to `fit`.
        run: `Run`.
        progress: `ProgressLogger`, which must come before this callback.
        validation: `ValidationCallback`, which must come before this callback.
        stop: `StopRequest`. After a signal, the callback writes a checkpoint and raises `Interrupted`.
        workers: `Workers`.

    The next checkpoint replaces one that was written because of a signal. With `checkpoint_minutes=0`, an interrupted
    run therefore keeps the same checkpoints as an uninterrupted run. Otherwise, checkpoints depend on the time.
    """

    def __init__(self, start, run, progress, validation, stop, workers):
        super().__init__(start)
        self.run, self.hparams, self.progress, self.validation = run, run.hparams, progress, validation
        self.stop, self.workers = stop, workers
        self.start, self.written, self.saved_at = start, start, time.monotonic()

    def on_step(self, step):
        # These methods exchange values between workers, so all workers must call them in the same order.
        if self.time_is_over(step) or step % self.hparams.checkpoint_steps == 0 or self.is_best(step):
            self.save(step)
        self.stop_if_requested(step)

    def on_end(self, step):
        if self.written != step or self.is_best(step):
            self.save(step)
        else:  # the previous process may have been killed or interrupted after it wrote this checkpoint
            if self.is_last(step):
                self.run.checkpoints.keep(step)
            self.tidy(step)
        if not self.validation.evaluated(step):
            self.stop_if_requested(None)

    def time_is_over(self, step):
        """Return whether `checkpoint_minutes` have passed since the last checkpoint.

        Several workers must exchange messages to agree on the answer, so they check the time only every `MEET_EVERY`
        updates.
        """
        minutes = self.hparams.checkpoint_minutes
        if not minutes or (self.workers.count > 1 and step % MEET_EVERY):
            return False
        return self.workers.any(time.monotonic() - self.saved_at >= 60 * minutes)

    def stop_if_requested(self, step):
        """Write a checkpoint and raise `Interrupted` if a signal arrived."""
        if signal := self.stop.look(step):
            step = self.step
            if self.written != step:
                self.save(step, from_signal=not self.is_last(step))
            saved = f"stopped after update {step:,} and saved a checkpoint"
            logger.info(f"{signal.name}: {saved}; rerun the same command to resume")
            raise Interrupted(signal)

    def is_last(self, step):
        """Return whether the run ends after `step`."""
        return step >= self.hparams.train_steps or ended_early(self.run, step)

    def is_best(self, step):
        """Return whether the evaluation at `step`, if any, is better than that of the best checkpoint."""
        if not self.validation.evaluated(step):
            return False
        best = self.run.checkpoints.best()  # reads a file, so call it only after evaluations
        # If the best checkpoint was damaged, the run has resumed from an earlier one and now replaces the damaged one.
        again = best and best["step"] == step and self.written != step
        return not best or again or self.ranking_key(self.validation.latest) > self.ranking_key(best)

    def ranking_key(self, metrics):
        """Return the sort key of an evaluation: its `best_metric`, with `nll` as the tiebreaker.

        Missing and non-finite values rank last.
        """
        metric = self.hparams.best_metric
        metric = TRANSLATION_METRICS.get(metric, metric)
        signs = {metric: -1} if metric in ("nll", "loss") else {metric: 1, "nll": -1}
        metrics = finite_or_null(metrics)
        return tuple(-math.inf if metrics.get(name) is None else sign * metrics[name] for name, sign in signs.items())

    def save(self, step, from_signal=False):
        """Write a checkpoint. If `from_signal` is true, the next checkpoint replaces it."""
        checkpoints = self.run.checkpoints
        self.progress.end_line(step)  # so that a resumed run logs each update exactly once
        with Stopwatch() as stopwatch:
            latest = self.validation.latest and finite_or_null(self.validation.latest)
            if self.written != step:
                self.drop_skipped(step)
                state = {"evaluation": latest, "from_signal": from_signal}
                checkpoints.save(step, training_arrays(self.model), state)
            if self.is_best(step):
                checkpoints.keep(step)
                checkpoints.mark_best(step, {name: latest[name] for name in BEST if name in latest})
                self.drop_skipped(step)  # including the previous best checkpoint
            self.tidy(step)
        if self.written != step:
            self.run.log(kind="checkpoint", step=step, seconds=stopwatch.seconds)
        self.written, self.saved_at = step, time.monotonic()

    def drop_skipped(self, step):
        """Remove other checkpoints after the start of this run. They are damaged, because resuming skipped them."""
        for other in self.run.checkpoints.steps():
            if other > step or self.written == self.start < other < step:
                self.run.checkpoints.drop(other)

    def tidy(self, step):
        """Remove old checkpoints, and those before `step` that were written because of a signal."""
        checkpoints = self.run.checkpoints
        for other in checkpoints.steps():
            if other < step and checkpoints.is_from_signal(other):
                checkpoints.drop(other)
        if not checkpoints.is_from_signal(step):
            checkpoints.prune(self.hparams.keep_checkpoints, step)
