"""Responses that the server sends in parts, one JSON object per line."""

import contextlib
import json
import logging

from fastapi.responses import StreamingResponse

from keras_transformer.utils.errors import NonFiniteOutputs, UserError

logger = logging.getLogger("uvicorn.error")  # unlike the package's logger, uvicorn's prints tracebacks


class StreamedObjects(StreamingResponse):
    """Response with one JSON object per line.

    If an object cannot be computed, the last line describes the error, because the HTTP status has already been sent.
    When the response ends, it stores `final_status` in the ASGI scope: the status code of the response, the status code
    of the error, or 499 if the client has disconnected. A `TimeoutError` propagates to `LimitRequests`.

    Args:
        first: The first object.
        others: Async generator of the other objects. The response closes it at the end or if the client disconnects.
    """

    media_type = "application/x-ndjson"

    def __init__(self, first, others):
        super().__init__(self._lines(), headers={"X-Accel-Buffering": "no"})  # otherwise nginx would buffer the lines
        self._first, self._others, self._final_status = first, others, 499

    async def __call__(self, scope, receive, send):
        async with contextlib.aclosing(self._others):
            await super().__call__(scope, receive, send)
        scope["final_status"] = self._final_status

    async def _lines(self):
        try:
            yield json_line(self._first)
            async for one in self._others:
                yield json_line(one)
            self._final_status = self.status_code
        except TimeoutError:
            raise
        except Exception as error:
            self._final_status, sentence = describe_error(error)
            if not isinstance(error, UserError):
                logger.error("Exception in a stream\n", exc_info=error)
            yield json_line({"error": sentence, "status": self._final_status})


def json_line(content):
    """Return an object as a line of JSON, as bytes."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def describe_error(error):
    """Return the HTTP status and the message for an exception, without details of the server's machine."""
    if isinstance(error, UserError):
        return (500 if isinstance(error, NonFiniteOutputs) else 422), str(error)[:250]
    return 500, "Something went wrong on the server. Its log has the details."
