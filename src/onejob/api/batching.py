"""Doing together what comes at the same time: while one batch is under way, the next one gathers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from onejob.store import BATCH_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Q = TypeVar("Q")
A = TypeVar("A")
AT_ONCE = 2
"""How many batches may be under way: one waits for the store while another is made ready."""


class Batcher(Generic[Q, A]):
    """Gives what many coroutines of one event loop ask for to `work`, in a thread, as few lists as keep it busy.

    `work` returns an answer for each question, in their order; an exception as an answer is raised where it was asked.
    What is asked alone is done at once: a list waits only while others are under way.
    """

    def __init__(self, work: Callable[[Sequence[Q]], Sequence[A | Exception]]) -> None:
        self._work = work
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._under_way: set[asyncio.Task[None]] = set()

    async def ask(self, question: Q) -> A:
        """Return the answer to a question."""
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if len(self._under_way) < AT_ONCE:
            task = asyncio.create_task(self._go_on())
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        return await answer

    async def _go_on(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH_LIMIT], self._waiting[BATCH_LIMIT:]
            answers = await asyncio.to_thread(self._answers, [question for question, _ in batch])
            for (_, future), answer in zip(batch, answers, strict=True):
                if future.done():
                    continue  # who asked has gone away
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    def _answers(self, questions: list[Q]) -> Sequence[A | Exception]:
        try:
            return self._work(questions)
        except Exception as error:  # noqa: BLE001 - it is told to each who asked
            return [error for _ in questions]
