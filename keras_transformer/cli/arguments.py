"""Command-line flags and error handling that all commands share."""

import argparse
import dataclasses
import difflib
import errno
import io
import logging
import os
import re
import shlex
import sys

from keras_transformer.config.hparams import MOST, TYPE_NAMES, HParams, load_hparams, parse_value, upper_bound
from keras_transformer.config.plugins import load_plugin, located_errors
from keras_transformer.tasks.problem import load_problem, parse_parameters, problem_parameters
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.logs import discard_output, terminal_log

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LANGUAGE_OF_RUN = "auto"
"""Value of `--split_sentences` without an argument. It stands for the source language of the run."""


class Parser(argparse.ArgumentParser):
    """Argument parser with an example at the top of its help, suggestions for unknown flags, and the flag `--plugin`.

    Args:
        command: Name of the command's module.
        example: Flags of the example command.
        description: Description of the command, one line.
    """

    def __init__(self, command, example, description):
        super().__init__(
            prog=f"python -m keras_transformer.{command}",
            usage=argparse.SUPPRESS,  # instead of a long line with all flags, the help shows an example
            description=f"Example: python -m keras_transformer.{command} {example}\n\n{description}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument(
            "--plugin", action="append", default=[], metavar="MODULE_OR_PATH", type=user_path,
            help="Python file, folder or module that registers problems, hparams, layers or models (repeatable)",
        )  # fmt: skip

    def parse_args(self, args=None):
        """Return the values of the flags, and load the plug-ins.

        Raises:
            UserError: A flag is unknown, its value is invalid, or a plug-in cannot be loaded.
        """
        values, rest = self.parse_known_args(args)
        for argument in rest:
            name = argument.partition("=")[0]
            if not argument.startswith("--"):
                raise UserError(f"arguments must have the form --FLAG=VALUE, got {argument!r}; see --help")
            known = [option for action in self._actions for option in action.option_strings]
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
            hint = f"did you mean {' or '.join(near)}?" if near else "see --help"
            raise UserError(f"unknown flag {name}: {hint}")
        for action in self._actions:
            flag, given = action.option_strings[0], getattr(values, action.dest, None)
            for text in given if isinstance(given, list) else [given]:
                if isinstance(text, str) and not text.strip():
                    self.error(f"{flag} must not be empty")
                if isinstance(text, str) and re.search("[\ud800-\udfff]", text):  # surrogates represent invalid UTF-8
                    self.error(f"{flag} must be UTF-8, got {text!r}")
        for plugin in values.plugin:
            load_plugin(plugin)
        return values

    def error(self, message):
        raise UserError(f"{message}; see --help")


def run_command(main):
    """Call `main(sys.argv[1:])`, with UTF-8 on stdout, and convert errors to a message and an exit status.

    A `UserError` exits with its `status`, by default 2. A full disk or an inaccessible file also exits with 2, and
    Ctrl-C with 130. Any other exception prints a traceback and exits with 1.

    Args:
        main: Function that takes a list of arguments.
    """
    # TensorFlow reads this variable when it is imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors=sys.stdout.errors)
    try:
        with located_errors(), terminal_log(logging.WARNING, "stderr"):
            main(sys.argv[1:])
        sys.stdout.flush()
    except UserError as error:
        print("error:", *str(error).splitlines(), file=sys.stderr)
        sys.exit(error.status)
    except BrokenPipeError:  # the reader of stdout has closed the pipe
        discard_output()
        sys.exit(0)
    except OSError as error:
        if error.errno in FULL_DISK:
            advice = "; free some space and run the command again"
        elif error.filename and not hasattr(error, "__notes__"):  # errors in plug-ins have notes and need a traceback
            advice = f": {error.filename}"
        else:
            raise
        print(f"error: {error.strerror}{advice}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def add_problem_flags(parser, default_problem=None, default_hparams=None):
    """Add `--problem`, `--hparams`, `--data_dir`, `--raw_dir`, `--set` and a flag for each field of `HParams`."""
    parser.add_argument("--problem", default=default_problem, help="registered problem (default %(default)s)")
    parser.add_argument("--hparams", default=default_hparams, help="registered hparams (default %(default)s)")
    parser.add_argument(
        "--data_dir", type=user_path, default="data", help="folder of prepared corpora (default %(default)s)"
    )
    parser.add_argument("--raw_dir", type=user_path, help="folder of local corpus files")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="field of the hparams, or with problem.NAME a field of the problem (repeatable)",
    )  # fmt: skip
    group = parser.add_argument_group("fields of the hparams")
    for field in dataclasses.fields(HParams):
        doc = f"{field.metadata['doc']} (base: {field.default})".replace("%", "%%")
        group.add_argument(f"--{field.name}", help=doc, metavar="VALUE")


