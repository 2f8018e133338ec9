"""Insertion of placeholders into training pairs, so that a model learns to copy placeholders (see `placeholders`)."""

import collections
import functools

from keras_transformer.data.placeholders import ADDRESS, placeholder_names
from keras_transformer.utils.text import UNSPACED

SHARE = 0.1
"""Share of the training pairs that get placeholders at random."""
MOST = 3
"""Maximum number of placeholders that a pair gets at random."""


def insert_placeholders(source, target, count, share, rng):
    """Insert placeholders into a pair, and return the pair.

    - Web and e-mail addresses that occur once on each side always become placeholders, as addresses do in
      translation.
    - In a share of the pairs, random words that occur once on each side, such as names and numbers, also become
      placeholders. If there are no such words, placeholders are added to the beginning or the end of both sides.

    The choice of placeholders is random, so that a model learns all of them.

    Args:
        source, target: The texts.
        count: Number of placeholders in the vocabulary.
        share: Share of the pairs that get placeholders at random.
        rng: `random.Random`.
    """
    unused = [name for name in placeholder_names(count) if name not in source and name not in target]
    rng.shuffle(unused)
    addresses, words = _common_tokens(source, target)
    more = rng.randint(1, MOST) if rng.random() < share else 0
    names = dict(zip([*addresses, *rng.sample(words, min(more, len(words)))], unused))
    sides = [_tokens().sub(lambda match: names.get(match[0], match[0]), text) for text in (source, target)]
    if not words:
        for name in unused[len(names) :][:more]:
            add = rng.choice((_add_first, _add_last))
            sides = [add(text, name) for text in sides]
    return tuple(sides)


@functools.lru_cache
def _tokens():
    """Return a pattern that matches addresses and words, each in a named group, and tags, which are never replaced.

    Unlike `re`, the package `regex` counts combining marks as parts of words. The pattern matches no words in scripts
    without spaces.
    """
    import regex

    letter = r"[^\W_" + UNSPACED.pattern[1:]
    word = rf"{letter}+(?:[-.,:/'’]{letter}+)*"
    return regex.compile(rf"</?\w+>|(?P<address>{ADDRESS.pattern})|(?P<word>{word})", regex.IGNORECASE)


def _common_tokens(source, target):
    """Return the addresses and the words that occur exactly once on each side."""
    kinds, counts = {}, []
    for text in (source, target):
        matches = [match for match in _tokens().finditer(text) if match.lastgroup]
        kinds |= {match[0]: match.lastgroup for match in matches}
        counts.append(collections.Counter(match[0] for match in matches))
    common = [token for token, count in counts[0].items() if count == counts[1][token] == 1]
    return [[token for token in common if kinds[token] == kind] for kind in ("address", "word")]


def _add_first(text, name):
    """Add a placeholder before the first word, but after tags such as `<2de>`."""
    import regex

    place = regex.match(r"\s*(?:<\w+>\s*)*", text).end()
    return text[:place] + _joined(name, text[place:])


def _add_last(text, name):
    """Add a placeholder after the last word, but before punctuation."""
    import regex

    text = text.rstrip()
    body = text[: regex.search(r"[^\w\s>]{0,3}\Z", text).start()].rstrip()
    return _joined(body, name) + text[len(body) :]


def _joined(left, right):
    """Join two texts with a space, except in scripts without spaces."""
    unspaced = UNSPACED.match(left[-1:]) or UNSPACED.match(right)
    return left + right if unspaced or not left or not right else f"{left} {right}"
