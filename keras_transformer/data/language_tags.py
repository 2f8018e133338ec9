"""Language tags, which select the target language of a multilingual model (Johnson et al. 2017).

A tag is at the beginning of a source text. It is a piece of the vocabulary: "<2de>" in a vocabulary of this project, or
a language code such as ">>deu<<" in the vocabulary of a Marian model.
"""

import re

from keras_transformer.utils.errors import TextError, UserError, unknown

SEVERAL = "mul"
"""ISO 639-2 code that means "multiple languages"."""

TAG = re.compile(r"\s*<2(\w+)>\s*")
LANGUAGE_CODE = re.compile(r"\s*(>>[^\s<>]+<<)")
"""Pattern of a code such as >>tr<< at the start of a source, the tag of Marian models with several target languages."""
USUAL_CODE = re.compile(r"\s*>>([a-z]{2,3}([_-]\w+)?)<<")
"""Pattern of codes such as >>zho_Hans<<, which are unlikely to be text. A quoted word such as >>Ja<< does not match."""


def language_tag(language):
    """Return the tag of a target language, such as "<2de>" for "de"."""
    return f"<2{language}>"


def vocabulary_tags(pieces):
    """Return {language: tag} for the tags such as "<2de>" in a vocabulary, in the order of the pieces."""
    return {tag[1]: piece for piece in pieces if (tag := TAG.fullmatch(piece))}


def marian_tags(pieces):
    """Return {language: tag} for the language codes such as ">>deu<<" in a vocabulary, in the order of the pieces."""
    return {piece[2:-2]: piece for piece in pieces if LANGUAGE_CODE.fullmatch(piece)}


def leading_tag(text, tags):
    """Return the tag at the beginning of a text, with the spaces around it, or "" without a tag.

    Args:
        text: The text.
        tags: {language: tag} of the model.
    """
    tag = TAG.match(text) or LANGUAGE_CODE.match(text)
    if not tag or tag[0].strip() not in tags.values():
        return ""
    return text.removesuffix(text[tag.end() :].lstrip())


def is_blank(text, tags):
    """Return whether a text is blank, or consists of a tag alone. `tags` is {language: tag} of the model."""
    return not text.strip() or not text[len(leading_tag(text, tags)) :].strip()


def without_tag(text):
    """Remove the language tag, if any, from the beginning of a text."""
    return TAG.sub("", text, count=1) if TAG.match(text) else text


def needs_tags(tags):
    """Return whether each source of a model needs a tag. The sources of Marian models may omit their language codes.

    Args:
        tags: {language: tag} of the model.
    """
    return any(map(TAG.fullmatch, tags.values()))


def tag_texts(texts, language, tags):
    """Add the tag of the target language to each source that is not blank and does not have a tag.

    A source that consists of a tag alone becomes blank.

    Args:
        texts: List of sources.
        language: Code of the target language. May be None if all texts have tags or do not need them, or if the model
            has a single language.
        tags: {language: tag} of the model, or {} for a model without tags.

    Raises:
        UserError: `tags` does not contain the language.
        TextError: `language` is None, and a text needs a tag or, for a Marian model, begins with an unknown language
            code such as ">>xyz<<".
    """
    if language is not None and not tags:
        raise UserError(f"this model has no language tags, so it does not support to={language!r}. Omit `to`.")
    if language is not None and language not in tags:
        raise unknown("target language", language, tags)
    return [_tagged(i, text, language, tags) for i, text in enumerate(texts)] if tags else texts


def _tagged(index, text, language, tags):
    if not text.strip():
        return text
    if start := leading_tag(text, tags):
        return text if text[len(start) :] else ""
    if language is None and (code := USUAL_CODE.match(text)) and marian_tags(tags.values()):
        raise TextError(index, f"{{}} begins with an {unknown('language code', code[1], tags)}")
    if language is None and not needs_tags(tags):
        return text
    first = next(iter(tags))
    if language is None and len(tags) > 1:
        raise TextError(
            index,
            f"{{}} must begin with the tag of its target language, such as {tags[first]}, got {text[:40]!r}. Add the "
            f"tag, or set the target language to one of {', '.join(tags)}, for example to={first}.",
        )
    return f"{tags[language or first]} {text}"
