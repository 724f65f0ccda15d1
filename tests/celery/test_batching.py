"""Batching: concurrent items are processed together, and each gets its own result."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from onejob.celery.batching import MAX_BATCHES, Batcher, Pending
from onejob.stores.protocol import BATCH_LIMIT
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Doubler:
    """Doubles batches of numbers, once `opened` is set."""

    def __init__(self, double: Callable[[int], int | Exception] = lambda number: 2 * number) -> None:
        self.batches: list[list[int]] = []
        self.busy = threading.Semaphore(0)
        self.opened = threading.Event()
        self._double = double

    def work(self, numbers: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(numbers))
        self.busy.release()
        assert self.opened.wait(30)
        return [self._double(number) for number in numbers]


async def _process_concurrently(batcher: Batcher[int, int], doubler: Doubler, count: int) -> list[int | BaseException]:
    """Process one item, and the others while its batch is in progress."""
    tasks = [asyncio.create_task(batcher.process(0))]
    await asyncio.to_thread(doubler.busy.acquire, timeout=30)
    tasks += [asyncio.create_task(batcher.process(number)) for number in range(1, count)]
    await asyncio.sleep(0)
    doubler.opened.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


@for_each("count", [100, 2 * BATCH_LIMIT + 7])
def test_concurrent_items_are_batched(count: int) -> None:
    """Items that arrive while batches are in progress form few, limited batches, and each gets its own result."""
    doubler = Doubler()
    results = asyncio.run(_process_concurrently(Batcher(doubler.work), doubler, count))
    assert results == [2 * number for number in range(count)]
    assert sorted(number for each in doubler.batches for number in each) == list(range(count))
    assert len(doubler.batches) <= MAX_BATCHES + 1 + count // BATCH_LIMIT
    assert max(map(len, doubler.batches)) <= BATCH_LIMIT


def test_an_error_is_raised_for_its_item() -> None:
    """An exception as a result is raised for its item only."""
    doubler = Doubler(lambda number: ValueError("seven") if number == 7 else number)
    results = asyncio.run(_process_concurrently(Batcher(doubler.work), doubler, 20))
    assert [number for number, each in enumerate(results) if isinstance(each, ValueError)] == [7]
    assert sum(isinstance(each, int) for each in results) == 19


def test_a_failed_batch_fails_each_item() -> None:
    """An exception of the whole batch is raised for each of its items, and the next batch is processed."""

    def fails(numbers: Sequence[int]) -> list[int]:
        if 0 in numbers:
            raise ConnectionError("away")
        return list(numbers)

    async def scenario() -> int:
        batcher = Batcher(fails)
        with pytest.raises(ConnectionError, match="away"):
            await batcher.process(0)
        return await batcher.process(1)

    assert asyncio.run(scenario()) == 1


def test_a_deferred_result_delays_no_other() -> None:
    """The other items of the batch and later batches do not wait for a deferred result."""
    opened = threading.Event()

    def slow() -> int:
        assert opened.wait(30)
        return -1

    def work(numbers: Sequence[int]) -> list[int | Pending[int] | Exception]:
        return [Pending(slow) if number == 0 else number for number in numbers]

    async def scenario() -> tuple[list[int], int]:
        batcher = Batcher(work)
        waits = [asyncio.create_task(batcher.process(0)) for _ in range(MAX_BATCHES + 1)]
        others = [await batcher.process(number) for number in range(1, 50)]
        opened.set()
        return others, sum(await asyncio.gather(*waits))

    assert asyncio.run(scenario()) == (list(range(1, 50)), -MAX_BATCHES - 1)


def test_no_item_is_left_behind() -> None:
    """However the arrival of items and the end of batches interleave, each item is processed."""

    async def scenario() -> int:
        batcher: Batcher[int, int] = Batcher(list)
        count = 0
        for _ in range(200):
            count += len(await asyncio.gather(*(batcher.process(number) for number in range(MAX_BATCHES + 1))))
        return count

    assert asyncio.run(asyncio.wait_for(scenario(), 60)) == 200 * (MAX_BATCHES + 1)
