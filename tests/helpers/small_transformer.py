"""Small Transformers with random weights, in several variants, and a batch of inputs."""

import numpy as np
import pytest

import keras_transformer as kt

VOCAB = 11
SOURCE = np.array([[4, 5, 6, 7, 1], [8, 4, 1, 0, 0], [9, 1, 0, 0, 0]], "int32")
DECODER_INPUT = np.array([[2, 5, 9, 4, 7, 3], [2, 4, 8, 1, 0, 0], [2, 1, 0, 0, 0, 0]], "int32")
LABELS = np.array([[5, 9, 4, 7, 3, 1], [4, 8, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]], "int32")
WEIGHTS = ((LABELS != 0) / (LABELS != 0).sum()).astype("float32")
INPUTS = (SOURCE, DECODER_INPUT)
WORD_STARTS = np.array([0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1], "float32")  # word starts include EOS and BOS, but not PAD

VARIANTS = {
    "paper": {},
    "pre": {"norm": "pre"},
    "learned": {"positions": "learned"},
    "word heads": {"model": "word_aligned_transformer"},
    "deep encoder": {"num_decoder_layers": 1, "activation": "swish"},
    "additive": {"encoder_attention": "additive"},
    "restricted": {"encoder_attention": "restricted", "attention_window": 3},
    "all dropouts": {"attention_dropout": 0.1, "activation_dropout": 0.1},
}
every_variant = pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)


def small(**changes):
    return kt.HParams(
        **{"num_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 2, "d_k": 5, "d_v": 7, "max_length": 20, **changes}
    )


def make_model(vocab_size=VOCAB, dtype="float32", compile=False, **changes):
    hparams = small(**changes)
    model = kt.Transformer.from_hparams(hparams, vocab_size=vocab_size, dtype=dtype)
    if hasattr(model, "word_starts"):
        model.word_starts.assign(np.resize(WORD_STARTS, vocab_size))
    if compile:
        model.compile(**kt.compile_arguments(hparams))
    return model


def randomize(model, seed=0):
    """Add random values to all trainable weights, including biases and normalization. Return the model."""
    random = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign_add(random.normal(size=variable.shape, scale=0.2))
    return model


def logits(model, inputs=INPUTS, training=False):
    return np.asarray(model(inputs, training=training), dtype="float64")


def values(variables):
    return {variable.path: np.asarray(variable.value) for variable in variables}


def seed_states(model):
    """Return the states of all dropout layers' seed generators as {path: (seed, count)}."""
    return {
        path: tuple(value) for path, value in values(model.variables).items() if path.endswith("seed_generator_state")
    }


def reset_seeds(model):
    for variable in model.variables:
        if variable.path.endswith("seed_generator_state"):
            variable.assign(np.asarray(variable.value) * [1, 0])
