"""Lines that commands print."""

from keras_transformer.utils.logs import discard_output


def report(line):
    """Print a line at once."""
    print(line, flush=True)


def report_if_read(line):
    """Print a line at once. If nobody reads stdout any more, the program continues in silence."""
    try:
        report(line)
    except BrokenPipeError:
        discard_output()
