"""Tests of the presets for Table 3: changed fields, number of parameters, and an update for each kind of model."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.config import registry
from keras_transformer.config.hparams import HParams, load_hparams

registry.load_catalog()
PRESETS = [name for name, _ in registry.hparams.describe()]
VOCAB = 37_000

# Copied by hand from Table 3: changed fields, PPL, BLEU, parameters in millions (None: the same as for base).
TABLE_3 = {
    "base_h1": (dict(num_heads=1, key_width=512, value_width=512), 5.29, 24.9, None),
    "base_h4": (dict(num_heads=4, key_width=128, value_width=128), 5.00, 25.5, None),
    "base_h16": (dict(num_heads=16, key_width=32, value_width=32), 4.91, 25.8, None),
    "base_h32": (dict(num_heads=32, key_width=16, value_width=16), 5.01, 25.4, None),
    "base_dk16": (dict(key_width=16), 5.16, 25.1, 58),
    "base_dk32": (dict(key_width=32), 5.01, 25.4, 60),
    "base_n2": (dict(num_layers=2), 6.11, 23.7, 36),
    "base_n4": (dict(num_layers=4), 5.19, 25.3, 50),
    "base_n8": (dict(num_layers=8), 4.88, 25.5, 80),
    "base_d256": (dict(d_model=256, key_width=32, value_width=32), 5.75, 24.5, 28),
    "base_d1024": (dict(d_model=1024, key_width=128, value_width=128), 4.66, 26.0, 168),
    "base_ff1024": (dict(d_ff=1024), 5.12, 25.4, 53),
    "base_ff4096": (dict(d_ff=4096), 4.75, 26.2, 90),
    "base_dropout0": (dict(dropout=0.0), 5.77, 24.6, None),
    "base_dropout02": (dict(dropout=0.2), 4.95, 25.5, None),
    "base_smoothing0": (dict(label_smoothing=0.0), 4.67, 25.3, None),
    "base_smoothing02": (dict(label_smoothing=0.2), 5.47, 25.7, None),
    "base_learned_positions": (dict(positions="learned"), 4.92, 25.7, None),
}

# Parameter counts by the paper's equations for `VOCAB` tokens, with tied embeddings and without attention biases.
PARAMETERS = {
    "base": 63_045_632,
    "base_dk16": 55_967_744,
    "base_dk32": 58_327_040,
    "base_n2": 33_644_544,
    "base_n4": 48_345_088,
    "base_n8": 77_746_176,
    "base_d256": 26_816_512,
    "base_d1024": 163_815_424,
    "base_ff1024": 50_450_432,
    "base_ff4096": 88_236_032,
    "big": 214_171_648,
}


def parameters(hparams, vocab_size):
    """Return the number of weights according to the paper's equations."""
    d, ff, n = hparams.d_model, hparams.d_ff, hparams.num_layers
    attention = 2 * d * hparams.num_heads * (hparams.key_width + hparams.value_width)
    if hparams.model == "marian":  # Marian has biases in all four attention projections
        attention += hparams.num_heads * (2 * hparams.key_width + hparams.value_width) + d
    feed_forward, norm = d * ff + ff + ff * d + d, 2 * d
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    total = vocab_size * d + n * (encoder + decoder)
    return total + 2 * norm * (hparams.norm == "pre") + hparams.max_length * d * (hparams.positions == "learned")


def properties(hparams):
    """Return all fields as a dictionary, with the actual head widths instead of `d_k` and `d_v`, which may be None."""
    names = {*HParams.__dataclass_fields__} - {"d_k", "d_v"} | {"key_width", "value_width"}
    return {name: getattr(hparams, name) for name in names}


@pytest.mark.parametrize("name", TABLE_3)
def test_table_3_preset_changes_only_its_row(name):
    assert properties(load_hparams(name)) == properties(load_hparams("base")) | TABLE_3[name][0]


@pytest.mark.parametrize("name", TABLE_3)
def test_table_3_description_has_paper_figures(name):
    _, perplexity, bleu, millions = TABLE_3[name]
    description = dict(registry.hparams.describe())[name]
    assert description.endswith(f"PPL {perplexity}, BLEU {bleu}, {millions or 65}M parameters.")


