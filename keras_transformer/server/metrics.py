"""What the server measures of itself, for Prometheus."""

import time

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64)


class Measures:
    """Counters of one server; `text` is what Prometheus reads."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self):
        self._registry = CollectorRegistry()
        here = {"registry": self._registry}
        ProcessCollector(**here)
        self._requests = Counter("requests", "Requests that were answered.", ["path", "status"], **here)
        self._seconds = Histogram(
            "request_seconds", "Seconds from a request to its answer.", ["path"], buckets=SECONDS, **here
        )
        self._texts = Counter("texts", "Texts that were translated.", **here)
        self._tokens = Counter("batch_tokens", "Tokens of the texts' batches, padding included.", **here)
        self._rows = Histogram("batch_texts", "Texts that were translated together.", buckets=ROWS, **here)
        self._work = Counter("translation_seconds", "Seconds in which batches were translated.", **here)
        self._refused = Counter("refused", "Requests that were refused because too much was waiting.", **here)
        self._waiting = Gauge("waiting_texts", "Texts that wait for a batch.", **here)

    def text(self) -> bytes:
        """Returns all measures in Prometheus' format."""
        return generate_latest(self._registry)

    def watch_queue(self, length):
        """Takes the function that tells how many texts wait."""
        self._waiting.set_function(length)

    def refused(self):
        """Counts a request that was refused because too much was waiting."""
        self._refused.inc()

    def batch(self, texts, tokens, seconds):
        """Counts a batch that was translated."""
        self._texts.inc(texts)
        self._tokens.inc(tokens)
        self._rows.observe(texts)
        self._work.inc(seconds)

    def around(self, app, paths):
        """Returns an ASGI application that counts the requests of another one.

        Args:
            app: The other.
            paths: Those that are counted by name; the others are counted together.
        """

        async def counted(scope, receive, send):
            if scope["type"] != "http":
                return await app(scope, receive, send)
            path = scope["path"] if scope["path"] in paths else "other"
            began, status = time.monotonic(), "500"

            async def noted(message):
                nonlocal status
                if message["type"] == "http.response.start":
                    status = str(message["status"])
                await send(message)

            try:
                await app(scope, receive, noted)
            finally:
                self._requests.labels(path, status).inc()
                self._seconds.labels(path).observe(time.monotonic() - began)

        return counted
