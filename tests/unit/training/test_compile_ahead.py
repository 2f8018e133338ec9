"""Tests of `CompileAhead`, which compiles the update for all batch shapes in threads."""

import contextlib
import logging
import re

import keras
import numpy as np
import pytest
from helpers.logs import logged_lines
from helpers.quick import quick_runs
from helpers.training_alike import small

import keras_transformer as kt
from keras_transformer.distributed.strategy import make_strategy
from keras_transformer.models.batch_source import adapt_batches

if keras.backend.backend() != "jax":
    pytest.skip("only JAX compiles ahead", allow_module_level=True)
import jax
from jax.experimental.compilation_cache import compilation_cache

from keras_transformer.training import compile_ahead

pytestmark = pytest.mark.backend

HPARAMS = small(batch_tokens=32, dropout=0.1, train_steps=8, eval_steps=4, checkpoint_steps=8, best_metric="nll")


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    with quick_runs():
        data_dir = tmp_path_factory.mktemp("data")
        yield kt.problem("sort", data_dir=data_dir, num_symbols=5, longest=6, train_pairs=40).prepare()


@pytest.fixture
def cache(tmp_path):
    """Return the folder of an empty JAX compilation cache, and make JAX log each compilation."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path / "jax"), "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_log_compiles": True,
    }  # fmt: skip
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield tmp_path / "jax"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def trained(problem, ahead, devices=1):
    """Train for eight updates. Return the weights, the number of batch shapes and the log lines."""
    strategy = make_strategy("jax", devices) if devices > 1 else None
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = kt.Transformer.from_hparams(HPARAMS, problem)
        model.compile(**kt.compile_arguments(HPARAMS))
    batches = adapt_batches(model, problem.batches("train", HPARAMS))
    with compile_ahead.CompileAhead(0, batches, 8) as callback, logged_lines() as lines:
        model.fit(batches, steps_per_epoch=8, verbose=0, callbacks=[callback] if ahead else [])
    return [np.asarray(weight) for weight in model.get_weights()], len(batches.shapes(8)), lines


@pytest.mark.parametrize("devices", [1, 2])
def test_compile_ahead_gives_same_weights(problem, devices, caplog, cache, monkeypatch):
    if len(jax.devices()) < devices:
        pytest.skip("needs two JAX devices")
    monkeypatch.setattr(compile_ahead, "QUICK", 0.0)
    with caplog.at_level(logging.WARNING):
        weights, shapes, lines = trained(problem, True, devices)
        threads = [record.threadName for record in caplog.records if "Compiling jit(train_step)" in record.getMessage()]
    assert shapes > 1 and len(threads) == shapes and all(name.startswith("compile") for name in threads)
    (line,) = lines
    assert line.startswith(f"  compiled the update for the first of {shapes} batch shapes in ")
    assert re.search(r" in \d+ threads?, during the first updates$", line)
    stored = {*cache.iterdir()}

    expected, _, lines = trained(problem, False, devices)
    assert not lines and all(np.array_equal(one, other) for one, other in zip(weights, expected, strict=True))

    again, _, _ = trained(problem, True, devices)
    assert {path for path in {*cache.iterdir()} - stored if "train_step" in path.name} == set()
    assert sum(path.name.endswith("-cache") and "train_step" in path.name for path in stored) == shapes
    assert all(np.array_equal(one, other) for one, other in zip(weights, again, strict=True))


def test_compile_ahead_cancels_waiting_shapes(problem, monkeypatch):
    monkeypatch.setattr(compile_ahead, "MAX_THREADS", 1)
    model = kt.Transformer.from_hparams(HPARAMS, problem)
    model.compile(**kt.compile_arguments(HPARAMS))
    batches = problem.batches("train", HPARAMS)
    with (
        pytest.raises(KeyboardInterrupt),
        compile_ahead.CompileAhead(0, batches, 8) as callback,
    ):
        tasks = []

        class Stop(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                tasks.extend(callback._tasks.values())
                raise KeyboardInterrupt

        model.fit(batches, steps_per_epoch=8, verbose=0, callbacks=[callback, Stop()])
    assert len(tasks) > 1 and tasks[-1].cancelled()
