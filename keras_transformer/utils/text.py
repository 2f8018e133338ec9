"""Splitting of texts into words."""

import re


def split_words(text):
    """Return the words of a sentence, separated by ASCII white space: a no-break space is part of a word."""
    return re.findall(r"\S+", text, re.ASCII)
