"""Tests of the whole Transformer: logits, parameters, masks, randomness, saving, loss and metrics."""

import keras
import numpy as np
import oracles
import pytest
from helpers.quick import eager_functions
from helpers.small_transformer import (
    DECODER_INPUT,
    INPUTS,
    LABELS,
    SOURCE,
    VOCAB,
    WEIGHTS,
    every_variant,
    logits,
    make_model,
    randomize,
    reset_seeds,
    seed_states,
    small,
    values,
)
from keras import ops

import keras_transformer as kt


@pytest.mark.backend
@every_variant
def test_logits_match_oracle(changes):
    model = randomize(make_model(**changes))
    residual = oracles.pre_norm if changes.get("norm") == "pre" else oracles.post_norm
    weights, window = oracles.transformer_weights(model), changes.get("attention_window")
    expected = oracles.transformer(*INPUTS, weights, 2, residual, window)
    np.testing.assert_allclose(logits(model), expected, rtol=1e-4, atol=1e-4)


# Parameters


@every_variant
@pytest.mark.parametrize("sizes", [{}, {"num_layers": 3, "d_model": 12, "d_ff": 5, "num_heads": 3, "d_k": 1, "d_v": 9}])
def test_parameter_count_matches_closed_form(sizes, changes):
    model = make_model(vocab_size=29, **sizes, **changes)
    hparams = model.hparams
    d, ff, n = hparams.d_model, hparams.d_ff, hparams.num_layers
    attention = 2 * d * hparams.num_heads * (hparams.d_k + hparams.d_v)
    feed_forward, norm = d * ff + ff + ff * d + d, 2 * d
    m = hparams.num_decoder_layers or n
    expected = 29 * d + n * (attention + feed_forward + 2 * norm) + m * (2 * attention + feed_forward + 3 * norm)
    expected += 2 * norm * (hparams.norm == "pre") + hparams.max_length * d * (hparams.positions == "learned")
    expected += n * hparams.num_heads * hparams.d_k * (hparams.encoder_attention == "additive")
    expected += 29 * (hparams.model == "word_aligned_transformer")  # the weight `word_starts`
    assert model.count_params() == expected


def test_variable_paths_are_unique():
    paths = [variable.path for variable in make_model(dropout=0.1, attention_dropout=0.1).variables]
    assert len(set(paths)) == len(paths)


# Dependencies


def with_another_future(position):
    """Return `DECODER_INPUT` with different tokens at `position` and after it."""
    changed = DECODER_INPUT.copy()
    changed[:, position:] = (changed[:, position:] + 3) % VOCAB
    return changed


def assert_only_the_future_changes(before, after, position):
    np.testing.assert_allclose(after[:, :position], before[:, :position], atol=1e-6)
    assert (abs(after - before)[:, position:].max(axis=-1) > 1e-4).all()


@every_variant
def test_logits_do_not_depend_on_future_tokens(changes):
    model, positions = make_model(**changes), range(1, DECODER_INPUT.shape[1])
    targets = np.concatenate([DECODER_INPUT, *map(with_another_future, positions)])
    before, *others = np.split(logits(model, (np.tile(SOURCE, (6, 1)), targets)), 6)
    for position, after in zip(positions, others, strict=True):
        assert_only_the_future_changes(before, after, position)


@pytest.mark.parametrize("model", ["transformer", "word_aligned_transformer"])
def test_training_logits_do_not_depend_on_future_tokens(model):
    model = make_model(model=model, dropout=0.1, attention_dropout=0.1, activation_dropout=0.1)
    before = logits(model, training=True)
    for position in (1, 4):
        reset_seeds(model)  # repeats the dropout masks
        after = logits(model, (SOURCE, with_another_future(position)), training=True)
        assert_only_the_future_changes(before, after, position)


@every_variant
def test_padding_does_not_change_real_logits(changes):
    model = randomize(make_model(**changes))
    expected = logits(model)
    for rows, source_columns, target_columns in [(0, 3, 0), (0, 0, 4), (2, 3, 4)]:
        source = np.pad(SOURCE, ((0, rows), (0, source_columns)))
        target = np.pad(DECODER_INPUT, ((0, rows), (0, target_columns)))
        padded = logits(model, (source, target))
        np.testing.assert_allclose(padded[:3, :6], expected, atol=2e-5)
        assert np.isfinite(padded).all()  # also in rows without tokens


