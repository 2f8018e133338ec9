"""Tests of the workarounds for Keras on TensorFlow.

test_strategy.py tests the workarounds for `tf.distribute`.
"""

import functools
import random
import threading
import timeit

import keras
import numpy as np
import oracles
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.data.batch_plan import BatchPlan
from keras_transformer.data.token_batches import TokenBatches
from keras_transformer.data.token_store import Sequences, Split
from keras_transformer.layers.attention import MultiHeadAttention, causal_mask
from keras_transformer.training.callbacks import StepCallback

tf = pytest.importorskip("tensorflow")
if keras.backend.backend() != "tensorflow":
    pytest.skip("requires KERAS_BACKEND=tensorflow", allow_module_level=True)

VOCAB = 13
HPARAMS = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, dropout=0.0)
LENGTHS = [2, 2, 3, 3, 3, 4, 5, 5, 6, 7, 7, 7, 9]


def random_sequences(lengths, seed):
    """Return `Sequences` of random ids with the given lengths. Each sequence ends with EOS."""
    random = np.random.default_rng(seed)
    rows = [[*random.integers(4, VOCAB, length - 1), 1] for length in lengths]
    return Sequences(np.concatenate(rows), np.cumsum([0, *lengths]))


def make_batches(source=LENGTHS, target=LENGTHS[::-1], shuffle=True, **arguments):
    """Return batches of random sequences with the given lengths. A batch has at most 18 tokens per side."""
    split = Split(random_sequences(source, 1), random_sequences(target, 2))
    plan = BatchPlan(split.index, 18, seed=1, shuffle=shuffle)
    return TokenBatches(split, plan, **arguments)


def make_model(vocab_size=VOCAB, dtype="float32", accumulate=1, dropout=0.0, **compile_arguments):
    hparams = HPARAMS.replace(dropout=dropout)
    model = kt.Transformer.from_hparams(hparams, vocab_size=vocab_size, dtype=dtype)
    model.compile(**{**kt.compile_arguments(hparams, accumulate), **compile_arguments})
    return model


def sgd():
    """Return SGD as compile argument. Adam would hide badly scaled gradients, and its learning rate starts near 0."""
    return {"optimizer": keras.optimizers.SGD(0.5)}


def weights(model):
    return [oracles.array(variable) for variable in model.trainable_variables]


def seed_states(model):
    return [tuple(np.asarray(v.value)) for v in model.variables if v.path.endswith("seed_generator_state")]


def update(model, batch):
    """Make one update outside of `fit`."""
    model.train_step(tf.nest.map_structure(tf.convert_to_tensor, batch))


def watch(model, monkeypatch):
    """Replace the model's training step with a function that records its batches. Return the list of batches."""
    seen = []

    def train_step(data):
        seen.append(tf.nest.map_structure(np.asarray, data))
        return {"loss": 0.0}

    monkeypatch.setattr(model, "train_step", train_step)
    return seen


# Keras' `fit` shuffles a finite PyDataset with Python's random module, and consumes its first batch to build the model.


@pytest.mark.parametrize("start", [0, 5])
def test_fit_reads_batches_in_plan_order(start, monkeypatch):
    model, batches = make_model(run_eagerly=True), make_batches(start=start)
    seen, state = watch(model, monkeypatch), random.getstate()
    model.fit(batches, epochs=3, verbose=0)
    assert len(seen) == 3 * batches.batches_per_epoch
    for index, batch in enumerate(seen):
        tf.nest.map_structure(np.testing.assert_array_equal, batch, make_batches()[start + index])
    assert random.getstate() == state


# Keras' `fit` infers variable dimensions from the first two batches, and calls epoch hooks too early to count updates.


