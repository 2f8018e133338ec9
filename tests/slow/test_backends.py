"""One program on every backend: the same losses, the same checkpoints, and JAX needs no TensorFlow."""

import importlib.util
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers.commands import COMPILED

import keras_transformer as kt
from keras_transformer import registry, startup
from keras_transformer.models.compiled import COMPILES_EACH_SHAPE, compiled, rounded_up
from keras_transformer.runs.directory import Run

BACKENDS = [name for name in startup.BACKENDS if importlib.util.find_spec(name)]
THIS = keras.backend.backend()
both = pytest.mark.skipif(len(BACKENDS) < 2, reason=f"only {', '.join(BACKENDS)} is installed")
needs_jax = pytest.mark.skipif("jax" not in BACKENDS, reason="jax is not installed")

SIZES = ("--num_layers=1", "--d_model=16", "--d_ff=32", "--num_heads=2", "--batch_tokens=128", "--dropout=0")
STEPS = ("--warmup_steps=5", "--eval_steps=6", "--checkpoint_steps=6", "--extra_length=3", "--beam_size=2")
TRAIN = (
    "--problem=reverse",
    "--hparams=toy",
    "--set=problem.longest=4",
    "--set=problem.train_pairs=200",
    *SIZES,
    *STEPS,
)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


def python(backend, home, *arguments, compiled=COMPILED, **environment):
    """Runs Python with a backend, as a user does; returns the finished process."""
    environment = {
        "PYTHONPATH": str(registry.PACKAGE.parent), "PATH": os.environ["PATH"], "HOME": str(home),
        "KERAS_BACKEND": backend, **compiled, **environment,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=home, env=environment, capture_output=True, text=True
    )


def command(backend, home, name, *flags):
    """Runs a command, which must go well; returns its lines."""
    done = python(backend, home, "-m", f"keras_transformer.{name}", *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def refused(done, *said):
    """Asserts that a process ended with one sentence for the user, which contains what is `said`."""
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    for words in said:
        assert words in done.stderr


# The same training everywhere

LOSSES = """
import json, sys
import keras_transformer as kt

problem = kt.problem("reverse", data_dir=sys.argv[1], longest=3, train_pairs=300)
hparams = kt.HParams(
    num_layers=2, d_model=32, d_ff=64, num_heads=4, dropout=0, batch_tokens=50, warmup_steps=200, seed=int(sys.argv[2])
)
model = kt.Transformer.from_hparams(hparams, problem)
model.compile(**kt.compile_arguments(hparams, accumulate=int(sys.argv[3])))
history = model.fit(problem.batches("train", hparams), steps_per_epoch=1, epochs=20, verbose=0).history
print(json.dumps({name: history[name] for name in ("loss", "nll", "perplexity")}))
"""


@both
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_first_20_losses_are_the_same_on_both_backends(home, fresh_seed, accumulate):
    found = {}
    for backend in BACKENDS:
        done = python(backend, home, "-c", LOSSES, home / f"data-{backend}", fresh_seed, accumulate)
        assert done.returncode == 0, done.stderr
        found[backend] = json.loads(done.stdout.splitlines()[-1])
    for name, values in found["tensorflow"].items():
        assert len(set(values)) == 20 == len(values)  # one of each update
        np.testing.assert_allclose(found["jax"][name], values, rtol=2e-4, err_msg=name)
    assert found["jax"]["loss"][-1] < found["jax"]["loss"][0]


@pytest.fixture(scope="module")
def whole(home):
    """The run of 12 updates on the backend of this process."""
    command(THIS, home, "train", *TRAIN, "--train_steps=12", "--output_dir=whole")
    return Run.open(home / "whole")


@both
@pytest.mark.parametrize("first", BACKENDS)
def test_a_checkpoint_of_the_other_backend_is_gone_on_from(home, whole, first):
    second = next(backend for backend in BACKENDS if backend != first)
    flags = (*TRAIN, f"--output_dir={first}")
    command(first, home, "train", *flags, "--train_steps=6")
    before = Run.open(home / first).checkpoints.load(6)[0]
    lines = command(second, home, "train", *flags, "--train_steps=12")
    assert "  resuming after update 6" in lines
    run = Run.open(home / first)
    assert run.manifest()["backend"] == second
    after, expected = run.checkpoints.load(12)[0], whole.checkpoints.load(12)[0]
    for part in ("weights", "optimizer"):
        assert after[part].keys() == before[part].keys() == expected[part].keys()
        for path, array in expected[part].items():
            np.testing.assert_allclose(after[part][path], array, rtol=1e-3, atol=2e-5, err_msg=path)
    assert after["optimizer"]["adam/iteration"] == 12


@both
def test_both_backends_translate_a_run_alike(home, whole):
    (home / "lines.txt").write_text("s1 s2 s3\n\ns4\ns5 s6 s7 s8 s9 s10\n" * 3)
    flags = (f"--run={whole.path}", "--input=lines.txt")
    outputs = [command(backend, home, "translate", *flags) for backend in BACKENDS]
    assert outputs[0] == outputs[1] and len(outputs[0]) == 12
    scores = [command(backend, home, "evaluate", f"--run={whole.path}")[-1] for backend in BACKENDS]
    assert scores[0] == scores[1]


# JAX alone


@needs_jax
@pytest.mark.parametrize("name", ["prepare", "train", "evaluate", "translate", "average", "cost"])
def test_the_jax_way_imports_no_tensorflow(home, whole, name):
    (home / "lines.txt").write_text("s1 s2\n")
    flags = {
        "prepare": (*TRAIN, "--data_dir=other"),
        "train": (*TRAIN, "--train_steps=2", "--output_dir=short"),
        "translate": (f"--run={whole.path}", "--input=lines.txt"),
        "average": (f"--run={whole.path}", "--last=2"),
        "cost": ("--hparams=toy", "--vocab_size=100"),
    }.get(name, (f"--run={whole.path}",))
    done = python("jax", home, "-X", "importtime", "-m", f"keras_transformer.{name}", *flags)
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "keras_transformer.flags" in imported and ("jax" in imported) == (name != "prepare")
    assert not {module for module in imported if module.partition(".")[0].startswith("tensorflow")}


@needs_jax
def test_what_jax_compiles_is_kept(home, whole):
    def alone(*arguments, **environment):
        return python("jax", home, *arguments, compiled={}, **environment)

    assert alone("-m", "keras_transformer.evaluate", f"--run={whole.path}").returncode == 0
    kept = home / ".cache" / "keras_transformer" / "jax"
    assert list(kept.iterdir())
    code = (
        "import keras_transformer.startup as s; s.load_keras(); import jax; print(jax.config.jax_compilation_cache_dir)"
    )
    assert alone("-c", code).stdout == f"{kept}\n"
    assert alone("-c", code, XDG_CACHE_HOME="/x").stdout == "/x/keras_transformer/jax\n"
    assert alone("-c", code, JAX_COMPILATION_CACHE_DIR="/y").stdout == "/y\n"


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="what TensorFlow computes with")
def test_tensorflow_computes_with_onednn_unless_told_otherwise(home, monkeypatch):
    code = (
        "import keras_transformer.startup as s; s.load_keras(); "
        "from tensorflow.python.util import _pywrap_util_port as p; print(p.IsMklEnabled())"
    )
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    assert python("tensorflow", home, "-c", code).stdout == "True\n"
    assert python("tensorflow", home, "-c", code, TF_ENABLE_ONEDNN_OPTS="0").stdout == "False\n"


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    return kt.problem("copy", data_dir=tmp_path_factory.mktemp("data"), train_pairs=400)