def test_each_source_token_changes_each_logit():
    model = randomize(make_model())
    expected = logits(model)
    for position in range(5):
        changed = SOURCE.copy()
        changed[0, position] = 3
        difference = abs(logits(model, (changed, DECODER_INPUT)) - expected).max(axis=-1)
        assert (difference[0] > 1e-5).all() and (difference[1:] < 1e-6).all()


# Randomness


def test_initial_weights_depend_on_seed_only():
    keras.utils.set_random_seed(1)
    model = make_model(seed=5)
    keras.utils.set_random_seed(2)
    same, other = make_model(seed=5), make_model(seed=6)
    for variable, twin, stranger in zip(*(m.trainable_variables for m in (model, same, other))):
        value = oracles.array(variable)
        np.testing.assert_array_equal(value, oracles.array(twin))
        assert np.array_equal(value, oracles.array(stranger)) == (value.std() == 0), variable.path


def test_initial_weights_all_differ():
    corners = [tuple(oracles.array(v)[:5, :5].ravel()) for v in make_model().trainable_variables if len(v.shape) == 2]
    assert len(set(corners)) == len(corners)


@pytest.mark.backend
def test_dropout_layers_have_distinct_seeds():
    model = make_model(num_layers=6, dropout=0.1, attention_dropout=0.1, activation_dropout=0.1)
    seeds = [seed for seed, _ in seed_states(model).values()]
    assert len(seeds) == 2 + 6 * 4 + 6 * 6
    assert len(set(seeds)) == len(seeds)
    others = {seed for seed, _ in seed_states(make_model(num_layers=6, dropout=0.1, seed=2)).values()}
    assert others.isdisjoint(seeds)


def test_dropout_is_placed_as_in_section_5_4():
    """Count dropout layers: one for each sublayer, and one for the sum of embeddings and positions in each stack."""
    assert len(seed_states(make_model(num_layers=6, dropout=0.1))) == 2 + 6 * 2 + 6 * 3
    assert not seed_states(make_model(dropout=0.0))


def test_dropout_applies_to_sum_with_positions(monkeypatch):
    """Use zero embeddings and one-hot positions. If dropout applied only to the embeddings, it would have no effect."""
    model, entered = make_model(dropout=0.5), []

    def call(self, x, *_, **__):
        entered.append(np.asarray(x))
        return x

    for stack in (model.encoder, model.decoder):
        monkeypatch.setattr(type(stack), "call", call)
    monkeypatch.setattr(type(model.positions), "encode", lambda self, positions: ops.one_hot(positions, self.d_model))
    model.embedding.table.assign(np.zeros(model.embedding.table.shape))
    model.states(INPUTS, training=True)
    assert [x.shape[1] for x in entered] == [SOURCE.shape[1], DECODER_INPUT.shape[1]]
    for x in entered:
        assert set(x.diagonal(axis1=1, axis2=2).flat) == {0.0, 2.0}
        assert not (x * (1 - np.eye(*x.shape[1:]))).any()


@pytest.mark.backend
def test_largest_seed_fits_jax():
    largest = kt.HParams.__dataclass_fields__["seed"].metadata["high"]
    seeds = [seed for seed, _ in seed_states(make_model(seed=largest)).values()]
    assert 0 <= min(seeds) and max(seeds) < 2**32


@pytest.mark.backend
def test_dropout_masks_change_in_training_only():
    model = make_model(dropout=0.5)
    first, second = logits(model, training=True), logits(model, training=True)
    assert abs(first - second).max() > 0.1
    assert {count for _, count in seed_states(model).values()} == {2}
    np.testing.assert_array_equal(logits(model), logits(model))
    assert {count for _, count in seed_states(model).values()} == {2}


# Defaults


def test_sizes_default_to_base():
    model = kt.Transformer(vocab_size=100, num_layers=2, d_model=64)
    assert model.hparams == kt.hparams("base", num_layers=2, d_model=64, d_ff=256)
    assert kt.Transformer(9, d_model=16, d_ff=24, num_layers=1).hparams.d_ff == 24
    assert model.functional().output.shape == (None, None, 100)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    assert copy.hparams == model.hparams
    changed = kt.Transformer(9, small(), num_layers=1, name="mine", dtype="mixed_bfloat16")
    assert (changed.hparams, changed.name, changed.compute_dtype) == (small(num_layers=1), "mine", "bfloat16")


