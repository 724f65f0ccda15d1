"""Doing together what comes at the same time: while one batch is under way, the next one gathers."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import TYPE_CHECKING, Generic, TypeVar

from onejob.stores.protocol import BATCH_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

Q = TypeVar("Q")
A = TypeVar("A")
AT_ONCE = 2
"""How many batches may be under way: one waits for the store while another is made ready."""
ALONE_AT_ONCE = 32


class Deferred(Generic[A]):
    """An answer that takes its time: `find` is called in a thread of its own, and holds up no batch."""

    def __init__(self, find: Callable[[], A | Exception]) -> None:
        self.find = find


class Batcher(Generic[Q, A]):
    """Gives what many coroutines of one event loop ask for to `work`, in a thread, as few lists as keep it busy.

    `work` returns an answer for each question, in their order; an exception as an answer is raised where it was asked.
    What is asked alone is done at once: a list waits only while others are under way. No list runs in the context of
    one of those who asked.
    """

    def __init__(self, work: Callable[[Sequence[Q]], Sequence[A | Deferred[A] | Exception]]) -> None:
        self._work = work
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(AT_ONCE, "onejob-batch")
        self._slow = ThreadPoolExecutor(ALONE_AT_ONCE, "onejob-alone")

    async def ask(self, question: Q) -> A:
        """Return the answer to a question."""
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if self._under_way < AT_ONCE:
            self._under_way += 1
            self._start(self._go_on())
        return await answer

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _go_on(self) -> None:
        try:
            while self._waiting:
                await self._next_batch()
        finally:
            self._under_way -= 1  # in the step in which nothing was waiting: who comes later finds the place free

    async def _next_batch(self) -> None:
        batch, self._waiting = self._waiting[:BATCH_LIMIT], self._waiting[BATCH_LIMIT:]
        questions = [question for question, _ in batch]
        answers = await asyncio.get_running_loop().run_in_executor(self._threads, self._answers, questions)
        for (_, future), answer in zip(batch, answers, strict=True):
            if isinstance(answer, Deferred):
                self._start(self._wait_for(answer, future))
            else:
                _settle(future, answer)

    async def _wait_for(self, alone: Deferred[A], future: asyncio.Future[A]) -> None:
        _settle(future, await asyncio.get_running_loop().run_in_executor(self._slow, alone.find))

    def _answers(self, questions: list[Q]) -> Sequence[A | Deferred[A] | Exception]:
        try:
            return self._work(questions)
        except Exception as error:  # noqa: BLE001 - it is told to each who asked
            return [error for _ in questions]


def _settle(future: asyncio.Future[A], answer: A | Exception) -> None:
    if future.done():
        return  # who asked has gone away
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
