"""python -m keras_transformer.translate: translate lines of text."""

import argparse
import contextlib
import dataclasses
import itertools
import json
import sys
import time

from keras_transformer.cli.arguments import (
    Parser,
    add_decoding_flags,
    add_grammar_flag,
    add_precision_flag,
    add_repetition_flags,
    add_run_flags,
    add_sampling_flags,
    add_sentences_flag,
    decoding_arguments,
    non_negative_int,
    positive_int,
    run_command,
    sampling_arguments,
    shard,
    source_language,
    user_path,
)
from keras_transformer.cli.output import open_output, warn
from keras_transformer.data.corpus import check_rereadable, in_chunks, one_line, read_lines
from keras_transformer.decoding.engines import add_engine_flag
from keras_transformer.decoding.loading import load_translator
from keras_transformer.decoding.search_options import Sampling, SearchOptions
from keras_transformer.parsing.tree import tree_of
from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError, texts_named
from keras_transformer.utils.files import check_output, finite_or_null

CHUNK = 1024
"""Number of lines to sort by length, translate together, and write in their original order."""


def main(arguments):
    """Run the command with a list of arguments."""
    flags = _parse(arguments)
    interactive = flags.input == flags.output == "-" and sys.stdin.isatty() and sys.stdout.isatty()
    interactive = interactive and not (flags.prefixes or flags.constraints)
    lines = _typed_lines() if interactive else _lines(flags)
    chunks = in_chunks(lines, 1 if interactive else CHUNK)
    first = [] if interactive else next(chunks, [])  # report a missing file before loading the model
    runs = [Run.open(path) for path in (flags.run, *flags.ensemble)]
    language = source_language(flags, runs[0]) if flags.split_sentences else None
    checkpoints = flags.checkpoint.split(",") if flags.checkpoint else None
    sampling = None if flags.sampling is None else Sampling(**flags.sampling)
    options = SearchOptions(
        nbest=flags.nbest, min_length=flags.min_length, max_source_length=flags.max_source_length, sampling=sampling,
        **decoding_arguments(flags),
    )  # fmt: skip
    keras_option = next((f"--{name}" for name in ("alignments", "constraints") if getattr(flags, name)), None)
    translator = load_translator(
        runs, checkpoints, flags.precision, flags.jit_compile, engine=flags.engine, options=options,
        keras_option=keras_option,
    )  # fmt: skip
    if flags.engine == "auto" and translator.engine == "ctranslate2":
        warn("translating with CTranslate2; use --engine=keras for Keras")
    if flags.format == "pretty" and not translator.tokenizer.constraint:
        raise UserError(f"--format=pretty needs a parser, but {flags.run} is not a parser; choose text or jsonl")
    most = flags.max_source_length or translator.hparams.max_length
    options = dataclasses.replace(options, max_source_length=most)
    progress = _Progress("sentences" if language else "lines") if flags.progress and not interactive else None
    with open_output(flags.output) as output:
        for chunk in itertools.chain([first] if first else [], chunks):
            numbers, texts, prefixes, phrases = zip(*chunk)

            def cut(row, tokens, numbers=numbers):
                message = f"only the first {most:,} of {tokens:,} tokens are translated"
                if translator.tokenizer.constraint:
                    message = f"its {tokens:,} tokens exceed the limit of {most:,}; wrote a flat tree"
                warn(f"line {numbers[row]}: {message}")

            try:
                with texts_named([f"line {number}" for number in numbers]):
                    found = translator.translate(
                        texts, prefixes=prefixes if flags.prefixes else None,
                        phrases=[line.split("\t") for line in phrases] if flags.constraints else None,
                        token_scores=flags.token_scores, alignments=flags.alignments, split_sentences=language,
                        to=flags.to, report=progress, cut=cut, **vars(options),
                    )  # fmt: skip
            except UserError as error:
                if not interactive:
                    raise
                warn(f"error: {error}")
                continue
            write = _json_lines if flags.format == "jsonl" else _text_lines
            # A single write, so that a broken pipe or Ctrl-C leaves only complete lines.
            output.write("".join(write(flags, translator, *entry) for entry in zip(numbers, texts, found)))
            output.flush()


