"""Tests of layers, shapes and parameter counts in `summary()`, and of functional models for `plot_model`."""

import re

import keras
import numpy as np
import pytest
from helpers.quick import eager_functions

import keras_transformer as kt

VOCAB = 11
TOKENS = (np.array([[4, 5, 1], [6, 1, 0]], "int32"), np.array([[2, 5, 9, 4], [2, 7, 0, 0]], "int32"))
EMBEDDED = "(None, None, 16)"
VARIANTS = {
    "paper": {},
    "pre": {"norm": "pre"},
    "learned": {"positions": "learned"},
    "word heads": {"model": "word_aligned_transformer"},
    "no dropout": {"dropout": 0.0},
}


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")


def make_model(**changes):
    sizes = {"num_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 2, "max_length": 20}
    return kt.Transformer.from_hparams(kt.HParams(**{**sizes, **changes}), vocab_size=VOCAB)


def train(model):
    model.compile(**kt.compile_arguments(model.hparams))
    with eager_functions():
        model.fit(TOKENS, np.array([[5, 9, 4, 1], [7, 1, 0, 0]]), verbose=0)


def summary_rows(model, **arguments):
    """Parse a summary. Return {name: (class, output shape, number of parameters)} and the lines after the table."""
    lines = []
    model.summary(print_fn=lines.append, **arguments)
    text = "\n".join(lines)
    pattern = r"│[ └]*(\w+) \((\w+)\)\s*│ (.*?)\s*│\s*(\S+) │"
    rows = {name: (kind, shape, int(count.replace(",", ""))) for name, kind, shape, count in re.findall(pattern, text)}
    return rows, text.rpartition("┘")[2]


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_summary_shows_parts_shapes_and_parameters(changes):
    model = make_model(**changes)
    rows, totals = summary_rows(model)
    shapes = {name: shape for name, (_, shape, _) in rows.items()}
    assert shapes == {
        "embedding": EMBEDDED, "positions": "(None, 16)", "source_dropout": EMBEDDED, "target_dropout": EMBEDDED,
        "encoder": EMBEDDED, "decoder": EMBEDDED,
    }  # fmt: skip
    for name, (_, _, count) in rows.items():
        assert count == getattr(model, name).count_params()
    trainable = sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)
    assert f"Trainable params: {trainable:,} " in totals
    assert f"Total params: {model.count_params():,} " in totals


def test_summary_same_after_call_and_training():
    model = make_model()
    rows, _ = summary_rows(model)
    model(TOKENS)
    assert summary_rows(model)[0] == rows
    train(model)
    trained_rows, totals = summary_rows(model)
    assert trained_rows == rows
    assert "Optimizer params:" in totals


def test_summary_expands_stacks():
    model = make_model()
    lines = []
    model.summary(print_fn=lines.append, expand_nested=True)
    rows = re.findall(r"└ (\w+) \((\w+)\)\s*│ (.*?)\s*│\s*(\S+) │", "\n".join(lines))
    expected = [
        (layer.name, type(layer).__name__, EMBEDDED, f"{layer.count_params():,}")
        for stack in (model.encoder, model.decoder)
        for layer in stack.layers
    ]
    assert rows == expected


def test_summary_of_base_counts_paper_parameters():
    model = kt.Transformer(37_000, kt.hparams("base"))
    assert model.count_params() == 63_045_632
    assert "Total params: 63,045,632 " in summary_rows(model)[1]


def test_count_params_matches_weights():
    model = make_model(model="word_aligned_transformer")
    assert model.count_params() == sum(int(np.prod(weight.shape)) for weight in model.weights)
    assert model.count_params() == VOCAB + make_model().count_params()  # `word_starts` has VOCAB entries


def test_model_works_as_layer_of_functional_model():
    model = make_model()
    inputs = [keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")]
    logits = model(tuple(inputs))
    assert logits.shape == (None, None, VOCAB)
    outer = keras.Model(inputs, logits)
    np.testing.assert_allclose(outer(list(TOKENS)), model(TOKENS), rtol=1e-6)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_functional_model_shares_layers_and_weights(changes):
    model = make_model(**changes)
    if hasattr(model, "word_starts"):
        model.word_starts.assign(np.arange(VOCAB) % 2)
    functional = model.functional()
    for name in ("embedding", "positions", "source_dropout", "target_dropout", "encoder", "decoder"):
        assert functional.get_layer(name) is getattr(model, name)
    np.testing.assert_allclose(functional(TOKENS), model(TOKENS), rtol=1e-6, atol=1e-6)
    model.embedding.table.assign(2 * np.asarray(model.embedding.table))
    np.testing.assert_allclose(functional(TOKENS), model(TOKENS), rtol=1e-6, atol=1e-6)


def test_functional_model_has_layers_for_plot_model():
    model = make_model()
    train(model)
    functional = model.functional()
    boxes = {layer.name: (layer.input, layer.output) for layer in functional.layers}
    shapes = {name: output.shape for name, (_, output) in boxes.items()}
    assert shapes == {
        "source": (None, None), "decoder_input": (None, None), "embedding": (None, None, 16),
        "positions": (None, None, 16), "source_dropout": (None, None, 16), "target_dropout": (None, None, 16),
        "encoder": (None, None, 16), "decoder": (None, None, 16), "logits": (None, None, VOCAB),
    }  # fmt: skip
    assert boxes["decoder"][1] is boxes["logits"][0]
    others = {type(box).__name__ for box in functional.operations if not isinstance(box, keras.layers.Layer)}
    assert others == {"NotEqual", "GetItem"}
    assert summary_rows(model)[0]["encoder"][1] == EMBEDDED
