"""Heads that see only the source word whose turn it is; not the paper's.

For targets that have one symbol for each word of the source, as a tree has its parts of speech. Ma et al. 2017,
"Deterministic Attention for Sequence-to-Sequence Constituent Parsing", lead a decoder from word to word, too: what
counting gives for certain need not be learned. Here some heads of every attention to the encoder are led, the others
see the whole source, and no parameter is added.
"""

from keras import ops


def word_numbers(tokens, starts):
    """Returns the number of each token's word, counted from 0, int32 `[batch, length]`.

    Args:
        tokens: int `[batch, length]`; the first one begins a word, whatever it is.
        starts: `[vocab_size]`, 1 for tokens that begin a word, 0 for others.
    """
    numbers = ops.cumsum(begun(tokens, starts), axis=1)
    return numbers - numbers[:, :1]


def begun(tokens, starts):
    """Returns int32, shaped as `tokens`: 1 for those that begin a word, 0 for others."""
    return ops.cast(ops.take(starts, tokens), "int32")


def word_mask(target_words, source_words, num_heads, word_heads):
    """Returns which source tokens each head may attend to, bool `[batch, num_heads, target_length, source_length]`.

    Args:
        target_words: int `[batch, target_length]`: the word whose turn it is; from the source's last one on, that one.
        source_words: int `[batch, source_length]`: the word of each token, −1 of padding.
        num_heads: Heads in all.
        word_heads: The first so many see that word only.
    """
    turn = ops.minimum(target_words, ops.max(source_words, axis=1, keepdims=True))
    same = ops.equal(turn[:, :, None], source_words[:, None, :])[:, None]  # `==` of symbolic tensors is identity
    free = (ops.arange(num_heads) >= word_heads)[:, None, None]
    return (source_words >= 0)[:, None, None] & (same | free)
