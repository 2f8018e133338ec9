"""Splitting of texts into words, a hash of texts, and a pattern for scripts without spaces between words."""

import hashlib
import re

UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3001-\u30ff\u31f0-\u31ff\u3400-\u9fff"
    "\uf900-\ufaff\uff01-\uff0f\uff1a-\uff1f\uff5b-\uff9f\U00020000-\U0003ffff]"
)
"""Pattern for a character or punctuation mark of a script without spaces between words: Thai, Lao, Burmese, Khmer,
kana or Han."""


def split_words(text):
    """Return the words of a sentence, separated by ASCII whitespace. A no-break space does not separate words."""
    return re.findall(r"\S+", text, re.ASCII)


def text_digest(text):
    """Return a hash of a text, 8 bytes, which is the same in every process. Unpaired surrogates are allowed."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