def read_problem_flags(flags):
    """Return a tuple (problem, hparams) from parsed flags.

    Raises:
        UserError: A name is unknown, or a value is invalid.
    """
    changes, parameters = {}, {}
    for text in flags.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set must be NAME=VALUE, got {text}")
        if name.startswith("problem."):
            parameters[name.removeprefix("problem.")] = value
        else:
            changes[name] = value
    for field in dataclasses.fields(HParams):
        if (value := getattr(flags, field.name)) is not None:
            changes[field.name] = value
    fields = {field.name for field in dataclasses.fields(HParams)}
    for name in (changes.keys() - fields) & problem_parameters(flags.problem):
        flag = shlex.quote(f"problem.{name}={changes[name]}")
        raise UserError(f"{name} is a field of the problem, not of the hparams. Use --set {flag}")
    changes = {name: parse_value(HParams, name, value, "hparams") for name, value in changes.items()}
    hparams = load_hparams(flags.hparams, **changes)
    parameters = parse_parameters(flags.problem, parameters)
    return load_problem(flags.problem, data_dir=flags.data_dir, raw_dir=flags.raw_dir, **parameters), hparams


def add_run_flags(parser, required=True, ensemble=False):
    """Add `--run` and `--checkpoint`. If `ensemble` is true, also add `--ensemble`."""
    parser.add_argument("--run", type=user_path, required=required, help="run directory")
    parser.add_argument(
        "--checkpoint",
        help="best, last, averaged, ema or a step (default best, or last if there was no evaluation)",
    )
    if ensemble:
        parser.add_argument(
            "--ensemble", type=user_path, action="append", default=[], metavar="RUN",
            help="another run with the same vocabulary, whose probabilities are averaged with those of --run "
            "(repeatable, --checkpoint may be a comma-separated list)",
        )  # fmt: skip


def add_precision_flag(parser, default="float32"):
    """Add `--precision`. With `default=None`, the command can detect whether the user sets the flag."""
    parser.add_argument(
        "--precision", choices=("float32", "bfloat16"), default=default,
        help="precision of weights and computation (default float32)",
    )  # fmt: skip


def add_decoding_flags(parser, beams="beams per sentence"):
    """Add the flags of beam search, `--beam_size`, `--alpha` and `--extra_length`.

    Args:
        parser: The parser or group.
        beams: Beginning of the help text of `--beam_size`.
    """
    parser.add_argument("--beam_size", type=beam_size, help=f"{beams} (default: hparams of the run)")
    parser.add_argument("--alpha", type=alpha, help="exponent of the length penalty (default: hparams of the run)")
    parser.add_argument(
        "--extra_length", type=extra_length,
        help="maximum number of tokens beyond the source length (default: hparams of the run)",
    )  # fmt: skip


def add_repetition_flags(parser):
    """Add the repetition flags, `--no_repeat_ngram` and `--repetition_penalty`."""
    parser.add_argument(
        "--no_repeat_ngram", type=non_negative_int, metavar="N",
        help="size in tokens of n-grams that may occur only once per translation (default 0: no limit)",
    )  # fmt: skip
    parser.add_argument(
        "--repetition_penalty", type=repetition_penalty, metavar="F",
        help="factor for the log-probability of tokens that are already in the translation (default 1: no penalty)",
    )  # fmt: skip