def _parse(arguments):
    parser = Parser(
        "translate",
        "--run=runs/toy_ende-toy --input=lines.en --output=lines.de",
        "Translate lines of text and write one line for each. Blank lines stay blank.",
    )
    add_run_flags(parser, ensemble=True)
    parser.add_argument(
        "--input", type=user_path, default="-", help="file of source lines, plain or compressed (default stdin)"
    )
    parser.add_argument("--output", type=user_path, default="-", help="file for the translations (default stdout)")
    parser.add_argument(
        "--to", metavar="LANGUAGE", help="target language of a multilingual run, for lines without a tag such as <2de>"
    )
    parser.add_argument("--shard", type=shard, metavar="I/N", help="translate only the I-th of N parts of --input")
    parser.add_argument(
        "--on_error", choices=("stop", "skip", "replace"), default="stop",
        help="reaction to a line that is not UTF-8: stop, leave it blank, or replace invalid bytes (default stop)",
    )  # fmt: skip
    parser.add_argument(
        "--max_source_length", type=positive_int,
        help="maximum number of source tokens, including EOS, beyond which lines are cut (default: max_length of the "
        "run)",
    )  # fmt: skip
    add_sentences_flag(parser)
    parser.add_argument(
        "--format", choices=("text", "jsonl", "pretty"), default="text",
        help="one line per translation, one JSON object per source line, or indented trees (default text)",
    )  # fmt: skip
    parser.add_argument(
        "--nbest",
        type=positive_int,
        default=1,
        help="translations per line, with the line number before each if there are several (default 1)",
    )
    parser.add_argument("--scores", action="store_true", help="write the score and a tab before each translation")
    parser.add_argument(
        "--token_scores", action="store_true", help="write the log-probability of each token (requires --format=jsonl)"
    )
    parser.add_argument(
        "--alignments", action="store_true", help="write the attention to the source tokens (requires --format=jsonl)"
    )
    add_precision_flag(parser)
    parser.add_argument(
        "--jit_compile", action="store_true", help="compile with XLA, useful for many lines (JAX always compiles)"
    )
    parser.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, default=sys.stderr.isatty(),
        help="print the progress to stderr (default if stderr is a terminal)",
    )  # fmt: skip
    add_engine_flag(parser)
    group = parser.add_argument_group("search")
    add_decoding_flags(group)
    add_repetition_flags(group)
    add_grammar_flag(group)
    group.add_argument(
        "--min_length", type=non_negative_int, default=0, help="minimum number of tokens per translation (default 0)"
    )
    group.add_argument(
        "--prefixes", type=user_path, metavar="FILE", help="file whose line n is the beginning of translation n"
    )
    group.add_argument(
        "--constraints", type=user_path, metavar="FILE",
        help="file whose line n contains the phrases that translation n must contain, separated by tabs",
    )  # fmt: skip
    add_sampling_flags(parser)
    flags = parser.parse_args(arguments)
    flags.sampling = sampling_arguments(parser, flags)
    if flags.shard:  # `_lines` reads these files twice, first to count their lines
        for name in ("input", "prefixes", "constraints"):
            if path := getattr(flags, name):
                check_rereadable(f"--{name}", path)
    if [flags.input, flags.prefixes, flags.constraints].count("-") > 1:
        parser.error("only one of --input (default stdin), --prefixes and --constraints can be stdin")
    if (flags.token_scores or flags.alignments) and flags.format != "jsonl":
        parser.error("--token_scores and --alignments need --format=jsonl")
    for name in ("prefixes", "constraints", "token_scores", "alignments"):
        if flags.split_sentences and getattr(flags, name):
            parser.error(f"--{name} cannot be combined with --split_sentences")
    if flags.split_sentences and flags.nbest > 1:
        parser.error("--nbest cannot be combined with --split_sentences")
    if flags.constraints and flags.sample:
        parser.error("--constraints cannot be combined with --sample")
    if flags.beam_size and flags.nbest > flags.beam_size:
        parser.error(f"--nbest={flags.nbest} needs --beam_size={flags.nbest} or more, got {flags.beam_size}")
    check_output("--output", flags.output, input=flags.input, prefixes=flags.prefixes, constraints=flags.constraints)
    return flags


