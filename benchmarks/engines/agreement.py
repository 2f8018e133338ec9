"""Whether another engine computes the same function: on a small model, whose every weight is random and matters."""

import numpy as np
from engines.layout import SEEDS

from keras_transformer.data.tokenizers.base import BOS, EOS, PAD

COLUMN = 10
"""Of the sinusoids for d_model = 32, the one that rises over the first 28 positions."""
TOLERANCE = 1e-3
"""Greatest difference of two log-probabilities of float32, in nats."""


def peaked(model, seed=7):
    """Returns a `Transformer` of d_model = 32 with new weights: its outputs are sure of themselves, and end.

    Gains, shifts and biases are random, too, and no two are alike, so that none can be confused or forgotten. One
    column of the stream is left to the positions; the last layer makes EOS likelier as it grows.
    """
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        path, values = variable.path, np.asarray(variable).copy()
        if path.endswith(SEEDS):
            continue
        noise = rng.standard_normal(values.shape)
        if path.endswith("gamma"):
            values = 1 + 0.3 * noise
            values[COLUMN] = 3 if "/decoder/" in path else 1
        elif path.endswith("beta") or "bias" in path:
            values = 0.3 * noise
        elif path.endswith("table"):
            values *= 5
            values[:, COLUMN] = 0
            values[EOS, COLUMN] = 1
        else:
            values *= 1.5
        if path.endswith(("/output", "kernel_2")):
            values[:, COLUMN] = 0
        elif path.endswith(("beta", "bias_2")):
            values[COLUMN] = 0
        variable.assign(values.astype("float32"))
    last = model.decoder.layers[-1].feed_forward_residual.normalization
    for variable, value in ((last.gamma, 60), (last.beta, -60)):
        values = np.asarray(variable).copy()
        values[COLUMN] = value
        variable.assign(values)
    return model


def compare(engine, beam_size, translator, workload, ours, theirs):
    """Prints how an engine's outputs compare with this project's, and returns whether they agree.

    An engine's own score must be what this project computes of the same tokens, teacher-forced: then its model is the
    same. Its tokens may be others where its search ends sooner, yet not more probable ones. Left out are hypotheses
    that the limit cut off, for they have no EOS there, and those with PAD or BOS, which this project never gives.

    Args:
        engine: Its name.
        beam_size: Beams of the search.
        translator: This project's `Translator`, of the same model.
        workload: `decode.Workload`, with α = 0.
        ours, theirs: Answers of `peers.Process.repeat`.
    """
    sources = translator.tokenizer.encode(workload.texts)
    limits = [len(ids) + workload.extra_length for ids in sources]
    rows = [i for i, ids in enumerate(theirs["outputs"]) if len(ids) < limits[i] and not {PAD, BOS} & set(ids)]
    forced = translator.score([workload.texts[i] for i in rows], [theirs["outputs"][i] for i in rows], alpha=0.0)
    log_p = np.array([one.score for one in forced])
    differences = np.abs(log_p - [theirs["scores"][i] for i in rows])
    right = differences < TOLERANCE
    same = np.array([ours["outputs"][i] == theirs["outputs"][i] for i in rows])
    gains = np.array([ours["scores"][i] for i in rows]) - log_p
    worse = (gains[~same] > 0).sum()
    print(
        f"{engine}, beam {beam_size}: {len(rows)} hypotheses ended by themselves; {right.sum()} have the score that is "
        f"computed here of their tokens, to {differences[right].max(initial=0):.1e};\n    "
        f"{same.sum()} are the best here, too; {worse} of the other {(~same).sum()} are less probable"
    )
    # OpenNMT-tf gives an ended hypothesis that changes its rank among the beams the score of the one that stood there.
    scored = right.all() or (engine == "opennmt_tf" and beam_size > 1)
    return bool(scored and same.mean() > 0.8 and gains.min() > -TOLERANCE)
