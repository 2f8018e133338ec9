"""Capture of the package's log as a list of lines."""

import contextlib
import logging


@contextlib.contextmanager
def logged_lines():
    """Collect the messages that the package logs inside a `with` block in a list, and keep them off the terminal."""
    lines, logger = [], logging.getLogger("keras_transformer")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
