"""Limits on the size and duration of requests."""

import asyncio
import contextlib
import dataclasses

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers

from keras_transformer.server.stream import StreamedObjects, json_line

LAST_LINE_SECONDS = 1.0
"""Time for sending the last line of a stream after the timeout, in seconds."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        texts: Maximum number of texts per request, and also of non-blank lines in all texts of a request.
        characters: Maximum number of characters per text.
        body_bytes: Maximum size of the body of a request, in bytes.
        waiting: Maximum number of waiting texts across all requests.
        seconds: Maximum time from the headers of a request to the end of its response, in seconds.
    """

    texts: int = 64
    characters: int = 5_000
    body_bytes: int = 1 << 20
    waiting: int = 1024
    seconds: float = 30.0


class LimitRequests:
    """ASGI middleware that answers with status 413 if the body is too large, and with 408 or 504 after the timeout.

    The status is 408 if the request was still incomplete, and 504 otherwise. If a streamed response has begun, the
    middleware adds a last line with the error. Any other response that has begun ends where it is.
    """

    def __init__(self, app, limits):
        self._app, self._limits = app, limits

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        size, complete, started, streamed = 0, False, False, False

        async def counting_receive():
            nonlocal size, complete
            message = await receive()
            size += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if size > self._limits.body_bytes:
                raise HTTPException(
                    413, f"The body must have at most {self._limits.body_bytes:,} bytes. Send fewer texts at a time."
                )
            return message

        async def noting_send(message):
            nonlocal started, streamed
            started = True
            if message["type"] == "http.response.start":
                streamed = Headers(raw=message["headers"]).get("content-type") == StreamedObjects.media_type
            await send(message)

        try:
            async with asyncio.timeout(self._limits.seconds) as limit:
                await self._app(scope, counting_receive, noting_send)
        except TimeoutError:
            content = {"error": f"{self._reason(complete, limit.expired())} Try again later."}
            status = 504 if complete else 408
            if not started:
                return await JSONResponse(content, status)(scope, receive, send)
            scope["final_status"] = status
            if streamed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_LINE_SECONDS):  # the client may no longer read
                        await send({"type": "http.response.body", "body": json_line({**content, "status": status})})

    def _reason(self, complete, expired):
        if not complete:
            return f"There was no complete request within {self._limits.seconds:g} seconds."
        if not expired:  # the batcher has skipped a text
            return f"The server is too busy to answer within {self._limits.seconds:g} seconds."
        return f"There was no answer within {self._limits.seconds:g} seconds."
