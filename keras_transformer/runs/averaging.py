"""Checkpoint averaging (§6.1)."""

import logging
import os

from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError

logger = logging.getLogger(__name__)


def average_checkpoints(run_dir: str | os.PathLike, last: int | None = None) -> list[int]:
    """Average the weights of a run's last checkpoints (§6.1) into its checkpoint "averaged".

    The best checkpoint is included only if it is one of the `keep_checkpoints` latest ones. If there are fewer than
    `last` checkpoints, the function averages all of them and logs a warning.

    Args:
        run_dir: Run directory.
        last: Maximum number of checkpoints (default: `average_last` of the hparams).

    Returns:
        The steps of the averaged checkpoints, ascending.

    Raises:
        UserError: `last` is less than 1, there is no checkpoint, or a checkpoint is damaged.
    """
    run = Run.open(run_dir)
    last = run.hparams.average_last if last is None else last
    if last < 1:
        raise UserError(f"--last must be at least 1, got {last}")
    keep = run.hparams.keep_checkpoints  # ignore a best checkpoint that is older than the latest `keep` ones
    steps = run.checkpoints.steps()[-min(last, keep) :]
    if not steps:
        raise UserError(f"{run.checkpoints.path} has no checkpoints; train first")
    average: dict = {}
    for step in steps:
        weights = run.checkpoints.load(step, parts=("weights",), flag="")[0]["weights"]
        for path, array in weights.items():
            if array.dtype.kind == "f":
                array = average.get(path, 0.0) + array.astype("float64") / len(steps)
            average[path] = array  # not floats, such as generator states: keep the latest
    run.checkpoints.save_averaged(
        {path: array.astype(weights[path].dtype) for path, array in average.items()}, {"steps": steps}
    )
    if len(steps) < last:
        why = f"the run keeps only its latest {keep} (keep_checkpoints={keep})"
        if len(steps) < keep:
            why = f"there are no more in {run.checkpoints.path}"
        logger.warning(f"averaged {len(steps)} of {last} checkpoints: {why}")
    return steps
