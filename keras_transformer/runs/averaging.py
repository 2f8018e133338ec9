"""§6.1: averaging the last checkpoints."""

import os

from keras_transformer.errors import UserError
from keras_transformer.runs.directory import Run


def average_checkpoints(run_dir: str | os.PathLike, last: int | None = None) -> list[int]:
    """Averages the weights of a run's last checkpoints (§6.1) into its checkpoint "averaged".

    Args:
        run_dir: Run directory.
        last: How many; the hparams' `average_last` by default.

    Returns:
        The steps of the averaged checkpoints.

    Raises:
        UserError: There are fewer, or one is damaged.
    """
    run = Run.open(run_dir)
    last = run.hparams.average_last if last is None else last
    if last < 1:
        raise UserError(f"--last={last}: at least 1 checkpoint must be averaged")
    steps = run.checkpoints.steps()[-last:]
    if not steps:
        raise UserError(f"{run.checkpoints.path} holds no checkpoint; train first")
    if len(steps) < last:
        there = len(run.checkpoints.steps())
        raise UserError(f"{run.checkpoints.path} holds {there} checkpoints, not {last}; --last={there} averages them")
    average: dict = {}
    for step in steps:
        weights = run.checkpoints.load(step, parts=("weights",), flag="")[0]["weights"]
        for path, array in weights.items():
            if array.dtype.kind == "f":
                array = average.get(path, 0.0) + array.astype("float64") / last
            average[path] = array  # seed states are not averaged: the last one's stay
    run.checkpoints.save_averaged(
        {path: array.astype(weights[path].dtype) for path, array in average.items()}, {"steps": steps}
    )
    return steps
