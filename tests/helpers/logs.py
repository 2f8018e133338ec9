"""Context manager that captures the package's log messages."""

import contextlib
import logging


@contextlib.contextmanager
def logged_lines():
    """Yield a list that collects the messages that the package logs inside the `with` block."""
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
