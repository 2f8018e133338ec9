"""What happens between updates: progress, evaluation, checkpoints. All count updates, not epochs."""

import math
import time

import keras

from keras_transformer.decoding.translator import Translator
from keras_transformer.runs.checkpoint import training_arrays
from keras_transformer.training.collapse import SourceHealth, complaint
from keras_transformer.training.hardware import peak_memory
from keras_transformer.training.schedule import make_schedule
from keras_transformer.training.signals import MEET_EVERY, Interrupted
from keras_transformer.utils.errors import NonFiniteOutputs
from keras_transformer.utils.files import finite_or_null
from keras_transformer.utils.progress import progress_bar
from keras_transformer.utils.timing import Stopwatch, duration

SAMPLES = 5
"""Translations that a validation's line holds."""
BEST = ("score", "nll", "loss")
"""What is noted of the best checkpoint."""


class StepCallbacks(keras.callbacks.CallbackList):
    """Callbacks that are not given the metrics after each update: Keras' own list reads them from the device."""

    def on_train_batch_begin(self, batch, logs=None):
        for callback in self.callbacks:
            callback.on_train_batch_begin(batch)

    def on_train_batch_end(self, batch, logs=None):
        for callback in self.callbacks:
            callback.on_train_batch_end(batch)


class StepCallback(keras.callbacks.Callback):
    """Base: `on_step(step)` after each update, `on_end(step)` after the last; steps are counted on the host.

    Args:
        start: Updates made before this training began.
    """

    def __init__(self, start):
        super().__init__()
        self.step = start

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        self.on_step(self.step)

    def on_train_end(self, logs=None):
        self.on_end(self.step)

    def on_step(self, step):
        """Called after update number `step`, counted from 1."""

    def on_end(self, step):
        """Called after the last update."""


class ProgressLogger(StepCallback):
    """Prints and logs a line every `every` updates: loss, learning rate, source + target tokens a second, ETA.

    Args:
        start: Updates before this training.
        run: `Run`, whose metrics.jsonl gets the lines.
        batches: The `TokenBatches` that are trained on, to count tokens without asking the device.
        hparams: `train_steps` and `eval_steps` are read.
        update_flops: The model's function of rows and lengths; the model itself would be read from the device.
        nonfinite: `NonFinite`, which counts skipped updates.
        report: Called with each line.
        every: Updates between lines: the metrics are read from the device only then.
    """

    def __init__(self, start, run, batches, hparams, update_flops, nonfinite, report, every=50):
        super().__init__(start)
        self.run, self.batches, self.update_flops, self.report, self.every = run, batches, update_flops, report, every
        self.nonfinite = nonfinite
        self.train_steps, self.eval_steps = hparams.train_steps, hparams.eval_steps
        self.schedule = make_schedule(hparams)
        self.start, self.tokens = start, 0
        self.advance = lambda step: None  # whoever shows a bar puts its function here
        self.busy = Stopwatch()  # evaluation and checkpoints between updates do not count
        self.shapes = set()  # compiled in this process
        self.num_shapes = len(batches.shapes(self.train_steps - start)) if batches.few_shapes else 0
        self.begin_line()

    def begin_line(self):
        """Set the counts of a line to 0: updates, tokens, tokens with padding, floating point operations."""
        self.new_steps, self.new_tokens, self.new_padded, self.new_flops = 0, 0, 0, 0
        self.first_uses, self.first_seconds = 0, 0.0  # updates that compiled a shape first

    def on_train_batch_begin(self, batch, logs=None):
        self.busy_before = self.busy.seconds
        self.busy.__enter__()

    def on_step(self, step):
        self.busy.__exit__()
        index = step - 1 - self.start
        rows, *lengths = self.batches.shape(index)
        self.new_steps += 1
        self.new_tokens += self.batches.tokens(index)
        self.new_padded += rows * sum(lengths)
        self.new_flops += self.update_flops(rows, *lengths)
        if self.num_shapes and (rows, *lengths) not in self.shapes:
            self.shapes.add((rows, *lengths))
            self.count_compilation(self.busy.seconds - self.busy_before)
        self.advance(step)
        # An evaluation uses the same metrics and clears them.
        if step % self.every == 0 or step % self.eval_steps == 0 or step == self.train_steps:
            self.end_line(step)

    def on_end(self, step):
        self.end_line(step)

    def count_compilation(self, seconds):
        """Count an update that was the first of its shape, and report it if its compilation took a second or more."""
        self.first_uses, self.first_seconds = self.first_uses + 1, self.first_seconds + seconds
        if seconds >= 1:
            self.report(
                f"  compiled the update for batch shape {len(self.shapes)} of {self.num_shapes} in {seconds:.1f} s"
            )

    def seconds_of(self, updates, seconds):
        """Return the seconds that `updates` take at the rate of the current line, compilation aside."""
        if self.first_uses < self.new_steps:
            return updates * (seconds - self.first_seconds) / (self.new_steps - self.first_uses)
        return updates * seconds / self.new_steps

    def end_line(self, step):
        """Reads the metrics since the last line, if there were updates, prints and logs them, and begins anew."""
        if not self.new_steps:
            return
        with self.busy:  # the device may still be at work on updates that were only asked for
            metrics = {name: float(value) for name, value in self.model.get_metrics_result().items()}
            norms, faults, first = self.model.optimizer.watched()
        self.model.reset_metrics()
        learning_rate = float(self.schedule(step - 1))  # of the last update that was made
        seconds = self.busy.reset()
        speed, left = self.new_tokens / seconds, self.seconds_of(self.train_steps - step, seconds)
        is_first, self.tokens = self.tokens == 0, self.tokens + self.new_tokens
        self.report(
            f"step {step:,}/{self.train_steps:,}  loss {metrics['loss']:.4f}  perplexity {metrics['perplexity']:.2f}  "
            f"gradient norm {norms.get('gradient_norm', math.nan):.2f}  learning rate {learning_rate:.2e}  "
            f"{speed:,.0f} tokens/s  ETA {duration(left)}"
        )
        if is_first and left:
            self.report(
                f"  at this rate {duration(seconds + left)} of updates in all, evaluations and checkpoints aside"
            )
        self.run.log(
            kind="train", step=step, **metrics, **norms, learning_rate=learning_rate, tokens_per_second=speed,
            tokens=self.new_tokens, padded_tokens=self.new_padded, flops=self.new_flops, seconds=seconds,
            data_seconds=self.batches.stopwatch.reset(), **peak_memory(),
        )  # fmt: skip
        self.begin_line()
        if faults:
            self.nonfinite.found(faults, first)


