"""Checkpoints: .npz files that map variable paths to arrays. Writes are atomic, and checksums reveal damage."""

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
from keras_transformer.utils.files import atomic_directory, lock_file, read_json, remove_directory, sha256, write_json
from keras_transformer.utils.logs import log_once

logger = logging.getLogger(__name__)

VERSION = 1
NAME = re.compile(r"step-(\d{9})")
PARTS = ("weights", "optimizer", "ema")


class OtherVersion(UserError):
    """Error for a checkpoint in the format of another version of this package."""


class Checkpoints:
    """The checkpoints of a run.

    Each checkpoint is a directory `step-NNNNNNNNN` with weights.npz, optimizer.npz, state.json, and ema.npz if the run
    keeps a moving average of the weights.

    Args:
        path: Directory of the checkpoints.
    """

    def __init__(self, path):
        self.path = Path(path)

    def steps(self):
        """Return the steps of the checkpoints in ascending order."""
        matches = (NAME.fullmatch(entry.name) for entry in self.path.glob("step-*"))
        return sorted(int(match[1]) for match in matches if match)

    def save(self, step, arrays, state):
        """Write a checkpoint.

        Args:
            step: Number of updates so far.
            arrays: {"weights": {path: array}, "optimizer": {path: array}}, optionally with "ema": {path: array}.
            state: Additional state, a dict for JSON.
        """
        self._write(self._directory(step), arrays, {**state, "step": step})

    def prune(self, keep, newest=None):
        """Remove all but the best and the `keep` latest checkpoints.

        Checkpoints after step `newest` are neither counted nor removed.
        """
        for old in [step for step in self.steps() if newest is None or step <= newest][:-keep]:
            if old != self.best_step():
                remove_directory(self._directory(old))

    def is_from_signal(self, step):
        """Return whether the checkpoint at `step` was written because of a signal, and the next one replaces it."""
        try:
            return bool(read_json(self._directory(step) / "state.json", "checkpoint").get("from_signal"))
        except UserError:  # missing or damaged
            return False

    def keep(self, step):
        """Let the next checkpoint no longer replace the one at `step`."""
        if self.is_from_signal(step):
            path = self._directory(step) / "state.json"
            write_json(path, {**read_json(path, "checkpoint"), "from_signal": False})

    def drop(self, step):
        """Remove the checkpoint at `step` unless it is the best one."""
        if step != self.best_step():
            remove_directory(self._directory(step))

    def check_room(self, model, keep):
        """Raise a `UserError` if the disk lacks space for the checkpoints of a run.

        Args:
            model: The compiled model.
            keep: Number of latest checkpoints to keep. The best one and the one being written need additional space.
        """
        kept = _kept_variables(model)
        variables = [*kept, *optimizer_state(model.optimizer), *(kept if _averages(model) else ())]
        size = sum(np.dtype(variable.dtype).itemsize * math.prod(variable.shape) for variable in variables)
        count = max(1, keep + 2 - len(self.steps()))
        missing = count * size
        free = shutil.disk_usage(self.path.parent).free
        if free < missing:
            exists = (self.path.parent / "config.json").is_file()  # an existing run cannot change keep_checkpoints
            raise UserError(
                f"{self.path} needs {missing / 1e9:,.2f} GB for {count} more checkpoint{'s' * (count > 1)}, but only "
                f"{free / 1e9:,.2f} GB is free; free some space and run the command again"
                + (f", or keep fewer than --keep_checkpoints={keep}" if not exists else "")
            )

    def remove_strays(self):
        """Remove temporary files of a process that was killed while it wrote or removed a checkpoint."""
        for stray in self.path.glob(".step-*"):
            shutil.rmtree(stray, ignore_errors=True)
        for stray in self.path.glob(".best.json.*"):
            stray.unlink(missing_ok=True)

    def save_averaged(self, weights, state):
        """Write the checkpoint "averaged", and remove the temporary files of killed processes.

        If another process is writing this checkpoint, the method waits for it.

        Args:
            weights: The averaged weights, {path: array}.
            state: {"steps": steps of the averaged checkpoints}.
        """
        lock = self.path / ".averaged.lock"
        with lock_file(lock, wait=True):
            try:
                for stray in self.path.glob(".averaged.*"):
                    if stray != lock:
                        shutil.rmtree(stray, ignore_errors=True)
                self._write(self.path / "averaged", {"weights": weights}, state)
            finally:
                lock.unlink(missing_ok=True)

    def mark_best(self, step, metrics):
        """Record in best.json that the checkpoint at `step` is the best so far, with its metrics."""
        write_json(self.path / "best.json", {"step": step, **metrics})

    def best(self):
        """Return {"step": step, metric: value, …} of the best checkpoint, or None if there was no evaluation."""
        path = self.path / "best.json"
        return read_json(path, "best checkpoint", step=int) if path.is_file() else None

    def best_step(self):
        """Return the step of the best checkpoint, or None if there was no evaluation."""
        best = self.best()
        return best and best["step"]

    def default(self):
        """Return "best", or "last" if there was no evaluation."""
        return "last" if self.best_step() is None else "best"

    def load(self, name=None, parts=PARTS, flag="--checkpoint"):
        """Load a checkpoint. Log a warning if "averaged" is outdated because training has continued.

        Args:
            name: "best", "last", "averaged", a step, or "ema", the moving average of the weights in the last
                checkpoint. None loads the best checkpoint, or the last one if there was no evaluation.
            parts: Names of the parts to load, from `PARTS`. Parts that the checkpoint does not contain are skipped.
            flag: Flag of the command that selects a checkpoint, for hints in error messages; "" for no hints.

        Returns:
            A tuple ({part: {path: array}}, state).

        Raises:
            UserError: The checkpoint does not exist or is damaged.
        """
        name = self.default() if name is None else name
        if name == "last":
            loaded = self.load_latest(parts)
            if loaded is None:
                missing = "complete checkpoint" if self.steps() else "checkpoint"
                raise UserError(f"{self.path} has no {missing}; train first")
            return loaded
        if name == "ema":
            arrays, state = self.load("last", ("ema",))
            if "ema" not in arrays:
                raise UserError(f"{self.path} has no moving average; train with --ema_decay=0.999, for example")
            return {"weights": arrays["ema"]}, state
        if name == "averaged":
            directory = self.path / "averaged"
            hint = f"create it with {self._average}"
        else:
            step = self.best_step() if name == "best" else name
            if step is None:
                raise UserError(f"{self.path} has no best checkpoint, because none was evaluated; use {flag}=last")
            if not re.fullmatch("[0-9]{1,12}", str(step)):
                raise UserError(f"the checkpoint must be best, last, averaged, ema or a step, got {name!r}")
            directory = self._directory(int(step))
            hint = "available steps: " + ", ".join(map(str, self.steps()))
        if not directory.is_dir():
            raise UserError(f"checkpoint {directory} does not exist; {hint}")
        try:
            arrays, state = _read(directory, parts)
            if name == "averaged" and "weights" in parts:
                self._warn_if_outdated(state["steps"][-1])
            return arrays, state
        except UserError as error:
            step = self._latest_whole(parts)
            hint = "no checkpoint is complete" if step is None else f"{flag}={step} is complete"
            raise UserError(f"{error}; {hint}" if flag or step is None else str(error)) from None

    def load_latest(self, parts=PARTS):
        """Load the newest undamaged checkpoint. Log a warning about each damaged checkpoint that is newer.

        Returns:
            A tuple ({part: {path: array}}, state), or None if there is no undamaged checkpoint.
        """
        for step in reversed(self.steps()):
            try:
                return _read(self._directory(step), parts)
            except OtherVersion:
                raise
            except UserError as error:
                log_once(logger, logging.WARNING, f"{error}; using the previous checkpoint")
        return None

    @property
    def _average(self):
        """The command that averages the latest checkpoints."""
        return f"python -m keras_transformer.average {shell_flag('run', self.path.parent)}"

    def _warn_if_outdated(self, step):
        """Log a warning if there is a checkpoint after `step`, the last step in the average."""
        newest = max(self.steps(), default=step)
        if newest > step:
            log_once(
                logger,
                logging.WARNING,
                f"{self.path / 'averaged'} is outdated: it averages checkpoints up to step {step:,}, but the last "
                f"checkpoint is from step {newest:,}; to update it, run {self._average}",
            )

    def _latest_whole(self, parts):
        """Return the newest step whose checkpoint is complete, or None."""
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
            f"checkpoint {directory} must have format version {VERSION}, got {state.get('version')}. Use the version "
            "of this package that wrote the checkpoint."
        )
    name = NAME.fullmatch(directory.name)
    if name and state.get("step") != int(name[1]):
        raise UserError(f"checkpoint {directory} is damaged (its state.json belongs to step {state.get('step')})")
    if state["sha256"].keys() != {path.stem for path in directory.glob("*.npz")} or "weights" not in state["sha256"]:
        raise UserError(f"checkpoint {directory} is damaged (its files differ from those listed in state.json)")
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
    """Return {path: array} of the weights and seed states of a model, without its metrics."""
    return _arrays(_kept_variables(model))