hparams = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, batch_tokens=64, warmup_steps=10, beam_size=2)


def make_model(problem):
    model = kt.Transformer.from_hparams(hparams, problem)
    model.compile(**kt.compile_arguments(hparams))
    return model


@pytest.mark.skipif(not COMPILES_EACH_SHAPE, reason="TensorFlow compiles a step once for all shapes")
def test_a_step_is_compiled_for_the_plans_shapes_alone(problem, monkeypatch):
    traced, states = set(), kt.Transformer.states

    def trace(model, inputs, training=False):
        traced.add((*inputs[0].shape, inputs[1].shape[1]))
        return states(model, inputs, training)

    monkeypatch.setattr(kt.Transformer, "states", trace)
    batches = problem.batches("train", hparams)
    make_model(problem).fit(batches, epochs=2, verbose=0)
    assert traced == set(batches.plan.shapes) and len(traced) <= 24


def test_variables_are_read_in_sync(problem):
    """Inside of an epoch JAX keeps them elsewhere: a callback sees the update that was just made."""
    model, seen = make_model(problem), []

    class Watcher(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            table = keras.ops.convert_to_numpy(self.model.embedding.table)
            seen.append((int(self.model.optimizer.iterations.value), table.copy()))

    model.fit(problem.batches("train", hparams), steps_per_epoch=4, epochs=1, verbose=0, callbacks=[Watcher()])
    assert [step for step, _ in seen] == [1, 2, 3, 4]
    assert all(not np.array_equal(a, b) for (_, a), (_, b) in zip(seen, seen[1:]))
    np.testing.assert_array_equal(seen[-1][1], keras.ops.convert_to_numpy(model.embedding.table))


def test_a_compiled_function_reads_the_variables_as_they_are(problem):
    model = make_model(problem)
    total = compiled(lambda x, times: keras.ops.sum(model.embedding.table * x) * times, model)
    before = float(total(np.float32(1), times=2))
    table = keras.ops.convert_to_numpy(model.embedding.table)
    assert before == pytest.approx(2 * table.sum(), rel=1e-4, abs=1e-4)
    model.embedding.table.assign(table + 1)
    assert float(total(np.float32(1), times=2)) == pytest.approx(before + 2 * table.size, rel=1e-4)


def test_few_sizes_that_pad_little():
    sizes = [rounded_up(number) for number in range(1, 2000)]
    assert all(1 <= size / number <= 1.5 for number, size in enumerate(sizes, start=1))
    assert sorted(set(sizes))[:9] == [1, 2, 3, 4, 6, 8, 12, 16, 24] and len(set(sizes)) == 22


# Which backend


@pytest.mark.parametrize(
    ("environment", "configured", "installed", "chosen"),
    [
        ("jax", "tensorflow", {"tensorflow", "jax"}, "jax"),
        (None, None, {"tensorflow", "jax"}, "tensorflow"),
        (None, "jax", {"tensorflow", "jax"}, "jax"),
        (None, "tensorflow", {"jax"}, "jax"),  # Keras wrote its default there
        ("", None, {"jax"}, "jax"),
        (None, "torch", {"jax", "torch"}, "jax"),
    ],
)
def test_the_backend_that_is_meant_is_chosen(monkeypatch, tmp_path, environment, configured, installed, chosen):
    choose_from(monkeypatch, tmp_path, environment, configured, installed)
    assert startup.chosen_backend() == chosen


@pytest.mark.parametrize(
    ("environment", "installed", "said"),
    [
        ("jax", {"tensorflow"}, "KERAS_BACKEND=jax, but jax is not installed: pip install jax"),
        ("tensorflow", {"jax"}, "tensorflow is not installed: pip install tensorflow"),
        ("torch", {"torch"}, "unknown backend in KERAS_BACKEND 'torch': there are: jax, tensorflow"),
        ("tensorfow", {"tensorflow"}, "did you mean tensorflow"),
        (None, set(), "no backend of Keras is installed: pip install tensorflow, or pip install jax"),
    ],
)
def test_a_backend_that_cannot_be_had_is_said(monkeypatch, tmp_path, environment, installed, said):
    choose_from(monkeypatch, tmp_path, environment, None, installed)
    with pytest.raises(kt.UserError, match=said):
        startup.chosen_backend()


@pytest.mark.parametrize("backend", ["jax", "tensorflow", None])
@pytest.mark.parametrize("missing", [("tensorflow", "tensorflow-text"), ("tensorflow-text",)])
def test_missing_packages_are_named_in_one_step(whole, call, tmp_path, monkeypatch, missing, backend):
    hidden = [name.replace("-", "_") for name in missing]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name not in hidden or None)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    if backend:
        monkeypatch.setenv("KERAS_BACKEND", backend)
    said = (
        f"--format=saved_model needs {' and '.join(missing)}, not installed here: run pip install '.[tensorflow]' in "
        "the folder of this project, then export with KERAS_BACKEND=tensorflow"
    )
    call("export", f"--run={whole.path}", "--format=saved_model", f"--output_dir={tmp_path}/new").refused(said)
    (tmp_path / "export.json").write_text('{"format": "saved_model", "nbest": 1}')
    from keras_transformer.server.engines import load_engine

    with pytest.raises(kt.UserError, match=f"a SavedModel, needs {' and '.join(missing)}, not installed here"):
        load_engine(tmp_path)


