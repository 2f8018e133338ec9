"""Functions that split long texts into sentences and join the sentences' translations."""

import dataclasses
import functools
import itertools

from keras_transformer.data.placeholders import split_around_spans
from keras_transformer.utils.errors import optional_import
from keras_transformer.utils.text import UNSPACED

CJK = "\u3000"
"""Character between two groups of scripts in `UNSPACED`. Chinese and Japanese characters have higher code points.
Scripts with spaces between sentences but not between words, such as Thai, have lower code points."""

SHARED_MARKS = "“”‘’…"
"""Punctuation marks of both Chinese and Latin texts, which do not show whether a sentence is Chinese."""


def split_texts(texts, language, keep_spans=False, prefix_of=None):
    """Split texts into sentences with `sentencex`, which has rules and abbreviations for many languages.

    Args:
        texts: List of texts.
        language: Code of the texts' language, such as "en". If `sentencex` has no rules for it, the rules of a related
            language apply.
        keep_spans: Whether to keep protected spans whole (see `data.placeholders`).
        prefix_of: Function that returns the language tag at the beginning of a text, such as `Tokenizer.source_prefix`,
            or None for a model without tags. Each sentence gets the tag of its text.

    Returns:
        A list of sentences without surrounding whitespace, at least one for each text, and a list with the index of
        the text to which each sentence belongs.

    Raises:
        UserError: `sentencex` is not installed.
    """
    with optional_import("split_sentences", "sentencex", "sentences"):
        from sentencex import segment
    split = functools.partial(_split, segment, language)
    sentences, owners = [], []
    for owner, text in enumerate(texts):
        start = prefix_of(text) if prefix_of else ""
        text = text[len(start) :]
        pieces = split_around_spans(text, split) if keep_spans else split(text)
        parts = [part for piece in pieces if (part := piece.strip())] or [""]
        sentences += [f"{start.strip()} {part}".strip() for part in parts]
        owners += [owner] * len(parts)
    return sentences, owners


def _split(segment, language, text):
    """Split a text with `sentencex`. If that fails, as for a thin space between "B" and ".", return the whole text."""
    try:
        return segment(language, text)
    except BaseException as error:  # an error in Rust code is not an `Exception`
        if type(error).__name__ != "PanicException":
            raise
        return [text]


def join_hypotheses(hypotheses, owners):
    """Join the hypotheses of sentences into one `Hypothesis` for each text.

    Args:
        hypotheses: List of `Hypothesis`.
        owners: Index of the text to which each sentence belongs, as returned by `split_texts`.

    Returns:
        A list of `Hypothesis` objects. Each contains the joined text, the concatenated tokens (with EOS after each
        sentence), the sum of the log-probabilities and the mean of the scores.
    """
    return [
        _joined([hypotheses[i] for i in group])
        for _, group in itertools.groupby(range(len(owners)), key=owners.__getitem__)
    ]


def join_sentences(texts):
    """Join texts with spaces, except next to Chinese and Japanese characters. Such a character may be quoted."""
    texts = [text for text in texts if text]
    joined = texts[:1]
    for left, right in itertools.pairwise(texts):
        edges = left.rstrip(SHARED_MARKS)[-1:], right.lstrip(SHARED_MARKS)[:1]
        joined += [right] if any(map(_is_cjk, edges)) else [" ", right]
    return "".join(joined)


def _joined(parts):
    first, *others = parts
    if not others:
        return first
    return dataclasses.replace(
        first,
        text=join_sentences([part.text for part in parts]),
        tokens=sum((part.tokens for part in parts), ()),
        log_probability=sum(part.log_probability for part in parts),
        score=sum(part.score for part in parts) / len(parts),
    )


def _is_cjk(character):
    return character > CJK and UNSPACED.match(character) is not None
