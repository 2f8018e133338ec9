"""Beam search with a length penalty (§6.1), implemented as a state and a pure step function.

The score of a hypothesis is log-probability / ((5 + length) / 6)^α, where the length includes EOS (Wu et al. 2016).
Every finished hypothesis ends with EOS, even at the length limit of a sentence, where the search allows only EOS. The
scores are therefore comparable. `Translator.score` returns the same score for the same tokens.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_transformer.data.tokenizers.base import BOS, EOS, PAD
from keras_transformer.decoding.gather import take, take_rows
from keras_transformer.decoding.phrases import (
    choose_beams,
    contains_all,
    extend_matches,
    has_phrases,
    needed_tokens,
    phrase_tokens,
    select_from_banks,
    start_matches,
    with_needed_tokens,
)
from keras_transformer.decoding.repetition import penalize_repetition, repeated_ngrams
from keras_transformer.decoding.token_selection import NEG_INF, gather_token_logits, sample_tokens, top_k_tokens


class SearchInputs(NamedTuple):
    """Inputs of the search for a batch of B sentences."""

    limits: Any
    """int32 [B]: maximum number of tokens, including EOS."""
    prefix: Any
    """int32 [B, P], P ≥ 1: tokens with which every hypothesis must begin, padded with PAD."""
    chances: Any
    """float32 [B, K, L]: a random number in [0, 1) for each token to sample; [B, 0, 0] for a beam search."""
    words: Any
    """int32 [B]: number of whitespace-separated words of the source."""
    alphas: Any
    """float32 [B]: α of the length penalty."""
    beams: Any
    """int32 [B]: number of unfinished hypotheses that a beam search keeps, at most K. Sampling always keeps K."""
    nbest: Any
    """int32 [B]: number of finished hypotheses to return, at most `beams`."""
    phrases: Any = ()
    """int32 [B, C, P]: phrases that every hypothesis must contain (see `decoding.phrases`), or () without phrases."""


class BeamState(NamedTuple):
    """State of the search for B sentences with K beams. L is the largest limit in the batch.

    Before the first step, a beam search has one unfinished hypothesis instead of K identical ones.
    """

    index: Any
    """Scalar int32: position of the next token."""
    tokens: Any
    """int32 [B, K, L]: unfinished hypotheses, with PAD from position `index` to the end."""
    log_probabilities: Any
    """float32 [B, K]: log-probabilities of the unfinished hypotheses in descending order, or NEG_INF if missing."""
    finished_tokens: Any
    """int32 [B, K, L]: finished hypotheses, including EOS."""
    finished_scores: Any
    """float32 [B, K]: scores of the finished hypotheses in descending order, or NEG_INF if missing."""
    finished_log_probabilities: Any
    """float32 [B, K]: log-probabilities of the finished hypotheses."""
    finite: Any
    """bool [B]: whether the model's outputs for all unfinished hypotheses have been finite so far."""
    path: Any
    """[B, K, …]: data that `decode` keeps for each unfinished hypothesis."""
    cache: Any
    """Nested arrays of any shape: data that `decode` keeps for all steps so far, shared by all hypotheses."""
    matched: Any = ()
    """bool [B, K, C, P]: the parts of the phrases that each unfinished hypothesis contains, or () without phrases."""


def length_penalty(length, alpha):
    """Return ((5 + length) / 6)^α, where the length includes EOS."""
    return ((5.0 + ops.cast(length, "float32")) / 6.0) ** alpha


def beams_at_first(options):
    """Return the number of unfinished hypotheses before the first step: K for sampling, 1 for beam search."""
    return options.beam_size if options.sampling else 1


def start(batch, length, options, path, cache, inputs=None):
    """Return the state before the first step.

    Args:
        batch: Number of sentences.
        length: Maximum number of tokens, L.
        options: `SearchOptions`.
        path, cache: Initial values for `decode` in the first step, with `beams_at_first` beams.
        inputs: `SearchInputs`, needed only for phrases.
    """
    beam_size, beams = options.beam_size, beams_at_first(options)
    return BeamState(
        index=ops.convert_to_tensor(0, dtype="int32"),
        tokens=ops.full((batch, beams, length), PAD, dtype="int32"),
        log_probabilities=ops.zeros((batch, beams), dtype="float32"),
        finished_tokens=ops.full((batch, beam_size, length), PAD, dtype="int32"),
        finished_scores=ops.full((batch, beam_size), NEG_INF, dtype="float32"),
        finished_log_probabilities=ops.full((batch, beam_size), NEG_INF, dtype="float32"),
        finite=ops.ones((batch,), dtype="bool"),
        path=path,
        cache=cache,
        matched=start_matches(inputs.phrases, beams) if inputs and has_phrases(inputs) else (),
    )


