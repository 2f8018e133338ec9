"""Checkpoints: variables by path, as .npz without pickle, checksummed, whole or not there at all."""

import contextlib
import logging
import math
import re
import shutil
import time
import zipfile
from pathlib import Path

import numpy as np

from keras_transformer.utils.errors import UserError, shell_flag
from keras_transformer.utils.files import atomic_directory, read_json, remove_directory, sha256, write_json

logger = logging.getLogger(__name__)

VERSION = 1
NAME = re.compile(r"step-(\d{9})")
PARTS = ("weights", "optimizer", "ema")


class OtherVersion(UserError):
    """A checkpoint is whole, but another version of this program wrote it."""


class Checkpoints:
    """The checkpoints of a run, each a directory `step-NNNNNNNNN`: weights.npz, optimizer.npz, state.json, and ema.npz
    where a moving average of the weights is kept.

    Args:
        path: Their directory.
    """

    def __init__(self, path):
        self.path = Path(path)

    def steps(self):
        """Returns the steps of the checkpoints, ascending."""
        found = (NAME.fullmatch(entry.name) for entry in self.path.glob("step-*"))
        return sorted(int(match[1]) for match in found if match)

    def save(self, step, arrays, state):
        """Writes a checkpoint.

        Args:
            step: Updates so far.
            arrays: {"weights": {path: array}, "optimizer": {path: array}}, and perhaps "ema", as of "weights".
            state: What else is to be kept, for JSON.
        """
        self._write(self._directory(step), arrays, {**state, "step": step})

    def prune(self, keep, newest=None):
        """Removes all but the `keep` latest checkpoints and the best; what is after step `newest` is not counted."""
        for old in [step for step in self.steps() if newest is None or step <= newest][:-keep]:
            if old != self.best_step():
                remove_directory(self._directory(old))

    def drop(self, step):
        """Removes the checkpoint at `step`, unless it is the best or None."""
        if step is not None and step != self.best_step():
            remove_directory(self._directory(step))

    def check_room(self, model, keep):
        """Raises a `UserError` if the disk has no room for the checkpoints of a training.

        Args:
            model: The compiled model.
            keep: Latest checkpoints that are kept. The best is kept, too, and one more is there while one is written.
        """
        kept = _kept_variables(model)
        variables = [*kept, *optimizer_state(model.optimizer), *(kept if _averages(model) else ())]
        size = sum(np.dtype(variable.dtype).itemsize * math.prod(variable.shape) for variable in variables)
        missing = max(1, keep + 2 - len(self.steps())) * size
        free = shutil.disk_usage(self.path.parent).free
        if free < missing:
            begun = (self.path.parent / "config.json").is_file()  # such a run keeps as many as it did
            raise UserError(
                f"{self.path}: {missing / 1e9:,.2f} GB are needed for {missing // size} more checkpoints, and "
                f"{free / 1e9:,.2f} GB are free; make room"
                + (" and run the command again" if begun else f", or keep fewer: --keep_checkpoints={keep} now")
            )

    def remove_strays(self):
        """Removes what a process left that was killed while it wrote or removed a checkpoint."""
        for stray in self.path.glob(".step-*"):
            shutil.rmtree(stray, ignore_errors=True)
        for stray in self.path.glob(".best.json.*"):
            stray.unlink(missing_ok=True)

    def save_averaged(self, weights, state):
        """Write averaged weights {path: array}, with the "steps" that they average in the state."""
        self._write(self.path / "averaged", {"weights": weights}, state)

    def mark_best(self, step, metrics):
        """Notes that the checkpoint at `step` is the best so far."""
        write_json(self.path / "best.json", {"step": step, **metrics})

    def best(self):
        """Returns what `mark_best` noted, or None."""
        path = self.path / "best.json"
        return read_json(path, "best checkpoint", step=int) if path.is_file() else None

    def best_step(self):
        """Returns the step of the best checkpoint, or None."""
        best = self.best()
        return best and best["step"]

    def default(self):
        """Returns "best", or "last" where nothing was evaluated."""
        return "last" if self.best_step() is None else "best"

    def load(self, name=None, parts=PARTS, flag="--checkpoint"):
        """Returns ({"weights": …, "optimizer": …}, state) of a checkpoint.

        Args:
            name: "best", "last", "averaged", a step, or "ema", the moving average of the weights in the last one; None
                is the best, or the last where none was evaluated.
            parts: What to read of it, as far as it is there.
            flag: What a user asks for another one with, for the sentence of an error; "" if that is not possible.

        A warning is logged if the weights of "averaged" are read and training has continued since.

        Raises:
            UserError: There is none of that name, or it is damaged.
        """
        name = self.default() if name is None else name
        if name == "last":
            loaded = self.load_latest(parts)
            if loaded is None:
                found = "no whole checkpoint" if self.steps() else "no checkpoint"
                raise UserError(f"{self.path} holds {found}; train first")
            return loaded
        if name == "ema":
            arrays, state = self.load("last", ("ema",))
            if "ema" not in arrays:
                raise UserError(f"{self.path} holds no moving average; train with --ema_decay=0.999, for example")
            return {"weights": arrays["ema"]}, state
        if name == "averaged":
            directory = self.path / "averaged"
            hint = f"make it with {self._average}"
        else:
            step = self.best_step() if name == "best" else name
            if step is None:
                raise UserError(f"{self.path} holds no best checkpoint, nothing was evaluated; use {flag}=last")
            if not re.fullmatch("[0-9]{1,12}", str(step)):
                raise UserError(f"checkpoint {name!r}: it is best, last, averaged, ema or a step")
            directory = self._directory(int(step))
            hint = "there are steps " + ", ".join(map(str, self.steps()))
        if not directory.is_dir():
            raise UserError(f"there is no checkpoint {directory}; {hint}")
        try:
            arrays, state = _read(directory, parts)
            if name == "averaged" and "weights" in parts:
                self._warn_if_outdated(state["steps"][-1])
            return arrays, state
        except UserError as error:
            step = self._latest_whole(parts)
            hint = "no checkpoint is whole" if step is None else f"{flag}={step} is whole"
            raise UserError(f"{error}; {hint}" if flag or step is None else str(error)) from None

    def load_latest(self, parts=PARTS):
        """Returns `load` of the newest whole checkpoint, or None; it logs and skips damaged ones."""
        for step in reversed(self.steps()):
            try:
                return _read(self._directory(step), parts)
            except OtherVersion:
                raise
            except UserError as error:
                logger.warning(f"{error}; using the one before it")
        return None

    @property
    def _average(self):
        """The command that averages the latest checkpoints."""
        return f"python -m keras_transformer.average {shell_flag('run', self.path.parent)}"

    def _warn_if_outdated(self, step):
        """Report that training has continued since the checkpoint at `step` was the last one averaged."""
        newest = max(self.steps(), default=step)
        if newest > step:
            logger.warning(
                f"{self.path / 'averaged'} ends at step {step:,}, but training has continued to step {newest:,}; to "
                f"refresh it, run {self._average}"
            )

    def _latest_whole(self, parts):
        """The newest step whose checkpoint is whole, or None."""
        for step in reversed(self.steps()):
            with contextlib.suppress(UserError):
                _read(self._directory(step), parts)
                return step
        return None

    def _directory(self, step):
        return self.path / f"step-{step:09d}"

    def _write(self, directory, arrays, state):
        try:
            with atomic_directory(directory) as folder:
                checksums = {}
                for part, values in arrays.items():
                    with open(folder / f"{part}.npz", "wb") as file:
                        np.savez(file, **values)
                    checksums[part] = sha256(folder / f"{part}.npz")
                write_json(
                    folder / "state.json",
                    {"version": VERSION, "sha256": checksums, "saved": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **state},
                )
        except OSError as error:
            raise UserError(f"cannot write checkpoint {directory}: {error.strerror or error}") from None


