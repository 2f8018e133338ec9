"""Tests of the time limit of `LimitRequests`."""

import asyncio
import json

import pytest

pytest.importorskip("fastapi")
from fastapi.responses import JSONResponse

from keras_transformer.server import limits
from keras_transformer.server.limits import LimitRequests, Limits


def messages_of(app, blocks=None):
    """Return the messages that a client receives within a limit of 0.05 s.

    Args:
        app: ASGI app.
        blocks: Number of messages after which the client no longer reads, or None.
    """
    sent, request = [], {"type": "http.request", "body": b"", "more_body": False}

    async def receive():
        return request

    async def send(message):
        if len(sent) == blocks:
            await asyncio.sleep(9)
        sent.append(message)

    asyncio.run(LimitRequests(app, Limits(seconds=0.05))({"type": "http"}, receive, send))
    return sent


def starting(content_type):
    """Return an app that starts a response and then exceeds the time limit."""

    async def app(scope, receive, send):
        await receive()
        headers = [(b"content-type", content_type.encode()), (b"content-length", b"9")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}\n", "more_body": True})
        await asyncio.sleep(9)

    return app


def test_late_response_gets_no_further_line():
    assert [message["type"] for message in messages_of(starting("application/json"))] == [
        "http.response.start", "http.response.body",
    ]  # fmt: skip


def test_late_stream_gets_a_last_line():
    last = json.loads(messages_of(starting("application/x-ndjson"))[2]["body"])
    assert last == {"error": "There was no answer within 0.05 seconds. Try again later.", "status": 504}


def test_late_stream_ends_if_the_client_does_not_read(monkeypatch):
    monkeypatch.setattr(limits, "LAST_LINE_SECONDS", 0.05)
    assert len(messages_of(starting("application/x-ndjson"), blocks=2)) == 2


def test_busy_server_says_so_before_the_limit():
    async def app(scope, receive, send):
        await receive()
        raise TimeoutError

    start, body = messages_of(app)
    assert start["status"] == 504
    reason = "The server is too busy to answer within 0.05 seconds. Try again later."
    assert json.loads(body["body"]) == {"error": reason}


def test_answers_in_time_are_unchanged():
    sent = messages_of(JSONResponse([1]))
    assert (sent[0]["status"], sent[1]["body"]) == (200, b"[1]")
