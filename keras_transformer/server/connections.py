"""Connections that are not kept open for nothing."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


def impatient(seconds):
    """Returns the class of uvicorn's connections that are closed when no request was whole for some seconds.

    uvicorn itself waits for ever for the head of a first request.

    Args:
        seconds: A connection without a request at work is closed after these, or twice as many.
    """

    class Impatient(H11Protocol):
        def connection_made(self, transport):
            super().connection_made(transport)
            self._seen = self.cycle
            self._look_again()

        def connection_lost(self, exc):
            self._look.cancel()
            super().connection_lost(exc)

        def _look_again(self):
            self._look = asyncio.get_running_loop().call_later(seconds, self._close_if_idle)

        def _close_if_idle(self):
            at_work = self.cycle is not None and not self.cycle.response_complete
            if not at_work and self.cycle is self._seen:
                self.transport.close()
            else:
                self._seen = self.cycle
                self._look_again()

    return Impatient
