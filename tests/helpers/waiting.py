"""Function that waits for a condition."""

import time


def wait_for(condition, seconds=30):
    """Wait until `condition()` is true. Fail after `seconds` seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
