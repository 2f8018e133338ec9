"""A sample of the training text that is small enough to learn a vocabulary in bounded memory."""

import random

SAMPLE_CHARACTERS = 100_000_000
UNSPACED = 12  # weight of a text without spaces between words


def sample_texts(texts, characters=SAMPLE_CHARACTERS):
    """Return all texts of a small corpus, or a random sample of a larger one. The same texts give the same sample.

    The memory that SentencePiece needs grows with the characters of distinct words. For 100 million characters of two
    languages with two million words each, SentencePiece took 1.35 GB. Without spaces, a whole sentence is a word and
    takes 130 bytes per character. Such a text therefore counts `UNSPACED` times, and SentencePiece took 1.2 GB.

    Args:
        texts: Iterable of sentences.
        characters: Maximum number of characters in the sample.

    Returns:
        List of texts, in order. `drain` passes them to a learner without a second copy.
    """
    rng, share, kept, size = random.Random(0), 1.0, [], 0
    for text in texts:
        if (draw := rng.random()) < share:
            kept.append((draw, text))
            size += _weight(text)
            while size > characters and len(kept) > 1:
                share *= 0.8
                kept = [(draw, text) for draw, text in kept if draw < share] or kept[:1]
                size = sum(_weight(text) for _, text in kept)
    return [text for _, text in kept]


def drain(texts):
    """Yield the texts of a list in order and remove each one, so that only the learner of a vocabulary keeps a copy."""
    texts.reverse()
    while texts:
        yield texts.pop()


def _weight(text):
    """Return the number of characters that a text counts as.

    The minimum keeps a sample below 4 million texts. From a larger one, SentencePiece would draw a sample of its own.
    """
    return max(26, len(text) * (UNSPACED if len(text) > 15 * len(text.split()) else 1))
