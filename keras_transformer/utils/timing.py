"""How long things take."""

import time


class Stopwatch:
    """Adds up the seconds of the `with` blocks that it times.

    Attributes:
        seconds: Their sum.
    """

    def __init__(self):
        self.seconds = 0.0

    def __enter__(self):
        self._began = time.monotonic()
        return self

    def __exit__(self, *exception):
        self.seconds += time.monotonic() - self._began

    def reset(self):
        """Returns the seconds so far and begins anew."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def duration(seconds):
    """Returns 0:00:00 for a number of seconds."""
    seconds = round(seconds)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
