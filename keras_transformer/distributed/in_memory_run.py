"""Run state for non-chief workers, kept in memory only.

Based on this state, a worker's callbacks make the same decisions as those of the chief, which has a run directory.
"""

from keras_transformer.config.hparams import HParams
from keras_transformer.runs.checkpoint import Checkpoints


def state_of(run):
    """Return the part of a run directory's state that an `InMemoryRun` needs, as a JSON-serializable dict."""
    rows = [row for row in run.metrics() if row["kind"] in ("validation", "nonfinite")]
    return {
        "config": run.config, "rows": rows, "best": run.checkpoints.best(), "steps": run.checkpoints.steps(),
    }  # fmt: skip


class InMemoryRun:
    """Run that does not write to disk, with the attributes of `Run` that training needs on all workers.

    There is no `problem`, because the configuration contains the chief's paths, which a worker may be unable to read.

    Args:
        path: The run directory, for messages.
        state: Result of `state_of` on the chief.
    """

    def __init__(self, path, state):
        self.path, self.config, self._rows = path, state["config"], state["rows"]
        self.hparams = HParams().replace(**self.config["hparams"])
        self.checkpoints = _InMemoryCheckpoints(path / "checkpoints", state)

    def log(self, **values):
        """Keep a line of metrics."""
        self._rows.append(values)

    def metrics(self):
        """Return the lines of metrics, a list of dicts."""
        return self._rows


class _InMemoryCheckpoints(Checkpoints):
    def __init__(self, path, state):
        super().__init__(path)
        self.state = state

    def steps(self):
        return self.state["steps"]

    def best(self):
        return self.state["best"]

    def mark_best(self, step, metrics):
        self.state["best"] = {"step": step, **metrics}

    def save(self, step, arrays, state):
        self.state["steps"].append(step)

    def is_from_signal(self, step):
        return False

    def drop(self, step):
        pass

    def prune(self, keep, newest=None):
        pass

    def check_room(self, model, keep):
        pass
