"""Early stopping, based on the evaluations in the log of the run."""

import logging

from keras_transformer.training.callbacks.base import StepCallback

logger = logging.getLogger(__name__)


class EarlyStopping(StepCallback):
    """Callback that stops training after `patience` consecutive evaluations without improvement.

    The callback counts evaluations in the log of the run, so the count continues when the run resumes.

    Args:
        start: Number of updates before this call to `fit`.
        run: `Run`.
        validation: `ValidationCallback`. In the list of callbacks, `ValidationCallback` and `CheckpointCallback` must
            come before `EarlyStopping`.
    """

    def __init__(self, start, run, validation):
        super().__init__(start)
        self.run, self.hparams, self.validation = run, run.hparams, validation

    def on_step(self, step):
        if self.validation.evaluated(step) and ended_early(self.run, step):
            patience = self.hparams.patience
            logger.info(f"no improvement in {patience} evaluation{'s' * (patience > 1)}: training stops early")
            self.model.stop_training = True


def ended_early(run, step):
    """Return whether the last `patience` evaluations up to `step` showed no improvement.

    Args:
        run: `Run`.
        step: Number of updates.
    """
    hparams = run.hparams
    if hparams.patience is None or (best := run.checkpoints.best_step()) is None:
        return False
    evaluated = {row["step"] for row in run.metrics() if row["kind"] == "validation"}
    # Training also evaluates after its last update. Count only multiples of `eval_steps`, so that this additional
    # evaluation does not count when the run continues with a larger `train_steps`.
    return sum(best < one <= step and one % hparams.eval_steps == 0 for one in evaluated) >= hparams.patience
