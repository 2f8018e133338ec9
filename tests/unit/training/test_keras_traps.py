"""Keras' traps, one test each: our code walks into none of them.

Those of `tf.distribute` are tested in test_distribution.py.
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
from keras_transformer.data.batches import TokenBatches
from keras_transformer.data.batching import BatchPlan
from keras_transformer.data.token_store import Split
from keras_transformer.layers.attention import MultiHeadAttention, causal_mask
from keras_transformer.training.callbacks import StepCallback

tf = pytest.importorskip("tensorflow")
if keras.backend.backend() != "tensorflow":
    pytest.skip("these traps are TensorFlow's", allow_module_level=True)

VOCAB = 13
HPARAMS = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, dropout=0.0)
LENGTHS = [2, 2, 3, 3, 3, 4, 5, 5, 6, 7, 7, 7, 9]


class Sequences:
    """Token sequences in memory, as a `Split` holds them."""

    def __init__(self, lengths, seed):
        ids = np.random.default_rng(seed)
        self.rows = [[*ids.integers(4, VOCAB, length - 1), 1] for length in lengths]
        self.lengths = np.array(lengths, "int32")

    def __getitem__(self, row):
        return self.rows[row]


def make_batches(source=LENGTHS, target=LENGTHS[::-1], shuffle=True, **arguments):
    """Batches, of at most 18 tokens a side, of sequences of these lengths."""
    split = Split(Sequences(source, 1), Sequences(target, 2))
    plan = BatchPlan(split.source.lengths, split.target.lengths, 18, seed=1, shuffle=shuffle)
    return TokenBatches(split, plan, **arguments)


def make_model(vocab_size=VOCAB, dtype="float32", accumulate=1, dropout=0.0, **compile_arguments):
    hparams = HPARAMS.replace(dropout=dropout)
    model = kt.Transformer.from_hparams(hparams, vocab_size=vocab_size, dtype=dtype)
    model.compile(**{**kt.compile_arguments(hparams, accumulate), **compile_arguments})
    return model


def sgd():
    """An optimizer whose update is the gradient; Adam's hides an error of scale, and the rate begins near 0."""
    return {"optimizer": keras.optimizers.SGD(0.5)}


def weights(model):
    return [oracles.array(variable) for variable in model.trainable_variables]


def seed_states(model):
    return [tuple(np.asarray(v.value)) for v in model.variables if v.path.endswith("seed_generator_state")]


def update(model, batch):
    """One update outside of fit."""
    model.train_step(tf.nest.map_structure(tf.convert_to_tensor, batch))


def watch(model, monkeypatch):
    """Replaces the update by a record of the batches that come; returns the record."""
    seen = []

    def train_step(data):
        seen.append(tf.nest.map_structure(np.asarray, data))
        return {"loss": 0.0}

    monkeypatch.setattr(model, "train_step", train_step)
    return seen


# fit shuffles a finite PyDataset with Python's random, and its symbolic build takes the first batch away


@pytest.mark.parametrize("start", [0, 5])
def test_fit_reads_the_plans_batches_in_the_plans_order(start, monkeypatch):
    model, batches = make_model(run_eagerly=True), make_batches(start=start)
    seen, state = watch(model, monkeypatch), random.getstate()
    model.fit(batches, epochs=3, verbose=0)
    assert len(seen) == 3 * batches.batches_per_epoch
    for index, batch in enumerate(seen):
        tf.nest.map_structure(np.testing.assert_array_equal, batch, make_batches()[start + index])
    assert random.getstate() == state


# fit infers open dimensions from the first two batches


