"""Function that waits for other threads and processes."""

import time


def wait_for(condition, seconds=30):
    """Wait until `condition()` is true. Fail if this takes longer than the given number of seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
