"""Splitting of texts into words."""

import re


def split_words(text):
    """Return the words of a sentence, separated by ASCII whitespace. A no-break space does not separate words."""
    return re.findall(r"\S+", text, re.ASCII)
