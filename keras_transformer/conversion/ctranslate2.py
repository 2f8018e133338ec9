"""Conversion of a model to an equivalent model in CTranslate2's format.

The conversion needs NumPy and CTranslate2, and ml_dtypes for bfloat16. It imports neither Keras nor a backend.
"""

import numpy as np

from keras_transformer.conversion.weights import first_unsupported
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, UNK
from keras_transformer.utils.errors import UserError, optional_import, unknown
from keras_transformer.utils.files import atomic_directory

LAYER_NORM_EPSILON = {"post": 1e-6, "pre": 1e-6, "marian": 1e-5}
"""Values of ε for each kind of normalization, copied because importing `layers.residual` would import Keras."""
MODELS = ("transformer", "marian")
POSITION_KINDS = ("sinusoidal", "learned")
POSITIONS = 1024
"""Maximum number of tokens in a text, and size of the position table. CTranslate2 truncates longer texts by default."""
REMEDY = "Use --engine=keras, or export with --format=saved_model."
EXCLUDED = -1e4
"""Bias that masks the logits of PAD and BOS. It is within the range of float16."""
QUANTIZATIONS = (
    "float32", "bfloat16", "float16", "int16", "int8", "int8_float32", "int8_bfloat16", "int8_float16",
)  # fmt: skip
"""Data types in which CTranslate2 stores matrices. With "int8_float32", the other weights are in float32."""


def convert(weights, hparams, tokens, folder, quantization="float32"):
    """Write the model into a new directory that `ctranslate2.Translator` reads.

    CTranslate2 automatically appends EOS to every source and starts every target with BOS. The converted model
    computes the same probabilities, except that PAD and BOS are masked, so they never occur in an output. Their
    probability, which is close to 0 after training, is distributed over the other tokens.

    The search differs from the search of this project:

    - `length_penalty` divides the log-probability by |y|^α instead of ((5 + |y|) / 6)^α. The length |y| includes EOS.
    - A hypothesis that reaches the length limit ends without EOS. In this project, it ends with EOS.

    Args:
        weights: Mapping {name: array}. A name is the path of a variable without the name of the model, such as
            "encoder/layer_1/self_attention/query".
        hparams: The model's `HParams`.
        tokens: List of all `vocab_size` pieces, indexed by id. They must be distinct.
        folder: The new directory, which appears only when it is complete.
        quantization: Data type of the stored matrices, one of `QUANTIZATIONS`.

    Raises:
        UserError: CTranslate2 is not installed or does not support the model or the quantization, or a weight is
            missing.
    """
    if quantization not in QUANTIZATIONS:
        raise unknown("quantization", quantization, QUANTIZATIONS)
    if unsupported := unsupported_setting(hparams):
        name, value, known = unsupported
        known = " or ".join(map(str, known))
        raise UserError(f"a model for CTranslate2 must have {name}={known}, got {value}. {REMEDY}")
    if len(set(tokens)) != len(tokens):
        raise UserError(f"a vocabulary for CTranslate2 must not contain the same piece twice. {REMEDY}")
    with optional_import("the conversion for CTranslate2", "ctranslate2", "ctranslate2"):
        from ctranslate2 import specs

    spec = specs.TransformerSpec.from_config(
        (hparams.num_layers, hparams.decoder_depth), hparams.num_heads, pre_norm=hparams.norm == "pre",
        activation=getattr(specs.Activation, hparams.activation.upper()),
    )  # fmt: skip
    spec.config.layer_norm_epsilon = LAYER_NORM_EPSILON[hparams.norm]
    spec.config.bos_token = spec.config.decoder_start_token = tokens[BOS]
    spec.config.eos_token, spec.config.unk_token = tokens[EOS], tokens[UNK]
    spec.config.add_source_eos = True
    spec.register_source_vocabulary(list(tokens))
    spec.register_target_vocabulary(list(tokens))
    weights = _Weights(weights)
    # Both embeddings and the output projection share one array (§3.4), which CTranslate2 stores once. Copy the
    # array, because quantization would change the original in place.
    table = weights["embedding/table"].copy()
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = spec.decoder.projection.weight = table
    bias = weights["logits_bias"].copy() if "logits_bias" in weights else np.zeros(len(tokens), "float32")
    bias[[PAD, BOS]] = EXCLUDED
    spec.decoder.projection.bias = bias
    positions = _positions(weights, hparams)
    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        stack.position_encodings.encodings = positions
        for number, layer in enumerate(stack.layer, 1):
            _set_layer(layer, weights, f"{name}/layer_{number}")
        if hparams.norm == "pre":
            _set_norm(stack.layer_norm, weights, f"{name}/final_norm")
    spec.validate()
    _quantize(spec, quantization)
    with atomic_directory(folder) as new:
        spec.save(str(new))


