"""Selection of the next tokens of a hypothesis: the most probable tokens, or random samples."""

from keras import ops

from keras_transformer.decoding.gather import take, take_rows

NEG_INF = -1e9
"""Log-probability of a masked token or a missing hypothesis."""

BLOCKS = (16, 20, 12, 10, 28, 8)
"""Block sizes for `blockwise_top_k`, in order of preference. The function uses the first size that divides the
vocabulary size. If no size does, the function must copy the logits to pad them."""


def top_k_tokens(logits, allowed, count):
    """Return the most probable tokens.

    Args:
        logits: float32 [B, K, V].
        allowed: bool [B, K, V], the tokens to choose from, or None for all tokens. Probabilities are always normalized
            over the whole vocabulary.
        count: Number of tokens to return, C. If the vocabulary is smaller, C is the vocabulary size.

    Returns:
        A tuple (log-probabilities [B, K, C], tokens [B, K, C], log-sum-exp of the logits [B, K]). The tokens are int32,
        the other arrays float32. The most probable tokens come first, and tokens with equal probabilities are sorted by
        id. Tokens that are not allowed have the log-probability NEG_INF.
    """
    allowed_logits = logits if allowed is None else ops.where(allowed, logits, NEG_INF)
    best, tokens = blockwise_top_k(allowed_logits, min(count, logits.shape[-1]))
    if allowed is None:
        # Derive the log-sum-exp from the best token's probability, because TensorFlow computes softmax in one
        # operation, but log-sum-exp in several.
        probability = gather_token_logits(ops.softmax(logits, axis=-1), tokens[:, :, 0])
        normalizer = best[:, :, :1] - ops.log(probability)[:, :, None]
    else:
        normalizer = log_sum_exp(logits, ops.max(logits, axis=-1, keepdims=True))
    log_p = ops.where(best > NEG_INF / 2, best - normalizer, NEG_INF)
    return log_p, tokens, normalizer[:, :, 0]


def blockwise_top_k(logits, count):
    """Return the `count` largest logits of [B, K, V] and their indices, with the same result as `top_k`.

    The function splits the vocabulary into blocks and searches only the blocks with the largest maxima, which must
    contain the largest logits. This is faster than `top_k` over the whole vocabulary, because the maximum of a block is
    much cheaper than its `top_k`. The chosen blocks are sorted by index to keep the order of equal logits.
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
    """Return the largest values of `[B, K, N]`, largest first, and their int32 indices.

    The function reshapes the array to two dimensions, because XLA would sort all values of a 3-D array.
    """
    shape = ops.shape(values)
    best, places = ops.top_k(ops.reshape(values, (-1, shape[-1])), count)
    shape = (*shape[:2], count)
    return ops.reshape(best, shape), ops.reshape(ops.cast(places, "int32"), shape)


def _ascending(numbers):
    """Sort distinct numbers `[…, N]` in ascending order. The position of a number is the count of smaller numbers.

    For small N, this is much cheaper than XLA's sort.
    """
    place = ops.sum(ops.cast(numbers[..., :, None] > numbers[..., None, :], "int32"), axis=-1)
    at = place[..., None, :] == ops.arange(numbers.shape[-1], dtype="int32")[:, None]
    return ops.sum(ops.where(at, numbers[..., None, :], 0), axis=-1)


def log_sum_exp(logits, largest):
    """Return the log-sum-exp over the last axis of logits, [..., 1]. `largest` is their maximum, [..., 1]."""
    return largest + ops.log(ops.sum(ops.exp(logits - largest), axis=-1, keepdims=True))


def gather_token_logits(logits, tokens):
    """Return the logit of one token per hypothesis, [B, K], given logits [B, K, V] and tokens int32 [B, K]."""
    return take(logits, tokens[:, :, None])[:, :, 0]


def sample_tokens(logits, allowed, chance, sampling):
    """Sample one token for each hypothesis.

    Args:
        logits: float32 [B, K, V].
        allowed: bool, broadcastable to [B, K, V], the tokens from which to sample.
        chance: float32 [B, K], random numbers in [0, 1).
        sampling: `Sampling`.

    Returns:
        The tokens, int32 [B, K], and the log-sum-exp of the logits, float32 [B, K].
    """
    vocab_size = logits.shape[-1]
    # Subtract the largest logit. Otherwise, a low temperature could push all allowed tokens down to NEG_INF.
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
        # Always keep the most probable token, even for a tiny p.
        least = ops.min(ops.where(before < sampling.top_p, ordered, 1.0), axis=-1, keepdims=True)
        p = ops.where(p >= least, p, 0.0)
    cumulative = ops.cumsum(p, axis=-1)
    below = cumulative <= chance[:, :, None] * cumulative[:, :, -1:]
    drawn = ops.sum(ops.cast(below, "int32"), axis=-1)
    # If the random number reaches the total because of rounding, draw the last token with a positive probability.
    last = vocab_size - 1 - ops.argmax(ops.flip(p, axis=-1) > 0, axis=-1)
    drawn = ops.minimum(drawn, ops.cast(last, "int32"))
    largest = ops.max(logits, axis=-1, keepdims=True)
    return drawn, log_sum_exp(logits, largest)[:, :, 0]
