"""What is asked at the same time is done together, and each gets an answer of its own."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING

import pytest

from onejob.api.batching import AT_ONCE, Batcher, Deferred
from onejob.stores.protocol import BATCH_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class WebhookDispatcher:
    """Doubles numbers, list by list, once it is open."""

    def __init__(self, double: Callable[[int], int | Exception] = lambda number: 2 * number) -> None:
        self.lists: list[list[int]] = []
        self.busy = threading.Semaphore(0)
        self.opened = threading.Event()
        self._double = double

    def work(self, numbers: Sequence[int]) -> list[int | Exception]:
        self.lists.append(list(numbers))
        self.busy.release()
        assert self.opened.wait(30)
        return [self._double(number) for number in numbers]


async def _asked(batcher: Batcher[int, int], webhooks: WebhookDispatcher, count: int) -> list[int | BaseException]:
    """Ask for one, for the others while the work is busy with it, and open the desk."""
    asking = [asyncio.create_task(batcher.ask(0))]
    await asyncio.to_thread(webhooks.busy.acquire, timeout=30)
    asking += [asyncio.create_task(batcher.ask(number)) for number in range(1, count)]
    await asyncio.sleep(0)
    webhooks.opened.set()
    return await asyncio.gather(*asking, return_exceptions=True)


def test_what_comes_together_is_done_together() -> None:
    """Whatever is asked while the work is busy waits for it in one list, in order, and each gets its own answer."""
    webhooks = WebhookDispatcher()
    answers = asyncio.run(_asked(Batcher(webhooks.work), webhooks, 100))
    assert answers == [2 * number for number in range(100)]
    assert sorted(number for each in webhooks.lists for number in each) == list(range(100))
    assert len(webhooks.lists) <= AT_ONCE + 1


def test_no_list_is_longer_than_a_store_takes() -> None:
    """A list has no more than a store is given at once, however many are waiting."""
    webhooks = WebhookDispatcher()
    answers = asyncio.run(_asked(Batcher(webhooks.work), webhooks, 2 * BATCH_LIMIT + 7))
    assert len(answers) == 2 * BATCH_LIMIT + 7
    assert max(map(len, webhooks.lists)) <= BATCH_LIMIT


def test_an_error_is_told_to_the_one_it_is_about() -> None:
    """An error among the answers is raised where it was asked for, and the others get theirs."""
    webhooks = WebhookDispatcher(lambda number: ValueError("seven") if number == 7 else number)
    answers = asyncio.run(_asked(Batcher(webhooks.work), webhooks, 20))
    assert [number for number, each in enumerate(answers) if isinstance(each, ValueError)] == [7]
    assert sum(isinstance(each, int) for each in answers) == 19


def test_work_that_fails_fails_for_all_of_its_list() -> None:
    """What the work itself raises is raised for each in the list, and the next list is done."""

    def fails(numbers: Sequence[int]) -> list[int]:
        if 0 in numbers:
            raise ConnectionError("away")
        return list(numbers)

    async def ask() -> int:
        batcher = Batcher(fails)
        with pytest.raises(ConnectionError, match="away"):
            await batcher.ask(0)
        return await batcher.ask(1)

    assert asyncio.run(ask()) == 1


def test_who_goes_away_takes_nobody_along() -> None:
    """One who no longer waits for an answer leaves the answers of the others as they are."""
    webhooks = WebhookDispatcher()

    async def ask() -> list[int | BaseException]:
        batcher = Batcher(webhooks.work)
        gone = asyncio.create_task(batcher.ask(1000))
        await asyncio.sleep(0)
        gone.cancel()
        return await _asked(batcher, webhooks, 10)

    assert asyncio.run(ask()) == [2 * number for number in range(10)]


def test_an_answer_that_takes_its_time_holds_up_nobody() -> None:
    """What is answered alone comes when it comes, and those asked with it and after it do not wait for it."""
    opened = threading.Event()

    def slow() -> int:
        assert opened.wait(30)
        return -1

    def work(numbers: Sequence[int]) -> list[int | Deferred[int] | Exception]:
        return [Deferred(slow) if number == 0 else number for number in numbers]

    async def ask() -> tuple[list[int], int]:
        batcher = Batcher(work)
        waits = [asyncio.create_task(batcher.ask(0)) for _ in range(AT_ONCE + 1)]
        others = [await batcher.ask(number) for number in range(1, 50)]
        opened.set()
        return others, sum(await asyncio.gather(*waits))

    assert asyncio.run(ask()) == (list(range(1, 50)), -AT_ONCE - 1)


def test_nothing_runs_in_the_context_of_one_who_asked() -> None:
    """What one who asks has set for itself is not there when the question of another is worked on."""
    mine: ContextVar[str] = ContextVar("mine", default="nobody's")

    async def ask() -> list[str]:
        batcher: Batcher[int, str] = Batcher(lambda numbers: [mine.get() for _ in numbers])
        mine.set("mine")
        return [await batcher.ask(1), await batcher.ask(2)]

    assert asyncio.run(ask()) == ["nobody's"] * 2


def test_a_place_is_free_as_soon_as_nothing_waits() -> None:
    """However answers and questions interleave, each question is answered."""

    async def ask() -> int:
        batcher: Batcher[int, int] = Batcher(list)
        told = 0
        for _ in range(200):
            told += len(await asyncio.gather(*(batcher.ask(number) for number in range(AT_ONCE + 1))))
        return told

    assert asyncio.run(asyncio.wait_for(ask(), 60)) == 200 * (AT_ONCE + 1)
