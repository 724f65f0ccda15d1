"""Limits on one caller's share of a process besides its jobs: time for large bodies, and checks of duplicates.

All threads of a process share one interpreter, so a caller who keeps some of them busy slows everybody down.
"""

import time
from collections import Counter
from collections.abc import Callable
from math import ceil, inf
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

from onejob.api.callers import share_of
from onejob.api.checked_request import INLINE_BYTES, CheckedRequest
from onejob.api.fair_threads import LARGE
from onejob.api.problems import Problem
from onejob.jobs.timestamps import format_timestamp

T = TypeVar("T")
CHECKS_PER_MINUTE = 600
"""The default number of checks that a process answers one caller in a minute."""
MINUTE = 60.0


class CheckQuota:
    """Limits the checks of one caller in a minute in this process; a check with a large body counts as several.

    Checks are not counted in the store, since then each check, which stores nothing, would have to write.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._used: Counter[str] = Counter()
        """By the name of each caller in this minute."""
        self._ends_at = float("-inf")

    def charge(self, caller: str, weight: int) -> None:
        """Count a check.

        Raises `Problem` if the caller has used up its quota; a check that weighs more than the rest of the quota is
        allowed.
        """
        now = self._clock()
        if now >= self._ends_at:
            self._used.clear()
            self._ends_at = now + MINUTE
        if self._used[caller] >= self._limit:
            seconds = self._ends_at - now
            limit, reset_at = f"{self._limit}/minute", format_timestamp(time.time() + seconds)
            detail = (
                f"the quota of {self._limit} checks ({limit}) of this caller is used up: retry in {ceil(seconds)} s, "
                "or submit without a check, since an equal job answers a submission, too"
            )
            headers = {"retry-after": str(ceil(seconds))}
            raise Problem("quota-exceeded", detail, headers, quota="checks", limit=limit, reset_at=reset_at)
        self._used[caller] += weight


class BodyLimits:
    """The limits on bodies of submissions and checks, in one API."""

    def __init__(self, checks_per_minute: int = CHECKS_PER_MINUTE) -> None:
        self._checks = CheckQuota(checks_per_minute)

    def charge_check(self, request: CheckedRequest) -> None:
        """Count a check of a request's caller. Raises `Problem` if the caller has used up its quota."""
        self._checks.charge(share_of(request), 1 + len(request.checked_body or b"") // INLINE_BYTES)

    async def run(self, request: CheckedRequest, function: Callable[[], T], *, is_short: bool = True) -> T:
        """Return the value of a function of a request; for a large body, call it in a thread, in the caller's turn.

        A function that is not short runs in a thread for a body of any size. Raises `Problem`, and the errors of the
        function.
        """
        if is_large(request):
            return await LARGE.current().run(request, inf, lambda _: function())
        return function() if is_short else await run_in_threadpool(function)


def is_large(request: CheckedRequest) -> bool:
    """Return whether the body of a request is too large for the event loop, and for a batch."""
    return len(request.checked_body or b"") > INLINE_BYTES
