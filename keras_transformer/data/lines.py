"""Where in the corpus files the pairs of a batch come from."""

import collections
import contextlib
import unicodedata
from pathlib import Path

from keras_transformer.data.corpus import read_lines
from keras_transformer.utils.errors import UserError


def find_lines(pairs, paths):
    """Look for pairs of texts in files of lines.

    Texts match if they are equal after NFKC and with single spaces, so decoded tokens match their line whatever
    normalization the tokenizer has. Files that are missing or not text are skipped.

    Args:
        pairs: List of (source, target) texts.
        paths: Corpus files, plain or `.gz`.

    Returns:
        For each pair a list of (path of the source, path of the target, number of the line, from 1): the lines that
        are the source in one file and the target in another.
    """
    wanted = {_key(text) for pair in pairs for text in pair}
    found = collections.defaultdict(lambda: collections.defaultdict(set))  # {text: {path: {number}}}
    for path in paths:
        with contextlib.suppress(UserError):  # not text, or gone
            for number, line in enumerate(read_lines(path), start=1):
                if (key := _key(line)) in wanted:
                    found[key][Path(path)].add(number)
    return [_both(found[_key(source)], found[_key(target)]) for source, target in pairs]


def _both(sources, targets):
    return [
        (source, target, number)
        for source, numbers in sources.items()
        for target, others in targets.items()
        if source != target
        for number in sorted(numbers & others)
    ]


def _key(text):
    return " ".join(unicodedata.normalize("NFKC", text).split())
