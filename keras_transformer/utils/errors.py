"""Errors caused by the user, and helpers for their messages."""

import contextlib
import difflib
import shlex


class UserError(Exception):
    """Error caused by the user: bad input, or an environment that the user can fix.

    The message states what is wrong, where, and what to do. Commands print it without a traceback
    and exit with `status`.
    """

    status = 2


def require(condition, message):
    """Raise a `UserError` with `message` unless `condition` is true."""
    if not condition:
        raise UserError(message)


class TextError(UserError):
    """Error for one of several texts. Callers may change the index and the name of the text.

    Args:
        index: Index of the text.
        message: The message, with `{}` as the placeholder for the name of the text.

    Attributes:
        index: Index of the text.
        name: Name of the text in the message, or None for "text N", counted from 1.
    """

    def __init__(self, index, message):
        super().__init__(index, message)
        self.index, self.name, self._message = index, None, message

    def __str__(self):
        return self._message.replace("{}", self.name or f"text {self.index + 1}", 1)


class NonFiniteOutputs(TextError):
    """Error for model outputs that are NaN or infinite and cannot be decoded or scored.

    Args:
        index: Index of the text.
    """

    def __init__(self, index):
        super().__init__(
            index, "outputs for {} must be finite, got NaN or infinity. Choose another checkpoint or precision."
        )


@contextlib.contextmanager
def errors_of(owners):
    """Replace the index of a `TextError` raised inside a `with` block with `owners[index]`.

    Args:
        owners: For each text inside the block, the index of the caller's text that it belongs to.
    """
    try:
        yield
    except TextError as error:
        error.index = owners[error.index]
        raise


@contextlib.contextmanager
def texts_named(names):
    """Set the name of the text in a `TextError` raised inside a `with` block to `names[index]`."""
    try:
        yield
    except TextError as error:
        error.name = names[error.index]
        raise


@contextlib.contextmanager
def optional_import(what, package, extra):
    """Convert an `ImportError` raised inside a `with` block to a `UserError` that names the package.

    Args:
        what: Feature that needs the package, for the beginning of the message.
        package: Name of the package.
        extra: Extra in pyproject.toml that contains the package.
    """
    try:
        yield
    except ImportError:
        raise UserError(f"{what} needs the package {package}. Run {install_command(extra)}.") from None


def install_command(extra):
    """Return the command that installs the packages of an extra in pyproject.toml."""
    return f"pip install 'keras-transformer-toolkit[{extra}]'"


def shell_flag(name, value):
    """Return `--NAME=VALUE` quoted for a POSIX shell, for commands in messages."""
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