def _read(directory, parts):
    state = read_json(directory / "state.json", "checkpoint", version=int, sha256=dict)
    if state["version"] != VERSION:
        raise OtherVersion(
            f"checkpoint {directory} is of format version {state.get('version')}, this program reads {VERSION}"
        )
    name = NAME.fullmatch(directory.name)
    if name and state.get("step") != int(name[1]):
        raise UserError(f"checkpoint {directory} is of step {state.get('step')}, not of that in its name")
    if state["sha256"].keys() != {path.stem for path in directory.glob("*.npz")} or "weights" not in state["sha256"]:
        raise UserError(f"checkpoint {directory} is damaged (its files are not those that state.json names)")
    arrays = {}
    for part in state["sha256"].keys() & set(parts):
        checksum = state["sha256"][part]
        path = directory / f"{part}.npz"
        if not path.is_file() or sha256(path) != checksum:
            raise UserError(f"checkpoint {path} is missing or damaged (its checksum differs)")
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays[part] = {name: file[name] for name in file.files}
        except (ValueError, zipfile.BadZipFile) as error:
            raise UserError(f"checkpoint {path} is damaged ({error})") from None
    return arrays, state


def model_arrays(model):
    """Returns {path: array} of a model's weights and seed states; metrics are left out."""
    return _arrays(_kept_variables(model))