def choose_from(monkeypatch, home, environment, configured, installed):
    """Lets `chosen_backend` find these settings and packages."""
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    if environment is not None:
        monkeypatch.setenv("KERAS_BACKEND", environment)
    monkeypatch.setenv("KERAS_HOME", str(home))
    if configured:
        (home / "keras.json").write_text(json.dumps({"backend": configured}))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in installed or None)


def test_a_notebook_may_begin_with_batches(home):
    """Whatever comes first, the backend that is there is chosen, and checked."""
    code = (
        "import keras_transformer as kt; print(kt.problem('sort').batches('test', kt.hparams('toy')).batches_per_epoch)"
    )
    done = python("", home, "-c", code)
    assert done.returncode == 0 and int(done.stdout.splitlines()[-1]) > 0, done.stderr
    assert "'torch'" in python("torch", home, "-c", code).stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["train", "evaluate", "translate"])
def test_a_wrong_backend_is_one_sentence(home, whole, name):
    flags = TRAIN if name == "train" else (f"--run={whole.path}",)
    refused(python("torch", home, "-m", f"keras_transformer.{name}", *flags), "'torch'")


@pytest.mark.skipif(len(BACKENDS) == 2, reason="both backends are installed")
def test_a_backend_that_is_not_installed_is_one_sentence(home):
    (missing,) = set(startup.BACKENDS) - set(BACKENDS)
    refused(python(missing, home, "-m", "keras_transformer.train", *TRAIN), f"pip install {missing}")


@needs_jax
def test_a_strategy_that_jax_lacks_is_one_sentence(home):
    done = python("jax", home, "-m", "keras_transformer.train", *TRAIN, "--strategy=mirrored", "--output_dir=mirrored")
    refused(done, "--strategy=mirrored needs KERAS_BACKEND=tensorflow, not jax")
