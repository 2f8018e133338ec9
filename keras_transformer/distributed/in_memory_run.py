"""Run state for non-chief workers, kept in memory only.

Based on this state, a worker's callbacks make the same decisions as those of the chief, which has a run directory.
"""

import dataclasses
import functools

from keras_transformer.runs.checkpoint import Checkpoints
from keras_transformer.runs.run import Run


def state_of(run):
    """Return the part of a run directory's state that an `InMemoryRun` needs, as a JSON-serializable dict."""
    rows = [row for row in run.metrics() if row["kind"] in ("validation", "nonfinite")]
    return {
        "config": run.config, "rows": rows, "best": run.checkpoints.best(), "steps": run.checkpoints.steps(),
    }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class InMemoryRun(Run):
    """Run that does not write to disk.

    Attributes:
        state: Result of `state_of` on the chief.
    """

    state: dict

    @functools.cached_property
    def checkpoints(self):
        return _InMemoryCheckpoints(self.path / "checkpoints", self.state)

    def create(self):
        pass

    def write_manifest(self, manifest):
        pass

    def log(self, **values):
        self.state["rows"].append(values)

    def metrics(self):
        return self.state["rows"]


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

    def drop(self, step):
        pass

    def prune(self, keep, newest=None):
        pass

    def check_room(self, model, keep):
        pass
