"""Progress in the log: loss, learning rate, speed and remaining time."""

import logging
import math

import keras

from keras_transformer.training.callbacks.base import StepCallback
from keras_transformer.training.hardware import peak_memory
from keras_transformer.training.schedule import make_schedule
from keras_transformer.utils.timing import Stopwatch, duration

logger = logging.getLogger(__name__)


class ProgressLogger(StepCallback):
    """Callback that logs a line every n-th update: loss, learning rate, tokens per second and remaining time.

    Args:
        start: Number of updates before this call to `fit`.
        run: `Run`, whose metrics.jsonl gets the values.
        batches: Training `TokenBatches`, which count source and target tokens on the host.
        update_flops: Function of (rows, source length, target length) that returns the floating-point operations of an
            update.
        nonfinite: `NonFinite`, which counts skipped updates.
        every: Number of updates per line. The callback reads the metrics from the device once per line.
    """

    def __init__(self, start, run, batches, update_flops, nonfinite, every=50):
        super().__init__(start)
        self.run, self.batches, self.update_flops, self.nonfinite = run, batches, update_flops, nonfinite
        hparams = run.hparams
        self.every, self.train_steps, self.eval_steps = every, hparams.train_steps, hparams.eval_steps
        self.schedule = make_schedule(hparams)
        self.start, self.tokens = start, 0
        self.advance = lambda step: None  # the trainer replaces this function to show a progress bar
        self.busy = Stopwatch()  # time of updates, without evaluations and checkpoints
        self.shapes = set()  # batch shapes compiled in this process
        # On JAX, `CompileAhead` logs compilations.
        compiles = batches.few_shapes and keras.backend.backend() == "tensorflow"
        self.num_shapes = len(batches.shapes(self.train_steps - start)) if compiles else 0
        self.begin_line()

    def begin_line(self):
        """Reset the counters for the next log line: updates, tokens, tokens with padding, floating-point operations."""
        self.new_steps, self.new_tokens, self.new_padded, self.new_flops = 0, 0, 0, 0
        self.first_uses, self.first_seconds = 0, 0.0  # number and time of updates that compiled a shape

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
        # Read the metrics before an evaluation, which overwrites them.
        if step % self.every == 0 or step % self.eval_steps == 0 or step == self.train_steps:
            self.end_line(step)

    def on_end(self, step):
        self.end_line(step)

    def count_compilation(self, seconds):
        """Count the first update of a batch shape, and log its time if it took a second or more."""
        self.first_uses, self.first_seconds = self.first_uses + 1, self.first_seconds + seconds
        if seconds >= 1:
            shape = f"batch shape {len(self.shapes)} of {self.num_shapes}"
            logger.info(f"  compiled the update for {shape} in {seconds:.1f} s")

    def seconds_of(self, updates, seconds):
        """Estimate the time of `updates` updates in seconds from the updates since the last log line.

        The estimate ignores updates that compiled a shape, unless all updates since the last log line compiled one.

        Args:
            updates: Number of updates.
            seconds: Time of the updates since the last log line.
        """
        if self.first_uses < self.new_steps:
            return updates * (seconds - self.first_seconds) / (self.new_steps - self.first_uses)
        return updates * seconds / self.new_steps

    def end_line(self, step):
        """If there were updates since the last log line, log their metrics and reset the counters."""
        if not self.new_steps:
            return
        with self.busy:  # reading metrics waits for updates that are still queued on the device
            metrics = {name: float(value) for name, value in self.model.get_metrics_result().items()}
            norms, faults, first = self.model.optimizer.watched()
        self.model.reset_metrics()
        learning_rate = float(self.schedule(step - 1))  # learning rate of the last update
        seconds = self.busy.reset()
        speed, left = self.new_tokens / seconds, self.seconds_of(self.train_steps - step, seconds)
        is_first, self.tokens = self.tokens == 0, self.tokens + self.new_tokens
        logger.info(
            f"step {step:,}/{self.train_steps:,}  loss {metrics['loss']:.4f}  perplexity {metrics['perplexity']:.2f}  "
            f"gradient norm {norms.get('gradient_norm', math.nan):.2f}  learning rate {learning_rate:.2e}  "
            f"{speed:,.0f} tokens/s  ETA {duration(left)}"
        )
        if is_first and left:
            total = duration(seconds + left)
            logger.info(f"  estimated time for all updates: {total}, without evaluations and checkpoints")
        self.run.log(
            kind="train", step=step, **metrics, **norms, learning_rate=learning_rate, tokens_per_second=speed,
            tokens=self.new_tokens, padded_tokens=self.new_padded, flops=self.new_flops, seconds=seconds,
            data_seconds=self.batches.stopwatch.reset(), **peak_memory(),
        )  # fmt: skip
        self.begin_line()
        if faults:
            self.nonfinite.found(faults, first)
