"""Errors for mistakes of the user."""

import difflib
import shlex


class UserError(Exception):
    """Error caused by the user: bad input, or an environment that the user can fix.

    The message is one sentence that states what is wrong, where, and what to do. Commands print it without a traceback
    and exit with `status`.
    """

    status = 2


class NonFiniteOutputs(UserError):
    """Error for model outputs that are NaN or infinite and cannot be decoded or scored.

    Args:
        number: Number of the text, counted from 1.
    """

    def __init__(self, number):
        super().__init__(
            f"outputs for text {number} must be finite, got NaN or infinity. Choose another checkpoint or precision."
        )


def shell_flag(name, value):
    """Return `--NAME=VALUE` quoted for a POSIX shell, for the commands that messages suggest."""
    return shlex.quote(f"--{name}={value}")


def unknown(kind, name, known):
    """Return the `UserError` for an unknown name. The message suggests the most similar names.

    Args:
        kind: Kind of the name, such as "problem".
        name: The name.
        known: Iterable of the known names.
    """
    near = difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.5)
    if near:
        hint = "did you mean " + " or ".join(near) + "?"
    else:
        hint = "choose one of " + ", ".join(sorted(known)) + "."
    return UserError(f"unknown {kind} {name!r}: {hint}")