class ValidationCallback(StepCallback):
    """Every `eval_steps` updates and at the end: validation loss, health figures; by `decode_steps` decoded BLEU.

    Args:
        start: Updates before this training.
        run: `Run`.
        problem: `Problem`.
        batches: The `TokenBatches` of its validation split.
        hparams: `HParams`.
        stop: `StopRequest`; a signal breaks an evaluation off, and a resumed training makes up for it.
        workers: `Workers`: all measure the same, and what the first one finds counts.
        report: Called with each line.
    """

    def __init__(self, start, run, problem, batches, hparams, stop, workers, report):
        super().__init__(start)
        self.workers = workers
        self.run, self.problem, self.hparams, self.stop, self.report = run, problem, hparams, stop, report
        self.batches = batches
        self.examples = list(problem.examples("validation"))
        self.translator = None
        self.latest = None  # what was measured last

    def on_step(self, step):
        if step % self.hparams.eval_steps == 0:
            self.evaluate(step)

    def on_end(self, step):
        if not self.evaluated(step):
            self.evaluate(step)

    def evaluate_if_missing(self, step):
        """Evaluates the model at the step that a training resumes at, where that is due and in no log.

        A signal may have broken it off; and what is in the log may not have been marked as the best yet.
        """
        logged = [row for row in self.run.metrics() if row["kind"] == "validation" and row["step"] == step]
        if logged:
            latest = {name: value for name, value in logged[-1].items() if name != "kind"}
            self.latest = latest
        elif step % self.hparams.eval_steps == 0 or step >= self.hparams.train_steps:
            self.evaluate(step)

    def should_decode(self, step):
        """Whether the evaluation at a step decodes: the last, and the first from each multiple of `decode_steps` on."""
        h, every = self.hparams, self.hparams.decoding_interval
        return step // every > (step - h.eval_steps) // every or step >= h.train_steps

    def evaluated(self, step):
        """Whether this training has evaluated the model at a step."""
        return self.latest is not None and self.latest["step"] == step

    def evaluate(self, step):
        """Measures the model at `step`; keeps the result in `latest`, unless a signal breaks it off."""
        try:
            latest, scores = self._measure(step)
        except _BrokenOff:
            return
        self.latest = latest = self.workers.broadcast(latest)
        self.run.log(kind="validation", **latest)
        figures = f"loss {latest['loss']:.4f}", f"perplexity {latest['perplexity']:.2f}", *map(str, scores)
        self.report(f"validation at step {step:,}: {'  '.join(figures)}  ({duration(latest['seconds'])})")
        for sample in latest.get("samples", [])[:1]:
            self.report(f"  e.g. {sample['source']} => {sample['output']}")
        if wrong := complaint(latest, self.hparams.norm):
            self.report(f"  {wrong}")

    def _measure(self, step):
        began = time.monotonic()
        if self.translator is None:
            self.translator = Translator(self.model, self.problem, self.hparams)
            self.health = SourceHealth(self.model, self.batches)
        metrics = self.model.evaluate(
            self.batches, verbose=0, return_dict=True, callbacks=[_StopEvaluating(self.stop)]
        )  # fmt: skip
        self.model.reset_metrics()
        self._break_off_if_asked()
        scores, decoded = self._decode() if self.should_decode(step) else ((), {})
        return {
            "step": step, "loss": metrics["loss"], "nll": metrics["nll"], "perplexity": metrics["perplexity"],
            **self.health.measure(), **decoded, "seconds": time.monotonic() - began,
        }, scores  # fmt: skip

    def _decode(self):
        """Return the figures of the decoded validation split for the console and for the log.

        There is no score, and nothing to log, where the model's outputs are not finite.
        """
        sources, references = zip(*self.examples)
        with progress_bar("validation", len(sources), unit="sentences") as advance:

            def report(done, total):
                advance(done)
                self._break_off_if_asked()

            try:
                found = self.translator.translate(sources, report=report)
            except NonFiniteOutputs:
                return ("no score: the model's outputs are not finite",), {}
        outputs = [hypotheses[0].text for hypotheses in found]
        scores = self.problem.score(outputs, references)
        samples = [dict(zip(("source", "output", "reference"), texts)) for texts in zip(sources, outputs, references)]
        return scores, {
            **{score.name: score.value for score in scores}, "score": scores[-1].value,
            "signatures": {score.name: score.signature for score in scores}, "samples": samples[:SAMPLES],
        }  # fmt: skip

    def _break_off_if_asked(self):
        if self.stop.look():
            raise _BrokenOff


