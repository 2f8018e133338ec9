"""A server in a thread of this process, on a free port, and a client."""

import contextlib
import http.client
import json
import socket
import threading
import time
from typing import NamedTuple

from keras_transformer.server.engines import Engine, Output


class Answer(NamedTuple):
    """Response of a server. `content` is parsed JSON, or a string if the response is not JSON."""

    status: int
    content: object
    headers: dict

    @property
    def outputs(self):
        """Translations as a list of [(text, score)] for each input."""
        assert self.status == 200, self
        return [[(one["text"], one["score"]) for one in several] for several in self.content["translations"]]

    def refused(self, status, *said):
        """Assert that this is a one-line error without a path or a traceback, and that it contains each of `said`."""
        assert self.status == status, self
        assert set(self.content) == {"error"}
        sentence = self.content["error"]
        assert "\n" not in sentence and "Traceback" not in sentence and ".py" not in sentence
        for words in said:
            assert str(words) in sentence


def ask(url, path="/translate", body=None, timeout=60):
    """Send a GET request, or a POST request if there is a body, and return the `Answer`.

    A body of bytes is sent unchanged; any other object becomes JSON.
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
def serving(app):
    """Serve an ASGI application while a `with` block runs. Yield its URL."""
    import uvicorn

    # The protocol is explicit so that asyncio disables Nagle's algorithm, which would delay each answer by 40 ms.
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
    """Engine that reverses texts and appends the index of each n-best output.

    `batches` holds the inputs. `drawn` counts attention maps, and `drawn_before` holds this count before each batch.
    Translation waits until `gate` is set, and attention until `map_gate` is set. A text that contains "impossible"
    raises `UserError`, and a text that contains "fault" raises `RuntimeError`.
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