def test_wrong_fields_raise_user_error():
    with pytest.raises(kt.UserError, match="unknown hparams field 'num_layer': did you mean num_layers"):
        kt.Transformer(9, num_layer=2)
    with pytest.raises(kt.UserError, match="d_model must be divisible by num_heads, got d_model=20"):
        kt.Transformer(9, d_model=20)
    with pytest.raises(kt.UserError, match="d_model must be an integer"):
        kt.Transformer(9, d_model="64")


# Predictions


def test_predict_returns_numpy_logits_of_arrays():
    model = randomize(make_model())
    predicted = model.predict(INPUTS, verbose=0)
    assert type(predicted) is np.ndarray and predicted.dtype == "float32"
    np.testing.assert_allclose(predicted, logits(model), atol=1e-5)


def test_predict_on_token_batches_names_the_translator(tmp_path):
    problem, hparams = kt.problem("reverse", data_dir=tmp_path, train_pairs=100), small(batch_tokens=200)
    model = kt.Transformer.from_hparams(hparams, problem)
    with pytest.raises(kt.UserError, match=r"use Translator\(model, problem\)\.translate\(texts\)"):
        model.predict(problem.batches("validation", hparams))


# Saving


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_model_round_trips_through_config(dtype):
    model = make_model(dtype=dtype, norm="pre", dropout=0.3)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    assert type(copy) is kt.Transformer and copy.get_config() == model.get_config()
    assert copy.hparams == model.hparams and copy.vocab_size == model.vocab_size
    assert copy.dtype_policy.name == model.dtype_policy.name == dtype
    np.testing.assert_array_equal(logits(copy), logits(model))  # the seed gives the same initial weights


@every_variant
def test_saved_model_gives_same_logits(changes, tmp_path):
    model = randomize(make_model(**changes))
    model.save(tmp_path / "x.keras")
    loaded = keras.saving.load_model(tmp_path / "x.keras", safe_mode=True)
    np.testing.assert_array_equal(logits(loaded), logits(model))
    assert seed_states(loaded) == seed_states(model)
    assert loaded.compiled == model.compiled


@pytest.mark.backend
@pytest.mark.filterwarnings("error:.*compile")
def test_saved_compiled_model_continues_training(eager, tmp_path):
    model = make_model(compile=True, dropout=0.0)
    model.train_on_batch(INPUTS, LABELS, WEIGHTS)
    model.save(tmp_path / "x.keras")
    loaded = keras.saving.load_model(tmp_path / "x.keras")
    np.testing.assert_array_equal(loaded.optimizer.iterations, 1)
    for one in (model, loaded):
        one.train_on_batch(INPUTS, LABELS, WEIGHTS)
    np.testing.assert_allclose(logits(loaded), logits(model), atol=1e-6)


# Loss and metrics (§5.4)


@pytest.mark.backend
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_loss_from_states_and_logits_matches_oracle(label_smoothing):
    model = randomize(make_model(compile=True, label_smoothing=label_smoothing))
    states = model.states(INPUTS)
    expected = (oracles.cross_entropy(LABELS, logits(model), label_smoothing) * WEIGHTS).sum()
    loss = kt.SmoothedCrossEntropy(label_smoothing)
    assert float(model.compute_loss(None, LABELS, states, WEIGHTS)) == pytest.approx(expected, rel=1e-5)
    assert float(loss(LABELS, model(INPUTS), WEIGHTS)) == pytest.approx(expected, rel=1e-5)
    each = oracles.cross_entropy(LABELS, logits(model), label_smoothing)
    np.testing.assert_allclose(loss.call(LABELS, model(INPUTS)), each, rtol=1e-4)


def test_r_drop_runs_two_passes_with_different_dropout(monkeypatch):
    """Compute the expected loss from both passes. Rows 2i and 2i + 1 of the doubled batch are the passes of row i."""
    model = randomize(make_model(compile=True, dropout=0.3, r_drop=5.0))
    states, seen = type(model).states, []
    monkeypatch.setattr(
        type(model), "states", lambda *args, **options: seen.append(states(*args, **options)) or seen[-1]
    )
    loss = float(model.loss_of(INPUTS, LABELS, ops.convert_to_tensor(WEIGHTS), training=True))
    first, second = (oracles.softmax(np.asarray(model.logits(seen[0][n::2]), "float64")) for n in (0, 1))
    apart = 0.5 * ((first - second) * np.log(first / second)).sum(-1)
    both = [oracles.cross_entropy(LABELS, np.log(p), 0.1) for p in (first, second)]
    assert loss == pytest.approx(((sum(both) / 2 + 5 / 2 * apart) * WEIGHTS).sum(), rel=1e-4)
    assert apart.min() > 1e-4 and len(seen) == 1
    nll = float(model.get_metrics_result()["nll"])
    plain = [oracles.cross_entropy(LABELS, np.log(p)) for p in (first, second)]
    assert nll == pytest.approx((sum(plain) / 2)[LABELS != 0].mean(), rel=1e-4)
    evaluated = float(model.loss_of(INPUTS, LABELS, ops.convert_to_tensor(WEIGHTS), training=False))
    usual = (oracles.cross_entropy(LABELS, logits(model), 0.1) * WEIGHTS).sum()
    assert evaluated == pytest.approx(usual, rel=1e-4)


