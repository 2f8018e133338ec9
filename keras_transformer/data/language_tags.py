"""Language tags, which select the target language of a multilingual model (Johnson et al. 2017).

A tag is at the beginning of a source text.
"""

import re

from keras_transformer.utils.errors import UserError, unknown

SEVERAL = "mul"
"""ISO 639-2 code that means "multiple languages"."""

TAG = re.compile(r"\s*<2(\w+)>\s*")
LANGUAGE_CODE = re.compile(r"\s*(>>.+?<<)")
"""Pattern of a code such as >>tr<< at the start of a source, the tag of Marian models with several target languages."""


def language_tag(language):
    """Return the tag of a target language, such as "<2de>" for "de"."""
    return f"<2{language}>"


def tagged_languages(pieces):
    """Return the codes of the languages whose tags are pieces of a vocabulary, in the order of the pieces."""
    return tuple(tag[1] for piece in pieces if (tag := TAG.fullmatch(piece)))


def leading_tag(text, known, codes=()):
    """Return the tag of a known language at the beginning of a text, with the spaces around it, or "" without a tag.

    Args:
        text: The text.
        known: Codes of the model's target languages.
        codes: Tags of a Marian model, such as ">>fra<<".
    """
    tag, code = TAG.match(text), LANGUAGE_CODE.match(text)
    if tag and tag[1] in known:
        return tag[0]
    return text.removesuffix(text[code.end() :].lstrip()) if code and code[1] in codes else ""


def without_tag(text):
    """Remove the language tag, if any, from the beginning of a text."""
    return TAG.sub("", text, count=1) if TAG.match(text) else text


def tag_texts(texts, language, known):
    """Add the tag of the target language to each source that is not blank and does not have a tag.

    Args:
        texts: List of sources.
        language: Code of the target language. May be None if all texts have tags or `known` has at most one language.
        known: Codes of the model's target languages, or () for a model without tags.

    Raises:
        UserError: `known` does not contain the language, or a text needs a tag and `language` is None.
    """
    if language is not None and not known:
        raise UserError(f"this model has no language tags, so it does not support to={language!r}. Omit `to`.")
    if language is not None and language not in known:
        raise unknown("target language", language, known)
    return [_tagged(text, language, known) for text in texts] if known else texts


def _tagged(text, language, known):
    if not text.strip() or leading_tag(text, known):
        return text
    if language is None and len(known) > 1:
        raise UserError(
            f"a text must begin with the tag of its target language, such as {language_tag(known[0])}, got "
            f"{text[:40]!r}. Add the tag, or set the target language to one of {', '.join(known)}, for example "
            f"to={known[0]}."
        )
    return f"{language_tag(language or known[0])} {text}"
