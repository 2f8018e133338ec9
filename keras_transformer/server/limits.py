"""How much a request may be, and how long: bounds that hold before anything of it is read whole."""

import asyncio
import dataclasses
import json

DEADLINE = "keras_transformer.deadline"
"""In a request's scope: until when it is to be answered, in the event loop's time."""
PATIENCE = 16
"""How many times as many bytes as a body may have are read, and thrown away, before a refusal: a client that is still
sending would not see it."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the server takes at most.

    Attributes:
        texts: Texts of a request.
        characters: Characters of a text.
        body_bytes: Bytes of a request's body.
        waiting: Texts of all requests that wait for a batch.
        seconds: From a request's head to its answer.
    """

    texts: int = 64
    characters: int = 5_000
    body_bytes: int = 1 << 20
    waiting: int = 1024
    seconds: float = 30.0


class BoundedBodies:
    """ASGI middleware: a body of too many bytes is answered with 413, one that does not come in time with 408."""

    def __init__(self, app, limits):
        self._app, self._limits = app, limits

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        deadline = asyncio.get_running_loop().time() + self._limits.seconds
        body = _Body(receive, self._limits, deadline)
        begun = False

        async def noted(message):
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app({**scope, DEADLINE: deadline}, body.receive, noted)
        except _Refused as refused:
            if not begun:
                await body.discard()
                await _answer(send, refused.status, str(refused))


class _Body:
    """A request's body as it comes."""

    def __init__(self, receive, limits, deadline):
        self._receive, self._limits, self._deadline = receive, limits, deadline
        self._read, self._whole = 0, False

    async def receive(self):
        if self._whole:  # what comes now is that the client has gone
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise _Refused(408, f"the request was not whole after {self._limits.seconds:g} seconds") from None
        self._read += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._read > self._limits.body_bytes:
            most = f"{self._limits.body_bytes:,}"
            raise _Refused(413, f"the request has more than {most} bytes; send fewer texts at a time")
        return message

    async def discard(self):
        """Reads on, within reason."""
        try:
            async with asyncio.timeout_at(self._deadline):
                while not self._whole and self._read <= PATIENCE * self._limits.body_bytes:
                    message = await self._receive()
                    self._read += len(message.get("body", b""))
                    self._whole = not message.get("more_body", False)
        except TimeoutError:
            pass


class _Refused(BaseException):
    """Ends a request. No `Exception`: who reads a body takes those for faults of its content."""

    def __init__(self, status, sentence):
        super().__init__(sentence)
        self.status = status


async def _answer(send, status, sentence):
    body = json.dumps({"error": sentence}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
