"""A run directory holds all that later commands need.

config.json      problem, model, hparams, plug-ins   manifest.json   versions, corpus checksums, parameter table
tokenizer.model  the model's vocabulary              metrics.jsonl   what was measured, a line each
checkpoints/     see `checkpoint.py`                 tensorboard/    the same, where TensorBoard is installed
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
from pathlib import Path

from keras_transformer.config import plugins, registry
from keras_transformer.config.hparams import HParams
from keras_transformer.data.tokenizers.loading import TOKENIZER_FILES, load_tokenizer
from keras_transformer.runs.checkpoint import Checkpoints, assign_model
from keras_transformer.runs.tensorboard import open_events
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.errors import UserError, shell_flag
from keras_transformer.utils.files import append_line, atomic_open, finite_or_null, lock_file, read_json, write_json

MAY_CHANGE = ("train_steps", "patience", "on_nonfinite", "max_skipped")


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        path: Its directory.
        config: {"problem": {"name", "data_dir", "raw_dir", "parameters"}, "preset", "hparams", "init_from",
            "plugins"}, the last a list of names of modules and absolute paths. "init_from" is {"run", "checkpoint"},
            what the weights began with, or None.
    """

    path: Path
    config: dict

    @classmethod
    def open(cls, path):
        """Returns the run in directory `path`; its plug-ins are loaded.

        Raises:
            UserError: There is none, or another version of the package made it, with settings that this one does not
                have, or a plug-in is gone or wrong.
        """
        path = Path(path)
        if not path.is_dir():
            raise UserError(f"there is no run directory {path}; train makes one: {shell_flag('output_dir', path)}")
        what = f"{path} is no run directory"
        config = read_json(path / "config.json", what, problem=dict, preset=str, hparams=dict, plugins=list)
        run = cls(path, config)
        if (path / "manifest.json").is_file() and run.manifest()["config_hash"] != run.config_hash:
            raise UserError(
                f"{path / 'config.json'} was changed after training wrote it; undo that, or restore it from a copy"
            )
        run.load_plugins()
        try:
            HParams().replace(**config["hparams"])
        except UserError as error:
            raise UserError(
                f"{path / 'config.json'} is of another version of this package, or of a plug-in, and needs it: {error}"
            ) from None
        return run

    @classmethod
    def configure(cls, path, problem, preset, hparams, init_from=None):
        """Returns the run that is to be in directory `path`, new or resumed; writes nothing.

        Args:
            path: The directory.
            problem: `Problem`; it need not be prepared.
            preset: Registered name of the hparams that `hparams` began with.
            hparams: `HParams`.
            init_from: The run's `init_from`; None: what a run that is there says.

        Raises:
            UserError: The directory holds another run or other files.
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
        elif path.exists() and (not path.is_dir() or _foreign_files(path)):
            raise UserError(f"{path} exists and is no run directory; give another --output_dir")
        # Now that those of a resumed run are loaded, too.
        config["plugins"] = plugins.loaded()
        return cls(path, config)

    def check_corpus(self):
        """Raises a `UserError` if a run that is there was trained on another corpus than the prepared one."""
        trained_on = self.problem.store
        if (self.path / "config.json").is_file() and self.tokenizer.fingerprint != trained_on.tokenizer.fingerprint:
            raise UserError(f"{self.path}: its vocabulary is not the prepared corpus's; the corpus has changed since")
        if (self.path / "manifest.json").is_file() and self.manifest()["store_files"] != trained_on.manifest["files"]:
            raise UserError(
                f"{self.path}: the corpus has changed since training began (its checksum differs); bring the old one "
                "back, or give another --output_dir"
            )

    def create(self):
        """Makes the directory, or goes on with the one that is there; the problem must be prepared.

        Raises:
            UserError: It cannot be written.
        """
        if not (self.path / "config.json").is_file():
            self.problem.tokenizer.save(self.path)
        # Only train_steps and the like and the places of corpus and plug-ins can differ from what was there.
        write_json(self.path / "config.json", self.config)

    def write_manifest(self, manifest):
        """Writes the manifest, of `make_manifest`."""
        write_json(self.path / "manifest.json", manifest)

    def atomic_open(self, name):
        """Return a `files.atomic_open` of a file in the directory."""
        return atomic_open(self.path / name)

    @contextlib.contextmanager
    def locked(self):
        """Keeps other processes from training in the directory; the lock ends with the process, however that ends.

        Raises:
            UserError: Another process trains in it.
        """
        with lock_file(self.path / ".lock") as alone:
            if not alone:
                raise UserError(f"another process trains in {self.path}; wait for it, or give another --output_dir")
            self.checkpoints.remove_strays()
            yield

    def load_plugins(self):
        """Loads the plug-ins that the run was trained with, unless those that are loaded bring all that it names.

        They do if a plug-in was moved and `--plugin` says where it is now.

        Raises:
            UserError: One is gone or wrong.
        """
        if plugins.loaded() and all(name in entries for entries, name in self._names()):
            return
        for plugin in self.config["plugins"]:
            try:
                plugins.load_plugin(plugin)
            except plugins.MissingPlugin:
                raise UserError(
                    f"there is no plug-in {plugin!r}, with which the run {self.path} was trained; say where it is now "
                    "with --plugin=MODULE_OR_PATH"
                ) from None

    def check_same_config(self, config):
        """Raises a `UserError` if this run is not the one that `config` describes; it names what differs."""
        known = {
            **self.config,
            "hparams": dataclasses.asdict(self.hparams),
        }  # fields that came later have their defaults
        was, now = _lasting(known), _lasting(config)
        for name in was | now:  # problem, model and preset come before the hparams that follow from them
            if was.get(name) != now.get(name):
                raise UserError(
                    f"{self.path} holds a run with {name}={was.get(name)}, not {now.get(name)}; "
                    "give another --output_dir, or the same settings to resume"
                )

    @property
    def config_hash(self):
        """SHA-256 of what of the configuration stays as it is; defaults are left out, so that new settings may come.

        So the default of a field of `HParams` must stay what it is.
        """
        defaults = _flat({"hparams": dataclasses.asdict(HParams())})
        own = {name: value for name, value in _lasting(self.config).items() if value != defaults.get(name)}
        return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()

    @property
    def hparams(self):
        """The run's `HParams`."""
        return HParams().replace(**self.config["hparams"])

    @functools.cached_property
    def problem(self):
        """The run's `Problem`."""
        config = self.config["problem"]
        try:
            arguments = {"data_dir": config["data_dir"], "raw_dir": config["raw_dir"], **config["parameters"]}
            return load_problem(config["name"], **arguments)
        except (KeyError, TypeError) as error:
            raise UserError(f"{self.path / 'config.json'} is damaged: problem ({error})") from None

    @functools.cached_property
    def tokenizer(self):
        """The model's tokenizer.

        Raises:
            UserError: It is missing or damaged, or not the one that the model was trained with.
        """
        tokenizer = load_tokenizer(self.path)
        trained = (self.path / "manifest.json").is_file()
        if trained and self.manifest()["tokenizer_sha256"] != tokenizer.fingerprint:
            raise UserError(f"{self.path / tokenizer.file_name} is not the vocabulary that the model was trained with")
        return tokenizer

    @functools.cached_property
    def checkpoints(self):
        """The run's `Checkpoints`."""
        return Checkpoints(self.path / "checkpoints")

    def manifest(self):
        """Returns the manifest, what the run was made of."""
        return read_json(
            self.path / "manifest.json", f"{self.path} has not been trained",
            tokenizer_sha256=str, config_hash=str, store_files=dict,
        )  # fmt: skip

    def _names(self):
        """Returns pairs (registry, name) of all that the run needs by name."""
        config = self.config
        names = [(registry.problems, config["problem"]["name"])]
        chosen = {"model": registry.models, **registry.layers}
        names += [(entries, config["hparams"].get(field)) for field, entries in chosen.items()]
        names += [(registry.hparams, config["preset"])]
        return [(entries, name) for entries, name in names if name]

    def load_model(self, checkpoint=None, precision="float32"):
        """Returns the model with the weights of a checkpoint: "best", "last", "averaged", "ema" or a step."""
        return self.make_model(self.checkpoints.load(checkpoint, parts=("weights",))[0]["weights"], precision)

    def make_model(self, weights, precision="float32"):
        """Returns the model with weights {path: array}, both in "float32" or "bfloat16"."""
        model = registry.models.get(self.hparams.model)(self.tokenizer.vocab_size, self.hparams, dtype=precision)
        assign_model(model, weights, f"the checkpoint in {self.path}")
        return model

    def log(self, **values):
        """Append a line to metrics.jsonl, also where a crash cut the last one short; what is not finite is null.

        TensorBoard's events get it, too.
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
        """Returns the lines of metrics.jsonl, without a last one that was cut short."""
        path = self.path / "metrics.jsonl"
        rows = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return rows


def _foreign_files(path):
    """Whether a directory holds more than a run has that was killed before its config.json was written."""
    return any(entry.name not in TOKENIZER_FILES and not entry.name.startswith(".") for entry in path.iterdir())


def _lasting(config):
    """{"hparams.d_model": 512, …}: the configuration without what may change, flat."""
    flat = _flat(config).items()
    places = ("data_dir", "raw_dir", "plugins")
    return {
        name: value
        for name, value in flat
        if not name.endswith(places) and name.removeprefix("hparams.") not in MAY_CHANGE
    }


def _flat(config):
    """{"hparams.d_model": 512, …}: nested dictionaries as one, names joined by dots."""
    flat = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat.update({f"{name}.{inner}": entry for inner, entry in _flat(value).items()})
        else:
            flat[name] = value
    return flat
