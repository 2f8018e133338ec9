"""Readers of parallel text with both sides in one file: tab-separated values, JSON lines and TMX."""

import json
import logging
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from keras_transformer.data.compression import open_binary, without_suffix
from keras_transformer.data.corpus import read_lines
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.logs import log_once

_log = logging.getLogger(__name__)
LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
CODES = {"bpt", "ept", "ph", "it", "ut"}  # elements of TMX that contain formatting codes instead of text


def is_pair_file(path):
    """Return whether `read_pair_file` supports files with this name."""
    return Path(without_suffix(str(path))).suffix.lower() in READERS


def read_pair_file(path, source, target):
    """Return an iterator over the pairs (source, target) of texts in one file.

    Args:
        path: A file whose name ends in `.tsv`, `.jsonl` or `.tmx`, optionally followed by `.gz`, `.xz` or `.zst`.
        source: Code of the source language, such as "en".
        target: Code of the target language.

    Raises:
        UserError: The file is missing or damaged, or a language is missing in a line.
    """
    return READERS[Path(without_suffix(str(path))).suffix.lower()](path, source, target)


def read_tsv(path, source, target):
    """Yield the pairs of a file with two columns, source and target.

    If the first line contains the two language codes, in lower or upper case, it is a header that determines the order
    of the columns.
    Quotation marks have no special meaning.
    """
    swapped = False
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise UserError(
                f"{path}:{number}: the line must have 2 columns ({source} and {target}) separated by a tab, got "
                f"{len(columns)}"
            )
        header = [column.strip().lower() for column in columns] if number == 1 else []
        if sorted(header) == sorted((source.lower(), target.lower())):
            swapped = header[0] == target.lower()
            continue
        yield (columns[1], columns[0]) if swapped else (columns[0], columns[1])


def read_jsonl(path, source, target):
    """Yield the pairs of lines such as `{"en": "A dog.", "de": "Ein Hund."}`.

    As in Hugging Face datasets, a line may also wrap the object: `{"translation": {"en": …, "de": …}}`. The function
    ignores other keys.
    """
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "too many digits or nested brackets")
            raise UserError(
                f"{path}:{number}: the line is not valid JSON ({reason}). Write one JSON object per line."
            ) from None
        if isinstance(row, dict) and isinstance(row.get("translation"), dict):
            row = row["translation"]
        texts = [row.get(language) for language in (source, target)] if isinstance(row, dict) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise UserError(
                f'{path}:{number}: the line must be a JSON object with texts for the keys "{source}" and "{target}", '
                f"got {line[:60]}"
            )
        # JSON may contain half of a surrogate pair, which UTF-8 cannot represent.
        yield tuple(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts)


def read_tmx(path, source, target):
    """Yield the pairs of a file in the Translation Memory eXchange format, version 1.1 to 1.4b.

    A language matches its variants: `en` matches `en-US`. The function skips units that lack one of the two languages,
    and logs how many it skipped, once per process. It removes formatting codes and XML namespaces, and replaces each
    run of white space with one space.
    """
    units = pairs = 0
    seen = set()
    with open_binary(path) as file:
        root = None
        for event, element in _xml_events(path, file):
            root = element if root is None else root
            if event == "start" or element.tag != "tu":
                continue
            units += 1
            variants = {
                (variant.get(LANGUAGE) or variant.get("lang") or "").lower().replace("_", "-"): variant.find("seg")
                for variant in element.iter("tuv")
            }
            seen.update(variants)
            segments = [_matching(variants, language) for language in (source, target)]
            if all(segment is not None for segment in segments):
                pairs += 1
                try:
                    texts = tuple(" ".join(_text(segment).split()) for segment in segments)
                except RecursionError:
                    raise UserError(f"{path}: unit {units} has too many nested elements. Remove the unit.") from None
                yield texts
            element.clear()
            if len(root):
                del root[-1][:]  # free the units of <body> that were read
    if not pairs:
        languages = ", ".join(sorted(filter(None, seen)))
        found = f"; the languages of its units are: {languages}" if languages else ""
        raise UserError(f"{path} has no translation unit in both {source} and {target}{found}")
    if pairs < units:
        lacks = f"skipped {units - pairs} of {units} units because they lack {source} or {target}"
        log_once(_log, logging.WARNING, f"{path}: {lacks}")  # `prepare` reads a file several times


def _xml_events(path, file):
    """Yield (event, element) for the start and the end of each element. At its end, its tag has no namespace."""
    try:
        for event, element in ElementTree.iterparse(file, events=("start", "end")):
            if event == "end":
                element.tag = element.tag.rpartition("}")[2]
            yield event, element
    except ElementTree.ParseError as error:
        place = f"{path}:{error.position[0]}"
        raise UserError(f"{place}: the file is not valid XML ({error}). Export the TMX file again.") from None
    except (ValueError, LookupError) as error:
        raise UserError(f"{path}: the encoding is not supported ({error}). Convert the file to UTF-8.") from None


def _matching(variants, language):
    """Return the <seg> element of a language, or of its first variant (en-US for en), or None if there is neither."""
    language = language.lower().replace("_", "-")
    if language in variants:
        return variants[language]
    return next((seg for code, seg in variants.items() if code.split("-")[0] == language), None)


def _text(element):
    """Return the text of an element without its formatting codes."""
    inside = "" if element.tag in CODES else (element.text or "") + "".join(map(_text, element))
    return inside + (element.tail or "" if element.tag != "seg" else "")


READERS = {".tsv": read_tsv, ".jsonl": read_jsonl, ".tmx": read_tmx}