def sinusoids(length, d_model):
    """Return the interleaved sinusoids (§3.5) for positions 0, 1, …, float32 `[length, d_model]`."""
    frequencies = (10000.0 ** (-np.arange(0, d_model, 2) / d_model)).astype("float32")
    angles = np.arange(length, dtype="float32")[:, None] * frequencies
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, d_model)


class _Weights:
    """Mapping from names to weights that raises a `UserError` if a weight is missing."""

    def __init__(self, weights):
        self.weights = weights

    def __contains__(self, name):
        return name in self.weights

    def __getitem__(self, name):
        try:
            return np.asarray(self.weights[name], dtype="float32")
        except KeyError:
            raise UserError(f"the run has no weight {name}, which CTranslate2 needs. Use another checkpoint.") from None


def _quantize(spec, quantization):
    """Convert the matrices of a model specification to the data type in which they will be stored."""
    from ctranslate2.specs import model_spec

    spec.optimize({"bfloat16": "float32", "int8_bfloat16": "int8_float32"}.get(quantization, quantization))
    if quantization not in ("bfloat16", "int8_bfloat16"):
        return
    from ml_dtypes import bfloat16  # CTranslate2's own conversion to bfloat16 needs PyTorch

    def convert(layer, name, value):
        if isinstance(value, model_spec.NumpyVariable) and value.dtype == "float32" and not name.endswith("_scale"):
            setattr(layer, name.rpartition("/")[2], model_spec.NumpyVariable(value.array.astype(bfloat16)))

    model_spec.visit_spec(spec, convert)


def unsupported_setting(hparams):
    """Return (name, value, supported values) of the first setting that CTranslate2 does not support, or None."""
    return first_unsupported(hparams, tuple(LAYER_NORM_EPSILON), POSITION_KINDS, MODELS)


def _positions(weights, hparams):
    """Return the position table to add to the scaled embeddings, float32 `[POSITIONS, d_model]`."""
    if hparams.positions == "sinusoidal":
        return sinusoids(POSITIONS, hparams.d_model)
    # Learned positions are scaled like embeddings. All positions from `max_length` on share the last row.
    rows = np.minimum(np.arange(POSITIONS), hparams.max_length - 1)
    return weights["positions/table"][rows] * np.float32(hparams.d_model**0.5)


def _set_layer(spec, weights, name):
    """Set the weights of an encoder or decoder layer."""
    attentions = {"self_attention": spec.self_attention}
    if hasattr(spec, "attention"):
        attentions["cross_attention"] = spec.attention
    for part, attention in attentions.items():
        # Kernels are [inputs, outputs] in this project, but [outputs, inputs] in CTranslate2, which also concatenates
        # the projections of the same input.
        groups = [("query", "key", "value")] if part == "self_attention" else [("query",), ("key", "value")]
        for linear, group in zip(attention.linear, [*groups, ("output",)]):
            linear.weight = np.concatenate([weights[f"{name}/{part}/{kernel}"].T for kernel in group])
            if f"{name}/{part}/query_bias" in weights:
                linear.bias = np.concatenate([weights[f"{name}/{part}/{kernel}_bias"] for kernel in group])
        _set_norm(attention.layer_norm, weights, f"{name}/{part}_residual/normalization")
    for number, linear in ((1, spec.ffn.linear_0), (2, spec.ffn.linear_1)):
        linear.weight = np.array(weights[f"{name}/feed_forward/kernel_{number}"].T, order="C")
        linear.bias = weights[f"{name}/feed_forward/bias_{number}"]
    _set_norm(spec.ffn.layer_norm, weights, f"{name}/feed_forward_residual/normalization")


def _set_norm(spec, weights, name):
    spec.gamma, spec.beta = weights[f"{name}/gamma"], weights[f"{name}/beta"]