def add_grammar_flag(parser):
    """Add `--unconstrained`."""
    parser.add_argument(
        "--unconstrained", action="store_true",
        help="for parsers: do not restrict the search to valid trees, and repair invalid trees",
    )  # fmt: skip


def add_sentences_flag(parser):
    """Add `--split_sentences`, which `source_language` reads."""
    parser.add_argument(
        "--split_sentences", nargs="?", const=LANGUAGE_OF_RUN, metavar="LANGUAGE",
        help="translate each sentence of a line separately (default language: source language of the run)",
    )  # fmt: skip


def source_language(flags, owner):
    """Return the language of `--split_sentences`.

    Args:
        flags: Parsed flags with `split_sentences`.
        owner: `Run` or `Engine`, whose `input_language` is the default.

    Raises:
        UserError: Neither the flag nor the run names a language.
    """
    language = owner.input_language if flags.split_sentences == LANGUAGE_OF_RUN else flags.split_sentences
    if language is None:
        raise UserError(
            f"--split_sentences needs a language, because {flags.run} does not record its source language; "
            "write --split_sentences=en, for example"
        )
    return language


def decoding_arguments(flags):
    """Return the arguments of `SearchOptions` for the flags of beam search."""
    names = ("beam_size", "alpha", "extra_length", "no_repeat_ngram", "repetition_penalty")
    given = {name: value for name in names if (value := getattr(flags, name)) is not None}
    return {**given, "constraint": None if flags.unconstrained else "grammar"}


def add_sampling_flags(parser):
    """Add the flags of sampling, which `sampling_arguments` reads."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--sample", action="store_true", help="draw --beam_size translations instead of searching")
    group.add_argument("--temperature", type=non_negative_float, help="divisor of the logits (default 1)")
    group.add_argument("--top_k", type=non_negative_int, help="sample from the k most probable tokens (default all)")
    group.add_argument(
        "--top_p", type=non_negative_float,
        help="sample from the most probable tokens with a total probability of p (default 1)",
    )  # fmt: skip
    group.add_argument("--seed", type=non_negative_int, help="random seed (default 1)")


def sampling_arguments(parser, flags):
    """Return the arguments of `Sampling` for the flags, or None without `--sample`.

    Raises:
        UserError: A value is out of range, or a flag of sampling is set without `--sample`.
    """
    names = ("temperature", "top_k", "top_p", "seed")
    given = {name: value for name in names if (value := getattr(flags, name)) is not None}
    if given and not flags.sample:
        parser.error(f"--{next(iter(given))} needs --sample")
    if given.get("temperature", 1) < 1e-6:
        parser.error(f"--temperature must be at least 1e-6, got {given['temperature']:g}")
    if not 1e-6 <= given.get("top_p", 1) <= 1:
        parser.error(f"--top_p must be at least 1e-6 and at most 1, got {given['top_p']:g}")
    return given if flags.sample else None


def shard(text):
    """Return (I, N) for the flag value "I/N"."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"must be I/N with I from 1 to N, got {text!r}")
    return int(part), int(parts)


def user_path(text):
    """Return a path with `~` and `~USER` expanded. Shells do not expand them after `--FLAG=`."""
    return os.path.expanduser(text)


def number(kind, low, high=MOST):
    """Return the argparse `type` for a flag whose value is a number in a range.

    Args:
        kind: int or float.
        low: Minimum.
        high: Maximum.
    """

    def read(text):
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {TYPE_NAMES[kind]}, got {text!r}") from None
        if not low <= value <= high:  # false for NaN
            raise argparse.ArgumentTypeError(f"must be from {low} to {high}, got {text!r}")
        return value

    return read


positive_int, non_negative_int, non_negative_float = number(int, 1), number(int, 0), number(float, 0)
beam_size = number(int, 1, upper_bound("beam_size"))
alpha = number(float, 0, upper_bound("alpha"))
extra_length = number(int, 0, upper_bound("extra_length"))
repetition_penalty = number(float, 1)
