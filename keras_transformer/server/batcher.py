"""Dynamic batching across requests for one or more worker threads."""

import asyncio
import collections
import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

MAX_CALLS = 8
"""Maximum number of pending `Batcher.call` invocations."""

GROWTH = 4
"""Ratio of the sizes of successive groups when `queued` queues items gradually: 1, 4, 16, …"""


class QueueFull(Exception):
    """Error for a request that does not fit into the queue."""

    def __init__(self):
        super().__init__("The queue is full. Try again in a second.")


@dataclasses.dataclass(eq=False)
class _Waiting:
    """An item in the queue.

    `since` and `deadline` are values of `time.monotonic()`. The item waits until the future `after`, if any, is done.
    """

    item: Any
    tokens: int
    future: asyncio.Future
    since: float
    deadline: float
    after: asyncio.Future | None = None

    def is_late(self, now, batch_seconds):
        """Return whether the result of a batch that takes `batch_seconds` would be too late.

        An item has at least half of its time for the batch, so a single slow batch does not affect all later items.
        """
        return self.deadline < now + min(batch_seconds, (self.deadline - self.since) / 2)


class Batcher:
    """Queue that groups the items of many requests into batches for worker threads.

    When a worker is free, the batcher takes as many of the oldest items as fit into a batch. If the batch has room for
    more items and the previous batch had several items, the batcher first waits up to `wait` seconds. Several workers
    share the items equally. Later items may overtake items that were queued gradually. Everything except `work` runs in
    the event loop, so the queue needs no locks.

    Args:
        work: Function that takes a list of items and returns the list of their results. The worker threads call it.
        batch_tokens: Maximum number of tokens per batch, including padding: items × tokens of the longest item.
        batch_rows: Maximum number of items per batch.
        wait: Maximum time in seconds that an item waits for other items while a worker is idle. After a batch of one
            item, there is no wait, because other items are unlikely to arrive.
        max_waiting: Maximum number of waiting items.
        workers: Number of worker threads. With two, one can run the model while the other tokenizes or detokenizes.
        observe: Function called with (number of items, number of tokens with padding, seconds) after each batch.
    """

    def __init__(
        self, work: Callable[[list], Sequence], *, batch_tokens: int, batch_rows: int, wait: float, max_waiting: int,
        workers: int = 1, observe: Callable[[int, int, float], Any] = lambda items, tokens, seconds: None,
    ):  # fmt: skip
        self._work, self._observe = work, observe
        self._batch_tokens, self._batch_rows = batch_tokens, batch_rows
        self._wait, self._max_waiting = wait, max_waiting
        self._queue: collections.deque[_Waiting] = collections.deque()
        self._arrival, self._call_lock, self._calls = asyncio.Event(), asyncio.Lock(), 0
        self._workers, self._threads = workers, ThreadPoolExecutor(workers, "worker")
        self._previous = 1  # number of items of the previous batch
        self._working = 0  # number of items in the batches of all workers
        self._batch_seconds = 0.0  # duration of the previous batch
        self._call_starts: list[float] = []
        self._tasks: list[asyncio.Task] = []

    def __len__(self):
        """Return the number of waiting items."""
        return len(self._queue)

    def is_alive(self, seconds: float) -> bool:
        """Return whether the batcher is running and the current call of each worker has taken at most `seconds`."""
        stuck = any(time.monotonic() - start > seconds for start in self._call_starts)
        return bool(self._tasks) and not any(task.done() for task in self._tasks) and not stuck

    @contextlib.asynccontextmanager
    async def running(self):
        """Run the batcher inside an `async with` block. Leaving the block cancels pending work without waiting."""
        self._tasks = [asyncio.create_task(self._run()) for _ in range(self._workers)]
        try:
            yield self
        finally:
            for task in self._tasks:
                task.cancel()
            for one in self._queue:
                one.future.cancel()
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def results(self, items: Sequence, tokens: Sequence[int], seconds: float = math.inf) -> list:
        """Return the result of each item. Cancelling this call removes its waiting items from the queue.

        Args:
            items, tokens, seconds: See `queued`.

        Raises:
            QueueFull: See `queued`.
            TimeoutError: A result would take longer than `seconds`.
            Exception: Any exception that `work` raises for a single item.
        """
        with self.queued(items, tokens, seconds) as futures:
            return await asyncio.gather(*futures)

    @contextlib.contextmanager
    def queued(self, items: Sequence, tokens: Sequence[int], seconds: float = math.inf, *, gradually: bool = False):
        """Queue items during a `with` block, and yield the list of their futures.

        Each future receives the result of its item, or an exception (see `results`). Leaving the block removes the
        items that are still waiting.

        Args:
            items: Arguments of `work`.
            tokens: Number of tokens of each item.
            seconds: Time after which the caller no longer needs the results.
            gradually: Whether to divide the items into groups of 1, 4, 16, …, each of which waits for the previous
                group, so that the first results arrive early.

        Raises:
            QueueFull: The queue has no room for all items.
        """
        if len(self._queue) + len(items) > self._max_waiting:
            raise QueueFull()
        loop, now = asyncio.get_running_loop(), time.monotonic()
        waiting = [_Waiting(item, n, loop.create_future(), now, now + seconds) for item, n in zip(items, tokens)]
        if gradually:
            start, size = 1, GROWTH
            while start < len(waiting):
                for one in waiting[start : start + size]:
                    one.after = waiting[start - 1].future
                start, size = start + size, size * GROWTH
        self._queue.extend(waiting)
        self._arrival.set()
        try:
            yield [one.future for one in waiting]
        finally:
            # After an error or a cancellation, the caller does not need the other results.
            for one in waiting:
                if not one.future.cancel() and not one.future.cancelled():
                    one.future.exception()  # otherwise asyncio would log an exception that nobody has read
            if any(one.future.cancelled() for one in waiting):
                self._queue = collections.deque(one for one in self._queue if not one.future.cancelled())

    async def call(self, function: Callable, *arguments) -> Any:
        """Call a function in a worker thread, after the thread's current batch, and return its result.

        Raises:
            QueueFull: `MAX_CALLS` other calls are pending.
            Exception: Any exception that the function raises.
        """
        if self._calls >= MAX_CALLS:
            raise QueueFull()
        self._calls += 1
        try:
            async with self._call_lock:  # one call at a time, so that a batch waits for at most one call
                running = asyncio.ensure_future(self._in_worker(function, *arguments))
                try:
                    return await asyncio.shield(running)
                finally:  # after a cancellation, the thread is still running
                    await asyncio.gather(running, return_exceptions=True)
        finally:
            self._calls -= 1

    async def _run(self):
        while True:
            await self._wait_for_batch()
            if batch := self._next_batch():
                start, self._previous = time.monotonic(), len(batch)
                try:
                    await self._process(batch)
                    await asyncio.sleep(0)  # after a failure, lets the caller remove its other items from the queue
                finally:
                    self._working -= len(batch)
                    for one in batch:
                        one.future.cancel()  # no effect unless the batcher is stopping
                self._batch_seconds = seconds = max(time.monotonic() - start, 1e-6)
                self._observe(len(batch), len(batch) * max(one.tokens for one in batch), seconds)

    async def _wait_for_batch(self):
        """Wait until a batch is full or the oldest item has waited long enough for others."""
        wait = self._wait if self._previous > 1 else 0
        while not (ready := self._fitting(self._batch_rows)) or len(ready) == len(self._queue) < self._batch_rows:
            rest = ready[0].since + wait - time.monotonic() if ready else None
            if rest is not None and rest <= 0:
                return
            self._arrival.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await self._arrival.wait()

    def _ready(self):
        """Return the items in the queue that do not wait for an earlier group."""
        return [one for one in self._queue if one.after is None or one.after.done()]

    def _fitting(self, rows):
        """Return the oldest items, at most `rows`, that fit into one batch. A single item always fits."""
        batch: list[_Waiting] = []
        longest = 0
        for one in self._ready():
            longest = max(longest, one.tokens)
            if batch and (len(batch) == rows or (len(batch) + 1) * longest > self._batch_tokens):
                break
            batch.append(one)
        return batch

    def _next_batch(self):
        """Remove a batch from the queue and return it. Items that would miss their deadline get a `TimeoutError`."""
        now = time.monotonic()
        while self._queue and self._queue[0].is_late(now, self._batch_seconds):
            late = self._queue.popleft().future
            if not late.done():
                late.set_exception(TimeoutError())
        share = -(-(len(self._ready()) + self._working) // self._workers)
        batch = self._fitting(min(share, self._batch_rows))
        self._working += len(batch)
        taken = set(batch)
        self._queue = collections.deque(one for one in self._queue if one not in taken)
        return batch

    async def _process(self, batch):
        """Set the result of each item. If the batch fails, retry its items one by one to isolate the faulty ones."""
        try:
            results = await self._in_worker(self._work, [one.item for one in batch])
        except Exception as error:
            for one in batch:
                if not one.future.done():
                    if len(batch) > 1:
                        await self._process([one])
                    else:
                        one.future.set_exception(error)
            results = []
        for one, result in zip(batch, results):
            if not one.future.done():
                one.future.set_result(result)
        self._arrival.set()  # items of later groups may have waited for this batch

    async def _in_worker(self, function, *arguments):
        def call():
            start = time.monotonic()
            self._call_starts.append(start)
            try:
                return function(*arguments)
            finally:
                self._call_starts.remove(start)

        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
