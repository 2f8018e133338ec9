"""Placeholders `<ph1>`, `<ph2>`, …, which stand for spans of a text that a translation must not change.

Each placeholder is a single piece of the vocabulary, and `placeholder_insertion` teaches a model to copy placeholders.
Before translation, a placeholder replaces each protected span of a source. After translation, the spans replace the
placeholders. Protected spans are web and e-mail addresses, texts between `<ph>` and `</ph>`, and texts such as `<ph1>`.
"""

import collections
import itertools
import re

from keras_transformer.utils.errors import TextError
from keras_transformer.utils.text import UNSPACED

COUNT = 8
"""Number of placeholders in a learned vocabulary."""

_CHARACTER = r"[^\s<>()\"“”„«»" + UNSPACED.pattern[1:]
_LAST = r"[^\s<>()\"“”„«».,;:!?'’…،؛؟۔।॥" + UNSPACED.pattern[1:]
_BRACKETS = rf"\({_CHARACTER}*\)"
_WORD = r"[^\W" + UNSPACED.pattern[1:]  # a character that may belong to the same word as the character next to it
ADDRESS = re.compile(
    rf"(?<![a-z0-9])(?:(?:https?|ftp)://|www\.)(?:{_CHARACTER}|{_BRACKETS})*(?:{_LAST}|{_BRACKETS})"
    r"|(?<![a-z0-9._%+-])[a-z0-9._%+-]+@[a-z0-9-]+(?:\.[a-z0-9-]*[a-z0-9])+",
    re.IGNORECASE,
)
"""Pattern of a web address, which begins with a scheme or `www.`, or of an e-mail address.

A match does not include trailing punctuation, or characters of scripts that do not separate words by spaces, such as
Chinese."""

SPAN = re.compile(
    rf"<ph>(?P<marked>(?:(?!</?ph>).)+)</ph>|(?P<literal><ph\d+>)|{ADDRESS.pattern}", re.IGNORECASE | re.DOTALL
)
"""Pattern of a protected span."""

PLACEHOLDER = re.compile(r"<ph(\d+)>")


def placeholder(number):
    """Return the placeholder with the given number, such as `<ph1>` for 1."""
    return f"<ph{number}>"


def placeholder_names(count=COUNT):
    """Return the first `count` placeholders."""
    return tuple(map(placeholder, range(1, count + 1)))


def placeholder_ids(pieces):
    """Return the ids of `<ph1>`, `<ph2>`, …, stopping at the first that the vocabulary does not contain.

    Args:
        pieces: All pieces of a vocabulary, in the order of their ids.
    """
    ids = {piece: index for index, piece in enumerate(pieces) if PLACEHOLDER.fullmatch(piece)}
    numbers = itertools.takewhile(lambda number: placeholder(number) in ids, itertools.count(1))
    return tuple(ids[placeholder(number)] for number in numbers)


def hide_spans(texts, count):
    """Replace the protected spans of sources with placeholders.

    Spans that the user has marked take precedence. If a text has more addresses than remaining placeholders, the last
    addresses stay in the text.

    Args:
        texts: List of sources.
        count: Number of placeholders in the vocabulary. With 0, the texts do not change.

    Returns:
        Two lists: the texts with placeholders, and a dictionary {placeholder: span} for each text.

    Raises:
        TextError: A text has more than `count` marked spans.
    """
    if not count:
        return texts, [{}] * len(texts)
    hidden = [_hide(index, text, count) for index, text in enumerate(texts)]
    return [text for text, _ in hidden], [spans for _, spans in hidden]


def _hide(index, text, count):
    marked = sum(match.lastgroup is not None for match in SPAN.finditer(text))
    if marked > count:
        raise TextError(
            index,
            f"{{}} must have at most {count} spans in <ph>…</ph>, got {marked}. Mark fewer spans, or split the text.",
        )
    addresses, spans = count - marked, {}

    def replace(match):
        nonlocal addresses
        if match.lastgroup is None:
            if not addresses:
                return match[0]
            addresses -= 1
        name = placeholder(len(spans) + 1)
        spans[name] = match["marked"] or match[0]
        return name

    return SPAN.sub(replace, text), spans


def hide_in_target(text, spans):
    """Replace each occurrence of a protected span of the source in the target with the placeholder of the span.

    If a span occurs several times in the source, it has several placeholders. Its occurrences in the target get these
    placeholders in order. Spans inside longer words are not replaced, except in scripts without spaces between words.

    Args:
        text: The target, or a part of it.
        spans: {placeholder: span} of the source.
    """
    names = collections.defaultdict(list)
    for name, span in spans.items():
        names[span].append(name)
    if not names:
        return text
    choices = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))

    def replace(match):
        names[match[0]].append(name := names[match[0]].pop(0))
        return name

    return re.sub(rf"(?<!{_WORD})(?:{choices})(?!{_WORD})", replace, text)


def show_spans(text, spans):
    """Replace each placeholder in a translation with its span, so that the text contains each span exactly once.

    The function appends missing spans, and removes repeated and unknown placeholders.

    Args:
        text: The translation.
        spans: {placeholder: span} of the source.
    """
    missing = dict(spans)
    text = re.sub(rf"( ?)({PLACEHOLDER.pattern})", lambda match: _shown(match, missing), text)
    return " ".join(filter(None, (text, *missing.values())))


def _shown(match, missing):
    return match[1] + missing.pop(match[2]) if match[2] in missing else ""


def split_around_spans(text, split):
    """Split a text with the function `split`, but keep each protected span in one part. Return the parts."""
    spans = []

    def hide(match):
        spans.append(match[0])
        return placeholder(len(spans))

    parts = split(SPAN.sub(hide, text))
    return [PLACEHOLDER.sub(lambda match: spans[int(match[1]) - 1], part) for part in parts]