def test_fit_traces_once_and_callbacks_count_updates(monkeypatch):
    class Counter(StepCallback):
        def on_step(self, step):
            steps.append((step, int(self.model.optimizer.iterations)))

        def on_end(self, step):
            steps.append("end")

    lengths = [3] * 12 + [5, 7, 9, 18]
    batches = make_batches(lengths, lengths, shuffle=False)
    shapes = [batches[index][1].shape for index in range(batches.batches_per_epoch)]
    assert shapes[0] == shapes[1] and len(set(shapes)) > 3
    model, states = make_model(accumulate=2), kt.Transformer.states
    calls, steps = [], []
    monkeypatch.setattr(kt.Transformer, "states", lambda *args, **kwargs: calls.append(1) or states(*args, **kwargs))
    model.fit(batches, epochs=2, verbose=0, callbacks=[Counter(start=10)])
    updates = 2 * len(shapes)
    assert steps == [(10 + i, i) for i in range(1, updates + 1)] + ["end"]
    assert len(calls) <= 2  # one trace for all shapes
    # With Keras' gradient_accumulation_steps, the schedule would count micro-batches.
    assert float(model.optimizer.learning_rate) == pytest.approx(oracles.learning_rate(16, updates + 1))


# On a thread-safe backend, Keras runs callbacks in another thread, during later updates.


def test_callbacks_come_between_updates(monkeypatch):
    """Check that callbacks run in the main thread. In another thread, a checkpoint would contain later weights."""
    threads = []

    class Watcher(StepCallback):
        def on_step(self, step):
            threads.append(threading.current_thread())

    monkeypatch.setattr("keras.src.backend.IS_THREAD_SAFE", True)
    model = make_model(run_eagerly=True)
    watch(model, monkeypatch)
    model.fit(make_batches(), verbose=0, callbacks=[Watcher(start=0)])
    assert set(threads) == {threading.main_thread()}


# Keras' `evaluate` averages over batches instead of tokens, and does not stop if a PyDataset is infinite.


def test_evaluate_reads_batches_once_and_averages_over_tokens(monkeypatch):
    model, endless = make_model(dropout=0.5), make_batches(shuffle=False, endless=True, row_multiple=4)
    update(model, endless[0])
    before, states = weights(model), seed_states(model)
    read, batch = [], BatchPlan.batch

    def count(plan, index):
        read.append(index)
        if index > 3 * plan.batches_per_epoch:
            raise RuntimeError("evaluate does not end")
        return batch(plan, index)

    monkeypatch.setattr(BatchPlan, "batch", count)
    model.reset_metrics()
    reported = model.evaluate(endless, verbose=0, return_dict=True)
    assert set(range(endless.batches_per_epoch)) <= set(read)
    assert seed_states(model) == states and {count for _, count in states} == {1}
    assert int(model.optimizer.iterations) == 1
    for old, new in zip(before, weights(model)):
        np.testing.assert_array_equal(old, new)
    plain, smoothed = [], []
    for index in range(endless.batches_per_epoch):
        inputs, labels, _ = endless[index]
        logits = np.asarray(model(inputs))
        plain.append(oracles.cross_entropy(labels, logits)[labels != 0])
        smoothed.append(oracles.cross_entropy(labels, logits, 0.1)[labels != 0])
    assert reported["nll"] == pytest.approx(np.concatenate(plain).mean(), rel=1e-4)
    assert reported["perplexity"] == pytest.approx(np.exp(np.concatenate(plain).mean()), rel=1e-4)
    assert reported["loss"] == pytest.approx(np.concatenate(smoothed).mean(), rel=1e-4)
    assert abs(np.mean([batch.mean() for batch in plain]) - reported["nll"]) > 1e-3


# With Keras' gradient_accumulation_steps, gradients are averages over batches and the schedule counts micro-batches.


def test_micro_batches_draw_masks_in_fixed_order():
    """Check that micro-batches run sequentially. A parallel loop would draw dropout masks in arbitrary order."""
    ends = []
    for _ in range(2):
        model = make_model(**sgd(), accumulate=3, dropout=0.4)
        seeds = [variable for variable in model.variables if "seed" in variable.path]
        before = [keras.ops.convert_to_numpy(seed.value)[1] for seed in seeds]
        for index in range(3):
            update(model, make_batches()[index])
        after = [keras.ops.convert_to_numpy(seed.value)[1] for seed in seeds]
        assert seeds and [end - begin for begin, end in zip(before, after)] == [3 * 3] * len(seeds)
        ends.append(weights(model))
    for one, other in zip(*ends):
        np.testing.assert_array_equal(one, other)


