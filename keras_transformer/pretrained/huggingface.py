"""Import of Marian models in the format of Hugging Face transformers, such as OPUS-MT."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np

from keras_transformer.config.hparams import HParams
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, SPECIAL, UNK, Tokenizer
from keras_transformer.data.tokenizers.marian import MarianTokenizer
from keras_transformer.pretrained.marian_weights import EMBEDDING, LOGITS_BIAS, from_marian, layer_weights
from keras_transformer.utils.errors import UserError, optional_import
from keras_transformer.utils.files import read_json

WEIGHTS = "model.safetensors"
FILES = ("config.json", WEIGHTS, "source.spm", "target.spm", "vocab.json")
OPTIONAL_FILES = ("generation_config.json", "tokenizer_config.json")
REQUIRED = {
    "model_type": "marian", "static_position_embeddings": True, "scale_embedding": True, "normalize_before": False,
    "normalize_embedding": False, "add_final_layer_norm": False, "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
}  # fmt: skip
"""Fields of config.json and the values that `MarianTransformer` supports."""
DEFAULTS = {"normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False,
            "share_encoder_decoder_embeddings": True, "tie_word_embeddings": True}  # fmt: skip
NUMBERS = (
    "vocab_size", "d_model", "max_position_embeddings", "pad_token_id", "eos_token_id", "decoder_start_token_id",
    *(f"{side}_{name}" for side in ("encoder", "decoder") for name in ("layers", "attention_heads", "ffn_dim")),
)  # fmt: skip
"""Fields of config.json that must be integers."""
ACTIVATIONS = {"swish": "swish", "silu": "swish", "relu": "relu", "gelu": "gelu"}
OTHER = "Use another Marian model."
MASKED_BIAS = -100.0
"""Bias that masks the logit of BOS if Marian's vocabulary has no such token.

