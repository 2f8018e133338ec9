"""A server that runs in a thread of this process, an HTTP client, and an engine for tests."""

import contextlib
import http.client
import json
import socket
import threading
import time
from typing import NamedTuple

from helpers.waiting import wait_for
from keras_transformer.server.engines import Engine, Output
from keras_transformer.server.limits import Limits

LIMITS = Limits(texts=8, characters=100, body_bytes=4000, waiting=20, seconds=30.0)
"""Limits for tests. Only tests of timeouts use a shorter timeout, because a busy machine may pause for seconds."""


class Answer(NamedTuple):
    """HTTP response. `content` is parsed JSON, or a string if the response is not JSON."""

    status: int
    content: object
    headers: dict

    @property
    def outputs(self):
        """List with one list [(text, score), ...] per input. Requires status 200."""
        assert self.status == 200, self
        return [[(one["text"], one["score"]) for one in several] for several in self.content["translations"]]

    def refused(self, status, *said):
        """Assert the status and a one-line error message that contains all strings in `said` but no traceback."""
        assert self.status == status, self
        assert set(self.content) == {"error"}
        sentence = self.content["error"]
        assert "\n" not in sentence and "Traceback" not in sentence and ".py" not in sentence
        for words in said:
            assert str(words) in sentence


def ask(url, path="/translate", body=None, timeout=60):
    """Send a GET request, or a POST request if `body` is given, and return the `Answer`.

    A `bytes` body is sent unchanged, and any other object as JSON.
    """
    address = url.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=timeout)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", path, content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read().decode()
        with contextlib.suppress(ValueError):
            content = json.loads(content)
        return Answer(response.status, content, dict(response.headers))
    finally:
        connection.close()


@contextlib.contextmanager
def streaming(url, body, timeout=60):
    """Request a streamed translation. Yield the response's status and an iterator over its parsed lines."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=timeout)
    try:
        content = json.dumps({**body, "stream": True})
        connection.request("POST", "/translate", content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        yield response.status, map(json.loads, iter(response.readline, b""))
    finally:
        connection.close()


@contextlib.contextmanager
def serving(app):
    """Serve an ASGI application on a free port inside the `with` block. Yield its URL."""
    import uvicorn

    # With an explicit protocol, asyncio disables Nagle's algorithm, which would delay each answer by 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="on", log_config=None, timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


class Backwards(Engine):
    """Engine that reverses each text. In an n-best list, all outputs except the best end with their index.

    `translate` raises `UserError` if a text contains "impossible", and `RuntimeError` if a text contains "fault".

    Attributes:
        batches: Inputs of each call to `translate`.
        drawn: Number of attention maps so far.
        drawn_before: Value of `drawn` at the start of each call to `translate`.
        gate: Event that `translate` waits for. Initially set.
        map_gate: Event that `attention` waits for. Initially set.
    """

    max_nbest, max_tokens = 4, 20

    def __init__(self, trees=False, shows_attention=False):
        self.trees, self.shows_attention = trees, shows_attention
        self.about = {"model": "backwards", "problem": "none"}
        self.batches, self.gate, self.map_gate = [], threading.Event(), threading.Event()
        self.drawn, self.drawn_before = 0, []
        self.gate.set()
        self.map_gate.set()

    def lengths(self, texts):
        return [len(text.split()) + 1 for text in texts]

    def translate(self, texts, nbest):
        from keras_transformer.utils.errors import UserError

        self.batches.append(list(texts))
        self.drawn_before.append(self.drawn)
        self.gate.wait(30)
        if any("impossible" in text for text in texts):
            raise UserError("this text cannot be translated")
        if any("fault" in text for text in texts):
            raise RuntimeError("a fault in /home/somebody/engine.py")
        return [[Output(f"{text[::-1]}{n or ''}", -float(n)) for n in range(nbest)] for text in texts]

    def attention(self, source, target):
        self.map_gate.wait(30)
        self.drawn += 1
        return {"source": source, "target": target}


def metrics(url):
    """Return {(name, *labels): value} of all metrics."""
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(ask(url, "/metrics").content)
    return {(one.name, *sorted(one.labels.values())): one.value for family in families for one in family.samples}


def waiting(url):
    """Return the number of waiting texts."""
    return metrics(url)["waiting_texts",]


def block(pool, url, engine):
    """Block the engine by closing its gate and sending it a first text. Return a `Future` of the answer."""
    engine.gate.clear()
    first = pool.submit(ask, url, body={"texts": ["first"]})
    wait_for(lambda: engine.batches)
    return first


@contextlib.contextmanager
def raw_request(url, *lines, body=b""):
    """Send POST /translate with the header lines `lines` and the start of a body. Yield the open socket."""
    with socket.create_connection(url.removeprefix("http://").split(":"), timeout=10) as connection:
        connection.sendall("\r\n".join(["POST /translate HTTP/1.1", "Host: x", *lines, "", ""]).encode() + body)
        yield connection
