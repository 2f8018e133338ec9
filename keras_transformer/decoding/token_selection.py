"""Which tokens may extend a hypothesis: the few best of a large vocabulary, or random ones."""

from keras import ops

from keras_transformer.decoding.gather import take, take_rows

NEG_INF = -1e9
"""Log-probability of what cannot be chosen."""

BLOCKS = (16, 20, 12, 10, 28, 8)
"""Numbers of neighbours whose largest logit is taken first when the best of a vocabulary are looked for: the first that
divides the vocabulary; where none does, padding costs a copy."""


def top_k_tokens(logits, allowed, count):
    """Return the most probable tokens.

    Args:
        logits: float32 [B, K, V].
        allowed: bool [B, K, V], which tokens may be chosen, or None for all. Probabilities are of all tokens.
        count: C, of which there may be fewer in a small vocabulary.

    Returns:
        Log-probabilities float32 [B, K, C], best first, NEG_INF where not allowed; the tokens int32 [B, K, C],
        of equal ones the smaller first; the log of the sum of all exponentials, float32 [B, K].
    """
    allowed_logits = logits if allowed is None else ops.where(allowed, logits, NEG_INF)
    best, tokens = blockwise_top_k(allowed_logits, min(count, logits.shape[-1]))
    if allowed is None:
        # The best token's probability tells, too; softmax is one operation on TensorFlow, where exp and sum are three.
        probability = gather_token_logits(ops.softmax(logits, axis=-1), tokens[:, :, 0])
        normalizer = best[:, :, :1] - ops.log(probability)[:, :, None]
    else:
        normalizer = log_sum_exp(logits, ops.max(logits, axis=-1, keepdims=True))
    log_p = ops.where(best > NEG_INF / 2, best - normalizer, NEG_INF)
    return log_p, tokens, normalizer[:, :, 0]


def blockwise_top_k(logits, count):
    """Return the `count` largest of logits [B, K, V] and their places, as `top_k` does.

    The largest lie in the blocks with the largest maxima, and a maximum costs far less than a place in an order. Blocks
    in order keep the order of equal logits.
    """
    vocab_size = logits.shape[-1]
    block = next((size for size in BLOCKS if vocab_size % size == 0), BLOCKS[0])
    if vocab_size <= 4 * block * count:
        return _top_k(logits, count)
    if vocab_size % block:
        logits = ops.pad(logits, [(0, 0), (0, 0), (0, -vocab_size % block)], constant_values=NEG_INF)
    rows = ops.shape(logits)[:2]
    blocks = ops.reshape(logits, (*rows, -1, block))
    chosen = _ascending(_top_k(ops.max(blocks, axis=-1), count)[1])
    inside = ops.reshape(take_rows(blocks, chosen), (*rows, count * block))
    best, places = _top_k(inside, count)
    return best, take(chosen, places // block) * block + places % block


def _top_k(values, count):
    """The largest of `[B, K, N]`, in order, and their places, int32; of more dimensions than two XLA sorts all."""
    shape = ops.shape(values)
    best, places = ops.top_k(ops.reshape(values, (-1, shape[-1])), count)
    shape = (*shape[:2], count)
    return ops.reshape(best, shape), ops.reshape(ops.cast(places, "int32"), shape)


def _ascending(numbers):
    """Different numbers, `[…, N]`, in order: for a few, counting the smaller ones costs far less than XLA's sort."""
    place = ops.sum(ops.cast(numbers[..., :, None] > numbers[..., None, :], "int32"), axis=-1)
    at = place[..., None, :] == ops.arange(numbers.shape[-1], dtype="int32")[:, None]
    return ops.sum(ops.where(at, numbers[..., None, :], 0), axis=-1)


def log_sum_exp(logits, largest):
    """log Σ exp over the last axis of logits, which is kept; `largest` is their maximum, [..., 1]."""
    return largest + ops.log(ops.sum(ops.exp(logits - largest), axis=-1, keepdims=True))


def gather_token_logits(logits, tokens):
    """Return the logits, of [B, K, V], of one token each, int32 [B, K]."""
    return take(logits, tokens[:, :, None])[:, :, 0]


def sample_tokens(logits, allowed, chance, sampling):
    """Return random tokens.

    Args:
        logits: float32 [B, K, V].
        allowed: bool [B, K, V], or broadcasts to it: which tokens may be drawn.
        chance: float32 [B, K], a random number from 0 to 1 for each.
        sampling: `Sampling`.

    Returns:
        Symbols int32 [B, K], and the log of the sum of all exponentials of the logits, float32 [B, K].
    """
    vocab_size = logits.shape[-1]
    # Differences from the best one, which no temperature can make as improbable as what is not allowed.
    scaled = ops.where(allowed, logits, NEG_INF)
    scaled = scaled - ops.max(scaled, axis=-1, keepdims=True)
    scaled = ops.where(allowed, scaled / sampling.temperature, NEG_INF)
    if 0 < sampling.top_k < vocab_size:
        least = ops.top_k(scaled, sampling.top_k)[0][:, :, -1:]
        scaled = ops.where(scaled >= least, scaled, NEG_INF)
    p = ops.softmax(scaled, axis=-1)
    if sampling.top_p < 1:
        ordered = ops.flip(ops.sort(p, axis=-1), axis=-1)
        before = ops.cumsum(ordered, axis=-1) - ordered
        # The most probable token always stays, whatever p is.
        least = ops.min(ops.where(before < sampling.top_p, ordered, 1.0), axis=-1, keepdims=True)
        p = ops.where(p >= least, p, 0.0)
    cumulative = ops.cumsum(p, axis=-1)
    below = cumulative <= chance[:, :, None] * cumulative[:, :, -1:]
    drawn = ops.sum(ops.cast(below, "int32"), axis=-1)
    # Where rounding makes the chance reach the whole sum, the last token that may be drawn is.
    last = vocab_size - 1 - ops.argmax(ops.flip(p, axis=-1) > 0, axis=-1)
    drawn = ops.minimum(drawn, ops.cast(last, "int32"))
    largest = ops.max(logits, axis=-1, keepdims=True)
    return drawn, log_sum_exp(logits, largest)[:, :, 0]
