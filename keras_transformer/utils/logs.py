"""Output of the package's log to the terminal."""

import contextlib
import functools
import logging
import os
import sys

LOGGER = logging.getLogger("keras_transformer")


@functools.cache
def log_once(logger, level, message):
    """Log a message, unless this process has already logged the same message."""
    logger.log(level, message)


def discard_output():
    """Redirect stdout to the null device. Otherwise Python would report a closed pipe again on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class TerminalHandler(logging.Handler):
    """Log handler that prints each record as a line on the current `sys.stdout` or `sys.stderr`.

    If the reader of stdout closes the pipe, the handler discards all later records.

    Args:
        stream: "stdout" or "stderr".
    """

    def __init__(self, stream):
        super().__init__()
        self.stream = stream

    def format(self, record):
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        return f"{prefix}{record.getMessage()}"

    def emit(self, record):
        try:
            print(self.format(record), file=getattr(sys, self.stream), flush=True)
        except BrokenPipeError:
            discard_output()


@contextlib.contextmanager
def terminal_log(level=logging.INFO, stream="stdout"):
    """Print the log of the package to one stream only, inside a `with` block.

    Args:
        level: Minimum level of a record.
        stream: "stdout" or "stderr".
    """
    before = LOGGER.handlers, LOGGER.level, LOGGER.propagate
    LOGGER.handlers, LOGGER.propagate = [TerminalHandler(stream)], False
    LOGGER.setLevel(level)
    try:
        yield
    finally:
        LOGGER.handlers, level, LOGGER.propagate = before
        LOGGER.setLevel(level)


@contextlib.contextmanager
def default_log():
    """Print the log inside a `with` block or a decorated function, unless the application has configured logging.

    Logging counts as configured if the logger "keras_transformer" has a level or a handler, or if a handler of the root
    logger receives its INFO records.
    """
    configured = LOGGER.level or LOGGER.handlers or (logging.root.handlers and LOGGER.isEnabledFor(logging.INFO))
    with contextlib.nullcontext() if configured else terminal_log():
        yield


@contextlib.contextmanager
def silent_log():
    """Discard the log of the package inside a `with` block."""
    level = LOGGER.level
    LOGGER.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        LOGGER.setLevel(level)
