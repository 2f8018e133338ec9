"""As much of a training text as a vocabulary can be learned from in bounded memory."""

import random

SAMPLE_CHARACTERS = 100_000_000
UNSPACED = 12  # so many times a text without spaces between words counts


def sample_texts(texts, characters=SAMPLE_CHARACTERS):
    """Return all texts of a small corpus, and of a larger one a random part that is small enough.

    The same texts give the same sample. What SentencePiece needs grows with the characters of distinct words: 1.35 GB
    were measured for 100 million characters of two languages of two million words each. Without spaces a whole sentence
    is a word, with 130 bytes a character; such a text counts `UNSPACED` times, and 1.2 GB were measured.

    Args:
        texts: Iterable of sentences.
        characters: Most characters of the sample.

    Returns:
        An iterator that forgets what it has given, so that SentencePiece's copy is the only one.
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
    kept.reverse()
    return (kept.pop()[1] for _ in range(len(kept)))


def _weight(text):
    """The characters that a text counts for; at least so many that a sample has less than 4 million texts.

    SentencePiece would draw from more of them.
    """
    return max(26, len(text) * (UNSPACED if len(text) > 15 * len(text.split()) else 1))
