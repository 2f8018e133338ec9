"""Tests of damaged and malicious files, which commands must reject with one sentence and never execute."""

import ast
import hashlib
import io
import json
import os
import pickle
import random
import shutil

import numpy as np
import pytest
from helpers import commands
from helpers.logs import logged_lines

from keras_transformer.config import registry
from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError

FLIPS = 150
TEXT = "--input=/dev/null"


@pytest.fixture
def home(home, tmp_path):
    """Return a copy of the shared `Home`, with its prepared corpus. Tests may damage the copy."""
    shutil.copytree(home.path, tmp_path / "home", ignore=shutil.ignore_patterns("ctranslate2"))
    config = tmp_path / "home" / "runs" / "reverse-toy" / "config.json"
    config.write_text(config.read_text().replace(str(home.path), str(tmp_path / "home")))
    return commands.Home(tmp_path / "home", home.outcome)


def load(path):
    """Load everything that commands read from a run and its corpus. Raise a `UserError` if any part is damaged."""
    run = Run.open(path)
    arrays, state = run.checkpoints.load("last")
    if state["step"] != run.checkpoints.steps()[-1]:
        raise UserError("the last checkpoint is damaged")
    store = run.problem.store
    splits = [store.split(name) for name in ("train", "validation")]
    rows = [
        [side[0].tolist(), side[len(side) - 1].tolist()] for split in splits for side in (split.source, split.target)
    ]
    return run.hparams, run.checkpoints.best_step(), arrays["weights"], arrays["optimizer"], run.tokenizer, rows


def test_flipped_bit_is_reported_or_harmless(home, fresh_seed):
    rng = random.Random(fresh_seed)
    (prepared,) = (home.path / "data").iterdir()
    files = [path for folder in (home.run, prepared) for path in folder.rglob("*") if path.is_file()]
    logs = {"metrics.jsonl", ".lock"} | {path.name for path in (home.run / "tensorboard").iterdir()}
    files = [path for path in files if path.name not in logs and path.stat().st_size]
    told = dict.fromkeys(("ids", "offsets", "groups", "order", "crc", "npz", "model", "txt", "json"), 0)
    for _ in range(FLIPS):
        path = rng.choice(files)
        whole = path.read_bytes()
        spoiled = bytearray(whole)
        spoiled[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(spoiled)
        try:
            load(home.run)
        except UserError as error:
            assert "\n" not in str(error)
            told[path.suffix.removeprefix(".")] += 1
        else:
            unread = path.parent == prepared and not path.name.startswith(("train", "validation"))
            older = path.parent.name == "step-000000003"
            assert path.suffix == ".json" or unread or older, f"the damage of {path} was not detected"
        path.write_bytes(whole)
    load(home.run)
    assert told["npz"] and told["json"] and told["ids"] + told["offsets"] + told["order"] + told["crc"]


def test_prepare_verify_names_a_flipped_bit(home, call):
    (prepared,) = (home.path / "data").iterdir()
    flags = ("prepare", "--problem=reverse", "--set=problem.train_pairs=500", f"--data_dir={home.path}/data")
    assert "all checksums match" in call(*flags, "--verify").out
    path = prepared / "train.target.ids"
    status, content = path.stat(), bytearray(path.read_bytes())
    content[5] ^= 1
    with open(path, "r+b") as file:  # keep the inode and the modification time, as with a failing disk
        file.write(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    call(*flags).succeeded()
    call(*flags, "--verify").refused(f"{path} is missing or damaged", "run `prepare` again")


@pytest.mark.parametrize("name", ["config.json", "manifest.json", "symbols.txt"])
@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b'{"problem": 3}', b"\xff"])
def test_wrong_content_of_run_files_is_reported(home, call, name, content):
    (home.run / name).write_bytes(content)
    call("translate", f"--run={home.run}", TEXT).refused(home.run)


def test_changed_settings_are_reported(home, call):
    config = json.loads((home.run / "config.json").read_text())
    config["hparams"]["beam_size"] = 3
    (home.run / "config.json").write_text(json.dumps(config))
    call("translate", f"--run={home.run}", TEXT).refused("config.json", "was changed after training")


@pytest.mark.parametrize("command", ["translate", "train"])
def test_run_of_another_version_is_reported(home, call, command):
    config = json.loads((home.run / "config.json").read_text())
    config["hparams"]["positions"] = "words"
    (home.run / "config.json").write_text(json.dumps(config))
    (home.run / "manifest.json").unlink()  # otherwise, its hash of the settings would reveal the change
    other = [f"--run={home.run}", TEXT] if command == "translate" else [*commands.REVERSE, f"--init_from={home.run}"]
    call(command, *other).refused("config.json needs another version", "unknown positions 'words'")


def test_checkpoint_renamed_to_another_step_is_reported(home, call):
    checkpoints = home.run / "checkpoints"
    (checkpoints / "step-000000006").rename(checkpoints / "step-000000012")
    with logged_lines() as said:
        assert Run.open(home.run).checkpoints.load("last")[1]["step"] == 3
    assert "its state.json belongs to step 6" in said[0]


@pytest.mark.parametrize("part", ["weights", "optimizer"])
def test_renamed_part_of_checkpoint_is_reported(home, part):
    state = home.run / "checkpoints" / "step-000000006" / "state.json"
    state.write_text(state.read_text().replace(f'"{part}"', f'"{part[:-1]}u"'))
    with logged_lines() as said:
        assert Run.open(home.run).checkpoints.load("last")[1]["step"] == 3
    assert "step-000000006 is damaged" in said[0]