def step(state, decode, inputs, options):
    """Run one step of the search, which chooses the next token of every hypothesis.

    Args:
        state: `BeamState`.
        decode: Function of (tokens int [B, K, L], index, path, cache) that returns logits [B, K, V], the new path and
            the new cache.
        inputs: `SearchInputs`.
        options: `SearchOptions`.

    Returns:
        The next `BeamState`.
    """
    beam_size, index = options.beam_size, state.index
    logits, path, cache = decode(state.tokens, index, state.path, state.cache)
    logits = ops.cast(logits, "float32")
    if options.repetition_penalty != 1:
        logits = penalize_repetition(logits, state.tokens, index, options.repetition_penalty)
    extend = _draw if options.sampling else _extend
    best, beam, token, normalizer = extend(state, logits, inputs, options)  # [B, C], best first
    # One NaN or +∞ among the logits makes the normalizer non-finite. Finished sentences are not checked.
    broken = (state.log_probabilities > NEG_INF / 2) & ~ops.isfinite(normalizer)
    broken = ops.any(broken, axis=1) & can_improve(state, inputs, options)
    extended = ops.where(
        ops.arange(ops.shape(state.tokens)[2])[None, None] == index, token[:, :, None], take_rows(state.tokens, beam)
    )  # [B, C, L]
    # The sums for masked candidates include NEG_INF, so only these sums are below NEG_INF / 2.
    possible = best > NEG_INF / 2

    penalty = length_penalty(index + 1, inputs.alphas)[:, None]
    scores = ops.where(possible & (token == EOS), best / penalty, NEG_INF)
    all_scores = ops.concatenate([state.finished_scores, scores], axis=1)
    all_tokens = ops.concatenate([state.finished_tokens, extended], axis=1)
    all_log_p = ops.concatenate([state.finished_log_probabilities, best], axis=1)
    finished_scores, kept = _top(all_scores, beam_size)

    log_probabilities, going_on = _top(ops.where(possible & (token != EOS), best, NEG_INF), beam_size)
    log_probabilities = _first(log_probabilities, inputs.beams)
    origin, matched = take(beam, going_on), state.matched
    if has_phrases(inputs):
        matched = extend_matches(choose_beams(matched, origin), inputs.phrases[:, None], take(token, going_on))
    return BeamState(
        index=index + 1,
        tokens=take_rows(extended, going_on),
        log_probabilities=log_probabilities,
        finished_tokens=take_rows(all_tokens, kept),
        finished_scores=finished_scores,
        finished_log_probabilities=take(all_log_p, kept),
        finite=state.finite & ~broken,
        path=take_rows(path, origin),
        cache=cache,
        matched=matched,
    )


def can_improve(state, inputs, options):
    """Return bool [B]: whether an unfinished hypothesis can still become one of the `nbest` results.

    Log-probabilities never increase, and the length penalty is largest at the length limit. The current log-probability
    divided by this largest penalty is therefore an upper bound for all future scores. When sampling, all unfinished
    hypotheses continue. A sentence with non-finite model outputs counts as finished.
    """
    alive = state.finite & (state.log_probabilities[:, 0] > NEG_INF / 2)
    if options.sampling:
        return alive
    bound = state.log_probabilities[:, 0] / length_penalty(inputs.limits, inputs.alphas)
    return alive & (bound > take(state.finished_scores, inputs.nbest[:, None] - 1)[:, 0])


def search(state, decode, inputs, options, steps):
    """Run steps until no unfinished hypothesis of any sentence can become one of the `nbest` results.

    Args:
        state: `BeamState` after the first `step`, which extends the first hypothesis to K hypotheses.
        decode: See `step`.
        inputs: `SearchInputs`.
        options: `SearchOptions`.
        steps: Maximum number of steps.

    Returns:
        The final `BeamState`.
    """
    end = ops.minimum(state.index + steps, ops.shape(state.tokens)[2])

    def go_on(*state):
        state = BeamState(*state)
        return (state.index < end) & ops.any(can_improve(state, inputs, options))

    return BeamState(
        *ops.while_loop(go_on, lambda *state: tuple(step(BeamState(*state), decode, inputs, options)), state)
    )