class Tokens(keras.metrics.Sum):
    """Metric that requires logits and sums the sample weights."""

    def update_state(self, labels, logits, sample_weight=None):
        super().update_state(sample_weight)


def test_r_drop_from_logits_equals_from_states():
    losses, tokens = [], Tokens()
    for metrics in (None, [tokens]):
        model = randomize(make_model(dropout=0.3, r_drop=5.0))
        model.compile(**kt.compile_arguments(model.hparams), weighted_metrics=metrics)
        losses.append(float(model.loss_of(INPUTS, LABELS, ops.convert_to_tensor(WEIGHTS), training=True)))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert float(tokens.result()) == (LABELS != 0).sum()


def test_r_drop_without_dropout_is_plain_update(eager):
    models = [randomize(make_model(dropout=0.0)) for _ in range(3)]
    for model, r_drop, slices in zip(models, (0.0, 5.0, 5.0), (1, 1, 2)):
        arguments = kt.compile_arguments(model.hparams, slices)
        arguments["loss"].r_drop = r_drop
        model.compile(**arguments)
        model.train_on_batch(INPUTS, LABELS, WEIGHTS)
    assert [model.passes for model in models] == [1, 2, 2]
    for one, *others in zip(*(model.trainable_variables for model in models)):
        for other in others:
            np.testing.assert_allclose(np.asarray(other), np.asarray(one), atol=1e-4)


def test_metrics_weigh_tokens_across_batches(eager):
    model = randomize(make_model(compile=True))
    batches, plain, smoothed = [], [], []
    for rows, length in [(slice(0, 1), 6), (slice(1, 3), 3)]:  # one batch of 6 tokens, one of 4 tokens and padding
        inputs, labels = (SOURCE[rows], DECODER_INPUT[rows, :length]), LABELS[rows, :length]
        batches.append((inputs, labels, (labels != 0) / np.float32((labels != 0).sum())))
        plain.append(oracles.cross_entropy(labels, logits(model, inputs))[labels != 0])
        smoothed.append(oracles.cross_entropy(labels, logits(model, inputs), 0.1)[labels != 0])
    result = model.evaluate((batch for batch in batches), steps=2, verbose=0, return_dict=True)
    assert float(result["nll"]) == pytest.approx(np.concatenate(plain).mean(), rel=1e-4)
    assert float(result["perplexity"]) == pytest.approx(np.exp(np.concatenate(plain).mean()), rel=1e-4)
    assert float(result["loss"]) == pytest.approx(np.concatenate(smoothed).mean(), rel=1e-4)
    assert abs(np.mean([batch.mean() for batch in plain]) - np.concatenate(plain).mean()) > 0.01


def test_update_changes_every_weight_of_unequal_stacks():
    model = make_model(num_layers=3, num_decoder_layers=1, compile=True)
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (3, 1)
    before = values(model.trainable_variables)
    with eager_functions():
        model.fit(INPUTS, LABELS, sample_weight=WEIGHTS, verbose=0)
    for path, value in values(model.trainable_variables).items():
        assert (value != before[path]).any(), path


@pytest.mark.parametrize("r_drop", [0.0, 2.0])
@pytest.mark.parametrize("dtype", [int, bool])
def test_sample_weights_may_be_a_mask(dtype, r_drop):
    losses = []
    for weights in (WEIGHTS > 0).astype("float32"), (WEIGHTS > 0).astype(dtype):
        model = make_model(r_drop=r_drop, compile=True)
        with eager_functions():
            losses.append(model.fit(INPUTS, LABELS, sample_weight=weights, shuffle=False, verbose=0).history["loss"])
    assert losses[0] == losses[1]


# Warnings


@pytest.mark.filterwarnings("error")
def test_call_raises_no_warnings():
    make_model(dropout=0.1, norm="pre")(INPUTS, training=True)
