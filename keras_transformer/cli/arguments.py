"""What all commands share: flags, `--set`, `--plugin`, errors without tracebacks, a quiet start."""

import argparse
import dataclasses
import difflib
import errno
import logging
import math
import os
import re
import shlex
import sys

from keras_transformer.config.hparams import MOST, HParams, load_hparams, parse_value, upper_bound
from keras_transformer.config.plugins import load_plugin, located_errors
from keras_transformer.tasks.problem import load_problem, parse_parameters, problem_parameters
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.logs import discard_output, terminal_log

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Parser(argparse.ArgumentParser):
    """An argument parser whose help opens with an example, and which names the nearest flags to an unknown one.

    Every command has the flag `--plugin`: plug-ins are loaded as soon as the flags are read.

    Args:
        command: Name of the command's module.
        example: Its flags in the example.
        description: One line.
    """

    def __init__(self, command, example, description):
        super().__init__(
            prog=f"python -m keras_transformer.{command}",
            usage=argparse.SUPPRESS,  # a wall of flags; the help opens with the example instead
            description=f"Example: python -m keras_transformer.{command} {example}\n\n{description}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument(
            "--plugin", action="append", default=[], metavar="MODULE_OR_PATH", type=user_path,
            help="Python file, folder or module with problems, hparams, layers and models of your own; may be repeated",
        )  # fmt: skip

    def parse_args(self, args=None):
        """Returns the flags' values, when the plug-ins among them are loaded.

        Raises:
            UserError: A flag is unknown or its value is not one, or a plug-in is wrong.
        """
        values, rest = self.parse_known_args(args)
        for argument in rest:
            name = argument.partition("=")[0]
            if not argument.startswith("--"):
                raise UserError(f"{argument!r} is no flag; every argument is --FLAG=VALUE, see --help")
            known = [option for action in self._actions for option in action.option_strings]
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
            hint = f"did you mean {' or '.join(near)}?" if near else "see --help"
            raise UserError(f"unknown flag {name}: {hint}")
        for action in self._actions:
            given = getattr(values, action.dest, None)
            for text in given if isinstance(given, list) else [given]:
                if isinstance(text, str) and not text.strip():
                    self.error(f"--{action.dest} must not be empty")
                if isinstance(text, str) and re.search("[\ud800-\udfff]", text):  # how Python keeps other bytes
                    self.error(f"--{action.dest} must be UTF-8, got {text!r}")
        for plugin in values.plugin:
            load_plugin(plugin)
        return values

    def error(self, message):
        raise UserError(f"{message}; see --help")


def run_command(main):
    """Runs `main(arguments)` and ends the process with its status: 0, or a `UserError`'s, 2 after a user's mistake.

    Any other exception leaves its traceback, and status 1.

    Args:
        main: Function of the list of arguments.
    """
    # Before the first import of the backend, which reads it.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with located_errors(), terminal_log(logging.WARNING, "stderr"):
            main(sys.argv[1:])
        sys.stdout.flush()
    except UserError as error:
        print("error:", *str(error).splitlines(), file=sys.stderr)
        sys.exit(error.status)
    except BrokenPipeError:  # the reader has what it wanted
        discard_output()
        sys.exit(0)
    except OSError as error:  # a full disk, a file in the way
        if error.errno in FULL_DISK:
            advice = "; make room and run the command again"
        elif error.filename and not hasattr(error, "__notes__"):  # a plug-in's own has one
            advice = f": {error.filename}"
        else:
            raise
        print(f"error: {error.strerror}{advice}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def add_problem_flags(parser, default_problem=None, default_hparams=None):
    """Adds `--problem`, `--hparams`, `--set` and a flag for each field of `HParams`."""
    parser.add_argument("--problem", default=default_problem, help="registered problem (default %(default)s)")
    parser.add_argument("--hparams", default=default_hparams, help="registered hparams (default %(default)s)")
    parser.add_argument(
        "--data_dir", type=user_path, default="data", help="where prepared corpora are kept (default %(default)s)"
    )
    parser.add_argument("--raw_dir", type=user_path, help="folder of the corpus files, where they are on disk")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="change a field of the hparams, or problem.NAME of the problem; may be repeated",
    )  # fmt: skip
    group = parser.add_argument_group("hparams, each as a flag of its own")
    for field in dataclasses.fields(HParams):
        doc = f"{field.metadata['doc']} (base: {field.default})".replace("%", "%%")
        group.add_argument(f"--{field.name}", help=doc, metavar="VALUE")


