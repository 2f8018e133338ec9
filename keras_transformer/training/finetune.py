"""Fine-tuning: initial weights from another run, with embeddings matched by token."""

import logging
from pathlib import Path

import numpy as np

from keras_transformer.runs.checkpoint import model_arrays
from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError, shell_flag

logger = logging.getLogger(__name__)

INIT_FLAG = "--init_checkpoint"
SETTINGS = ("num_layers", "d_model", "d_ff", "activation", "num_heads", "positions", "norm")
"""Settings that must be the same as in the run that provides the weights."""
DERIVED = {"num_decoder_layers": "decoder_depth", "d_k": "key_width", "d_v": "value_width"}
"""{optional setting: `HParams` property that resolves its default}. The resolved values must also match."""
_ALIKE = "Both models must have the same settings (model, num_layers, d_model …); only the vocabulary may differ."


def complete(init_from):
    """Return `init_from` with an absolute path and a checkpoint (default "best"), or None if `init_from` is empty."""
    if not init_from:
        return None
    return {"run": str(Path(init_from["run"]).resolve()), "checkpoint": str(init_from.get("checkpoint") or "best")}


def check_settings(run, hparams):
    """Raise a `UserError` unless `hparams` describe the same architecture as the model of `run`."""
    names = [*SETTINGS, *["max_length"] * (run.hparams.positions == "learned")]
    if (hparams.encoder_attention == "additive") != (run.hparams.encoder_attention == "additive"):
        names += ["encoder_attention", "attention_window"]  # other kinds of attention have the same weights
    required = {name: getattr(run.hparams, name) for name in names}
    flags = {name: value for name, value in required.items() if getattr(hparams, name) != value}
    derived = {name: getattr(run.hparams, width) for name, width in DERIVED.items()}
    try:
        corrected = hparams.replace(**required)
    except UserError:  # `d_model` is not divisible by `num_heads`
        flags |= derived
    else:
        flags |= {name: value for name, value in derived.items() if getattr(corrected, DERIVED[name]) != value}
    if flags:
        if hparams.model != run.hparams.model:  # on its own, another model may have the same weights
            flags["model"] = run.hparams.model
        given = [f"--{name}={'none' if value is None else value}" for name, value in flags.items()]
        raise UserError(
            f"{shell_flag('init_from', run.path)}: the model must have the same settings as that run, but "
            f"{next(iter(flags))} differs. Add {' '.join(given)}."
        )


def initialise(model, tokenizer, init_from):
    """Initialize a model with the weights of another run's checkpoint.

    The function matches embeddings (§3.4) by token. Tokens that are not in the other run's vocabulary keep their random
    initial embeddings. The function does not copy random seeds, the optimizer state or the step.

    Args:
        model: The new model with its initial weights.
        tokenizer: `Tokenizer` of the new model.
        init_from: {"run": directory, "checkpoint": name}.

    Raises:
        UserError: The run or the checkpoint does not exist, or its weights belong to a different model.
    """
    run = Run.open(init_from["run"])
    arrays, state = run.checkpoints.load(init_from["checkpoint"], parts=("weights",), flag=INIT_FLAG)
    own, vocabulary = model_arrays(model), {weight.path for weight in model.vocabulary_weights}
    tables = {table.path for table in model.vocabulary_tables}  # not copied, but computed from the new vocabulary
    rows, old_rows = _shared_tokens(tokenizer, run.tokenizer)
    learned = (path for path, array in arrays["weights"].items() if array.dtype.kind == "f")  # seed states are integers
    if more := sorted(set(learned) - own.keys() - tables):
        raise UserError(f"{shell_flag('init_from', run.path)}: the new model has no weight {more[0]}. {_ALIKE}")
    for weight in model.weights:
        if weight.path in tables:
            continue
        array = arrays["weights"].get(weight.path)
        if array is not None and weight.path in vocabulary and array.shape[1:] == tuple(weight.shape[1:]):
            own[weight.path][rows] = array[old_rows]
            array = own[weight.path]
        if array is None:
            raise UserError(f"{shell_flag('init_from', run.path)}: the run has no weight {weight.path}. {_ALIKE}")
        if array.shape != tuple(weight.shape):
            found = f"{weight.path} must have shape {tuple(weight.shape)}, got {array.shape}"
            raise UserError(f"{shell_flag('init_from', run.path)}: {found}. {_ALIKE}")
        weight.assign(array)
    at_step = f" at step {state['step']:,}" if "step" in state else ""
    logger.info(
        f"  initial weights from {run.path}{at_step}; {len(rows):,} of the {tokenizer.vocab_size:,} tokens in the new "
        "vocabulary are also in the vocabulary of that run"
    )


def _shared_tokens(tokenizer, old):
    """Return the ids of shared tokens, int `[2, tokens]`: row 0 has ids of `tokenizer`, and row 1 ids of `old`."""
    old_ids = {token: index for index, token in enumerate(old.pieces(range(old.vocab_size)))}
    tokens = tokenizer.pieces(range(tokenizer.vocab_size))
    shared = [(index, old_ids[token]) for index, token in enumerate(tokens) if token in old_ids]
    return np.array(shared, dtype=int).reshape(-1, 2).T
