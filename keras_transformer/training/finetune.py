"""A training that begins with the weights of another run, its embeddings carried over by piece."""

import logging
from pathlib import Path

import numpy as np

from keras_transformer.runs.checkpoint import model_arrays
from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError, shell_flag

logger = logging.getLogger(__name__)

INIT_FLAG = "--init_checkpoint"
_ALIKE = "the models must be built alike (model, num_layers, d_model and so on), only the vocabulary may differ"


def complete(init_from):
    """Returns `init_from` as a run's configuration holds it, whatever of it was given; None stays None."""
    if not init_from:
        return None
    return {"run": str(Path(init_from["run"]).resolve()), "checkpoint": str(init_from.get("checkpoint") or "best")}


def initialise(model, tokenizer, init_from):
    """Gives a model the weights of another run's checkpoint.

    A row of the embeddings (§3.4) goes to the same piece; a piece that the other vocabulary lacks keeps its own initial
    row. Seeds, optimizer and step are not carried over.

    Args:
        model: The new model, with its initial weights.
        tokenizer: Its `Tokenizer`.
        init_from: {"run": directory, "checkpoint": name}.

    Raises:
        UserError: There is no such run or checkpoint, or its weights are not those of such a model.
    """
    run = Run.open(init_from["run"])
    arrays, state = run.checkpoints.load(init_from["checkpoint"], parts=("weights",), flag=INIT_FLAG)
    own, vocabulary = model_arrays(model), {weight.path for weight in model.vocabulary_weights}
    told = {table.path for table in model.vocabulary_tables}
    rows, old_rows = _same_pieces(tokenizer, run.tokenizer)
    learned = (path for path, array in arrays["weights"].items() if array.dtype.kind == "f")  # the others are seeds
    if more := sorted(set(learned) - own.keys() - told):
        raise UserError(f"{shell_flag('init_from', run.path)}: it holds {more[0]}, which the model lacks; {_ALIKE}")
    for weight in model.weights:
        if weight.path in told:  # by its own vocabulary
            continue
        array = arrays["weights"].get(weight.path)
        if array is not None and weight.path in vocabulary and array.shape[1:] == tuple(weight.shape[1:]):
            own[weight.path][rows] = array[old_rows]
            array = own[weight.path]
        if array is None or array.shape != tuple(weight.shape):
            found = "nothing" if array is None else f"shape {array.shape}"
            raise UserError(
                f"{shell_flag('init_from', run.path)}: for {weight.path}, {tuple(weight.shape)}, it holds {found}; "
                f"{_ALIKE}"
            )
        weight.assign(array)
    of_step = f", step {state['step']:,}" if "step" in state else ""
    logger.info(
        f"  weights of {run.path}{of_step}; {len(rows):,} of {tokenizer.vocab_size:,} pieces are in its vocabulary, too"
    )


def _same_pieces(tokenizer, old):
    """The ids of the pieces that both tokenizers know, in the one and in the other."""
    ids = {piece: number for number, piece in enumerate(old.pieces(range(old.vocab_size)))}
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    both = [(number, ids[piece]) for number, piece in enumerate(pieces) if piece in ids]
    return np.array(both, dtype=int).reshape(-1, 2).T