def assign(variables, arrays, what):
    """Gives variables the arrays of their paths.

    Raises:
        UserError: A path is missing or a shape differs: the checkpoint is another model's.
    """
    for variable in variables:
        array = arrays.get(variable.path)
        if array is None or tuple(array.shape) != tuple(variable.shape):
            found = "nothing" if array is None else f"shape {tuple(array.shape)}"
            raise UserError(
                f"{what} belongs to another model: for {variable.path}, {tuple(variable.shape)}, it holds {found}"
            )
        variable.assign(array)


def assign_model(model, arrays, what):
    """Gives a model's weights and seed states the arrays that `model_arrays` returned."""
    assign(_kept_variables(model), arrays, what)


def training_arrays(model):
    """Returns all arrays of a checkpoint of a compiled model: weights, the optimizer's state, and a moving average."""
    arrays = {"weights": model_arrays(model), "optimizer": _arrays(optimizer_state(model.optimizer))}
    averages = _averages(model)
    if averages:
        own = {path: np.asarray(average.value).copy() for path, average in averages.items()}
        arrays["ema"] = {**arrays["weights"], **own}  # with the seeds' states it is a whole model
    return arrays


def assign_training(model, arrays, what):
    """Gives a compiled model what `training_arrays` returned."""
    assign_model(model, arrays["weights"], what)
    # One in another precision had no scale of its loss; it begins anew then.
    scales = {variable.path for variable in getattr(model.optimizer, "scale_variables", ())}
    absent = scales - arrays["optimizer"].keys()
    kept = [variable for variable in optimizer_state(model.optimizer) if variable.path not in absent]
    assign(kept, arrays["optimizer"], what)
    for path, average in _averages(model).items():
        if path not in arrays.get("ema", {}):
            raise UserError(f"{what} holds no moving average of {path}; training cannot resume from it")
        average.assign(arrays["ema"][path])


def optimizer_state(optimizer):
    """Returns an optimizer's step and slots: its variables but moving averages and what only watches a training."""
    others = [*getattr(optimizer, "watch_variables", ()), *getattr(optimizer, "averages", ())]
    others = {id(variable) for variable in others}
    return [variable for variable in optimizer.variables if id(variable) not in others]


def _averages(model):
    """{path of a weight: its moving average}, where the optimizer keeps one."""
    averages = getattr(model.optimizer, "averages", ())
    return {weight.path: average for weight, average in zip(model.trainable_variables, averages)}


def _kept_variables(model):
    metrics = {id(variable) for variable in model.metrics_variables}
    return [variable for variable in model.variables if id(variable) not in metrics]


def _arrays(variables):
    arrays = {}
    for variable in variables:
        assert variable.path not in arrays, f"two variables are called {variable.path}"
        arrays[variable.path] = np.asarray(variable.value).copy()
    return arrays
