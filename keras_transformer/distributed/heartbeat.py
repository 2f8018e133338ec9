"""Heartbeat between JAX processes, which detects processes that have died or stopped responding.

A machine that loses power does not close its connections, and a process that dies during connection setup leaves the
others waiting. Eventually, a JAX thread aborts each waiting process without a helpful message. All processes therefore
write a counter to the coordinator's key-value store and check that the counters of the other processes increase.
"""

import threading
import time

EVERY = 2
"""Seconds between two heartbeats."""
SILENCE = 25
"""Seconds without a heartbeat after which a process counts as lost."""
DONE = "done"
"""Value that a process writes when it has finished."""


class Heartbeat(threading.Thread):
    """Thread that sends heartbeats and checks those of the other processes.

    The thread ends when `end` or `abandon` is called, the store becomes unavailable, or another process is lost.

    Args:
        store: Object with `key_value_set(key, value, allow_overwrite)` and `key_value_dir_get(folder)`, which returns
            [(key, value)].
        number: Index of this process, starting at 0.
        count: Number of processes.
        lost: Function to call with the index of a lost process.
        every: Seconds between two heartbeats.
        silence: Seconds without a heartbeat after which a process counts as lost.
    """

    def __init__(self, store, number, count, lost, every=EVERY, silence=SILENCE):
        super().__init__(name="heartbeat", daemon=True)
        self.store, self.number, self.count, self.lost = store, number, count, lost
        self.every, self.silence = every, silence
        self.over, self.finished = threading.Event(), False

    def abandon(self):
        """Stop sending heartbeats without an announcement, so that the other processes count this one as lost."""
        self.over.set()
        if not self.is_alive():  # the other processes wait for the first heartbeat without a time limit
            self._exchange(0)

    def end(self):
        """Announce that this process has finished, and end the thread.

        Call this method before Python exits. If the thread returned from the store's C++ code while Python was
        shutting down, the process would abort.
        """
        self.finished = True
        self.over.set()
        if self.is_alive():
            self.join(self.silence)

    def run(self):
        heard, counter, checked = {}, 0, time.monotonic()
        while not self.over.is_set():
            counter += 1
            values = self._exchange(counter)
            if values is None:
                return
            now = time.monotonic()
            if now - checked > self.silence / 2:  # this process was suspended, so restart all time limits
                heard = {}
            checked = now
            for other in set(range(self.count)) - {self.number}:
                latest = values.get(f"present/{other}")
                last, since = heard.get(other, (None, now))
                # A process that has not sent a heartbeat yet may still be preparing its corpus.
                if latest != last or latest in (None, DONE):
                    heard[other] = latest, now
                elif now - since > self.silence:
                    return self.lost(other)
            self.over.wait(self.every)
        if self.finished:
            self._exchange(DONE)

    def _exchange(self, value):
        """Write the value of this process. Return {key: value} for all processes, or None if the store is closed."""
        try:
            self.store.key_value_set(f"present/{self.number}", str(value), allow_overwrite=True)
            return dict(self.store.key_value_dir_get("present/"))
        except Exception:  # the backend itself reports a lost coordinator
            return None