# Keras' Loss.__call__ casts labels to the dtype of the loss, but bfloat16 cannot represent all large ids.


def test_loss_keeps_large_label_ids_in_bfloat16(monkeypatch):
    monkeypatch.setattr(keras.src.backend, "floatx", lambda: "bfloat16")
    labels = np.array([[257, 999, 37_001]])
    logits = np.zeros((1, 3, 37_200), "float32")
    np.put_along_axis(logits, labels[..., None], 30, axis=-1)
    loss = kt.SmoothedCrossEntropy(0.0)
    assert float(loss(labels, ops.cast(logits, "bfloat16"), np.ones((1, 3), "float32"))) < 1e-3


def test_model_keeps_large_label_ids_in_bfloat16():
    model = make_model(vocab_size=600, dtype="mixed_bfloat16")
    labels = np.arange(257, 600, 14)[None]  # odd ids above 256, which bfloat16 cannot represent
    states = ops.cast(20 * oracles.array(model.embedding.table)[labels], "bfloat16")
    expected = oracles.cross_entropy(labels, np.asarray(model.logits(states), "float32"), 0.1).mean()
    weights = np.full(labels.shape, 1 / labels.size, "float32")
    assert float(model.compute_loss(None, labels, states, weights)) == pytest.approx(expected, rel=1e-2)
    assert float(model.get_metrics_result()["nll"]) < 2  # wrong labels would give more than 10


# If masked scores were −∞, a fully masked row would be NaN, even after multiplication by 0. In float16, −1e9 overflows.


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_attention_of_fully_masked_row_is_finite(dtype):
    layer = MultiHeadAttention(8, 2, 4, 4, dtype=dtype)
    x = np.random.default_rng(0).normal(size=(2, 3, 8))
    with tf.GradientTape() as tape:
        output = layer(x, x, attention_mask=np.array([True, False])[:, None, None, None])
        loss = tf.reduce_sum(tf.cast(output, "float32"))
    gradients = tape.gradient(loss, layer.trainable_variables)
    assert all(np.isfinite(np.asarray(tensor, "float32")).all() for tensor in (output, *gradients))


def test_empty_rows_do_not_change_update():
    batches, filled = make_batches(), make_batches(row_multiple=7)
    model, other = make_model(**sgd()), make_model(**sgd())
    begin = weights(model)
    for index in range(3):
        assert len(filled[index][1]) > len(batches[index][1])
        update(model, batches[index])
        update(other, filled[index])
    for old, expected, actual in zip(begin, weights(model), weights(other)):
        assert abs(expected - old).max() > 1e-3
        np.testing.assert_allclose(actual, expected, atol=1e-5)
    for name, value in model.get_metrics_result().items():
        assert float(other.get_metrics_result()[name]) == pytest.approx(float(value), rel=1e-4)


# XLA


def test_xla_is_off_on_cpu_by_default():
    assert make_model().jit_compile is bool(tf.config.list_physical_devices("GPU"))
    assert make_model(jit_compile=True).jit_compile is True


# Without gradients, TensorFlow fuses the addition of a mask with the matrix product before it. In oneDNN, the fused
# operation is very slow if all rows share the mask.


def test_causal_mask_is_cheap_without_gradient():
    layer, x = MultiHeadAttention(64, 4, 16, 16), np.random.default_rng(0).normal(size=(16, 64, 64)).astype("float32")
    masks = {"causal": causal_mask(64), "padding": np.ones((16, 1, 1, 64), bool)}
    seconds = {name: [] for name in masks}
    attends = {
        name: tf.function(lambda x, mask=mask: layer(x, x, attention_mask=mask)) for name, mask in masks.items()
    }  # fmt: skip
    for _ in range(20):
        for name, attend in attends.items():
            seconds[name].append(timeit.timeit(functools.partial(attend, x), number=1))
    assert min(seconds["causal"]) < 8 * min(seconds["padding"])
