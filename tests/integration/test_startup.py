"""Tests of process startup: imported modules, time and output."""

import subprocess
import sys
import time

from helpers.commands import environment

LIGHT = """
import contextlib, io, runpy, sys
import keras_transformer
from keras_transformer.utils import errors
from keras_transformer.utils import files
from keras_transformer.cli import arguments
from keras_transformer.config import hparams
from keras_transformer.config import plugins
from keras_transformer.config import registry
from keras_transformer.backend import loading
from keras_transformer.tasks import problem
from keras_transformer.__main__ import COMMANDS
from keras_transformer.data import corpus, encoding
from keras_transformer.data.tokenizers import base
from keras_transformer.runs.tensorboard import Events
registry.load_catalog()
for name, _ in registry.problems.describe():
    registry.problems.get(name)
for name, _ in registry.hparams.describe():
    keras_transformer.hparams(name)
keras_transformer.problem("copy")
keras_transformer.Problem, keras_transformer.TranslationProblem
for name in COMMANDS:
    sys.argv = [name, "--help"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        runpy.run_module(f"keras_transformer.{name}", run_name="__main__", alter_sys=True)
log = Events("tensorboard")
log.write({"kind": "train", "step": 1, "loss": 0.5})
print(sorted({"keras", "tensorflow", "jax", "torch"} & sys.modules.keys()))
"""
METRICS = """
import sys
def imported():
    print(sorted({"keras", "tensorflow", "jax", "sacrebleu", "keras_transformer.data"} & sys.modules.keys()))
from keras_transformer.parsing import parseval
imported()
from keras_transformer.metrics import bleu, lengths, perplexity, significance
imported()
sys.modules.update(dict.fromkeys(["keras", "tensorflow", "jax"]))  # from now on, importing one of them fails
import keras_transformer.exports.ctranslate2, keras_transformer.config.hparams
keras_transformer.config.hparams.HParams()
"""
BOTH = """
from keras_transformer.config import registry
registry.load_catalog()
import hparams.transformer, problems.multi30k
registry.problems.check("multi30k_ende"), registry.hparams.check("big")
print(hparams.transformer.MINE, problems.multi30k.MINE)
"""


def python(*arguments, cwd):
    """Run Python in the folder `cwd` with this checkout on the import path. Return its stdout."""
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment(cwd), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_catalog_help_and_events_import_no_keras(tmp_path):
    assert python("-c", LIGHT, cwd=tmp_path) == "[]\n"
    assert list((tmp_path / "tensorboard").iterdir())


def test_metrics_and_conversion_import_no_keras(tmp_path):
    assert python("-c", METRICS, cwd=tmp_path) == "[]\n[]\n"


def test_layers_are_imported_quietly_and_register(tmp_path):
    code = "from keras_transformer import layers; import keras; print(*keras.saving.get_custom_objects(), *dir(layers))"
    printed = python("-c", code, cwd=tmp_path).split()
    models = {f"keras_transformer>{name}Transformer" for name in ("", "Marian", "WordAligned")}
    assert {"Decoder", "keras_transformer>Decoder", "keras_transformer>RestrictedAttention", *models} <= {*printed}


def test_list_and_help_start_quickly(tmp_path):
    for arguments in (["-m", "keras_transformer"], ["-m", "keras_transformer.train", "--help"]):
        least = float("inf")
        for _ in range(3):  # retry, because other processes may slow down a start
            began = time.monotonic()
            python(*arguments, cwd=tmp_path)
            least = min(least, time.monotonic() - began)
            if least < 2:
                break
        assert least < 2  # an import of Keras would take longer


def test_own_folders_do_not_shadow_the_catalog(tmp_path):
    for module in ("problems/multi30k.py", "hparams/transformer.py"):
        (tmp_path / module).parent.mkdir()
        (tmp_path / module).write_text("MINE = True\n")
    assert python("-c", BOTH, cwd=tmp_path) == "True True\n"