def assign(variables, arrays, what):
    """Assign arrays, {path: array}, to variables. Error messages start with `what`, the name of the checkpoint.

    Raises:
        UserError: A path is missing or a shape differs, so the checkpoint belongs to another model.
    """
    for variable in variables:
        array = arrays.get(variable.path)
        shape = tuple(variable.shape)
        if array is None:
            raise UserError(f"{what} belongs to another model: it does not contain {variable.path} of shape {shape}.")
        if tuple(array.shape) != shape:
            raise UserError(
                f"{what} belongs to another model: {variable.path} must have shape {shape}, got {tuple(array.shape)}."
            )
        variable.assign(array)


def assign_model(model, arrays, what):
    """Assign the result of `model_arrays` to the weights and seed states of a model."""
    assign(_kept_variables(model), arrays, what)


def training_arrays(model):
    """Return {part: {path: array}} of a compiled model: weights, optimizer state and moving averages, if any."""
    arrays = {"weights": model_arrays(model), "optimizer": _arrays(optimizer_state(model.optimizer))}
    if averages := _averages(model):
        own = {path: np.asarray(average.value).copy() for path, average in averages.items()}
        arrays["ema"] = {**arrays["weights"], **own}  # includes seed states, so that "ema" is a complete model
    return arrays


def assign_training(model, arrays, what):
    """Assign the result of `training_arrays` to a compiled model."""
    assign_model(model, arrays["weights"], what)
    # Only float16 training stores a loss scale. After a change to float16, training starts with the initial scale.
    scales = {variable.path for variable in getattr(model.optimizer, "scale_variables", ())}
    absent = scales - arrays["optimizer"].keys()
    kept = [variable for variable in optimizer_state(model.optimizer) if variable.path not in absent]
    assign(kept, arrays["optimizer"], what)
    for path, average in _averages(model).items():
        if path not in arrays.get("ema", {}):
            raise UserError(f"{what} has no moving average of {path}; training cannot resume from this checkpoint")
        average.assign(arrays["ema"][path])


def optimizer_state(optimizer):
    """Return the optimizer's variables, except statistics for the log and moving averages of the weights."""
    others = [*getattr(optimizer, "watch_variables", ()), *getattr(optimizer, "averages", ())]
    others = {id(variable) for variable in others}
    return [variable for variable in optimizer.variables if id(variable) not in others]


def _averages(model):
    """Return {path of a weight: its moving average}, empty if the optimizer keeps no averages."""
    averages = getattr(model.optimizer, "averages", ())
    return {weight.path: average for weight, average in zip(model.trainable_variables, averages)}


def _kept_variables(model):
    metrics = {id(variable) for variable in model.metrics_variables}
    return [variable for variable in model.variables if id(variable) not in metrics]


def _arrays(variables):
    arrays = {}
    for variable in variables:
        assert variable.path not in arrays, f"two variables have the path {variable.path}"
        arrays[variable.path] = np.asarray(variable.value).copy()
    return arrays
