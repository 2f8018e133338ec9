"""Prometheus metrics of the server."""

import time

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Prometheus metrics of one server.

    Args:
        queue_length: Function that returns the number of waiting texts.
    """

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, queue_length):
        self._registry = CollectorRegistry()
        options = {"registry": self._registry}
        ProcessCollector(**options)
        self._requests = Counter("requests", "Number of answered requests.", ["path", "status"], **options)
        self._seconds = Histogram(
            "request_seconds", "Time from a request to its answer, in seconds.", ["path"], buckets=SECONDS, **options
        )
        self._texts = Counter("texts", "Number of translated texts.", **options)
        self._tokens = Counter("batch_tokens", "Number of tokens in translated batches, padding included.", **options)
        self._rows = Histogram("batch_texts", "Texts per batch.", buckets=ROWS, **options)
        self._work = Counter("translation_seconds", "Time spent translating batches, in seconds.", **options)
        self.refused = Counter("refused", "Number of requests refused because the queue was full.", **options)
        Gauge("waiting_texts", "Number of texts waiting for a batch.", **options).set_function(queue_length)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def add_batch(self, texts, tokens, seconds):
        """Count a translated batch."""
        self._texts.inc(texts)
        self._tokens.inc(tokens)
        self._rows.observe(texts)
        self._work.inc(seconds)

    def add_request(self, path, status, seconds):
        """Count an answered request."""
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)


class CountRequests:
    """ASGI middleware that counts requests by status and by the path of their route ("other" if no route matches).

    The headers of a streamed response always have status 200, even if an error occurs later. The middleware therefore
    counts the status that such a response stores as `final_status` in the ASGI scope.
    """

    def __init__(self, app, metrics):
        self._app, self._metrics = app, metrics

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, status = time.monotonic(), 500

        async def noting_send(message):
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self._metrics.add_request(path, scope.get("final_status", status), time.monotonic() - start)