def test_batches_of_one_shape_first_and_others_later(monkeypatch):
    lengths = [3] * 12 + [5, 7, 9, 18]
    batches = make_batches(lengths, lengths, shuffle=False)
    shapes = [batches[index][1].shape for index in range(batches.batches_per_epoch)]
    assert shapes[0] == shapes[1] and len(set(shapes)) > 3
    model, states = make_model(), kt.Transformer.states
    calls = []
    monkeypatch.setattr(kt.Transformer, "states", lambda *args, **kwargs: calls.append(1) or states(*args, **kwargs))
    model.fit(batches, epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 2 * len(shapes)
    assert len(calls) <= 2  # traced for all shapes at once


# Epoch hooks come too early to count by


def test_callbacks_and_schedule_count_updates():
    class Counter(StepCallback):
        def on_step(self, step):
            steps.append((step, int(self.model.optimizer.iterations)))

        def on_end(self, step):
            steps.append("end")

    steps, batches, model = [], make_batches(), make_model(accumulate=2)
    model.fit(batches, epochs=2, verbose=0, callbacks=[Counter(start=10)])
    updates = 2 * batches.batches_per_epoch
    assert steps == [(10 + i, i) for i in range(1, updates + 1)] + ["end"]
    # gradient_accumulation_steps would feed slices to the schedule.
    assert float(model.optimizer.learning_rate) == pytest.approx(oracles.learning_rate(16, updates + 1))


# Where the backend is thread-safe Keras runs callbacks beside the next updates


def test_callbacks_come_between_updates(monkeypatch):
    """JAX is one: there an async_safe callback runs in another thread, and a checkpoint catches later weights."""
    threads = []

    class Watcher(StepCallback):
        def on_step(self, step):
            threads.append(threading.current_thread())

    monkeypatch.setattr("keras.src.backend.IS_THREAD_SAFE", True)
    model = make_model(run_eagerly=True)
    watch(model, monkeypatch)
    model.fit(make_batches(), verbose=0, callbacks=[Watcher(start=0)])
    assert set(threads) == {threading.main_thread()}


# Mean reductions and means of batch means


def test_the_reported_loss_is_a_mean_over_tokens():
    model = make_model()
    batches = make_batches(shuffle=False, endless=False, row_multiple=4)
    reported = model.evaluate(batches, verbose=0, return_dict=True)
    plain, smoothed = [], []
    for index in range(batches.batches_per_epoch):
        inputs, labels, _ = batches[index]
        logits = np.asarray(model(inputs))
        plain.append(oracles.cross_entropy(labels, logits)[labels != 0])
        smoothed.append(oracles.cross_entropy(labels, logits, 0.1)[labels != 0])
    assert reported["nll"] == pytest.approx(np.concatenate(plain).mean(), rel=1e-4)
    assert reported["perplexity"] == pytest.approx(np.exp(np.concatenate(plain).mean()), rel=1e-4)
    assert reported["loss"] == pytest.approx(np.concatenate(smoothed).mean(), rel=1e-4)
    assert abs(np.mean([batch.mean() for batch in plain]) - reported["nll"]) > 1e-3


def test_evaluate_goes_through_endless_batches_once(monkeypatch):
    batches = make_batches(endless=True)
    read, batch = [], BatchPlan.batch

    def count(plan, index):
        read.append(index)
        if index > 3 * plan.batches_per_epoch:
            raise RuntimeError("evaluate does not end")
        return batch(plan, index)

    monkeypatch.setattr(BatchPlan, "batch", count)
    make_model().evaluate(batches, verbose=0)
    assert set(range(batches.batches_per_epoch)) <= set(read)


def test_evaluation_draws_no_seeds_and_learns_nothing():
    model = make_model(dropout=0.5)
    update(model, make_batches()[0])
    before, states = weights(model), seed_states(model)
    model.evaluate(make_batches(endless=False), verbose=0)
    assert seed_states(model) == states and {count for _, count in states} == {1}
    for old, new in zip(before, weights(model)):
        np.testing.assert_array_equal(old, new)
    assert int(model.optimizer.iterations) == 1


# gradient_accumulation_steps averages, and an update of it is many for the schedule


@pytest.mark.parametrize("accumulate", [2, 3, 7])
def test_accumulated_slices_make_the_same_updates(accumulate):
    batches = make_batches()
    whole, sliced = make_model(**sgd()), make_model(**sgd(), accumulate=accumulate)
    begin = weights(whole)
    assert any(len(batches[index][1]) % accumulate for index in range(3))  # uneven slices; of 7, empty ones too
    for index in range(3):
        update(whole, batches[index])
        update(sliced, batches[index])
    assert int(sliced.optimizer.iterations) == 3
    for old, expected, actual in zip(begin, weights(whole), weights(sliced)):
        assert abs(expected - old).max() > 1e-3
        np.testing.assert_allclose(actual, expected, atol=1e-5)
    for name, value in whole.get_metrics_result().items():
        assert float(sliced.get_metrics_result()[name]) == pytest.approx(float(value), rel=1e-4)


def test_slices_draw_their_own_masks_in_a_fixed_order():
    """Slices follow one another in a loop; those of a parallel one would draw masks as they came."""
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


# Loss.__call__ casts labels and logits to the loss's dtype


def test_label_ids_above_256_survive_bfloat16_in_the_loss():
    labels = np.array([[257, 999, 37_001]])
    logits = np.zeros((1, 3, 37_200), "float32")
    np.put_along_axis(logits, labels[..., None], 30, axis=-1)
    logits = ops.cast(logits, "bfloat16")
    bitten = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum", dtype="bfloat16")
    assert float(bitten(labels, logits)) > 10
    loss = kt.SmoothedCrossEntropy(0.0, dtype="bfloat16")
    assert float(loss(labels, logits, np.ones((1, 3), "float32"))) < 1e-3


def test_label_ids_above_256_survive_bfloat16_in_the_model():
    model = make_model(vocab_size=600, dtype="mixed_bfloat16")
    labels = np.arange(257, 600, 14)[None]  # odd: bfloat16 has none of them
    states = ops.cast(20 * oracles.array(model.embedding.table)[labels], "bfloat16")
    expected = oracles.cross_entropy(labels, np.asarray(model.logits(states), "float32"), 0.1).mean()
    weights = np.full(labels.shape, 1 / labels.size, "float32")
    assert float(model.compute_loss(None, labels, states, weights)) == pytest.approx(expected, rel=1e-2)
    assert float(model.get_metrics_result()["nll"]) < 2  # the states say the labels; for others it would be above 10


# −∞ in a row without a legal position is NaN, NaN × weight 0 is NaN, and −1e9 overflows float16


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_a_row_without_a_legal_position_is_finite(dtype):
    layer = MultiHeadAttention(8, 2, 4, 4, dtype=dtype)
    x = np.random.default_rng(0).normal(size=(2, 3, 8))
    with tf.GradientTape() as tape:
        output = layer(x, x, attention_mask=np.array([True, False])[:, None, None, None])
        loss = tf.reduce_sum(tf.cast(output, "float32"))
    gradients = tape.gradient(loss, layer.trainable_variables)
    assert all(np.isfinite(np.asarray(tensor, "float32")).all() for tensor in (output, *gradients))


def test_empty_rows_change_no_update():
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


def test_xla_is_off_on_cpu_unless_asked_for():
    assert make_model().jit_compile is bool(tf.config.list_physical_devices("GPU"))
    assert make_model(jit_compile=True).jit_compile is True


def test_xla_makes_the_same_update():
    batches = make_batches()
    plain, compiled = make_model(**sgd(), jit_compile=False), make_model(**sgd(), jit_compile=True)
    begin = weights(plain)
    for model in (plain, compiled):
        model.fit(batches, steps_per_epoch=1, verbose=0)
    for old, expected, actual in zip(begin, weights(plain), weights(compiled)):
        assert abs(expected - old).max() > 1e-3
        np.testing.assert_allclose(actual, expected, atol=1e-5)


# Scaled logits plus a mask of one row for all become one oneDNN operation, in its slowest form, where no gradient is
# asked for


def test_a_causal_mask_costs_little_without_a_gradient():
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
