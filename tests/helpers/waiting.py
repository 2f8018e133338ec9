"""Waiting for other threads and processes."""

import time


def wait_for(condition, seconds=30):
    """Return as soon as `condition()` is true. Fail after a number of seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
