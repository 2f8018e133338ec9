"""SIGTERM and SIGINT end a training after the update that is being made, with a checkpoint."""

import contextlib
import os
import signal
import threading


class Interrupted(SystemExit):
    """Ends the process with 128 + the signal's number, as a shell says it, once all is saved."""

    def __init__(self, number):
        super().__init__(128 + number)


class StopRequest:
    """What the signals so far ask for.

    Attributes:
        signal: The first signal, a `signal.Signals`, or None.
    """

    signal = None

    def receive(self, number, frame=None):
        """Notes the first signal; a second one ends the process at once, as it would without us."""
        if self.signal is None:
            self.signal = signal.Signals(number)
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


@contextlib.contextmanager
def stop_request():
    """Yields a `StopRequest` that SIGTERM and SIGINT go to inside a `with` block."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():  # only there Python lets signals be handled
        yield request
        return
    before = {number: signal.signal(number, request.receive) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
