"""The submitter of jobs: the name by which submissions are recorded and, with `own_jobs`, separated; and its quotas."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from math import ceil
from typing import NamedTuple, Self

from onejob.errors import ConfigurationError, InvalidArgumentsError, QuotaExceededError
from onejob.jobs.timestamps import format_timestamp

NAME_LIMIT = 255
"""Maximum characters of the name of a submitter, a step or an effect, of an idempotency key, and of a job's id."""
PERIODS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
MAX_PERIOD = 366 * 86_400
MAX_LIMIT = 1_000_000_000
UNIT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}", re.ASCII)
"""The units of costs and budgets."""
UNIT_RULE = "write at most 32 ASCII letters, digits and underscores, and no digit at the beginning"
_BUDGET = re.compile(r"(\d{1,14}(?:\.\d{1,9})?)/day", re.ASCII)
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
            raise ConfigurationError(
                f"{text!r:.100} is not a quota: write LIMIT/PERIOD, such as 20/day or 5/90. LIMIT is 1 to {MAX_LIMIT}, "
                f"PERIOD is {', '.join(PERIODS)} or a number of seconds up to {MAX_PERIOD}"
            )
        return cls(limit, period)

    def __str__(self) -> str:
        names = {seconds: name for name, seconds in PERIODS.items()}
        return f"{self.limit}/{names.get(self.period, self.period)}"


@dataclass(frozen=True, slots=True)
class Budget:
    """The amount in one unit that the jobs of a submitter may cost on one day (UTC)."""

    unit: str
    amount: Decimal

    @classmethod
    def parse(cls, unit: str, text: str) -> Self:
        """Return the budget of a unit and a text such as `20/day`. Raises `ConfigurationError`."""
        match = _BUDGET.fullmatch(text) if isinstance(text, str) else None
        if match is None or not (amount := Decimal(match[1])):
            raise ConfigurationError(
                f"{text!r:.100} is not a budget: write AMOUNT/day, such as 20/day or 0.5/day, with an amount above 0. "
                "The costs of a submitter are added up by days"
            )
        if not UNIT.fullmatch(unit):
            raise ConfigurationError(f"{unit!r:.100} is no unit of a cost: {UNIT_RULE}")
        return cls(unit, amount)

    def __str__(self) -> str:
        return f"{self.amount:f} {self.unit}/day"

    def spent_until(self, seconds: float, submitter: str) -> Charge:
        """Return the use of a quota that permits no new job for so many seconds: the budget is spent."""
        name = f"budget:{len(submitter)}:{submitter}:{self.unit}"
        return Charge("budget", Quota(0, max(ceil(seconds), 1)), name, str(self))


class Charge(NamedTuple):
    """One use of a quota, which a new job is charged with in the operation that writes it."""

    option: str
    """The option that sets the quota, for errors."""
    quota: Quota
    name: str
    """The name by which the store counts the uses. A name must always have the same period."""
    text: str = ""
    """The limit as text, if it is not that of the quota."""

    def exceeded(self, until: float, seconds: float) -> QuotaExceededError:
        """Return the error of a quota that is used up until a time, which is so many seconds away."""
        text, retry_after = self.text or str(self.quota), max(ceil(seconds), 1)
        return QuotaExceededError(self.option, text, retry_after, format_timestamp(until))


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of one submitter: for new jobs in total, and for new jobs with equal identities; None: unlimited."""

    total: Quota | None = None
    identity: Quota | None = None

    @classmethod
    def parse(cls, total: str | None, identity: str | None) -> Self:
        """Return the quotas of two texts; None: unlimited. Raises `ConfigurationError`."""
        return cls(*(None if text is None else _parse(text) for text in (total, identity)))

    def __bool__(self) -> bool:
        return self.total is not None or self.identity is not None

    def charges(self, submitter: str, identity: str) -> tuple[Charge, ...]:
        """Return the uses of quotas that a new job with this identity is charged with."""
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


@dataclass(frozen=True, slots=True)
class Submitter:
    """A submitter: its name ("" if unknown), and the rules for its submissions."""

    name: str = ""
    own_jobs: bool = False
    """Whether a submission is equal only to others of this submitter, whose name is then a part of the identities."""
    quotas: Quotas | None = None
    """The quotas of the submitter; None: the quotas of the app's settings."""
    budgets: tuple[Budget, ...] = ()
    """The amounts that the jobs of the submitter may cost on one day."""

    @property
    def scope(self) -> str | None:
        """The name that is a part of the identities; None if there is none."""
        return self.name if self.own_jobs else None

    def scoped_key(self, key: object) -> str:
        """Return a key in this submitter's scope, as it is stored. Raises `InvalidArgumentsError` unless printable."""
        check_name("an idempotency key", key)
        kind = "own:" if self.own_jobs else ""  # a name may have been used without own jobs before
        return f"{kind}{len(self.name)}:{self.name}:{key}"


NOBODY = Submitter()
SUBMITTER: ContextVar[Submitter] = ContextVar("onejob_submitter", default=NOBODY)
"""The submitter of this context; outside of `submitter`, a submitter without a name."""


@contextmanager
def submitter(
    name: str, *, own_jobs: bool = False, quota: str | None = None, identity_quota: str | None = None,
    budget: Mapping[str, str] | None = None,
) -> Iterator[None]:  # fmt: skip
    """Set the submitter of all submissions within a block, e.g. "user:42".

    Each submitter has its own idempotency keys. With `own_jobs` its submissions are equal only to its own, so that they
    never attach to, replace or return a job of another submitter. `quota`, `identity_quota`: limits on its new jobs
    ("1000/day"), in total and with the same identity; without both, `onejob_quota` and `onejob_identity_quota` apply.
    `budget`: the amounts that its jobs may cost on one day (UTC), by unit: `{"usd": "20/day"}`. When the costs that
    runs have reported reach an amount, new jobs are refused until the day ends; duplicates are answered as always.

    Raises `InvalidArgumentsError` unless the name is printable, `ConfigurationError` for an invalid quota or budget.
    """
    check_name("a submitter", name)
    budgets = tuple(Budget.parse(unit, text) for unit, text in (budget or {}).items())
    with submitting_as(Submitter(name, own_jobs, Quotas.parse(quota, identity_quota) or None, budgets)):
        yield


@contextmanager
def submitting_as(value: Submitter) -> Iterator[None]:
    """Set the submitter of all submissions within a block."""
    reset_token = SUBMITTER.set(value)
    try:
        yield
    finally:
        SUBMITTER.reset(reset_token)


def check_name(kind: str, name: object) -> None:
    """Raise `InvalidArgumentsError` unless `name` is a printable string of up to `NAME_LIMIT` characters."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or not name.isprintable():
        msg = f"{kind} must be a printable string of at most {NAME_LIMIT} characters, not {name!r:.300}"
        raise InvalidArgumentsError(msg)
