"""python -m keras_transformer.translate: lines in, translated lines out."""

import contextlib
import sys

from keras_transformer.data.corpus import read_lines
from keras_transformer.errors import UserError
from keras_transformer.files import written
from keras_transformer.flags import Parser, add_decoding_flags, add_run_flags, decoding_arguments, run_command
from keras_transformer.runs.directory import Run
from keras_transformer.startup import load_keras

CHUNK = 1024
"""Lines translated together: sorted by length inside, written in order."""


def main(arguments):
    """Runs the command with a list of arguments."""
    parser = Parser(
        "translate",
        "--run=runs/toy_ende-toy --input=lines.en --output=lines.de",
        "Translates lines of text, one line out for each line in; blank lines stay blank.",
    )
    add_run_flags(parser)
    add_decoding_flags(parser)
    parser.add_argument("--input", default="-", help="file of source lines, plain or .gz (default stdin)")
    parser.add_argument("--output", default="-", help="file of translations (default stdout)")
    flags = parser.parse_args(arguments)
    lines = _stdin_lines() if flags.input == "-" else read_lines(flags.input, may_be_empty=True)
    chunks = _chunks(lines)
    first = next(chunks, [])  # a missing file is said before the model is loaded
    Run.open(flags.run)  # a wrong directory is said before Keras is loaded
    load_keras()
    from keras_transformer.decoding.translator import Translator

    translator = Translator.load(flags.run, flags.checkpoint)
    with written(flags.output) if flags.output != "-" else contextlib.nullcontext(sys.stdout) as output:
        for chunk in _prepend(first, chunks):
            for hypotheses in translator.translate(chunk, **decoding_arguments(flags)):
                # A piece may hold a line end; a translation must not.
                output.write(" ".join(hypotheses[0].text.split("\n")) + "\n")
            output.flush()


def _stdin_lines():
    """Yields the lines of stdin, which must be UTF-8."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise UserError(f"stdin:{number}: not UTF-8; convert it, for example with iconv") from None


def _chunks(lines):
    """Yields lists of at most `CHUNK` lines."""
    chunk = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _prepend(first, rest):
    if first:
        yield first
    yield from rest


if __name__ == "__main__":
    run_command(main)
