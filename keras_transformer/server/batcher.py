"""Texts that many ask for at once, translated together: one thread works, the event loop fills its next batch."""

import asyncio
import collections
import contextlib
import dataclasses
import math
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

MOST_TURNS = 8
"""Most calls of `in_turn` that wait."""


class QueueFull(Exception):
    """More is waiting than may wait, or than can be done in time.

    Attributes:
        seconds: After how many there may be room, at the rate of the last full batches.
    """

    def __init__(self, seconds):
        super().__init__(f"too much is waiting; try again in {seconds} s")
        self.seconds = seconds


@dataclasses.dataclass(eq=False)
class _Waiting:
    """A text that waits: what is asked, its tokens, who is told, since when it waits, and until when that helps."""

    item: Any
    tokens: int
    future: asyncio.Future
    since: float
    deadline: float


class Batcher:
    """Gathers items from many requests into batches of one worker thread.

    A batch begins when the worker is free and something waits; it is what came first, as much as fits into the token
    budget. Where that would not fill it, `wait` seconds may pass in which more comes. All of it but `work` runs in the
    event loop, so nothing is locked.

    Args:
        work: Function of a list of items to the list of their results; called in the worker thread.
        batch_tokens: Most tokens of a batch, padding included: items × tokens of the longest.
        batch_rows: Most items of a batch.
        wait: Seconds.
        most_waiting: Most items that wait; more are refused, and so is what could hardly be done in time.
        observe: Called with (items, tokens with padding, seconds) of each batch.
    """

    def __init__(
        self, work: Callable[[list], Sequence], *, batch_tokens: int, batch_rows: int, wait: float, most_waiting: int,
        observe: Callable[[int, int, float], Any] = lambda items, tokens, seconds: None,
    ):  # fmt: skip
        self._work, self._observe = work, observe
        self._batch_tokens, self._batch_rows = batch_tokens, batch_rows
        self._wait, self._most_waiting = wait, most_waiting
        self._queue: collections.deque[_Waiting] = collections.deque()
        self._turns: collections.deque[tuple[asyncio.Future, Callable, tuple]] = collections.deque()
        self._arrived = asyncio.Event()
        self._thread = _Thread()
        # Of full batches: those that left something waiting. Others tell nothing of what could be done.
        self._rate, self._last = math.inf, 0.0  # items a second; seconds of the last one
        self._began: float | None = None
        self._task: asyncio.Task | None = None

    def __len__(self):
        """Items that wait."""
        return len(self._queue)

    def works(self, seconds: float) -> bool:
        """Whether batches are made, and the one at work has not taken longer than `seconds`."""
        stuck = self._began is not None and time.monotonic() - self._began > seconds
        return self._task is not None and not self._task.done() and not stuck

    @contextlib.asynccontextmanager
    async def running(self):
        """Works inside an `async with` block. At its end nothing is waited for: what is not done is cancelled."""
        self._task = asyncio.create_task(self._run())
        try:
            yield self
        finally:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            for one in self._queue:
                one.future.cancel()
            for future, *_ in self._turns:
                future.cancel()
            self._thread.end()

    async def results(self, items: Sequence, tokens: Sequence[int], seconds: float = math.inf) -> list:
        """Returns the result of each item; if this is cancelled, those that still wait are taken back.

        Args:
            items: What is asked for.
            tokens: The tokens of each.
            seconds: In which a result is of use.

        Raises:
            QueueFull: They would be more than may wait, or hardly done in half of the time; none is taken.
            TimeoutError: They waited so long that they could not be done in time.
            Exception: What `work` raised for one of them alone.
        """
        ahead = len(self._queue) / self._rate
        if len(self._queue) + len(items) > self._most_waiting or ahead > seconds / 2:
            raise QueueFull(max(1, math.ceil(min(ahead, seconds))))
        loop, now = asyncio.get_running_loop(), time.monotonic()
        waiting = [
            _Waiting(item, number, loop.create_future(), now, now + seconds) for item, number in zip(items, tokens)
        ]
        self._queue.extend(waiting)
        self._arrived.set()
        try:
            return await asyncio.gather(*(one.future for one in waiting))
        finally:
            # One failed, or nobody waits any more: the others are not needed either.
            for one in waiting:
                one.future.cancel()
            if any(one.future.cancelled() for one in waiting):
                self._queue = collections.deque(one for one in self._queue if not one.future.cancelled())

    async def in_turn(self, function: Callable, *arguments) -> Any:
        """Returns what a function returns that is called in the worker thread, between two batches.

        Raises:
            QueueFull: `MOST_TURNS` others wait.
            Exception: What the function raises.
        """
        self._turns = collections.deque(turn for turn in self._turns if not turn[0].done())
        if len(self._turns) >= MOST_TURNS:
            raise QueueFull(1)
        future = asyncio.get_running_loop().create_future()
        self._turns.append((future, function, arguments))
        self._arrived.set()
        return await future

    async def _run(self):
        while True:
            while not (self._queue or self._turns):
                self._arrived.clear()
                await self._arrived.wait()
            if self._turns:
                future, function, arguments = self._turns.popleft()
                if not future.done():
                    await self._tell(future, function, *arguments)
            if self._queue:
                await self._filled()
                if batch := self._next():
                    await self._done(batch)

    async def _filled(self):
        """Returns when what waits fills a batch or has waited long enough."""
        while self._queue and not self._fills():
            rest = self._queue[0].since + self._wait - time.monotonic()
            if rest <= 0:
                return
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), rest)

    def _fills(self):
        return self._fitting() < len(self._queue) or len(self._queue) == self._batch_rows

    def _fitting(self):
        """How many of those that wait make the next batch: at least one."""
        longest = 0
        for number, one in enumerate(self._queue):
            longest = max(longest, one.tokens)
            if number and (number == self._batch_rows or (number + 1) * longest > self._batch_tokens):
                return number
        return len(self._queue)

    def _next(self):
        """The next batch, without what could not be done in time."""
        possible = time.monotonic() + self._last
        while self._queue and self._queue[0].deadline < possible:
            late = self._queue.popleft()
            if not late.future.done():
                late.future.set_exception(TimeoutError())
        return [self._queue.popleft() for _ in range(self._fitting())] if self._queue else []

    async def _done(self, batch):
        items, tokens, full = len(batch), max(one.tokens for one in batch), bool(self._queue)
        self._began = began = time.monotonic()
        try:
            await self._worked(batch)
        finally:
            self._began = None
            for one in batch:
                one.future.cancel()  # where the work was broken off
        seconds = max(time.monotonic() - began, 1e-6)
        if full:
            rate = items / seconds
            self._rate = rate if self._rate == math.inf else 0.7 * self._rate + 0.3 * rate
            self._last = seconds
        self._observe(items, items * tokens, seconds)

    async def _worked(self, batch):
        """Tells each its result. Where a batch fails, each is tried alone, so that one harms no other."""
        try:
            results = await self._thread.call(self._work, [one.item for one in batch])
        except Exception as error:
            for one in batch if len(batch) > 1 else []:
                if not one.future.done():
                    await self._worked([one])
            if len(batch) == 1 and not batch[0].future.done():
                batch[0].future.set_exception(error)
            return
        for one, result in zip(batch, results):
            if not one.future.done():  # somebody waits for it
                one.future.set_result(result)

    async def _tell(self, future, function, *arguments):
        self._began = time.monotonic()
        try:
            result = await self._thread.call(function, *arguments)
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)
        finally:
            self._began = None


