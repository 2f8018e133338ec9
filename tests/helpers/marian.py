"""Marian models in the format of Hugging Face Transformers: a NumPy implementation, and random models on disk."""

import json

import numpy as np
import sentencepiece

from helpers.languages import toy_pairs

PIECES = 70
"""Vocabulary size of each of the two SentencePiece models."""


def marian_logits(weights, config, source, target):
    """Compute the logits `[target_length, vocab_size]` of a Marian model in NumPy, as Hugging Face Transformers does.

    Args:
        weights: {name: array}, with the names of model.safetensors.
        config: Content of config.json.
        source: List of source token ids.
        target: List of decoder input ids.
    """
    heads, width = config["encoder_attention_heads"], config["d_model"]

    def embed(ids):
        angles = np.arange(len(ids))[:, None] / 10000 ** (np.arange(0, width, 2) / width)
        return weights["model.shared.weight"][ids] * width**0.5 + np.concatenate([np.sin(angles), np.cos(angles)], 1)

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def attention(x, memory, name, causal=False):
        query, key, value = (
            linear(states, f"{name}.{part}_proj").reshape(len(states), heads, -1).swapaxes(0, 1)
            for states, part in ((x, "q"), (memory, "k"), (memory, "v"))
        )
        scores = query @ key.swapaxes(1, 2) * (width // heads) ** -0.5
        scores = np.where(np.tri(len(x), len(memory), dtype=bool) | (not causal), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        context = scores / scores.sum(-1, keepdims=True) @ value
        return linear(context.swapaxes(0, 1).reshape(len(x), -1), f"{name}.out_proj")

    def layer(x, name, memory=None):
        x = norm(x + attention(x, x, f"{name}.self_attn", memory is not None), f"{name}.self_attn_layer_norm")
        if memory is not None:
            x = norm(x + attention(x, memory, f"{name}.encoder_attn"), f"{name}.encoder_attn_layer_norm")
        inner = linear(x, f"{name}.fc1")
        inner = inner / (1 + np.exp(-inner)) if config["activation_function"] == "swish" else np.maximum(inner, 0)
        return norm(x + linear(inner, f"{name}.fc2"), f"{name}.final_layer_norm")

    memory, states = embed(source), embed(target)
    for index in range(config["encoder_layers"]):
        memory = layer(memory, f"model.encoder.layers.{index}")
    for index in range(config["decoder_layers"]):
        states = layer(states, f"model.decoder.layers.{index}", memory)
    return states @ weights["model.shared.weight"].T + weights["final_logits_bias"]


def write_marian(folder, seed, bos=False, **changes):
    """Write the directory of a Marian model with random weights and tokenizers for English and Turkish toy text.

    Args:
        folder: New directory.
        seed: Seed of the weights.
        bos: Whether the decoder starts with `<s>` instead of `<pad>`.
        **changes: Values that replace fields of config.json.

    Returns:
        The content of config.json, and the weights {name: array}.
    """
    from safetensors.numpy import save_file

    folder.mkdir()
    vocabulary = _write_tokenizers(folder, ["<s>"] if bos else [])
    pad = vocabulary["<pad>"]
    config = {
        "model_type": "marian", "vocab_size": len(vocabulary), "d_model": 8, "encoder_layers": 2, "decoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12,
        "activation_function": "swish", "scale_embedding": True, "static_position_embeddings": True,
        "max_position_embeddings": 64, "pad_token_id": pad, "eos_token_id": 0,
        "decoder_start_token_id": vocabulary["<s>"] if bos else pad, **changes,
    }  # fmt: skip
    weights = random_weights(config, np.random.default_rng(seed))
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "generation_config.json").write_text('{"num_beams": 6, "length_penalty": 1.0}', "utf-8")
    (folder / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "tr"}', "utf-8")
    return config, weights


def random_weights(config, rng):
    """Return random weights for a Marian model as {name: float32 array}."""
    size, width, inner = config["vocab_size"], config["d_model"], config["encoder_ffn_dim"]
    weights = {"model.shared.weight": rng.normal(size=(size, width)), "final_logits_bias": rng.normal(size=(1, size))}
    for side in ("encoder", "decoder"):
        attentions = ["self_attn", "encoder_attn"][: 1 + (side == "decoder")]
        for index in range(config[f"{side}_layers"]):
            layer = f"model.{side}.layers.{index}"
            shapes = {"fc1": (inner, width), "fc2": (width, inner)}
            shapes |= {f"{name}.{part}_proj": (width, width) for name in attentions for part in ("q", "k", "v", "out")}
            norms = [*(f"{name}_layer_norm" for name in attentions), "final_layer_norm"]
            shapes |= {name: (width,) for name in norms}
            for name, shape in shapes.items():
                weights[f"{layer}.{name}.weight"] = rng.normal(size=shape)
                weights[f"{layer}.{name}.bias"] = rng.normal(size=shape[0])
    return {name: (0.5 * array).astype("float32") for name, array in weights.items()}


def _write_tokenizers(folder, more):
    """Train and write source.spm, target.spm and vocab.json. Return the vocabulary {piece: id}."""
    vocabulary = {"</s>": 0, "<unk>": 1, ">>tr<<": 2}
    for side, texts in zip(("source", "target"), zip(*toy_pairs("tr", seed=1)[:300])):
        with open(folder / f"{side}.spm", "wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(texts), model_writer=file, vocab_size=PIECES, model_type="unigram",
                hard_vocab_limit=False, minloglevel=2,
            )  # fmt: skip
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        for index in range(processor.get_piece_size()):
            if (piece := processor.id_to_piece(index)) != "<s>":
                vocabulary.setdefault(piece, len(vocabulary))
    for piece in (*more, "<pad>"):
        vocabulary[piece] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    return vocabulary