class _BrokenOff(Exception):
    """A signal came while the model was evaluated."""


class _StopEvaluating(keras.callbacks.Callback):
    """Ends Keras' evaluation when a signal came."""

    def __init__(self, stop):
        super().__init__()
        self.stop = stop

    def on_test_batch_begin(self, batch, logs=None):  # after one, Keras would read the metrics from the device
        if self.stop.look():
            self.model.stop_evaluating = True


class CheckpointCallback(StepCallback):
    """Writes checkpoints every so many updates and minutes, and marks the best by the latest evaluation.

    Args:
        start: Updates before this training.
        run: `Run`.
        hparams: `HParams`.
        progress: `ProgressLogger`, which must come before this callback.
        evaluation: `ValidationCallback`, likewise.
        stop: `StopRequest`; after a signal a checkpoint is written and `Interrupted` raised.
        workers: `Workers`.
        from_signal: Whether this training resumes from a checkpoint that was written for a signal. The next save
            removes that checkpoint, so an interrupted run keeps the same checkpoints as an uninterrupted one.
    """

    def __init__(self, start, run, hparams, progress, evaluation, stop, workers, from_signal=False):
        super().__init__(start)
        self.from_signal = start if from_signal else None
        self.workers = workers
        self.run, self.hparams, self.progress, self.evaluation, self.stop = run, hparams, progress, evaluation, stop
        self.written, self.saved_at = start, time.monotonic()

    def on_step(self, step):
        # In this order: all workers have to ask each other alike.
        if self.time_is_over(step) or step % self.hparams.checkpoint_steps == 0 or self.is_best(step):
            self.save(step)
        self.end_if_asked(step)

    def time_is_over(self, step):
        """Whether a checkpoint is due by the clock; several workers ask each other only now and then."""
        minutes = self.hparams.checkpoint_minutes
        if not minutes or (self.workers.count > 1 and step % MEET_EVERY):
            return False
        return self.workers.any(time.monotonic() - self.saved_at >= 60 * minutes)

    def on_end(self, step):
        if self.written != step or self.is_best(step):
            self.save(step)
        if not self.evaluation.evaluated(step):
            self.end_if_asked(None)

    def end_if_asked(self, step):
        """Writes a checkpoint and raises `Interrupted` if a signal came."""
        if signal := self.stop.look(step):
            step = self.step
            if self.written != step:
                self.save(step, from_signal=True)
            self.evaluation.report(
                f"{signal.name}: stopped after update {step:,}, of which there is a checkpoint; "
                "the same command goes on from it"
            )
            raise Interrupted(signal)

    def is_best(self, step):
        """Whether the model was evaluated at this step and is better than the best checkpoint."""
        if not self.evaluation.evaluated(step):
            return False
        best = self.run.checkpoints.best()  # a file, so not to be read after every update
        # The best one may have been damaged, and is made again.
        again = best and best["step"] == step and self.written != step
        return not best or again or self.ranking_key(self.evaluation.latest) > self.ranking_key(best)

    def ranking_key(self, found):
        """Return what makes an evaluation the best: its `best_metric`, then nats per token where scores are equal.

        A figure that is missing or not finite is the worst.
        """
        metric = self.hparams.best_metric
        signs = {"score": 1, "nll": -1} if metric == "score" else {metric: -1}
        found = finite_or_null(found)
        return tuple(-math.inf if found.get(name) is None else sign * found[name] for name, sign in signs.items())

    def save(self, step, from_signal=False):
        """Write the checkpoint of this step; `from_signal` marks one that the next save replaces."""
        checkpoints = self.run.checkpoints
        self.progress.end_line(step)  # a resumed log then has every update once
        with Stopwatch() as stopwatch:
            if self.written != step:
                latest = self.evaluation.latest
                state = {"evaluation": latest and finite_or_null(latest), "from_signal": from_signal}
                checkpoints.save(step, training_arrays(self.model), state)
                checkpoints.drop(self.from_signal)
                self.from_signal = step if from_signal else None
            if self.is_best(step):
                latest = finite_or_null(self.evaluation.latest)
                checkpoints.mark_best(step, {name: latest[name] for name in BEST if name in latest})
            if self.from_signal is None:
                checkpoints.prune(self.hparams.keep_checkpoints, step)
        if self.written != step:
            self.run.log(kind="checkpoint", step=step, seconds=stopwatch.seconds)
        self.written, self.saved_at = step, time.monotonic()


