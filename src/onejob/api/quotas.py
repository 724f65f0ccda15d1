"""How many new jobs a caller may ask for within a period: of all kinds, and of one identity."""

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
LONGEST = 366 * 86_400
MOST = 1_000_000_000
_TEXT = re.compile(r"(\d{1,10})/(?:([a-z]+)|(\d{1,8}))", re.ASCII)


@dataclass(frozen=True, slots=True)
class Quota:
    """So many within so many seconds, counted from the first one on."""

    limit: int
    period: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the quota that a text names: `20/day`, or `5/90` for 90 seconds. Raises `ConfigurationError`."""
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        limit, period = (int(found[1]), PERIODS.get(found[2], 0) or int(found[3] or 0)) if found else (0, 0)
        if not (1 <= limit <= MOST and 1 <= period <= LONGEST):
            msg = (
                f"{text!r:.100} is no quota: write a number, a slash and {', '.join(PERIODS)} or a number of seconds, "
                f"such as 20/day or 5/90; the number is 1 to {MOST}, the period at most {LONGEST} seconds"
            )
            raise ConfigurationError(msg)
        return cls(limit, period)

    def __str__(self) -> str:
        names = {seconds: name for name, seconds in PERIODS.items()}
        return f"{self.limit}/{names.get(self.period, self.period)}"


@dataclass(frozen=True, slots=True)
class Quotas:
    """What one caller may ask for: new jobs in all, and new jobs of one identity."""

    all: Quota | None = None
    identity: Quota | None = None

    @classmethod
    def parse(cls, every: str | None, identity: str | None) -> Self:
        """Return the quotas that texts name; None: no limit. Raises `ConfigurationError`."""
        return cls(*(None if text is None else Quota.parse(text) for text in (every, identity)))

    def __bool__(self) -> bool:
        return self.all is not None or self.identity is not None

    def texts(self) -> dict[str, str | None]:
        """Return both as texts, by the names of their options."""
        each = {"quota": self.all, "identity_quota": self.identity}
        return {name: None if quota is None else str(quota) for name, quota in each.items()}


NO_QUOTAS = Quotas()


@dataclass(frozen=True, slots=True)
class _Counted:
    """One quota, and the name under which its uses are counted: one name has one period."""

    option: str
    quota: Quota
    name: str


class QuotaExceeded(Problem):
    """There is no more until the window ends."""

    def __init__(self, counted: _Counted, use: QuotaUse) -> None:
        limit, seconds = str(counted.quota), max(math.ceil(use.seconds), 1)
        kind = "new jobs" if counted.option == "quota" else "new jobs for the same arguments"
        super().__init__(
            "quota-exceeded",
            f"{counted.quota.limit} {kind} were asked for, of {limit}: ask again in {seconds} s",
            headers={"retry-after": str(seconds)},
            quota=counted.option,
            limit=limit,
            reset_at=format_timestamp(use.until),
        )


class QuotaReservation:
    """The uses that one submission has counted, to be given back when no new job comes of it.

    A use that cannot be given back, since the store does not answer, stays counted: the limit is never too large.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._spent: list[QuotaUse] = []

    def consume(self, quotas: Quotas, caller: str, identity: str) -> None:
        """Count one new job of a caller. Raises `QuotaExceeded`, and then nothing is counted.

        The identity's quota is looked at first: who asks for one thing again and again uses up nothing else.
        """
        try:
            for counted in _counted(quotas, caller, identity):
                self._count(counted)
        except BaseException:
            self.refund()
            raise

    def _count(self, counted: _Counted) -> None:
        use = self._ledger.consume(counted.name, limit=counted.quota.limit, period=counted.quota.period)
        if not use.counted:
            raise QuotaExceeded(counted, use)
        self._spent.append(use)

    def refund(self) -> None:
        """Take back what was counted."""
        while self._spent:
            use = self._spent.pop()
            try:
                self._ledger.refund(use)
            except StoreError as error:
                logger.warning("a use of a quota was not given back: %s", error)


def _counted(quotas: Quotas, caller: str, identity: str) -> Iterator[_Counted]:
    whose = f"{len(caller)}:{caller}"
    if quotas.identity is not None:
        yield _Counted("identity_quota", quotas.identity, f"{whose}:{quotas.identity.period}:{identity}")
    if quotas.all is not None:
        yield _Counted("quota", quotas.all, f"{whose}:{quotas.all.period}")
