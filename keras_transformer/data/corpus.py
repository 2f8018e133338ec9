"""Functions that read corpus files with one sentence per line, plain or compressed, and pairs from two such files."""

import codecs
import itertools
import os

from keras_transformer.data.compression import name_of, open_binary
from keras_transformer.utils.errors import UserError

BYTE_ORDER_MARKS = {
    # UTF-32 first, because its little-endian mark begins with that of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16",
}  # fmt: skip


def read_lines(path, may_be_empty=False, undecodable=None):
    """Yield the lines of a UTF-8 text file, plain or compressed, without line ends.

    Only "\\n" and "\\r\\n" end a line. If a form feed in a sentence also ended a line, all later lines of this file
    would be misaligned with the other side of the corpus.

    Args:
        path: The file, or "-" for stdin.
        may_be_empty: Whether a file without lines is allowed.
        undecodable: Function of (bytes, message) that returns a replacement text for a line that is not UTF-8. By
            default, such a line is an error.

    Raises:
        UserError: The file is missing, empty, damaged or not UTF-8. The message contains the line number. If the file
            begins with a byte order mark of UTF-16 or UTF-32, `undecodable` does not prevent the error.
    """
    name, number = name_of(path), 0
    with open_binary(path) as file:
        for number, line in enumerate(file, start=1):
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                _check_byte_order_mark(name, number, line)
                message = f"{name}:{number}: not UTF-8 at byte {error.start + 1} of the line"
                if undecodable is None:
                    raise UserError(f"{message}; convert the file to UTF-8, for example with iconv") from None
                text = undecodable(line, message)
            yield text.removeprefix("\ufeff") if number == 1 else text
    if number == 0 and not may_be_empty:
        raise UserError(f"{name} is empty; a corpus needs at least one line")


def check_rereadable(flag, path):
    """Raise a `UserError` if a file cannot be read twice, because it is stdin, a pipe or a device.

    Args:
        flag: The flag that names the file, for the message.
        path: The file, or "-" for stdin. A missing file is not an error here.
    """
    if str(path) == "-" or (os.path.exists(path) and not os.path.isfile(path)):
        raise UserError(
            f"{flag} must be a regular file, got {name_of(path)}. The command reads the file twice. "
            "Save the text in a file."
        )


def _check_byte_order_mark(name, number, line):
    """Raise a `UserError` if the first line begins with the byte order mark of UTF-16 or UTF-32."""
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if number == 1 and line.startswith(mark):
            raise UserError(
                f"{name}:1: the file must be UTF-8, but begins with a byte order mark of {encoding}; convert the file, "
                f"for example with iconv -f {encoding} -t UTF-8"
            )


def one_line(text):
    """Replace each line end in a text with a space. The output of a model may contain line ends."""
    return " ".join(text.replace("\r", "\n").split("\n"))


def read_pairs(source_path, target_path):
    """Yield the pairs (source, target) of two files with the same number of lines.

    Raises:
        UserError: The files have different numbers of lines, or `read_lines` raises an error.
    """
    missing = object()
    sides = read_lines(source_path), read_lines(target_path)
    for number, (source, target) in enumerate(itertools.zip_longest(*sides, fillvalue=missing), start=1):
        if source is missing or target is missing:  # count the rest here, because stdin cannot be read again
            counts = [number - 1 if side is missing else number for side in (source, target)]
            counts = [count + sum(1 for _ in side) for count, side in zip(counts, sides)]
            raise UserError(
                f"{name_of(source_path)} and {name_of(target_path)} must have the same number of lines, got "
                f"{counts[0]} and {counts[1]}; "
                "line n of one must be the translation of line n of the other"
            )
        yield source, target


def in_chunks(lines, size):
    """Yield lists of at most `size` lines. If a line is invalid, yield the lines before it and then raise the error."""
    chunk = []
    try:
        for line in lines:
            chunk.append(line)
            if len(chunk) == size:
                yield chunk
                chunk = []
    except UserError:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk
