"""Whether the other processes of a training are still there, where the backend says so by ending this one.

A process whose machine loses its power closes no connection, and one that dies while connections are being made is
waited for. JAX then aborts the waiting process from a thread of its own, with no chance to say what to do. So each
process counts aloud, in the store of keys and values that its coordinator keeps, and watches the others count.
"""

import threading
import time

EVERY = 2
"""Seconds from one count to the next."""
SILENCE = 25
"""Seconds after which a process counts as lost that has not counted on."""
DONE = "done"
"""What a process says last, that needs the others no more, nor they it."""


class Heartbeat(threading.Thread):
    """Counts aloud and watches the others that do, until it is ended, or the store is gone or another process is.

    Args:
        store: Has `key_value_set(key, value, allow_overwrite)` and `key_value_dir_get(folder)` -> [(key, value)].
        number: Which process this is, from 0.
        count: How many there are.
        lost: Called, in this thread, with the number of a process that is gone.
        every, silence: Seconds, as above.
    """

    def __init__(self, store, number, count, lost, every=EVERY, silence=SILENCE):
        super().__init__(name="heartbeat", daemon=True)
        self.store, self.number, self.count, self.lost = store, number, count, lost
        self.every, self.silence = every, silence
        self.over = threading.Event()

    def end(self):
        """Tells the others that this process has done its part, and ends the thread.

        Python must not end before: a thread that comes back from the store, which is no Python, aborts it then.
        """
        self.over.set()
        if self.is_alive():
            self.join(self.silence)

    def run(self):
        heard, counted, looked = {}, 0, time.monotonic()
        while not self.over.is_set():
            counted += 1
            found = self._tell(counted)
            if found is None:
                return
            now = time.monotonic()
            if now - looked > self.silence / 2:  # this process stood still itself, and cannot tell
                heard = {}
            looked = now
            for other in set(range(self.count)) - {self.number}:
                latest = found.get(f"present/{other}")
                last, since = heard.get(other, (None, now))
                # One that has not begun to count may still prepare its corpus.
                if latest != last or latest in (None, DONE):
                    heard[other] = latest, now
                elif now - since > self.silence:
                    return self.lost(other)
            self.over.wait(self.every)
        self._tell(DONE)

    def _tell(self, what):
        """What all say last, {key: value}, this process included; None if the training is over for the store."""
        try:
            self.store.key_value_set(f"present/{self.number}", str(what), allow_overwrite=True)
            return dict(self.store.key_value_dir_get("present/"))
        except Exception:  # or the backend sees for itself that its coordinator is gone
            return None
