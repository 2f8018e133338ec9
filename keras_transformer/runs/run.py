"""Run directories, which contain everything that later commands need.

A run directory contains:

    config.json      problem, model, hparams, plug-ins
    tokenizer.model  vocabulary of the model
    manifest.json    versions, corpus checksums, parameter table
    checkpoints/     see `checkpoint.py`
    metrics.jsonl    metrics, one line per measurement
    tensorboard/     the same metrics, if TensorBoard is installed
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
from pathlib import Path

from keras_transformer.config import plugins, registry
from keras_transformer.config.hparams import HParams
from keras_transformer.data.language_tags import SEVERAL
from keras_transformer.data.tokenizers.loading import TOKENIZER_FILES, load_tokenizer
from keras_transformer.runs.checkpoint import Checkpoints, assign_model
from keras_transformer.runs.tensorboard import open_events
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.errors import UserError, shell_flag
from keras_transformer.utils.files import append_line, finite_or_null, lock_file, read_json, write_json

MAY_CHANGE = ("train_steps", "patience", "on_nonfinite", "max_skipped")
"""Hparams that may change when a run resumes."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run and its directory.

    Attributes:
        path: The run directory.
        config: {"problem": {"name", "data_dir", "raw_dir", "parameters"}, "preset", "hparams", "init_from",
            "plugins"}. "plugins" is a list of module names and absolute paths. "init_from" is the origin of the
            initial weights, {"run", "checkpoint"}, or None.
    """

    path: Path
    config: dict

    @classmethod
    def open(cls, path):
        """Open the run in directory `path` and load its plug-ins.

        Raises:
            UserError: The directory does not contain a run, a plug-in is missing or invalid, or the settings require
                another version of the package.
        """
        path = Path(path)
        if not path.is_dir():
            raise UserError(f"{path} is not a run directory. Create one with train {shell_flag('output_dir', path)}")
        what = f"{path} is not a run directory"
        config = read_json(path / "config.json", what, problem=dict, preset=str, hparams=dict, plugins=list)
        run = cls(path, config)
        if (path / "manifest.json").is_file() and run.manifest()["config_hash"] != run.config_hash:
            raise UserError(f"{path / 'config.json'} was changed after training; undo the change or restore a copy")
        run.load_plugins()
        try:
            HParams().replace(**config["hparams"])
        except UserError as error:
            raise UserError(
                f"{path / 'config.json'} needs another version of this package or of a plug-in: {error}"
            ) from None
        return run

    @classmethod
    def configure(cls, path, problem, preset, hparams, init_from=None):
        """Return the run to start or resume in directory `path`, without writing files.

        Args:
            path: The directory.
            problem: `Problem`, prepared or not.
            preset: Registered name of the preset that `hparams` are based on.
            hparams: `HParams`.
            init_from: Origin of the initial weights; None keeps the origin recorded in an existing run.

        Raises:
            UserError: The directory contains another run or other files.
        """
        path = Path(path)
        config = {
            "problem": {
                "name": problem.name,
                "data_dir": str(Path(problem.data_dir).resolve()),
                "raw_dir": problem.raw_dir and str(Path(problem.raw_dir).resolve()),
                "parameters": problem.parameters,
            },
            "preset": preset,
            "hparams": dataclasses.asdict(hparams),
            "init_from": init_from,
        }
        if (path / "config.json").is_file():
            known = cls.open(path)
            config["init_from"] = init_from or known.config["init_from"]
            known.check_same_config(config)
            config["problem"]["parameters"] = known.config["problem"]["parameters"]  # keeps the `config_hash`
        elif path.exists() and (not path.is_dir() or _foreign_files(path)):
            raise UserError(f"{path} exists and is not a run directory; choose another --output_dir")
        config["plugins"] = plugins.loaded()  # includes plug-ins of an existing run, which `open` has loaded
        return cls(path, config)

    def check_corpus(self):
        """Raise a `UserError` if an existing run was trained on a corpus other than the prepared one."""
        store = self.problem.store
        if (self.path / "config.json").is_file() and self.tokenizer.fingerprint != store.tokenizer.fingerprint:
            raise UserError(
                f"{self.path}: the corpus has changed since training began (its vocabulary differs); restore the old "
                "corpus, or choose another --output_dir"
            )
        if not (self.path / "manifest.json").is_file():
            return
        if _trained_on(self.manifest()["store_files"]) != _trained_on(store.manifest["files"]):
            raise UserError(
                f"{self.path}: the corpus has changed since training began (its checksum differs); restore the old "
                "corpus, or choose another --output_dir"
            )

    def create(self, tokenizer=None):
        """Create the directory or update the existing run.

        Args:
            tokenizer: The model's `Tokenizer` (default: that of the problem, which must be prepared).

        Raises:
            UserError: The directory is not writable.
        """
        if not (self.path / "config.json").is_file():
            (tokenizer or self.problem.tokenizer).save(self.path)
        # Resuming changes only the MAY_CHANGE fields and the paths of the corpus and plug-ins in config.json.
        write_json(self.path / "config.json", self.config)

    def write_manifest(self, manifest):
        """Write manifest.json. `manifest` is the result of `make_manifest`."""
        write_json(self.path / "manifest.json", manifest)

    @contextlib.contextmanager
    def locked(self):
        """Lock the directory against other training processes. The system releases the lock if the process dies.

        Raises:
            UserError: Another process is training in the directory.
        """
        with lock_file(self.path / ".lock") as alone:
            if not alone:
                raise UserError(
                    f"another process is training in {self.path}; wait for it, or choose another --output_dir"
                )
            self.checkpoints.remove_strays()
            yield

    def load_plugins(self):
        """Load the plug-ins of the run, unless those given by `--plugin` have registered all names that the run needs.

        With `--plugin`, users can therefore give the new location of a plug-in that has moved.

        Raises:
            UserError: A plug-in is missing or invalid, or it is in the working directory and not given by `--plugin`.
        """
        given, missing = plugins.loaded(), None
        for plugin in self.config["plugins"]:
            if given and self._has_plugins():
                return
            if plugin in given:
                continue
            if plugins.is_local(plugin):
                raise UserError(
                    f"the plug-in {plugin!r} of the run {self.path} may be a file in the working directory. Check that "
                    f"you trust its code, then add {shell_flag('plugin', plugin)}."
                )
            try:
                plugins.load_plugin(plugin)
            except plugins.MissingPlugin:
                missing = plugin
        if missing and not self._has_plugins():
            raise UserError(
                f"plug-in {missing!r} of the run {self.path} is missing; pass its new location with "
                "--plugin=MODULE_OR_PATH"
            )

    def check_same_config(self, config):
        """Raise a `UserError` if `config` differs from this run in a setting that a resumed run cannot change."""
        # Parameters and hparams that did not exist when the run began have their default values.
        problem = {**self.config["problem"], "parameters": self.problem.parameters}
        was = _fixed({**self.config, "problem": problem, "hparams": dataclasses.asdict(self.hparams)})
        now = _fixed(config)
        for name in was | now:  # problem and preset first, because the hparams depend on them
            if was.get(name) != now.get(name):
                raise UserError(
                    f"{self.path} contains a run with {name}={was.get(name)}, not {now.get(name)}; "
                    "choose another --output_dir, or use the same settings to resume"
                )

    @property
    def config_hash(self):
        """SHA-256 of the settings that a resumed run cannot change, without hparams that have their default values.

        A new field of the hparams therefore does not change the hash, but a changed default does.
        """
        defaults = _flat({"hparams": dataclasses.asdict(HParams())})
        own = {name: value for name, value in _fixed(self.config).items() if value != defaults.get(name)}
        return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()

    @property
    def hparams(self):
        """The `HParams` of the run."""
        return HParams().replace(**self.config["hparams"])

    @functools.cached_property
    def problem(self):
        """The `Problem` of the run."""
        config = self.config["problem"]
        try:
            arguments = {"data_dir": config["data_dir"], "raw_dir": config["raw_dir"], **config["parameters"]}
            return load_problem(config["name"], **arguments)
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{self.path / 'config.json'} is damaged: its entry 'problem' is invalid ({error})"
            ) from None

    @property
    def input_language(self):
        """Code of the source language, or None if the problem has several source languages or records none."""
        language = getattr(self.problem, "input_language", None)
        return None if language == SEVERAL else language

    @functools.cached_property
    def tokenizer(self):
        """The `Tokenizer` of the model.

        Raises:
            UserError: The vocabulary is missing, damaged, or different from that of the training run.
        """
        tokenizer = load_tokenizer(self.path)
        trained = (self.path / "manifest.json").is_file()
        if trained and self.manifest()["tokenizer_sha256"] != tokenizer.fingerprint:
            raise UserError(
                f"{self.path / tokenizer.file_name} is not the vocabulary that the model was trained with. "
                "Restore the original file."
            )
        return tokenizer

    @functools.cached_property
    def checkpoints(self):
        """The `Checkpoints` of the run."""
        return Checkpoints(self.path / "checkpoints")

    def manifest(self):
        """Return the manifest of the run."""
        return read_json(
            self.path / "manifest.json", f"{self.path} has not been trained",
            tokenizer_sha256=str, config_hash=str, store_files=dict,
        )  # fmt: skip

    def _has_plugins(self):
        """Return whether all names that the run needs are registered."""
        config = self.config
        names = [(registry.problems, config["problem"]["name"])]
        chosen = {"model": registry.models, **registry.layers}
        names += [(entries, config["hparams"].get(field)) for field, entries in chosen.items()]
        names += [(registry.hparams, config["preset"])]
        return all(name in entries for entries, name in names if name)

    def load_model(self, checkpoint=None, precision="float32"):
        """Return the model with the weights of a checkpoint: "best", "last", "averaged", "ema" or a step."""
        return self.make_model(self.checkpoints.load(checkpoint, parts=("weights",))[0]["weights"], precision)

    def make_model(self, weights, precision="float32"):
        """Return the model in "float32" or "bfloat16", with the weights {path: array}."""
        model = registry.models.get(self.hparams.model)(self.tokenizer.vocab_size, self.hparams, dtype=precision)
        assign_model(model, weights, f"the checkpoint in {self.path}")
        return model

    def log(self, **values):
        """Append a line to metrics.jsonl and to the TensorBoard events. Non-finite numbers become null.

        If a crash truncated the last line, the new line starts after a line break.
        """
        path = self.path / "metrics.jsonl"
        values = finite_or_null(values)
        append_line(path, json.dumps(values))
        if self._events:
            self._events.write(values)

    @functools.cached_property
    def _events(self):
        return open_events(self.path / "tensorboard")

    def metrics(self):
        """Return the lines of metrics.jsonl, a list of dicts, without damaged lines."""
        path = self.path / "metrics.jsonl"
        rows = []
        for line in path.read_bytes().splitlines() if path.is_file() else []:
            try:
                rows.append(json.loads(line))
            except ValueError:  # invalid JSON or UTF-8
                continue
        return rows


def _foreign_files(path):
    """Return whether a directory contains files other than those that a run writes before config.json."""
    return any(entry.name not in TOKENIZER_FILES and not entry.name.startswith(".") for entry in path.iterdir())


def _trained_on(files):
    """Return the entries {file name: checksum and type} of a prepared corpus, without those of the test split."""
    return {name: entry for name, entry in files.items() if not name.startswith("test.")}


def _fixed(config):
    """Return a flat dict, {"hparams.d_model": 512, …}, of the settings that a resumed run cannot change."""
    locations = ("data_dir", "raw_dir", "plugins")
    return {
        name: value
        for name, value in _flat(config).items()
        if not name.endswith(locations) and name.removeprefix("hparams.") not in MAY_CHANGE
    }


def _flat(config):
    """Flatten nested dictionaries. Join names with dots."""
    flat = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat.update({f"{name}.{inner}": entry for inner, entry in _flat(value).items()})
        else:
            flat[name] = value
    return flat
