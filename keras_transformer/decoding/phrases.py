"""Lexically constrained beam search, in which every hypothesis must contain given phrases.

The search keeps track of the part of each phrase that a hypothesis contains. It adds the next token of each missing
phrase to the candidates. Candidates with the same number of phrase tokens form a bank, as in grid beam search (Hokamp &
Liu 2017). The banks share the beams (Post & Vilar 2018, "dynamic beam allocation"), so that hypotheses with many phrase
tokens, which are usually less probable, survive. EOS is allowed only after all phrases.

All arrays are for B sentences, K beams, C phrases and P tokens. Phrases are right-aligned, with PAD before them. For
each position of a phrase, `matched`, bool [B, K, C, P], is True if the hypothesis ends with the phrase up to this
position. At the last position, the value stays True once the hypothesis contains the phrase.
"""

import numpy as np
from keras import ops

from keras_transformer.data.tokenizers.base import PAD
from keras_transformer.decoding.gather import take, take_rows
from keras_transformer.decoding.token_selection import NEG_INF


def phrase_array(phrases, size):
    """Return the phrases as int32 [B, C, P], or () if no sentence has a phrase.

    Args:
        phrases: For each sentence, a list of phrases, each a list of token ids.
        size: Function that rounds up C and P.
    """
    if not any(phrases):
        return ()
    most, longest = max(map(len, phrases)), max(len(phrase) for several in phrases for phrase in several)
    array = np.full((len(phrases), size(most), size(longest)), PAD, "int32")
    for rows, several in zip(array, phrases):
        for row, phrase in zip(rows, several):
            row[-len(phrase) :] = phrase
    return array


def has_phrases(inputs):
    """Return whether any sentence of the `SearchInputs` has phrases."""
    return not isinstance(inputs.phrases, tuple)


def start_matches(phrases, beams):
    """Return `matched` for hypotheses without tokens."""
    return ops.repeat((phrases == PAD)[:, None], beams, axis=1)


def extend_matches(matched, phrases, tokens):
    """Update `matched` for one more token (the Shift-And algorithm of Baeza-Yates & Gonnet 1992).

    Args:
        matched: bool [B, …, C, P].
        phrases: int32, broadcastable to `matched`.
        tokens: int32 [B, …], the new last token of each hypothesis.
    """
    before = ops.concatenate([ops.ones_like(matched[..., :1]), matched[..., :-1]], axis=-1)
    now = (phrases == PAD) | (before & (phrases == tokens[..., None, None]))
    length = ops.shape(matched)[-1]
    return now | (matched & (ops.arange(length) == length - 1))


def contains_all(matched):
    """Return bool [B, K], True if a hypothesis contains all phrases."""
    return ops.all(matched[..., -1], axis=-1)


def needed_tokens(matched, phrases):
    """Return the token that continues each phrase, int32 [B, K, C], or PAD if the hypothesis contains the phrase."""
    length = ops.shape(phrases)[-1]
    following = ops.arange(length) == _longest_match(matched)[..., None]
    return ops.sum(ops.where(following, phrases[:, None], PAD), axis=-1)


def with_needed_tokens(log_p, tokens, needed, needed_log_p):
    """Add the tokens that continue phrases to the candidates of each hypothesis, without duplicates.

    Args:
        log_p: float32 [B, K, N], log-probabilities of the candidates.
        tokens: int32 [B, K, N].
        needed: int32 [B, K, C], see `needed_tokens`.
        needed_log_p: float32 [B, K, C], log-probabilities of `needed`.
    """
    count = ops.shape(needed)[-1]
    earlier = (needed[..., None] == needed[..., None, :]) & (ops.arange(count) < ops.arange(count)[:, None])
    known = ops.any(needed[..., None] == tokens[..., None, :], axis=-1) | ops.any(earlier, axis=-1)
    needed_log_p = ops.where(known | (needed == PAD), NEG_INF, needed_log_p)
    return ops.concatenate([log_p, needed_log_p], axis=-1), ops.concatenate([tokens, needed], axis=-1)


def phrase_tokens(matched, phrases):
    """Return the bank of each hypothesis, which is its number of phrase tokens.

    The number includes all tokens of complete phrases. If the hypothesis ends with prefixes of incomplete phrases, the
    number also includes the tokens of the longest such prefix.

    Args:
        matched: bool [B, …, C, P].
        phrases: int32 [B, …, C, P], broadcastable.

    Returns:
        int32 [B, …].
    """
    sizes = ops.sum(ops.cast(phrases != PAD, "int32"), axis=-1)
    begun = _longest_match(matched) - (ops.shape(phrases)[-1] - sizes)
    complete = matched[..., -1]
    return ops.sum(ops.where(complete, sizes, 0), axis=-1) + ops.max(ops.where(complete, 0, begun), axis=-1)


def select_from_banks(log_p, banks, num_banks, count):
    """Return the best candidates of each sentence, cycling through the banks.

    The best candidates of all banks come first, from the highest bank to the lowest, then the second-best candidates,
    and so on. With a single bank, this is the order of the log-probabilities.

    Args:
        log_p: float32 [B, N], log-probabilities of the candidates.
        banks: int32 [B, N], from 0 to `num_banks` - 1.
        num_banks: Number of banks.
        count: Number of candidates to return.

    Returns:
        Log-probabilities float32 [B, count] and indices int32 [B, count].
    """
    log_p, places = ops.top_k(log_p, ops.shape(log_p)[1])
    places = ops.cast(places, "int32")
    banks = take(banks, places)
    member = banks[:, :, None] == ops.arange(num_banks)
    # rank of each candidate in its bank, starting at 1
    rank = ops.sum(ops.where(member, ops.cumsum(ops.cast(member, "int32"), axis=1), 0), axis=2)
    order = rank * num_banks - banks
    order = ops.where(log_p > NEG_INF / 2, order, num_banks * (ops.shape(places)[1] + 1))
    _, chosen = ops.top_k(-order, count)
    chosen = ops.cast(chosen, "int32")
    return take(log_p, chosen), take(places, chosen)


def choose_beams(matched, beams):
    """Select hypotheses of `matched` [B, K, C, P] by the indices `beams`, int32 [B, N]."""
    batch, size, count, length = ops.shape(matched)
    kept = take_rows(ops.reshape(matched, (batch, size, count * length)), beams)
    return ops.reshape(kept, (batch, ops.shape(beams)[1], count, length))


def _longest_match(matched):
    """Return the length of each phrase's longest prefix at the end of the hypothesis, including left padding."""
    return ops.max(ops.where(matched, ops.arange(1, ops.shape(matched)[-1] + 1), 0), axis=-1)
