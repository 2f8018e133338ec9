"""Functions that group sentences of similar length into batches, and build the arrays of a batch."""

import numpy as np

from keras_transformer.backend.compilation import COMPILES_EACH_SHAPE, rounded_up
from keras_transformer.data.tokenizers.base import PAD
from keras_transformer.decoding.beam_search import SearchInputs
from keras_transformer.decoding.phrases import phrase_array
from keras_transformer.utils.text import split_words

BATCH_TOKENS = 32_768
"""Maximum number of source and target positions in a batch, where each position counts once per beam.

The limit bounds memory use and does not affect the results."""
BATCH_ROWS = 64
"""Maximum number of sentences in a batch."""


def search_inputs(source, texts, prefixes, phrases, options, few_shapes):
    """Return the `SearchInputs` of a batch.

    Args:
        source: int `[batch, source_length]`. If the batch size is rounded up, the last rows contain only PAD, and
            their search ends after one token.
        texts: Source texts of the rows with tokens.
        prefixes: For each text, a list of the token ids with which its translation must begin.
        phrases: For each text, a list of lists with the token ids of the phrases that its translation must contain.
        options: `SearchOptions` with all defaults filled in.
        few_shapes: Whether to round up array sizes.
    """
    size = rounded_up if few_shapes else int
    lengths = (source != PAD).sum(axis=1).astype("int32")
    limits = np.where(lengths > 0, lengths + options.extra_length, 1).astype("int32")
    prefix = np.full((len(source), size(max(1, *map(len, prefixes)))), PAD, "int32")
    for row, ids in zip(prefix, prefixes):
        row[: len(ids)] = ids
    given = (prefix != PAD).sum(axis=1)
    given[: len(texts)] += [room_for(several) for several in phrases]
    limits = np.maximum(limits, given + 1).astype("int32")
    chances = np.zeros((len(source), 0, 0), "float32")
    if options.sampling:
        chances = np.zeros((len(source), options.beam_size, size(int(limits.max()))), "float32")
        for row, ids in zip(chances, source):
            # Random numbers depend only on the seed and the text, not on the other sentences in the batch.
            generator = np.random.default_rng([options.sampling.seed, *ids[ids != PAD].tolist()])
            row[:] = generator.random(row.shape[::-1], "float32").T
    words = np.zeros(len(source), "int32")
    words[: len(texts)] = [len(split_words(text)) for text in texts]
    alphas, beams, counts = (
        np.full(len(source), value, kind)
        for value, kind in ((options.alpha, "float32"), (options.beam_size, "int32"), (options.nbest, "int32"))
    )
    phrases = phrase_array([*phrases, *[[]] * (len(source) - len(texts))], size)
    return SearchInputs(limits, prefix, chances, words, alphas, beams, counts, phrases)


def room_for(phrases):
    """Return the total length of a text's phrases, which is the number of steps that a beam needs to generate them."""
    return sum(map(len, phrases))


def by_length(rows, sources, beam_size, extra_length):
    """Yield lists of row indices, one per batch, sorted by descending source length."""
    rows = sorted(rows, key=lambda i: (-len(sources[i]), i))
    while rows:
        positions = beam_size * (2 * len(sources[rows[0]]) + extra_length)
        count = max(1, min(BATCH_ROWS, BATCH_TOKENS // positions))
        yield rows[:count]
        rows = rows[count:]


def padded(sequences, few_shapes=COMPILES_EACH_SHAPE):
    """Pad sequences with PAD to int32 `[rows, longest]`. If `few_shapes` is true, round up both sizes."""
    rows, longest = len(sequences), max(map(len, sequences))
    if few_shapes:
        rows, longest = rounded_up(rows), rounded_up(max(longest, 8))
    ids = np.full((rows, longest), PAD, dtype="int32")
    for row, sequence in zip(ids, sequences):
        row[: len(sequence)] = sequence
    return ids