def test_table_3_covers_all_base_variations():
    assert {name for name in PRESETS if name.startswith("base_")} == set(TABLE_3)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts_follow_equations(name):
    assert parameters(load_hparams(name), VOCAB) == PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "millions"),
    [("base", 65), ("big", 213), *((name, row[3]) for name, row in TABLE_3.items() if row[3])],
)
def test_parameter_counts_within_7_percent_of_paper(name, millions):
    assert parameters(load_hparams(name), VOCAB) == pytest.approx(millions * 1e6, rel=0.07)


def test_big_enfr_differs_by_dropout_only():
    assert load_hparams("big_enfr") == load_hparams("big", dropout=0.1)


@pytest.mark.parametrize("name", ["parsing_wsj", "parsing_semisupervised"])
def test_parsing_presets_match_section_6_3(name):
    changes = dict(
        num_layers=4, d_model=1024, key_width=128, value_width=128, beam_size=21, alpha=0.3, extra_length=300
    )
    assert properties(load_hparams(name)) == properties(load_hparams("base")) | changes


def test_presets_differ_from_paper_as_documented():
    base, parser = load_hparams("base"), load_hparams("parsing_wsj")
    assert base.max_length == parser.max_length == 256
    assert ((base.average_last - 1) * base.checkpoint_steps, base.checkpoint_minutes) == (4000, 10)
    assert (parser.attention_dropout, parser.dropout) == (0, base.dropout)


def test_t2t_presets_have_tensor2tensor_settings():
    for name in ("t2t_base", "t2t_big", "t2t_tiny"):
        hparams = load_hparams(name)
        assert (hparams.norm, hparams.adam_beta_2, hparams.warmup_steps) == ("pre", 0.997, 8000)
        assert (hparams.learning_rate_scale, hparams.attention_dropout, hparams.activation_dropout) == (2.0, 0.1, 0.1)


# Building, training and saving


def scaled_down(hparams):
    """Divide the widths of hparams by 8 and the number of layers by 3."""
    eighth = {name: getattr(hparams, name) // 8 for name in ("d_model", "d_ff")}
    widths = {name: max(getattr(hparams, name) // 8, 1) for name in ("d_k", "d_v") if getattr(hparams, name)}
    return hparams.replace(**eighth, **widths, num_layers=max(hparams.num_layers // 3, 1), max_length=32)


def kind(hparams):
    """Return the fields that select layer types, loss and weight averaging, without those that set layer sizes."""
    choices = hparams.norm, hparams.positions, hparams.encoder_attention
    return *choices, hparams.model, bool(hparams.r_drop), bool(hparams.ema_decay)


ONE_OF_EACH_KIND = list({kind(load_hparams(name)): name for name in reversed(PRESETS)}.values())


@pytest.mark.parametrize("name", [*ONE_OF_EACH_KIND, "base_dk16"])
def test_preset_builds_trains_and_is_saved(name, tmp_path):
    hparams = scaled_down(load_hparams(name))
    model = kt.Transformer.from_hparams(hparams, vocab_size=40)
    trained = sum(np.prod(variable.shape) for variable in model.trainable_variables)
    assert trained == parameters(hparams, 40) == model.count_params() - 40 * (hparams.model != "transformer")
    model.compile(**kt.compile_arguments(hparams), run_eagerly=True)
    random = np.random.default_rng(1)
    source, labels = random.integers(4, 40, (2, 3, 6)).astype("int32")
    inputs = source, np.concatenate([np.full((3, 1), 2, "int32"), labels[:, :-1]], axis=1)
    before = [keras.ops.convert_to_numpy(variable) for variable in model.trainable_variables]
    loss = model.train_on_batch(inputs, labels, return_dict=True)["loss"]
    assert 2 < loss < 8  # ln 40 is 3.7
    after = [keras.ops.convert_to_numpy(variable) for variable in model.trainable_variables]
    assert all(np.any(old != new) for old, new in zip(before, after))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(loaded(inputs)), keras.ops.convert_to_numpy(model(inputs)))
    assert loaded.hparams == hparams