class _Thread:
    """One thread that calls functions in their order. It is a daemon, so that a call does not hold up an exit."""

    def __init__(self):
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._work, name="worker", daemon=True).start()

    async def call(self, function, *arguments):
        """Returns what the function returns, or raises what it raises."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._calls.put((loop, future, function, arguments))
        return await future

    def end(self):
        """Lets the thread end after the calls before this one."""
        self._calls.put(None)

    def _work(self):
        while call := self._calls.get():
            loop, future, function, arguments = call
            try:
                tell, value = _set_result, function(*arguments)
            except Exception as error:
                tell, value = _set_exception, error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(tell, future, value)
            del call, future, arguments, value


def _set_result(future, value):
    if not future.done():
        future.set_result(value)


def _set_exception(future, error):
    if not future.done():
        future.set_exception(error)


async def until(awaitable: Awaitable, gone: Awaitable, seconds: float) -> Any:
    """Returns the result of `awaitable`, or None if `gone` ended before it; either is cancelled when the other ends.

    Raises:
        TimeoutError: Neither ended in time.
    """
    work, end = asyncio.ensure_future(awaitable), asyncio.ensure_future(gone)
    try:
        async with asyncio.timeout(seconds):
            await asyncio.wait({work, end}, return_when=asyncio.FIRST_COMPLETED)
        return await work if work.done() else None
    finally:
        for task in (work, end):
            task.cancel()
        await asyncio.gather(work, end, return_exceptions=True)
