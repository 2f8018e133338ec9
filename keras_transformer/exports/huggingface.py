"""A model as a directory for Hugging Face transformers: the same function, as a Marian model.

`MarianMTModel` of transformers is the post-norm Transformer of the paper with two differences. Attention has biases,
which are 0 here. Its sinusoids are all sines followed by all cosines, while here they alternate (§3.5). The export
therefore reorders the d_model channels of every weight that reads or writes them.

Needs NumPy and safetensors. Neither Keras nor PyTorch is imported.
"""

import json

import numpy as np

from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, SPECIAL, UNK
from keras_transformer.exports.description import atomic_export, describe, first_unsupported, load_weights
from keras_transformer.exports.model_card import model_card
from keras_transformer.utils.errors import UserError

POSITIONS = 1024
"""Maximum number of tokens of a text; Marian computes a table of this many positions."""


def export_huggingface(run, folder, checkpoint=None, force=False):
    """Write a run's model and tokenizer for `transformers.pipeline("translation")` and `MarianMTModel`.

    Args:
        run: `Run`.
        folder: The directory. It appears when it is complete.
        checkpoint: "best", "last", "averaged", "ema" or a step; by default the best, or else the last.
        force: Whether to replace an existing export.

    Raises:
        UserError: safetensors is missing, Marian cannot compute the model, or the directory cannot be written.
    """
    save_file = _save_file()
    hparams, tokenizer = run.hparams, run.tokenizer
    _check(run)
    weights = {name: np.asarray(array, "float32") for name, array in load_weights(run, checkpoint).items()}
    description = {"format": "huggingface", "most_tokens": POSITIONS, **describe(run, checkpoint)}
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    with atomic_export(folder, force, description) as new:
        save_file(marian_weights(weights, hparams), new / "model.safetensors", metadata={"format": "pt"})
        for name, content in {
            "config.json": marian_config(hparams, tokenizer.vocab_size),
            "generation_config.json": generation_config(hparams),
            "tokenizer_config.json": tokenizer_config(run.problem),
            "vocab.json": {piece: index for index, piece in enumerate(pieces)},
        }.items():
            (new / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        for side in ("source", "target"):  # one joint vocabulary (§5.1)
            (new / f"{side}.spm").write_bytes(tokenizer.to_bytes())
        (new / "README.md").write_text(model_card(run, description), encoding="utf-8")


def marian_weights(weights, hparams):
    """Return the weights as transformers names them, a dictionary {name: float32 array}.

    Args:
        weights: {name: array}; a name is a variable's path without the model's own name, such as
            "encoder/layer_1/self_attention/query".
        hparams: The model's `HParams`.
    """
    order = np.r_[0 : hparams.d_model : 2, 1 : hparams.d_model : 2]  # all sines, then all cosines
    table = weights["embedding/table"][:, order]
    found = {"model.shared.weight": table, "final_logits_bias": np.zeros((1, len(table)), "float32")}
    depths = {"encoder": hparams.num_layers, "decoder": hparams.decoder_depth}

    def linear(name, kernel, bias=None):
        found[f"{name}.weight"] = kernel.T  # there [outputs, inputs], here [inputs, outputs]
        found[f"{name}.bias"] = np.zeros(kernel.shape[1], "float32") if bias is None else bias

    def norm(name, path):
        for there, here in (("weight", "gamma"), ("bias", "beta")):
            found[f"{name}.{there}"] = weights[f"{path}/normalization/{here}"][order]

    for side, depth in depths.items():
        for number in range(depth):
            there, here = f"model.{side}.layers.{number}", f"{side}/layer_{number + 1}"
            attentions = {"self_attn": "self_attention"}
            if side == "decoder":
                attentions["encoder_attn"] = "cross_attention"
            for name, path in attentions.items():
                for projection, kernel in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
                    linear(f"{there}.{name}.{projection}", weights[f"{here}/{path}/{kernel}"][order])
                linear(f"{there}.{name}.out_proj", weights[f"{here}/{path}/output"][:, order])
                norm(f"{there}.{name}_layer_norm", f"{here}/{path}_residual")
            kernels = [weights[f"{here}/feed_forward/kernel_{index}"] for index in (1, 2)]
            biases = [weights[f"{here}/feed_forward/bias_{index}"] for index in (1, 2)]
            linear(f"{there}.fc1", kernels[0][order], biases[0])
            linear(f"{there}.fc2", kernels[1][:, order], biases[1][order])
            norm(f"{there}.final_layer_norm", f"{here}/feed_forward_residual")
    return {name: np.ascontiguousarray(array) for name, array in found.items()}


def marian_config(hparams, vocab_size):
    """Return the content of config.json."""
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


def generation_config(hparams):
    """Return the content of generation_config.json: the run's beam search, as far as transformers has it."""
    return {
        "num_beams": hparams.beam_size,
        "length_penalty": hparams.alpha,
        "max_length": POSITIONS,
        "bad_words_ids": [[PAD], [BOS]],
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
    }


def tokenizer_config(problem):
    """Return the content of tokenizer_config.json."""
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": problem.input_language, "target_lang": problem.output_language,
        "pad_token": SPECIAL[PAD], "eos_token": SPECIAL[EOS], "unk_token": SPECIAL[UNK],
        "model_max_length": POSITIONS, "separate_vocabs": False, "clean_up_tokenization_spaces": False,
    }  # fmt: skip


def _save_file():
    try:
        from safetensors.numpy import save_file
    except ImportError:
        extra = "keras-transformer-toolkit[huggingface]"
        raise UserError(f"--format=huggingface needs a package: pip install '{extra}'") from None
    return save_file


def _check(run):
    """Raise a `UserError` if Marian of transformers has nothing that computes the same."""
    unsupported = first_unsupported(run.hparams, norms=("post",), positions=("sinusoidal",))
    if run.hparams.model != "transformer":
        unsupported = "model", run.hparams.model, ("transformer",)
    elif run.tokenizer.file_name != "tokenizer.model":
        unsupported = "the tokenizer file", run.tokenizer.file_name, ("tokenizer.model",)
    if unsupported:
        name, value, (known,) = unsupported
        raise UserError(
            f"the Marian model of transformers must have {name}={known}, got {value}. Export with --format=saved_model."
        )
