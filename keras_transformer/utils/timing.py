"""Measurement and formatting of time."""

import time


class Stopwatch:
    """Context manager that measures the total time of its `with` blocks.

    Attributes:
        seconds: Total time in seconds.
    """

    def __init__(self):
        self.seconds = 0.0

    def __enter__(self):
        self._began = time.monotonic()
        return self

    def __exit__(self, *exception):
        self.seconds += time.monotonic() - self._began

    def reset(self):
        """Return the seconds so far, and start again from 0."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def duration(seconds):
    """Format a number of seconds as `0:00:00`."""
    seconds = round(seconds)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
