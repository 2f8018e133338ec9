"""§6.1: beam search with a length penalty, as a state and a pure step.

Every hypothesis ends with EOS: at a sentence's limit nothing else is allowed. So there is one scale of scores,
log-probability / ((5 + length) / 6)^α with EOS counted (Wu et al. 2016), and `score` gives the same for the
same tokens.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_transformer.data.tokenizer import BOS, EOS, PAD

IMPOSSIBLE = -1e9
"""Log-probability of what cannot be chosen."""


class BeamState(NamedTuple):
    """Where the search stands. B is batch, K beams, L the longest limit of the batch."""

    index: Any
    """Scalar int32: the position that the next step decides."""
    tokens: Any
    """int32 [B, K, L]: unfinished hypotheses; PAD from `index` on."""
    log_probabilities: Any
    """float32 [B, K]: of the unfinished hypotheses, sorted; IMPOSSIBLE where there is none."""
    finished_tokens: Any
    """int32 [B, K, L]: finished hypotheses, EOS included."""
    finished_scores: Any
    """float32 [B, K]: penalised, sorted; IMPOSSIBLE where there is none."""
    finished_log_probabilities: Any
    """float32 [B, K]."""
    cache: Any
    """The model's, rows in order of [B, K]."""


def length_penalty(length, alpha):
    """((5 + length) / 6)^α; length counts EOS."""
    return ((5.0 + ops.cast(length, "float32")) / 6.0) ** alpha


def start(batch, beam_size, length, cache):
    """Returns the state before the first step.

    Args:
        batch: Number of sentences.
        beam_size: K.
        length: L.
        cache: The model's empty cache for batch * K rows.
    """
    # One beam begins: K equal ones would stay equal.
    first = ops.cast(ops.arange(beam_size) > 0, "float32") * IMPOSSIBLE
    return BeamState(
        index=ops.convert_to_tensor(0, dtype="int32"),
        tokens=ops.full((batch, beam_size, length), PAD, dtype="int32"),
        log_probabilities=ops.zeros((batch, 1), dtype="float32") + first,
        finished_tokens=ops.full((batch, beam_size, length), PAD, dtype="int32"),
        finished_scores=ops.full((batch, beam_size), IMPOSSIBLE, dtype="float32"),
        finished_log_probabilities=ops.full((batch, beam_size), IMPOSSIBLE, dtype="float32"),
        cache=cache,
    )


def step(state, decode, limits, alpha):
    """Decides one position of every hypothesis.

    Args:
        state: `BeamState`.
        decode: Function of (tokens int [B, K], index, cache) that gives logits [B, K, V] and the new cache.
        limits: int32 [B], most tokens of a sentence, EOS included.
        alpha: α of the length penalty.

    Returns:
        The next `BeamState`.
    """
    beam_size = state.tokens.shape[1]
    index, length = state.index, ops.shape(state.tokens)[2]
    batch = ops.shape(state.tokens)[0]
    previous = ops.take(state.tokens, ops.maximum(index - 1, 0), axis=2)
    previous = ops.where(index == 0, BOS, previous)
    logits, cache = decode(previous, index, state.cache)
    vocab_size = logits.shape[-1]
    log_p = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
    # Neither PAD nor BOS is ever output, and at a sentence's limit EOS alone is.
    symbol = ops.arange(vocab_size)
    at_limit = (index + 1 >= limits)[:, None, None]
    illegal = (symbol == PAD) | (symbol == BOS)
    illegal = illegal[None, None] | (at_limit & (symbol != EOS)[None, None])
    log_p = ops.where(illegal, IMPOSSIBLE, log_p)
    total = state.log_probabilities[:, :, None] + log_p

    # Of the best 2K at most K end, so at least K go on. Equal ones: the earlier beam, the smaller symbol first.
    # One beam has one candidate: it is greedy search, over with its first EOS.
    candidates = 2 * beam_size if beam_size > 1 else 1
    best, flat = ops.top_k(ops.reshape(total, (-1, beam_size * vocab_size)), candidates)
    beam, token = ops.cast(flat // vocab_size, "int32"), ops.cast(flat % vocab_size, "int32")
    extended = ops.where(
        ops.arange(length)[None, None] == index, token[:, :, None], _take_beams(state.tokens, beam)
    )  # [B, 2K, L]
    ended = (token == EOS) & (best > IMPOSSIBLE / 2)

    scores = ops.where(ended, best / length_penalty(index + 1, alpha), IMPOSSIBLE)
    all_scores = ops.concatenate([state.finished_scores, scores], axis=1)
    all_tokens = ops.concatenate([state.finished_tokens, extended], axis=1)
    all_log_p = ops.concatenate([state.finished_log_probabilities, best], axis=1)
    finished_scores, kept = ops.top_k(all_scores, beam_size)

    # Dividing by 2 tells what is impossible from what is only improbable; sums of IMPOSSIBLE stay below.
    alive = ops.where((token == EOS) | (best <= IMPOSSIBLE / 2), IMPOSSIBLE, best)
    log_probabilities, going_on = ops.top_k(alive, beam_size)
    parents = ops.take_along_axis(beam, going_on, axis=1)  # [B, K]
    rows = ops.reshape(parents + ops.arange(batch, dtype="int32")[:, None] * beam_size, (-1,))
    cache = [tuple(ops.take(part, rows, axis=0) for part in layer) for layer in cache]
    return BeamState(
        index=index + 1,
        tokens=_take_beams(extended, going_on),
        log_probabilities=log_probabilities,
        finished_tokens=_take_beams(all_tokens, kept),
        finished_scores=finished_scores,
        finished_log_probabilities=ops.take_along_axis(all_log_p, kept, axis=1),
        cache=cache,
    )


def can_improve(state, limits, alpha, nbest):
    """Returns bool [B]: whether an unfinished hypothesis can still come among the `nbest` finished ones.

    A log-probability only falls and the penalty is largest at the limit, so this bound is safe.
    """
    bound = state.log_probabilities[:, 0] / length_penalty(limits, alpha)
    alive = state.log_probabilities[:, 0] > IMPOSSIBLE / 2
    return alive & (bound > state.finished_scores[:, nbest - 1])


def search(decode, cache, limits, length, beam_size, alpha, nbest):
    """Runs steps until no unfinished hypothesis can come among the `nbest` of any sentence.

    Args:
        decode: See `step`.
        cache: The model's empty cache for batch * beam_size rows.
        limits: int32 [B], most tokens of a sentence, EOS included.
        length: L, scalar int: the greatest of `limits`.
        beam_size: K.
        alpha: α of the length penalty.
        nbest: Finished hypotheses that count.

    Returns:
        The last `BeamState`.
    """
    state = start(ops.shape(limits)[0], beam_size, length, cache)

    def go_on(*state):
        state = BeamState(*state)
        return (state.index < length) & ops.any(can_improve(state, limits, alpha, nbest))

    return BeamState(
        *ops.while_loop(go_on, lambda *state: tuple(step(BeamState(*state), decode, limits, alpha)), tuple(state))
    )


def _take_beams(tokens, beams):
    """`[B, K, L]` and int `[B, M]` → `[B, M, L]`: the chosen rows of each sentence."""
    return ops.take_along_axis(tokens, beams[:, :, None], axis=1)
