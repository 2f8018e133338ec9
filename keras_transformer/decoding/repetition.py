"""Repetition options: a ban on repeated n-grams, and a penalty on repeated tokens in outputs."""

from keras import ops


def repeated_ngrams(tokens, index, size, vocab_size):
    """Mark the tokens that would complete an n-gram that already occurs in the hypothesis (Paulus et al. 2018, §2.5).

    Args:
        tokens: int32 [B, K, L], hypotheses.
        index: Scalar int32, position of the next token.
        size: Length n of the n-grams, at least 1.
        vocab_size: Size V of the vocabulary.

    Returns:
        bool [B, K, V], True for the marked tokens.
    """
    places = ops.arange(ops.shape(tokens)[2], dtype="int32")
    ends = ((places >= size - 1) & (places < index))[None, None]  # positions at which an earlier n-gram may end
    for back in range(1, size):
        before = ops.take(tokens, ops.maximum(places - back, 0), axis=2)
        last = ops.take(tokens, ops.maximum(index - back, 0), axis=2)[:, :, None]
        ends = ends & (before == last)
    return _tokens_at(tokens, ends, vocab_size)


def penalize_repetition(logits, tokens, index, penalty):
    """Reduce the probability of tokens that already occur in the hypothesis. Return the new logits.

    The function multiplies the log-probability of these tokens by the penalty, and the next softmax renormalizes the
    result. Keskar et al. 2019 (§4.1) divide the logits instead. Their result therefore depends on the sign of the
    logits, and changes if a constant is added to all logits.

    Args:
        logits: float32 [B, K, V].
        tokens: int32 [B, K, L], hypotheses.
        index: Scalar int32, position of the next token.
        penalty: At least 1.
    """
    log_p = ops.log_softmax(logits, axis=-1)
    earlier = (ops.arange(ops.shape(tokens)[2], dtype="int32") < index)[None, None]
    return ops.where(_tokens_at(tokens, earlier, logits.shape[-1]), penalty * log_p, log_p)


def _tokens_at(tokens, chosen, vocab_size):
    """Mark the tokens at the chosen positions in a bool array [B, K, V] over the vocabulary.

    The function uses a scatter, which needs far less memory than a one-hot encoding [B, K, L, V].

    Args:
        tokens: int32 [B, K, L].
        chosen: bool, broadcastable to [B, K, L], True at the chosen positions.
        vocab_size: Size V of the vocabulary.
    """
    shape = ops.shape(tokens)
    width = vocab_size + 1  # the last column is for positions that are not chosen
    columns = ops.reshape(ops.where(chosen, tokens, vocab_size), (-1, shape[2]))
    rows = ops.shape(columns)[0]
    flat = ops.reshape(columns + width * ops.arange(rows, dtype="int32")[:, None], (-1, 1))
    found = ops.scatter_update(
        ops.zeros((rows * width,), dtype="bool"), flat, ops.ones((ops.shape(flat)[0],), dtype="bool")
    )
    return ops.reshape(found, (*shape[:2], width))[:, :, :vocab_size]
