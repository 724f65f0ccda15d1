"""Quotas: how many new jobs a caller may submit within a period, in total and per identity."""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from onejob.api.problems import Problem
from onejob.errors import ConfigurationError, StoreError
from onejob.jobs.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onejob.jobs.records import QuotaUse
    from onejob.ledger.ledger import Ledger

logger = logging.getLogger("onejob.api")

PERIODS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
MAX_PERIOD = 366 * 86_400
MAX_LIMIT = 1_000_000_000
_PATTERN = re.compile(r"(\d{1,10})/(?:([a-z]+)|(\d{1,8}))", re.ASCII)


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `limit` new jobs in a fixed window of `period` seconds, which begins with the first of them."""

    limit: int
    period: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the quota of a text such as `20/day`, or `5/90` for 90 seconds. Raises `ConfigurationError`."""
        match = _PATTERN.fullmatch(text) if isinstance(text, str) else None
        limit, period = (int(match[1]), PERIODS.get(match[2], 0) or int(match[3] or 0)) if match else (0, 0)
        if not (1 <= limit <= MAX_LIMIT and 1 <= period <= MAX_PERIOD):
            msg = (
                f"{text!r:.100} is not a quota: write LIMIT/PERIOD, such as 20/day or 5/90. LIMIT is 1 to {MAX_LIMIT}, "
                f"PERIOD is {', '.join(PERIODS)} or a number of seconds up to {MAX_PERIOD}"
            )
            raise ConfigurationError(msg)
        return cls(limit, period)

    def __str__(self) -> str:
        names = {seconds: name for name, seconds in PERIODS.items()}
        return f"{self.limit}/{names.get(self.period, self.period)}"


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of one caller: for new jobs in total, and for new jobs with the same identity; None: unlimited."""

    total: Quota | None = None
    identity: Quota | None = None

    @classmethod
    def parse(cls, total: str | None, identity: str | None) -> Self:
        """Return the quotas of two texts; None: unlimited. Raises `ConfigurationError`."""
        return cls(*(None if text is None else Quota.parse(text) for text in (total, identity)))

    def __bool__(self) -> bool:
        return self.total is not None or self.identity is not None

    def texts(self) -> dict[str, str | None]:
        """Return both quotas as texts, by the names of their command-line options."""
        quotas = {"quota": self.total, "identity_quota": self.identity}
        return {name: None if quota is None else str(quota) for name, quota in quotas.items()}


NO_QUOTAS = Quotas()


@dataclass(frozen=True, slots=True)
class _Counter:
    """A quota and the name of its counter in the store, which is specific to the period."""

    option: str
    quota: Quota
    name: str


class QuotaExceeded(Problem):
    """The quota is used up until its window ends."""

    def __init__(self, counter: _Counter, use: QuotaUse) -> None:
        limit, seconds = str(counter.quota), max(math.ceil(use.seconds), 1)
        jobs = "new jobs" if counter.option == "quota" else "new jobs with the same identity"
        super().__init__(
            "quota-exceeded",
            f"the quota of {counter.quota.limit} {jobs} ({limit}) is used up: retry in {seconds} s",
            headers={"retry-after": str(seconds)},
            quota=counter.option,
            limit=limit,
            reset_at=format_timestamp(use.until),
        )


class QuotaReservation:
    """The quota that one submission has consumed, refunded if the submission creates no job.

    A refund that fails, since the store is unavailable, is lost: a caller never gets more than the quota.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._uses: list[QuotaUse] = []

    def consume(self, quotas: Quotas, caller: str, identity: str) -> None:
        """Count one new job of a caller. Raises `QuotaExceeded`, and then consumes nothing.

        The quota per identity comes first, so that repeating one submission does not use up the total quota.
        """
        try:
            for counter in _counters(quotas, caller, identity):
                self._increment(counter)
        except BaseException:
            self.refund()
            raise

    def _increment(self, counter: _Counter) -> None:
        use = self._ledger.consume(counter.name, limit=counter.quota.limit, period=counter.quota.period)
        if not use.counted:
            raise QuotaExceeded(counter, use)
        self._uses.append(use)

    def refund(self) -> None:
        """Return the consumed quota."""
        while self._uses:
            use = self._uses.pop()
            try:
                self._ledger.refund(use)
            except StoreError as error:
                logger.warning("consumed quota could not be refunded: %s", error)


def _counters(quotas: Quotas, caller: str, identity: str) -> Iterator[_Counter]:
    prefix = f"{len(caller)}:{caller}"
    if quotas.identity is not None:
        yield _Counter("identity_quota", quotas.identity, f"{prefix}:{quotas.identity.period}:{identity}")
    if quotas.total is not None:
        yield _Counter("quota", quotas.total, f"{prefix}:{quotas.total.period}")
