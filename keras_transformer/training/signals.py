"""Handling of SIGTERM and SIGINT: training finishes the current update, writes a checkpoint and stops."""

import contextlib
import os
import signal
import threading
import time

SIGNALS = (signal.SIGTERM, signal.SIGINT)
MEET_EVERY = 10
"""Number of updates after which workers exchange information about received signals."""
TOGETHER = 1.0
"""Seconds within which repeated signals count as one. Some programs signal a process and then its process group."""


class Interrupted(SystemExit):
    """Exit after a signal and a final checkpoint. As in shells, the exit status is 128 + the signal number."""

    def __init__(self, number):
        super().__init__(128 + number)


class StopRequest:
    """Request to stop, triggered by a signal.

    Attributes:
        received: The first signal, a `signal.Signals`, or None.
    """

    received = None

    def look(self, step=None):
        """Return the first signal, or None. Unlike `SharedStop.look`, this method ignores `step`."""
        return self.received

    def receive(self, number, frame=None):
        """Store the first signal. A signal more than `TOGETHER` seconds later ends the process by its default action.

        Python runs signal handlers between bytecode instructions, so never during an operation of the backend.
        """
        now = time.monotonic()
        if self.received is None:
            self.received, self.since = signal.Signals(number), now
        elif now - self.since > TOGETHER:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


class SharedStop:
    """A `StopRequest` that all workers see at the same step, no matter which of them received the signal.

    Args:
        stop: `StopRequest` of this worker.
        workers: `Workers`.
    """

    def __init__(self, stop, workers):
        self.stop, self.workers, self.seen = stop, workers, None

    def look(self, step=None):
        """Return the signal, or None. All workers must call this method the same number of times.

        Args:
            step: Number of updates so far. To save time, the workers exchange signals only every `MEET_EVERY` steps.
                If `step` is None, they exchange signals in this call.
        """
        if self.seen is None and (step is None or step % MEET_EVERY == 0):
            counts = self.workers.all_reduce_sum([self.stop.received == number for number in SIGNALS])
            self.seen = next((number for number, count in zip(SIGNALS, counts) if count), None)
        return self.seen


@contextlib.contextmanager
def stop_request():
    """Yield a `StopRequest` that receives SIGTERM and SIGINT inside a `with` block."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():  # Python handles signals in the main thread only
        yield request
        return
    before = {number: signal.signal(number, request.receive) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