def read_problem_flags(flags):
    """Returns the (problem, hparams) of parsed flags.

    Raises:
        UserError: A name, key or value is wrong.
    """
    changes, parameters = {}, {}
    for text in flags.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set {text}: it takes NAME=VALUE")
        if name.startswith("problem."):
            parameters[name.removeprefix("problem.")] = value
        else:
            changes[name] = value
    for field in dataclasses.fields(HParams):
        if (value := getattr(flags, field.name)) is not None:
            changes[field.name] = value
    fields = {field.name for field in dataclasses.fields(HParams)}
    for name in (changes.keys() - fields) & problem_parameters(flags.problem):
        raise UserError(f"{name} is a parameter of the problem: --set {shlex.quote(f'problem.{name}={changes[name]}')}")
    changes = {name: parse_value(HParams, name, value, "hparams") for name, value in changes.items()}
    hparams = load_hparams(flags.hparams, **changes)
    parameters = parse_parameters(flags.problem, parameters)
    return load_problem(flags.problem, data_dir=flags.data_dir, raw_dir=flags.raw_dir, **parameters), hparams


def add_run_flags(parser, required=True, ensemble=False):
    """Adds `--run` and `--checkpoint`, with `ensemble` `--ensemble`, too."""
    parser.add_argument("--run", type=user_path, required=required, help="the run directory")
    parser.add_argument(
        "--checkpoint", help="best, last, averaged, ema or a step (default best, last if none was evaluated)"
    )
    if ensemble:
        parser.add_argument(
            "--ensemble", type=user_path, action="append", default=[], metavar="RUN",
            help="another run of the same corpus: the mean of the probabilities counts; may be repeated, and "
            "--checkpoint may name several, divided by commas",
        )  # fmt: skip


def add_decoding_flags(parser):
    """Adds the flags of beam search; their defaults are the run's."""
    parser.add_argument("--beam_size", type=beam_size, help="beams a sentence (default the run's)")
    parser.add_argument("--alpha", type=alpha, help="exponent of the length penalty (default the run's)")
    parser.add_argument("--extra_length", type=extra_length, help="most tokens beyond the source's (default the run's)")
    parser.add_argument(
        "--unconstrained", action="store_true", help="of a parser: search among all outputs, and repair what is no tree"
    )


def decoding_arguments(flags):
    """Returns the arguments of `Translator.translate` that the flags of beam search give."""
    asked = {"beam_size": flags.beam_size, "alpha": flags.alpha, "extra_length": flags.extra_length}
    return {**asked, "constraint": None if flags.unconstrained else "grammar"}


def user_path(text):
    """Return the path that a flag names; `~` and `~USER` become home folders, as shells do only between spaces."""
    return os.path.expanduser(text)


def number(kind, low, high=MOST):
    """Return the `type` of a flag that takes a number in a range.

    Args:
        kind: int or float.
        low: Minimum.
        high: Maximum.
    """
    what = "a whole number" if kind is int else "a number"

    def read(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not value >= low:
            raise argparse.ArgumentTypeError(f"takes {what} from {low} on, not {text!r}")
        if value > high:
            raise argparse.ArgumentTypeError(f"takes {what} up to {high:,}, not {text!r}")
        return value

    return read


positive_int, non_negative_int, non_negative_float = number(int, 1), number(int, 0), number(float, 0)
beam_size = number(int, 1, upper_bound("beam_size"))
alpha = number(float, 0, upper_bound("alpha"))
extra_length = number(int, 0, upper_bound("extra_length"))
