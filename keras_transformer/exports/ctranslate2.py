"""Export of a run for CTranslate2."""

from keras_transformer.conversion.ctranslate2 import POSITIONS, convert
from keras_transformer.conversion.length_penalty import length_exponent
from keras_transformer.conversion.weights import load_weights
from keras_transformer.exports.description import atomic_export, describe


def export_ctranslate2(run, folder, checkpoint=None, quantization="float32", force=False):
    """Write a run's model in CTranslate2's format (see `convert`), together with its tokenizer and `export.json`.

    Args:
        run: `Run`.
        folder: New directory, which appears only when it is complete.
        checkpoint: "best", "last", "averaged", "ema" or a step (default: the best, or the last if there is no best).
        quantization: One of `conversion.ctranslate2.QUANTIZATIONS`.
        force: Whether to replace an existing export.

    Raises:
        UserError: CTranslate2 is not installed or does not support the model, the run is incomplete, or the directory
            exists or cannot be written.
    """
    tokenizer = run.tokenizer
    weights, state = load_weights(run, checkpoint)
    description = {"format": "ctranslate2", "quantization": quantization, "max_tokens": POSITIONS}
    description |= {name: getattr(run.hparams, name) for name in ("beam_size", "alpha", "extra_length")}
    description["length_penalty"] = length_exponent(run)
    with atomic_export(folder, force, {**description, **describe(run, checkpoint, state)}) as new:
        pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        convert(weights, run.hparams, pieces, new, quantization)
        tokenizer.save(new)
        for side, model in zip(("source", "target"), getattr(tokenizer, "models", ())):
            (new / f"{side}.spm").write_bytes(model)