class EarlyStopping(StepCallback):
    """Ends the training when `patience` evaluations in a row were no better than the best one.

    They are counted in the run's own log and its mark of the best, so that a resumed training counts on.

    Args:
        start: Updates before this training.
        run: `Run`.
        hparams: `HParams`.
        evaluation: `ValidationCallback`, which must come before this callback, as `CheckpointCallback` must.
    """

    def __init__(self, start, run, hparams, evaluation):
        super().__init__(start)
        self.run, self.hparams, self.evaluation = run, hparams, evaluation

    def on_step(self, step):
        if self.evaluation.evaluated(step) and ended_early(self.run, self.hparams, step):
            self.evaluation.report(f"{self.hparams.patience} evaluations without a better one: training ends early")
            self.model.stop_training = True


def ended_early(run, hparams, step):
    """Return whether `patience` evaluations up to `step` were no better than the best one.

    Args:
        run: `Run`.
        hparams: `HParams`.
        step: Number of updates.
    """
    if hparams.patience is None or (best := run.checkpoints.best_step()) is None:
        return False
    evaluated = {row["step"] for row in run.metrics() if row["kind"] == "validation"}
    # The last evaluation of a shorter run was between two multiples.
    return sum(best < one <= step and one % hparams.eval_steps == 0 for one in evaluated) >= hparams.patience
