"""A carrier for tests: the requests of several threads go to a store together, by one call each time."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any, TypeVar

from onejob.errors import StoreError
from onejob.stores.carrier import Pending, carried, set_carrier

T = TypeVar("T")
PATIENCE = 40.0


class Gathering:
    """A `Carrier` of concurrent calls: when each of them waits for a request or has ended, the requests are sent."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._active = 0
        self._waiting: list[_Ticket] = []
        self.sizes: list[int] = []
        """How many requests went to the store together, each time."""

    def gather(self, *operations: Callable[[], T]) -> list[T | StoreError]:
        """Return the answers of concurrent operations, or their errors."""
        self._active = len(operations)
        with ThreadPoolExecutor(len(operations)) as threads:
            return list(threads.map(self._call, operations))

    def _call(self, operation: Callable[[], T]) -> T | StoreError:
        set_carrier(self)
        try:
            return carried(operation)
        except StoreError as error:
            return error
        finally:
            with self._changed:
                self._active -= 1
                self._send_if_all_wait()

    def is_usable(self) -> bool:
        return True

    def is_of_running_loop(self) -> bool:
        return False

    async def call(self, operation: Callable[[], T]) -> T:
        raise NotImplementedError

    def carry(self, process: Callable[[Sequence[Any]], Sequence[Any]], request: Any) -> Any:
        ticket = _Ticket(process, request)
        with self._changed:
            self._waiting.append(ticket)
            self._send_if_all_wait()
            assert self._changed.wait_for(lambda: ticket.results, PATIENCE)
        (result,) = ticket.results
        if isinstance(result, Pending):
            result = result.compute()
        if isinstance(result, Exception):
            raise result
        return result

    def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    def _send_if_all_wait(self) -> None:
        if len(self._waiting) < self._active:
            return
        waiting, self._waiting = self._waiting, []
        by_process = defaultdict[Callable[..., Any], "list[_Ticket]"](list)
        for ticket in waiting:
            by_process[ticket.process].append(ticket)
        for process, tickets in by_process.items():
            self.sizes.append(len(tickets))
            results = Context().run(_process, process, [ticket.request for ticket in tickets])
            for ticket, result in zip(tickets, results, strict=True):
                ticket.results.append(result)
        self._changed.notify_all()


class _Ticket:
    def __init__(self, process: Callable[[Sequence[Any]], Sequence[Any]], request: Any) -> None:
        self.process = process
        self.request = request
        self.results: list[Any] = []


def _process(process: Callable[[Sequence[Any]], Sequence[Any]], requests: Sequence[Any]) -> Sequence[Any]:
    try:
        return process(requests)
    except Exception as error:  # noqa: BLE001 - each caller raises it
        return [error] * len(requests)