def _extend(state, logits, inputs, options):
    """Return the best extensions of each sentence's hypotheses.

    Returns:
        The log-probabilities, beams and tokens of C candidates, [B, C], best first, and the log-sum-exp of the logits,
        [B, K].
    """
    beam_size, index = options.beam_size, state.index
    only = _only_token(index, inputs)[:, None]
    free = (only == PAD)[:, :, None]
    # Take 2K + 3 tokens per hypothesis. The next lines mask PAD, BOS and sometimes EOS, so at least 2K remain.
    allowed = _allowed(state, logits, inputs, options)
    log_p, tokens, normalizer = top_k_tokens(logits, allowed, 2 * beam_size + 3)
    legal = (tokens != PAD) & (tokens != BOS) & ((tokens != EOS) | (index >= options.min_length))
    log_p = ops.where(legal & free, log_p, NEG_INF)
    only = ops.broadcast_to(only, ops.shape(logits)[:2])
    only_log_p = ops.where(free, NEG_INF, (gather_token_logits(logits, only) - normalizer)[:, :, None])
    log_p = ops.concatenate([log_p, only_log_p], axis=2)
    tokens = ops.concatenate([tokens, only[:, :, None]], axis=2)
    # At most K of the best 2K candidates end in EOS, so at least K continue. Ties go to the earlier beam, then to
    # the smaller token id. Greedy search (K = 1) needs only one candidate, because it stops at the first EOS.
    wanted = 2 * beam_size if beam_size > 1 else 1
    missing = [(0, 0), (0, 0), (0, max(0, wanted - log_p.shape[2]))]  # a small vocabulary has fewer candidates
    log_p = ops.pad(log_p, missing, constant_values=NEG_INF)
    tokens = ops.pad(tokens, missing, constant_values=PAD)
    if has_phrases(inputs):
        needed = needed_tokens(state.matched, inputs.phrases)
        masked = logits if allowed is None else ops.where(allowed, logits, NEG_INF)
        needed_log_p = ops.where(free, take(masked, needed) - normalizer[:, :, None], NEG_INF)
        log_p, tokens = with_needed_tokens(log_p, tokens, needed, needed_log_p)
        log_p = ops.where((tokens == EOS) & ~contains_all(state.matched)[:, :, None], NEG_INF, log_p)
    batch, _, count = ops.shape(tokens)
    total = ops.reshape(state.log_probabilities[:, :, None] + log_p, (batch, -1))
    if has_phrases(inputs):
        phrases = inputs.phrases[:, None, None]
        banks = phrase_tokens(extend_matches(state.matched[:, :, None], phrases, tokens), phrases)
        num_banks = ops.shape(phrases)[-1] * ops.shape(phrases)[-2] + 1
        best, flat = select_from_banks(total, ops.reshape(banks, (batch, -1)), num_banks, wanted)
    else:
        best, flat = _top(total, wanted)
    best = _first(best, ops.where(inputs.beams > 1, 2 * inputs.beams, 1))
    token = take(ops.reshape(tokens, (batch, -1)), flat)
    if has_phrases(inputs):
        # Keep the first K unfinished candidates in the order of `select_from_banks`. Otherwise, `step` would keep the K
        # most probable ones, regardless of their phrase tokens.
        continuing = ops.cumsum(ops.cast(token != EOS, "int32"), axis=1)
        best = ops.where((token == EOS) | (continuing <= inputs.beams[:, None]), best, NEG_INF)
    return best, flat // count, token, normalizer


def _draw(state, logits, inputs, options):
    """Sample one extension of each hypothesis. Return the same values as `_extend`, with C = K."""
    index = state.index
    only = _only_token(index, inputs)[:, None]
    token = ops.arange(logits.shape[-1])
    illegal = (token == PAD) | (token == BOS) | ((token == EOS) & (index < options.min_length))
    allowed = _allowed(state, logits, inputs, options)
    allowed = ~illegal[None, None] if allowed is None else allowed & ~illegal[None, None]
    chance = ops.take(inputs.chances, index, axis=2)
    drawn, normalizer = sample_tokens(logits, allowed, chance, options.sampling)
    possible = ops.any(allowed, axis=-1) | (only != PAD)
    drawn = ops.where(only == PAD, drawn, only)
    total = state.log_probabilities + gather_token_logits(logits, drawn) - normalizer
    beam = ops.broadcast_to(ops.arange(options.beam_size, dtype="int32")[None], ops.shape(drawn))
    return ops.where(possible, total, NEG_INF), beam, drawn, normalizer


def _only_token(index, inputs):
    """Return the only allowed next token, int32 [B], or PAD if several are allowed.

    Within the prefix, only its token at `index` is allowed. At the length limit, only EOS is allowed.
    """
    length = ops.shape(inputs.prefix)[1]
    given = ops.take(inputs.prefix, ops.minimum(index, length - 1), axis=1)
    given = ops.where(index < length, given, PAD)
    return ops.where(index + 1 >= inputs.limits, EOS, given)


def _allowed(state, logits, inputs, options):
    """Return the tokens that the options allow, bool [B, K, V], or None if they allow all tokens."""
    allowed = options.constraint and options.constraint(state.tokens, state.index, inputs)
    if not options.no_repeat_ngram:
        return allowed
    new = ~repeated_ngrams(state.tokens, state.index, options.no_repeat_ngram, logits.shape[-1])
    return new if allowed is None else allowed & new


def _first(values, counts):
    """Keep the first `counts[b]` values in row b of `[B, N]` and replace the rest with NEG_INF.

    `counts` is int32 [B].
    """
    return ops.where(ops.arange(values.shape[1], dtype="int32") < counts[:, None], values, NEG_INF)


def _top(values, count):
    """Return the `count` largest values in each row of `[B, N]`, largest first, and their indices, int32.

    Equal values keep their order.
    """
    best, places = ops.top_k(values, count)
    return best, ops.cast(places, "int32")