A bias with a much larger absolute value would dominate the label-smoothed loss, which averages over all logits, and
overflow in float16.
"""


@dataclasses.dataclass(frozen=True)
class PretrainedModel:
    """A pretrained model from another toolkit.

    Attributes:
        hparams: `HParams`.
        tokenizer: `Tokenizer`.
        weights: {name: float32 array}. A name is the path of a variable without the name of the model.
        languages: Codes of the source and target languages, each None if the files do not specify it.
        path: Directory of the model.
    """

    hparams: HParams
    tokenizer: Tokenizer
    weights: dict
    languages: tuple
    path: Path

    def build_model(self, precision="float32"):
        """Return the Keras model with the pretrained weights.

        Args:
            precision: "float32" or "bfloat16".
        """
        from keras_transformer.models.transformer import Transformer

        model = Transformer.from_hparams(self.hparams, vocab_size=self.tokenizer.vocab_size, dtype=precision)
        variables = {variable.path.partition("/")[2]: variable for variable in model.variables}
        for name, array in self.weights.items():
            variables[name].assign(array)
        return model


def locate(name, revision=None):
    """Return the local directory of a model. Download the model if `name` refers to the Hugging Face Hub.

    Args:
        name: A directory, or the name of a model on the Hub, "USER/NAME".
        revision: Branch, tag or commit on the Hub (default: the main branch).

    Raises:
        UserError: The directory is missing or combined with a revision, huggingface_hub is not installed, or the Hub
            does not provide the model.
    """
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        if revision is not None:
            raise UserError(f"--revision needs a model on the hub, but {path} is a directory. Omit --revision.")
        return path
    if str(name).count("/") != 1 or str(name).startswith((".", "/", "~")):
        raise UserError(f"{path} is not a directory. Specify a directory, or the name USER/NAME of a model on the hub.")
    with optional_import("a model on the hub", "huggingface_hub", "huggingface"):
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HTTPError
    try:
        return Path(snapshot_download(str(name), revision=revision, allow_patterns=[*FILES, *OPTIONAL_FILES]))
    except (HTTPError, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"{name} is not a directory and cannot be downloaded from the Hugging Face Hub: {reason}"
        ) from None


def read_marian(folder):
    """Read a `PretrainedModel` from a directory written by `MarianMTModel.save_pretrained`.

    The function reorders the d_model channels of all weights, because Marian's positional encoding consists of all
    sines followed by all cosines, whereas sines and cosines alternate in this project (§3.5). The function also
    renumbers the tokens so that PAD, EOS, BOS and UNK come first. BOS gets the embedding of the token with which Marian
    starts the decoder. In published models, this token is `<pad>`.

    Raises:
        UserError: Files are missing or damaged, or `MarianTransformer` does not support the model.
    """
    folder = Path(folder)
    _check_files(folder)
    config = {**DEFAULTS, **_read(folder, "config.json")}
    _check_config(folder, config)
    vocabulary = _read(folder, "vocab.json")
    pieces, rows, added_bos = _reorder_vocabulary(folder, config, vocabulary)
    tokenizer = _load_tokenizer(folder, pieces)
    weights = _convert_weights(_read_weights(folder), config, rows, folder)
    if added_bos:
        weights["logits_bias"][BOS] = MASKED_BIAS
    return PretrainedModel(_hparams(folder, config), tokenizer, weights, _languages(folder), folder)


def _check_files(folder):
    if not folder.is_dir():
        raise UserError(f"{folder} is not a directory. Specify the directory of a Hugging Face transformers model.")
    for name in FILES:
        if (folder / name).is_file():
            continue
        if name != "config.json" and (kind := _read(folder, "config.json").get("model_type")) != "marian":
            raise UserError(f"{folder / 'config.json'}: model_type must be marian, got {kind}. {OTHER}")
        if name == WEIGHTS:
            raise UserError(
                f"{folder} has no {WEIGHTS}. If the model has only pickle files (*.bin), which can execute code, load "
                f"it with transformers and save it with save_pretrained, which writes {WEIGHTS}. If a branch of the "
                "model on the hub has this file, pass the branch as --revision."
            )
        raise UserError(f"{folder} has no {name}. A Marian model needs {', '.join(FILES)}.")


def _read(folder, name, optional=False):
    if optional and not (folder / name).is_file():
        return {}
    return read_json(folder / name, f"{folder} is not a Hugging Face transformers model")


def _check_config(folder, config):
    path = folder / "config.json"
    for name, value in REQUIRED.items():
        if config.get(name) != value:
            required, got = (json.dumps(one).strip('"') for one in (value, config.get(name)))
            raise UserError(f"{path}: {name} must be {required}, got {got}. {OTHER}")
    for name in NUMBERS:
        if type(value := config.get(name)) is not int or value < 0:
            raise UserError(f"{path}: {name} must be an integer of at least 0, got {json.dumps(value)}. {OTHER}")
        if name.endswith("_id") and value >= config["vocab_size"]:
            raise UserError(f"{path}: {name} must be below vocab_size={config['vocab_size']}, got {value}. {OTHER}")
    if str(got := config.get("activation_function")) not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UserError(f"{path}: activation_function must be one of {known}, got {got}. {OTHER}")
    for name in ("attention_heads", "ffn_dim"):
        encoder, decoder = (config.get(f"{side}_{name}") for side in ("encoder", "decoder"))
        if encoder != decoder:
            sizes = f"{encoder} and {decoder}"
            raise UserError(f"{path}: encoder_{name} and decoder_{name} must be equal, got {sizes}. {OTHER}")
    size, decoder_size = config["vocab_size"], config.get("decoder_vocab_size")
    if decoder_size not in (None, size):
        raise UserError(f"{path}: decoder_vocab_size must equal vocab_size={size}, got {decoder_size}. {OTHER}")


def _reorder_vocabulary(folder, config, vocabulary):
    """Return the pieces in the order of their new ids, the old id of each piece, and whether BOS was added."""
    ids = vocabulary.values()
    if any(type(index) is not int for index in ids) or sorted(ids) != list(range(config["vocab_size"])):
        raise UserError(
            f"{folder / 'vocab.json'} has {len(vocabulary)} tokens, but vocab_size={config['vocab_size']} in "
            f"config.json requires exactly one token for each id from 0 to {config['vocab_size'] - 1}. Use both files "
            "of one model."
        )
    old = sorted(vocabulary, key=vocabulary.get)
    if SPECIAL[UNK] not in vocabulary:
        raise UserError(f"{folder / 'vocab.json'} has no token {SPECIAL[UNK]}. {OTHER}")
    first = [config[name] for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")]
    first.append(vocabulary[SPECIAL[UNK]])
    added_bos = first[BOS] in (first[PAD], first[EOS])
    rest = [index for index in range(len(old)) if index not in first]
    # Rename ordinary pieces that are spelled like special tokens of this project.
    pieces = [*SPECIAL, *(f"{old[index]}'" if old[index] in SPECIAL else old[index] for index in rest)]
    return pieces, np.array([*first, *rest]), added_bos


def _load_tokenizer(folder, pieces):
    models = [(folder / f"{side}.spm").read_bytes() for side in ("source", "target")]
    try:
        return MarianTokenizer(pieces, *models)
    except RuntimeError:
        raise UserError(
            f"source.spm or target.spm in {folder} is not a SentencePiece model. Download the model again."
        ) from None


def _read_weights(folder):
    with optional_import(f"reading {folder / WEIGHTS}", "safetensors", "huggingface"):
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    try:
        return load_file(folder / WEIGHTS)
    except (SafetensorError, TypeError, KeyError) as error:  # for example, NumPy has no bfloat16
        raise UserError(f"{folder / WEIGHTS} cannot be read as float32 or float16 arrays: {error}") from None


def _convert_weights(weights, config, rows, folder):
    """Convert the weights to this project's names and channel order. `rows` are Marian's ids in the new order."""
    width, inner, size = config["d_model"], config["encoder_ffn_dim"], config["vocab_size"]

    def array(name, *shape):
        found = weights.get(name)
        if found is None:
            raise UserError(f"{folder / WEIGHTS} has no weight {name}. {OTHER}")
        if found.shape != shape:
            raise UserError(f"{folder / WEIGHTS}: {name} must have shape {shape}, got {found.shape}. {OTHER}")
        return found.astype("float32")

    converted = {
        "embedding/table": from_marian(array(EMBEDDING, size, width).T, 1)[rows],
        "logits_bias": array(LOGITS_BIAS, 1, size)[0][rows],
    }
    depths = {side: config[f"{side}_layers"] for side in ("encoder", "decoder")}
    shapes = {"fc1.weight": (inner, width), "fc1.bias": (inner,), "fc2.weight": (width, inner)}
    for there, here, axis in layer_weights(depths):
        ending = ".".join(there.split(".")[-2:])
        matrix = ending.endswith("_proj.weight")
        shape = shapes.get(ending, (width, width) if matrix else (width,))
        converted[here] = from_marian(array(there, *shape), axis)
    return converted


def _hparams(folder, config):
    generation = {**config, **_read(folder, "generation_config.json", optional=True)}
    penalty = generation.get("length_penalty")
    sizes = {"num_layers": config["encoder_layers"], "num_decoder_layers": config["decoder_layers"]}
    return HParams(
        model="marian", norm="marian", activation=ACTIVATIONS[config["activation_function"]], **sizes,
        d_model=config["d_model"], d_ff=config["encoder_ffn_dim"], num_heads=config["encoder_attention_heads"],
        dropout=config.get("dropout", 0.1), attention_dropout=config.get("attention_dropout", 0.0),
        activation_dropout=config.get("activation_dropout", 0.0), max_length=config["max_position_embeddings"],
        beam_size=generation.get("num_beams") or 1, alpha=1.0 if penalty is None else penalty,
    )  # fmt: skip


def _languages(folder):
    """Return the codes of the source and target languages, each None if the model does not specify it."""
    config = _read(folder, "tokenizer_config.json", optional=True)
    for name in (names := ("source_lang", "target_lang")):
        if not isinstance(value := config.get(name, ""), str | None):
            path = folder / "tokenizer_config.json"
            raise UserError(f"{path}: {name} must be a string, got {json.dumps(value)}. {OTHER}")
    return tuple(map(config.get, names))
