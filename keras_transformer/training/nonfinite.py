"""Handling of updates whose loss or gradients are not finite."""

import logging

from keras_transformer.utils.errors import UserError

logger = logging.getLogger(__name__)


class NonFinite:
    """Counter of skipped updates. When a run resumes, the counter starts with the count from the run's log.

    Args:
        start: Number of updates before this process started or resumed the run.
        run: `Run`. Its hparams `on_nonfinite` and `max_skipped` decide when training stops.
        batches: Training `TokenBatches` that begin with batch `start`.
    """

    def __init__(self, start, run, batches):
        self.start, self.run, self.hparams, self.batches = start, run, run.hparams, batches
        logged = [row for row in run.metrics() if row["kind"] == "nonfinite" and row["step"] <= start]
        self.skipped = sum({row["step"]: row["updates"] for row in logged}.values())

    def found(self, updates, step):
        """Log skipped updates.

        Args:
            updates: Number of skipped updates.
            step: Step of the first skipped update, counted from 1.

        Raises:
            UserError: `on_nonfinite` is "stop", or the run has skipped more than `max_skipped` updates.
        """
        rows = [int(row) for row in self.batches.rows(step - 1 - self.start)]
        self.run.log(kind="nonfinite", step=step, updates=updates, rows=rows)
        self.skipped += updates
        where = f"update {step:,}" if updates == 1 else f"{updates:,} updates, first in update {step:,}"
        first_rows = ", ".join(map(str, rows[:5])) + ", …" * (len(rows) > 5)
        what = f"the loss or a gradient is not finite in {where} (training pairs {first_rows})"
        hint = "try a smaller --learning_rate_scale or --clip_norm=1 in another --output_dir"
        if self.hparams.on_nonfinite == "stop":
            hint += ", or continue with --on_nonfinite=skip"
        elif self.skipped > self.hparams.max_skipped:
            hint = (
                f"the run skipped {self.skipped:,} updates, more than --max_skipped={self.hparams.max_skipped}; {hint}"
            )
        else:
            logger.warning(f"{what}; skipped")
            return
        saved = max((saved for saved in self.run.checkpoints.steps() if saved < step), default=None)
        good = f"the last checkpoint before it is from step {saved:,}" if saved else "there is no checkpoint before it"
        raise UserError(f"{what}; {good}; {hint}")