def _typed_lines():
    """Yield (line number from 1, text, None, None) for each line typed at a prompt with history, until Ctrl-D."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  adds line editing and history to `input`
    warn("Type a line and press Enter to translate it. Ctrl-D quits.")
    for number in itertools.count(1):
        try:
            text = input("> ")
        except EOFError:
            print()
            return
        # In some locales, Python decodes invalid UTF-8 to surrogates.
        yield number, text.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), None, None


def _lines(flags):
    """Yield (line number from 1, source, prefix or None, constraints or None) for the lines to translate."""

    def undecodable(line, message):
        warn(f"{message}; {'left the line blank' if flags.on_error == 'skip' else 'replaced the invalid bytes'}")
        return "" if flags.on_error == "skip" else line.decode("utf-8", errors="replace")

    handler = None if flags.on_error == "stop" else undecodable
    begin, end = 0, None
    if flags.shard:
        part, parts = flags.shard
        count = sum(1 for _ in _rows(flags, lambda line, message: ""))
        begin, end = (part - 1) * count // parts, part * count // parts
    rows = itertools.islice(enumerate(_rows(flags, handler), start=1), begin, end)
    yield from ((number, *row) for number, row in rows)


def _rows(flags, undecodable):
    """Yield (source, prefix or None, constraints or None) for all lines of the input."""
    texts = read_lines(flags.input, may_be_empty=True, undecodable=undecodable)
    rows = _with_lines(((text,) for text in texts), flags.prefixes, "prefix", "the beginning of translation n")
    yield from _with_lines(rows, flags.constraints, "constraint", "the phrases of translation n, separated by tabs")


def _with_lines(rows, path, kind, content):
    """Yield each row, a tuple, extended by its line of the file `path`, or by None if there is no file.

    Raises:
        UserError: The file has more or fewer lines than there are rows.
    """
    if not path:
        yield from ((*row, None) for row in rows)
        return
    lines, count = read_lines(path, may_be_empty=True), 0
    for count, row in enumerate(rows, start=1):
        line = next(lines, None)
        if line is None:
            raise UserError(
                f"{path} must have as many lines as the input, got {count - 1:,}; "
                f"leave a line empty if its translation has no {kind}"
            )
        yield (*row, line)
    if more := sum(1 for _ in lines):
        raise UserError(
            f"{path} must have as many lines as the input ({count:,}), got {count + more:,}; "
            f"line n must contain {content}"
        )


def _text_lines(flags, translator, number, source, hypotheses):
    """Return the output lines of one source, one for each hypothesis.

    A line contains the line number of the source (with --nbest), the score (with --scores) and the text.
    """
    lines, pretty = "", flags.format == "pretty"
    for hypothesis in hypotheses:
        lines += f"{number}\t" if flags.nbest > 1 else ""
        lines += f"{hypothesis.score:.6f}\t" if flags.scores else ""
        lines += (tree_of(hypothesis.text).pretty() if pretty and hypothesis.text else one_line(hypothesis.text)) + "\n"
    return lines


def _json_lines(flags, translator, number, source, hypotheses):
    """Return one line of JSON with all hypotheses of a source."""
    entries = []
    for hypothesis in hypotheses:
        entry = {
            "text": hypothesis.text,
            "tokens": translator.tokenizer.pieces(hypothesis.tokens),
            "log_probability": hypothesis.log_probability,
            "score": hypothesis.score,
        }
        if flags.token_scores and hypothesis.tokens:
            entry["token_log_probabilities"] = [round(float(p), 6) for p in hypothesis.token_log_probabilities]
        if flags.alignments and hypothesis.tokens:
            entry["alignment"] = [[round(float(w), 4) for w in row] for row in hypothesis.alignment]
        entries.append(finite_or_null(entry))
    return json.dumps({"line": number, "source": source, "hypotheses": entries}, ensure_ascii=False) + "\n"


class _Progress:
    """Callback for `Translator.translate` that shows the progress on one line of stderr.

    Args:
        unit: Name of the counted items.
    """

    def __init__(self, unit):
        self.unit, self.began, self.before = unit, time.monotonic(), 0

    def __call__(self, done, count):
        total = self.before + done
        rate = total / max(time.monotonic() - self.began, 1e-9)
        print(f"\r{total:,} {self.unit}, {rate:,.0f} {self.unit}/s ", end="", file=sys.stderr, flush=True)
        if done == count:
            self.before = total
            print(end="\r", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_command(main)
