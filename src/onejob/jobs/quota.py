"""Quotas: how many new jobs a submitter may create within a period, in total and per identity."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import NamedTuple, Self

from onejob.errors import ConfigurationError, QuotaExceededError
from onejob.jobs.timestamps import format_timestamp

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


class Charge(NamedTuple):
    """One use of a quota, which a new job is charged with in the operation that writes it."""

    option: str
    """The option that sets the quota, for errors."""
    quota: Quota
    name: str
    """What the store counts the uses by. A name must always have the same period."""

    def exceeded(self, until: float, seconds: float) -> QuotaExceededError:
        """Return the error of a quota that is used up until a time, which is so many seconds away."""
        return QuotaExceededError(self.option, str(self.quota), max(ceil(seconds), 1), format_timestamp(until))


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of one submitter: for new jobs in total, and for those with the same identity; None: unlimited."""

    total: Quota | None = None
    identity: Quota | None = None

    @classmethod
    def parse(cls, total: str | None, identity: str | None) -> Self:
        """Return the quotas of two texts; None: unlimited. Raises `ConfigurationError`."""
        return cls(*(None if text is None else _parse(text) for text in (total, identity)))

    def __bool__(self) -> bool:
        return self.total is not None or self.identity is not None

    def charges(self, submitter: str, identity: str) -> tuple[Charge, ...]:
        """Return what a new job with this identity is charged with."""
        prefix, charges = f"{len(submitter)}:{submitter}", []
        if self.identity is not None:
            charges.append(Charge("identity_quota", self.identity, f"{prefix}:{self.identity.period}:{identity}"))
        if self.total is not None:
            charges.append(Charge("quota", self.total, f"{prefix}:{self.total.period}"))
        return tuple(charges)

    def texts(self) -> dict[str, str | None]:
        """Return both quotas as texts, by the names of their options."""
        quotas = {"quota": self.total, "identity_quota": self.identity}
        return {name: None if quota is None else str(quota) for name, quota in quotas.items()}


_parse = lru_cache(maxsize=256, typed=True)(Quota.parse)
NO_QUOTAS = Quotas()
