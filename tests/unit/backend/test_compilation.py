"""Tests of compiled functions: how often they are compiled, and which values of variables they read."""

import logging

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.backend.compilation import COMPILES_EACH_SHAPE, compiled, rounded_up

pytestmark = pytest.mark.backend
HPARAMS = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, batch_tokens=64, warmup_steps=10)


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    return kt.problem("copy", data_dir=tmp_path_factory.mktemp("data"), train_pairs=200, longest=4)


def make_model(problem):
    model = kt.Transformer.from_hparams(HPARAMS, problem)
    model.compile(**kt.compile_arguments(HPARAMS))
    return model


@pytest.mark.skipif(not COMPILES_EACH_SHAPE, reason="TensorFlow compiles a step once for all shapes")
def test_fit_compiles_planned_shapes_only(problem, monkeypatch):
    traced, states = set(), kt.Transformer.states

    def trace(model, inputs, training=False):
        traced.add((*inputs[0].shape, inputs[1].shape[1]))
        return states(model, inputs, training)

    monkeypatch.setattr(kt.Transformer, "states", trace)
    batches = problem.batches("train", HPARAMS)
    make_model(problem).fit(batches, epochs=2, verbose=0)
    assert traced == set(batches.plan.shapes) and 1 < len(traced) <= 24


def test_callbacks_read_variables_of_last_update(problem):
    """Check that callbacks see the current weights, although JAX keeps them outside of the model during an epoch."""
    model, seen = make_model(problem), []

    class Watcher(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            table = keras.ops.convert_to_numpy(self.model.embedding.table)
            seen.append((int(self.model.optimizer.iterations.value), table.copy()))

    model.fit(problem.batches("train", HPARAMS), steps_per_epoch=4, epochs=1, verbose=0, callbacks=[Watcher()])
    assert [step for step, _ in seen] == [1, 2, 3, 4]
    assert all(not np.array_equal(a, b) for (_, a), (_, b) in zip(seen, seen[1:]))
    np.testing.assert_array_equal(seen[-1][1], keras.ops.convert_to_numpy(model.embedding.table))


def test_compiled_functions_read_current_variables(problem):
    model = make_model(problem)
    total = compiled(lambda x, times: keras.ops.sum(model.embedding.table * x) * times, model)
    before = float(total(np.float32(1), times=2))
    table = keras.ops.convert_to_numpy(model.embedding.table)
    assert before == pytest.approx(2 * table.sum(), rel=1e-4, abs=1e-4)
    model.embedding.table.assign(table + 1)
    assert float(total(np.float32(1), times=2)) == pytest.approx(before + 2 * table.size, rel=1e-4)


def test_rounded_up_gives_few_sizes_with_little_padding():
    sizes = [rounded_up(number) for number in range(1, 2000)]
    assert all(1 <= size / number <= 1.5 for number, size in enumerate(sizes, start=1))
    assert sorted(set(sizes))[:9] == [1, 2, 3, 4, 6, 8, 12, 16, 24] and len(set(sizes)) == 22


@pytest.mark.skipif(COMPILES_EACH_SHAPE, reason="the warning comes from TensorFlow")
def test_xla_compiles_many_shapes_without_warnings(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tensorflow"), "propagate", True)
    doubled = compiled(lambda x: 2 * x, jit_compile=True)
    for length in range(1, 8):
        np.testing.assert_array_equal(doubled(np.ones(length, "int32")), np.full(length, 2))
    assert not caplog.records
