"""Functions that sample the training text to limit the memory for learning a vocabulary."""

import random

SAMPLE_CHARACTERS = 100_000_000
UNSPACED = 12  # weight of each character in a text without spaces between words


def sample_texts(texts, characters=SAMPLE_CHARACTERS):
    """Return all texts of a small corpus, or a random sample of a larger corpus. The sample depends only on the texts.

    The memory of SentencePiece grows with the number of characters in distinct words. For 100 million characters in
    two languages, each with two million distinct words, SentencePiece needed 1.35 GB. In a text without spaces, a whole
    sentence counts as a word and needs 130 bytes per character. Therefore, each character of such a text counts
    `UNSPACED` times. For a sample of such texts, SentencePiece then needed 1.2 GB.

    Args:
        texts: Iterable of sentences.
        characters: Maximum number of characters in the sample.

    Returns:
        List of texts in their original order. `drain` passes them to a learner without a second copy.
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
    """Yield the texts of a list in order. Remove each one from the list, so that only the learner keeps a copy."""
    texts.reverse()
    while texts:
        yield texts.pop()


def _weight(text):
    """Return the number of characters in a text, weighted by the memory that SentencePiece needs for them.

    Every text counts as at least 26 characters, which limits a sample to about 4 million texts. A larger sample would
    be useless, because SentencePiece learns from at most 4 million texts.
    """
    return max(26, len(text) * (UNSPACED if len(text) > 15 * len(text.split()) else 1))
