"""SIGTERM and SIGINT end a training after the update that is being made, with a checkpoint."""

import contextlib
import os
import signal
import threading
import time

SIGNALS = (signal.SIGTERM, signal.SIGINT)
MEET_EVERY = 10
"""Updates."""
TOGETHER = 1.0
"""Seconds in which more signals are the same wish: some programs send one to a process and again to its group."""


class Interrupted(SystemExit):
    """Ends the process with 128 + the signal's number, as a shell says it, once all is saved."""

    def __init__(self, number):
        super().__init__(128 + number)


class StopRequest:
    """What the signals so far ask for.

    Attributes:
        received: The first signal, a `signal.Signals`, or None.
    """

    received = None

    def look(self, step=None):
        """Returns `received`; see `SharedStop.look`."""
        return self.received

    def receive(self, number, frame=None):
        """Notes the first signal; a later one ends the process, as it would without us.

        Python calls this between two of its own operations, so not inside of one that the backend computes.
        """
        now = time.monotonic()
        if self.received is None:
            self.received, self.since = signal.Signals(number), now
        elif now - self.since > TOGETHER:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


class SharedStop:
    """A `StopRequest` that all workers see at once, whoever of them received it.

    Args:
        stop: This worker's `StopRequest`.
        workers: `Workers`.
    """

    def __init__(self, stop, workers):
        self.stop, self.workers, self.seen = stop, workers, None

    def look(self, step=None):
        """Returns the signal, or None; all workers must look equally often.

        Args:
            step: Number of the update after which it is asked; workers agree at every tenth only, as that takes time.
        """
        if self.seen is None and (step is None or step % MEET_EVERY == 0):
            asked = self.workers.all_reduce_sum([self.stop.received == number for number in SIGNALS])
            self.seen = next((number for number, count in zip(SIGNALS, asked) if count), None)
        return self.seen


@contextlib.contextmanager
def stop_request():
    """Yields a `StopRequest` that SIGTERM and SIGINT go to inside a `with` block."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():  # only there Python lets signals be handled
        yield request
        return
    before = {number: signal.signal(number, request.receive) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
