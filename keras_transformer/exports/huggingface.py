"""Export of a run as an equivalent Marian model for Hugging Face transformers.

`transformers.MarianMTModel` is the post-norm Transformer of the paper with two differences. Its attention has
biases, which the export sets to 0. Its positional encoding consists of all sines followed by all cosines. In this
project, sines and cosines alternate (§3.5), so the export reorders the d_model channels of all weights.

The export needs NumPy, safetensors and protobuf. It imports neither Keras nor PyTorch.
"""

import json

import numpy as np

from keras_transformer.conversion.length_penalty import length_exponent
from keras_transformer.conversion.weights import first_unsupported, load_weights
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, SPECIAL, UNK
from keras_transformer.exports.description import atomic_export, describe
from keras_transformer.exports.fast_tokenizer import fast_tokenizer
from keras_transformer.exports.model_card import model_card
from keras_transformer.pretrained.marian_weights import EMBEDDING, LOGITS_BIAS, layer_weights, to_marian
from keras_transformer.utils.errors import UserError, optional_import

POSITIONS = 1024
"""Maximum number of tokens in a text, which is the size of Marian's position table."""

TOKENIZERS = ("tokenizer.model", "marian_tokenizer.json")
"""File names of the tokenizers that the export supports."""


def export_huggingface(run, folder, checkpoint=None, force=False):
    """Write a run's model and tokenizer for `transformers.pipeline("translation")` and `MarianMTModel`.

    Args:
        run: `Run`.
        folder: New directory, which appears only when it is complete.
        checkpoint: "best", "last", "averaged", "ema" or a step (default: the best, or the last if there is no best).
        force: Whether to replace an existing export.

    Raises:
        UserError: safetensors or protobuf is not installed, Marian does not support the model, or the directory cannot
            be written.
    """
    with optional_import("--format=huggingface", "safetensors", "huggingface"):
        from safetensors.numpy import save_file
    hparams, tokenizer = run.hparams, run.tokenizer
    _check(run)
    weights, state = load_weights(run, checkpoint)
    weights = {name: np.asarray(array, "float32") for name, array in weights.items()}
    description = {"format": "huggingface", "max_tokens": POSITIONS, **describe(run, checkpoint, state)}
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    models = getattr(tokenizer, "models", [tokenizer.to_bytes()] * 2)  # usually one model for both sides (§5.1)
    with atomic_export(folder, force, description) as new:
        save_file(marian_weights(weights, hparams), new / "model.safetensors", metadata={"format": "pt"})
        for name, content in {
            "config.json": marian_config(hparams, tokenizer.vocab_size),
            "generation_config.json": generation_config(run),
            "tokenizer_config.json": tokenizer_config(run.problem),
            "tokenizer.json": fast_tokenizer(pieces, models[0]),
            "vocab.json": {piece: index for index, piece in enumerate(pieces)},
        }.items():
            (new / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        for side, model in zip(("source", "target"), models):
            (new / f"{side}.spm").write_bytes(model)
        (new / "README.md").write_text(model_card(run, description), encoding="utf-8")


def marian_weights(weights, hparams):
    """Rename and convert the weights for transformers. Return {name: float32 array}.

    Args:
        weights: {name: array}. A name is the path of a variable without the name of the model, such as
            "encoder/layer_1/self_attention/query".
        hparams: The model's `HParams`.
    """
    table = to_marian(weights["embedding/table"], 1).T
    bias = weights.get("logits_bias", np.zeros(len(table), "float32"))
    found = {EMBEDDING: table, LOGITS_BIAS: bias[None]}
    for there, here, axis in layer_weights({"encoder": hparams.num_layers, "decoder": hparams.decoder_depth}):
        array = weights.get(here)
        if array is None:  # the attention of the paper has no biases
            array = np.zeros(weights[here.removesuffix("_bias")].shape[1], "float32")
        found[there] = to_marian(array, axis)
    return {name: np.ascontiguousarray(array) for name, array in found.items()}


def marian_config(hparams, vocab_size):
    """Return the contents of config.json."""
    config = {
        "architectures": ["MarianMTModel"], "model_type": "marian", "dtype": "float32",
        "vocab_size": vocab_size, "decoder_vocab_size": vocab_size, "d_model": hparams.d_model,
        "activation_function": hparams.activation, "scale_embedding": True, "static_position_embeddings": True,
        "normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False,
        "dropout": hparams.dropout, "attention_dropout": hparams.attention_dropout,
        "activation_dropout": hparams.activation_dropout, "max_position_embeddings": POSITIONS,
        "share_encoder_decoder_embeddings": True, "tie_word_embeddings": True, "is_encoder_decoder": True,
        "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
    }  # fmt: skip
    for side, depth in (("encoder", hparams.num_layers), ("decoder", hparams.decoder_depth)):
        config |= {
            f"{side}_layers": depth,
            f"{side}_attention_heads": hparams.num_heads,
            f"{side}_ffn_dim": hparams.d_ff,
        }
    return config


def generation_config(run):
    """Return the contents of generation_config.json, the run's search options that transformers supports."""
    return {
        "num_beams": run.hparams.beam_size,
        "length_penalty": length_exponent(run),
        "max_length": POSITIONS,
        "bad_words_ids": [[PAD], [BOS]],
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
    }


def tokenizer_config(problem):
    """Return the contents of tokenizer_config.json."""
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": problem.input_language, "target_lang": problem.output_language,
        "pad_token": SPECIAL[PAD], "eos_token": SPECIAL[EOS], "bos_token": SPECIAL[BOS], "unk_token": SPECIAL[UNK],
        "model_max_length": POSITIONS, "separate_vocabs": False, "clean_up_tokenization_spaces": False,
    }  # fmt: skip


def _check(run):
    """Raise a `UserError` if `MarianMTModel` does not support the problem, the model or its tokenizer."""
    unsupported = first_unsupported(
        run.hparams, norms=("post", "marian"), positions=("sinusoidal",), models=("transformer", "marian")
    )
    if unsupported is None and (rest := run.hparams.d_model % run.hparams.num_heads):
        unsupported = "d_model % num_heads", rest, (0,)
    if unsupported is None and run.tokenizer.file_name not in TOKENIZERS:
        unsupported = "tokenizer", run.tokenizer.file_name, TOKENIZERS
    if not hasattr(run.problem, "input_language"):
        raise UserError(
            f"a Marian model must belong to a TranslationProblem, and {run.problem.name} is another kind of problem. "
            "Export with --format=saved_model."
        )
    if unsupported:
        name, value, known = unsupported
        known = " or ".join(map(str, known))
        raise UserError(f"a Marian model must have {name}={known}, got {value}. Export with --format=saved_model.")
