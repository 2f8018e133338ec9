"""The one error that a user's mistake raises, and the help that it gives."""

import difflib
import shlex


class UserError(Exception):
    """What is wrong, where, and what to do, in one sentence.

    Commands print it without a traceback and exit with its status.
    """

    status = 2


class NonFiniteOutputs(UserError):
    """A model's outputs are NaN or infinite, so that nothing can be decoded or scored.

    Args:
        number: The text's number, from 1.
    """

    def __init__(self, number):
        super().__init__(
            f"outputs for text {number} must be finite, got NaN or infinity. Choose another checkpoint "
            "or a precision with a wider range."
        )


def shell_flag(name, value):
    """Return `--NAME=VALUE` quoted for a POSIX shell, for the commands that messages suggest."""
    return shlex.quote(f"--{name}={value}")


def unknown(kind, name, known):
    """Returns the `UserError` for a `name` that is none of the `known` ones; it names the nearest."""
    near = difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.5)
    if near:
        hint = "did you mean " + " or ".join(near) + "?"
    else:
        hint = "there are: " + ", ".join(sorted(known)) + "."
    return UserError(f"unknown {kind} {name!r}: {hint}")
