"""Output of the commands."""

from keras_transformer.utils.logs import discard_output


def report(line):
    """Print a line without buffering."""
    print(line, flush=True)


def report_if_read(line):
    """Print a line without buffering. If the reader has closed the pipe, discard this and all later output."""
    try:
        report(line)
    except BrokenPipeError:
        discard_output()
