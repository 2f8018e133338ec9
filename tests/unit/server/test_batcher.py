"""Tests of `Batcher` without a server: batches, overload, cancellation."""

import asyncio
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.server.batcher import Batcher, QueueFull


@given(
    arrivals=st.lists(st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.booleans()), max_size=12),
    batch_tokens=st.integers(1, 30), batch_rows=st.integers(1, 6), workers=st.integers(1, 3),
)  # fmt: skip
def test_batcher_keeps_order_and_budget(arrivals, batch_tokens, batch_rows, workers):
    batches = []

    def work(items):
        batches.append(list(items))
        return [("done", item) for item in items]

    async def everything():
        batcher = Batcher(
            work, batch_tokens=batch_tokens, batch_rows=batch_rows, wait=0.0005, max_waiting=1000, workers=workers
        )
        async with batcher.running():
            tasks, number = [], 0
            for tokens, pause in arrivals:
                items = [(number + i, count) for i, count in enumerate(tokens)]
                number += len(items)
                tasks.append((items, asyncio.create_task(batcher.results(items, tokens))))
                await asyncio.sleep(0.001 if pause else 0)
            return [(items, await task) for items, task in tasks]

    for items, results in asyncio.run(everything()):
        assert results == [("done", item) for item in items]
    done = [number for batch in batches for number, _ in batch]
    assert (done if workers == 1 else sorted(done)) == list(range(sum(len(tokens) for tokens, _ in arrivals)))
    for batch in batches:
        assert len(batch) <= batch_rows
        assert len(batch) == 1 or len(batch) * max(tokens for _, tokens in batch) <= batch_tokens


def test_batcher_recovers_from_a_batch_beyond_the_deadline():
    pauses = [0.3]

    def work(items):
        time.sleep(pauses.pop() if pauses else 0)
        return items

    async def everything():
        batcher = Batcher(work, batch_tokens=9, batch_rows=2, wait=0, max_waiting=9)
        async with batcher.running():
            with pytest.raises(TimeoutError):
                await batcher.results(["a", "b", "c"], [1] * 3, seconds=0.2)
            assert await batcher.results(["d"], [1], seconds=0.2) == ["d"]

    asyncio.run(everything())


def test_batcher_answers_in_time_under_overload():
    """Check that the batcher skips items without enough time. Otherwise, it would finish most batches too late."""
    answered, late = [], []

    def work(items):
        time.sleep(0.1)
        return items

    async def client(batcher):
        for _ in range(4):
            try:
                async with asyncio.timeout(0.5):
                    answered.extend(await batcher.results(["a"], [1], seconds=0.5))
            except TimeoutError:
                late.append("a")

    async def everything():
        batcher = Batcher(work, batch_tokens=4, batch_rows=4, wait=0, max_waiting=1000)  # 40 items per second
        async with batcher.running():
            await asyncio.gather(*(client(batcher) for _ in range(100)))

    asyncio.run(asyncio.wait_for(everything(), 60))
    assert len(answered) + len(late) == 400
    assert len(answered) > 30


def test_batcher_waits_only_after_batches_of_several():
    async def everything():
        batcher = Batcher(list, batch_tokens=9, batch_rows=9, wait=0.5, max_waiting=9)

        async def seconds(items):
            began = time.monotonic()
            assert await batcher.results(items, [1] * len(items)) == items
            return time.monotonic() - began

        async with batcher.running():
            alone = [await seconds(["a"]), await seconds(["b"]), await seconds(["c", "d"])]
            assert min(alone) < 0.5 <= await seconds(["e"])
            assert await seconds(["f"]) < 0.5

    asyncio.run(everything())


def test_batcher_divides_items_among_workers():
    together, sizes = threading.Barrier(2), []

    def work(items):
        sizes.append(len(items))
        together.wait(10)  # fails unless both workers have a batch
        return items

    async def everything():
        batcher = Batcher(work, batch_tokens=99, batch_rows=99, wait=0, max_waiting=99, workers=2)
        async with batcher.running():
            assert await batcher.results(range(7), [1] * 7) == [*range(7)]

    asyncio.run(everything())
    assert sorted(sizes) == [3, 4]