class Harm:
    """Object that creates a file if pickle loads it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def with_checksum(checkpoint, content):
    """Replace the weights file of a checkpoint and update its checksum in state.json."""
    (checkpoint / "weights.npz").write_bytes(content)
    state = json.loads((checkpoint / "state.json").read_text())
    state["sha256"]["weights"] = hashlib.sha256(content).hexdigest()
    (checkpoint / "state.json").write_text(json.dumps(state))


@pytest.mark.parametrize("kind", ["array", "file"])
def test_checkpoint_never_unpickles(home, call, tmp_path, kind):
    harm, content = Harm(tmp_path / "harmed"), io.BytesIO()
    if kind == "array":
        np.savez(content, **{"transformer/embedding/table": np.array([harm], dtype=object)})
    else:
        pickle.dump(harm, content)
    with_checksum(home.run / "checkpoints" / "step-000000006", content.getvalue())
    call("translate", f"--run={home.run}", "--checkpoint=6", TEXT).refused("damaged")
    assert not (tmp_path / "harmed").exists()


def test_tokenizer_never_unpickles(home, call, tmp_path):
    (home.run / "tokenizer.model").write_bytes(pickle.dumps(Harm(tmp_path / "harmed")))
    call("translate", f"--run={home.run}", TEXT).refused(home.run)
    assert not (tmp_path / "harmed").exists()


def test_names_in_run_are_not_imported(home, call, tmp_path):
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'harmed')!r}, 'w')")
    for name in ("evil", "evil:Model", str(tmp_path / "evil.py"), "../evil", "os.system"):
        for change in ("model", "problem"):
            config = json.loads((home.run / "config.json").read_text())
            config["hparams" if change == "model" else change]["model" if change == "model" else "name"] = name
            other = tmp_path / "other"
            shutil.copytree(home.run, other)
            (other / "manifest.json").unlink()  # otherwise, its hash of the settings would reveal the change
            (other / "config.json").write_text(json.dumps(config))
            outcome = call("evaluate", f"--run={other}")
            assert outcome.status == 2, (name, change, outcome)
            shutil.rmtree(other)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "train/../../outside"])
def test_manifest_paths_stay_in_their_directory(home, call, name):
    (prepared,) = (home.path / "data").iterdir()
    for side in ("source", "target"):
        for suffix in ("ids", "offsets"):
            shutil.copy(prepared / f"train.{side}.{suffix}", home.path / "data" / f"outside.{side}.{suffix}")
    manifest = json.loads((prepared / "manifest.json").read_text())
    for side in ("source", "target"):
        for suffix in ("ids", "offsets"):
            manifest["files"][f"{name}.{side}.{suffix}"] = manifest["files"].pop(f"train.{side}.{suffix}")
    manifest["splits"][name] = manifest["splits"].pop("train")
    (prepared / "manifest.json").write_text(json.dumps(manifest))
    store = Run.open(home.run).problem.store
    for split in ("train", name):
        with pytest.raises(UserError):
            store.split(split)
    (home.run / "checkpoints" / "best.json").write_text(json.dumps({"step": name, "score": 1.0}))
    call("translate", f"--run={home.run}", TEXT).refused("best.json")


def test_manifest_dtype_is_checked(home):
    (prepared,) = (home.path / "data").iterdir()
    manifest = json.loads((prepared / "manifest.json").read_text())
    for dtype in ("object", "O", "V8", "float16", ["<u2"], None):
        manifest["files"]["train.source.ids"]["dtype"] = dtype
        (prepared / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(UserError, match="damaged"):
            Run.open(home.run).problem.store.split("train")


CODE = {"eval", "exec", "__import__", "exec_module", "import_module", "pickle.load", "pickle.loads", "marshal.loads"}
CODE |= {"extractall", "unpack_archive", "deserialize_keras_object", "keras.saving.load_model"}
READERS = {
    ("__init__.py", "importlib.import_module"),  # imports only modules of this package
    ("config/registry.py", "importlib.import_module"),  # imports the modules of registered names
    ("config/registry.py", "spec.loader.exec_module"),  # executes plug-ins and the files in problems/ and hparams/
    ("config/plugins.py", "importlib.import_module"),
    ("data/tokenizers/loading.py", "importlib.import_module"),  # imports the module of a known tokenizer class
    ("models/seq2seq_model.py", "keras.saving.deserialize_keras_object"),  # Keras loads models in safe mode
}


def test_code_does_not_depend_on_time_of_day():
    for path in registry.PACKAGE.rglob("*.py"):
        if path.name == "tensorboard.py":  # TensorBoard events contain the time
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert not called.startswith(("time.time", "datetime.")), f"{path}:{node.lineno}"


def test_code_loading_functions_are_known():
    found = set()
    for path in registry.PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if {called, called.split(".")[-1]} & CODE:
                    found.add((str(path.relative_to(registry.PACKAGE)), called))
                for keyword in node.keywords:
                    if keyword.arg in ("allow_pickle", "shell"):
                        assert ast.literal_eval(keyword.value) is False, f"{path}:{node.lineno}"
    assert found == READERS
