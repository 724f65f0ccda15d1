"""Runs long functions in a few threads, of which each caller has a limited share."""

import time
from collections.abc import Callable
from math import inf
from typing import TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, from_thread, to_thread
from fastapi import Request
from starlette.requests import ClientDisconnect

from onejob.api.callers import share_of
from onejob.api.problems import Problem
from onejob.client.operator import deadline
from onejob.concurrency.batching import PerEventLoop

T = TypeVar("T")
IsOver = Callable[[], bool]
"""Tells a function, after each portion of its work, whether to end."""
SHORT_SECONDS = 0.003
"""The longest portion of work, in seconds, that needs no rest, such as the change of one job."""
LONGEST_REST = 0.5
"""The longest rest, in seconds."""


class FairThreads:
    """Runs at most `total` functions at once, and `per_caller` of one caller; callers whose functions wait take turns.

    After a portion of its work that took longer than `SHORT_SECONDS`, a function rests for as long: the threads of a
    process share its interpreter, and half of the time is for other requests. For one event loop: see `PerEventLoop`.
    At most `most` functions of one caller run or wait.
    """

    def __init__(self, total: int, *, per_caller: int, most: float = inf) -> None:
        self._all = CapacityLimiter(total)
        self._per_caller = per_caller
        self._most = most
        self._of_callers: WeakValueDictionary[str, CapacityLimiter] = WeakValueDictionary()

    async def run(self, request: Request, seconds: float, function: Callable[[IsOver], T]) -> T:
        """Call a function in a thread and return its value.

        The argument of the function is an `IsOver`, which becomes true `seconds` after the beginning, or when the
        client has disconnected. Raises `ClientDisconnect` without calling the function if the client has disconnected
        before its turn, and `Problem` if too many functions of the caller wait already.
        """

        def call() -> T:
            if from_thread.run(has_gone, request):
                raise ClientDisconnect
            is_late, began = deadline(seconds), time.monotonic()

            def is_over() -> bool:
                nonlocal began
                if is_late() or from_thread.run(has_gone, request):
                    return True
                if (worked := time.monotonic() - began) > SHORT_SECONDS:
                    time.sleep(min(worked, LONGEST_REST))
                began = time.monotonic()
                return False

            return function(is_over)

        caller = share_of(request)
        own = self._of_callers.get(caller)
        if own is None:
            self._of_callers[caller] = own = CapacityLimiter(self._per_caller)
        if own.borrowed_tokens + own.statistics().tasks_waiting >= self._most:
            detail = f"{self._most} large requests of this caller wait for their turn already: send fewer at once"
            raise Problem("too-many-requests", detail, headers={"retry-after": "1"})
        async with own:  # so that no more than a caller's share waits for the threads of all
            return await to_thread.run_sync(call, limiter=self._all)


async def has_gone(request: Request) -> bool:
    """Return whether the client of a request has closed its connection."""
    # If no endpoint has read a body, the first message says that there is no body.
    return await request.is_disconnected() or await request.is_disconnected()


LISTS = PerEventLoop(lambda: FairThreads(4, per_caller=2))
"""The threads for lists that an index answers."""
SEARCHES = PerEventLoop(lambda: FairThreads(1, per_caller=1))
"""The thread for lists, counts and statistics that may read many jobs for few results."""
BULK = PerEventLoop(lambda: FairThreads(2, per_caller=1))
"""The threads for bulk operations."""
LARGE = PerEventLoop(lambda: FairThreads(2, per_caller=1, most=100))
"""The threads for bodies that are too large for the event loop; each waiting body is in memory."""
PAGES = PerEventLoop(lambda: FairThreads(4, per_caller=2))
"""The threads that build pages of dashboards."""