def test_batcher_with_two_workers_finishes_gradual_items():
    async def everything():
        batcher = Batcher(list, batch_tokens=9, batch_rows=9, wait=0.01, max_waiting=99, workers=2)
        async with batcher.running():
            for _ in range(2):
                with batcher.queued("abcdefg", [1] * 7, gradually=True) as futures:
                    assert "".join([await future for future in futures]) == "abcdefg"

    asyncio.run(everything())


def test_batcher_divides_gradual_groups_among_workers():
    together = threading.Barrier(2)

    def work(items):
        if items != ["a"]:
            together.wait(10)  # fails unless both workers have a batch
        return items

    async def everything():
        batcher = Batcher(work, batch_tokens=9, batch_rows=9, wait=0, max_waiting=99, workers=2)
        async with batcher.running():
            with batcher.queued("abcde", [1] * 5, gradually=True) as futures:
                assert "".join([await future for future in futures]) == "abcde"

    asyncio.run(everything())


def test_batcher_call_waits_for_a_cancelled_call():
    gate, running, seen = threading.Event(), [], []

    def function(name):
        seen.append([*running])
        running.append(name)
        gate.wait(10)
        running.remove(name)
        return name

    async def everything():
        batcher = Batcher(list, batch_tokens=9, batch_rows=9, wait=0, max_waiting=9, workers=2)
        async with batcher.running():
            first = asyncio.create_task(batcher.call(function, "first"))
            while not running:
                await asyncio.sleep(0.001)
            first.cancel()
            second = asyncio.create_task(batcher.call(function, "second"))
            await asyncio.sleep(0.02)
            gate.set()
            assert await second == "second"

    asyncio.run(everything())
    assert seen == [[], []]


def test_batcher_drops_cancelled_items():
    seen = []

    async def everything():
        batcher = Batcher(
            lambda items: seen.extend(items) or items, batch_tokens=9, batch_rows=9, wait=0.05, max_waiting=4
        )
        async with batcher.running():
            await batcher.results(["x", "y"], [1, 1])
            seen.clear()
            task = asyncio.create_task(batcher.results(["a", "b"], [1, 1]))
            await asyncio.sleep(0)
            with pytest.raises(QueueFull):
                await batcher.results(["c"] * 3, [1] * 3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(batcher) == 0

    asyncio.run(everything())
    assert seen == []


def test_batcher_puts_gradual_items_into_growing_batches():
    batches = []

    def work(items):
        batches.append("".join(items))
        return items

    async def gradual(batcher, items, tokens):
        with batcher.queued(items, tokens, gradually=True) as futures:
            return "".join([await future for future in futures])

    async def everything():
        batcher = Batcher(work, batch_tokens=8, batch_rows=6, wait=0, max_waiting=99)
        async with batcher.running():
            long, short = gradual(batcher, "abcdefghijklmn", [1] * 14), gradual(batcher, "ABC", [1] * 3)
            assert await asyncio.gather(long, short) == ["abcdefghijklmn", "ABC"]
            mixed, others = gradual(batcher, "tuvw", [1, 5, 1, 8]), batcher.results("xyz", [1] * 3)
            assert await asyncio.gather(mixed, others) == ["tuvw", [*"xyz"]]
            assert await gradual(batcher, "", []) == ""

    asyncio.run(everything())
    assert batches == ["aA", "bcdeBC", "fghijk", "lmn", "txyz", "u", "v", "w"]


def test_batcher_drops_rest_of_gradual_items():
    batches = []

    def work(items):
        batches.append("".join(items))
        if "c" in items:
            raise ValueError("c")
        return items

    async def everything():
        batcher = Batcher(work, batch_tokens=9, batch_rows=9, wait=0, max_waiting=9)
        async with batcher.running():
            with pytest.raises(ValueError, match="c"), batcher.queued("abcdef", [1] * 6, gradually=True) as futures:
                assert [await future for future in futures[:2]] == ["a", "b"]
                await futures[2]
            assert len(batcher) == 0
            assert await batcher.results(["x"], [1]) == ["x"]

    asyncio.run(everything())
    assert batches == ["a", "bcde", "b", "c", "d", "x"]
