"""The costs of jobs: exact decimal amounts by unit and attempt, and their sums, which outlive the jobs.

An amount has at most 9 decimal places, and is smaller than 10^15. A job's costs are one JSON text in its row:
`{"1": {"usd": "0.031"}, "2": {"tokens": "812"}}`. Code of this module adds, and stores compare and set the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Context, Decimal
from enum import StrEnum
from math import isfinite
from typing import Self, TypeAlias

from onejob.errors import InvalidArgumentsError
from onejob.jobs.durations import DAY
from onejob.jobs.model import JobRow, Outcome, value
from onejob.jobs.submitter import UNIT, UNIT_RULE

Amounts: TypeAlias = "Mapping[str, Decimal]"
"""Amounts by unit."""
SpentAndSaved: TypeAlias = "tuple[Decimal, Decimal]"
NOTHING = (Decimal(0), Decimal(0))
"""Nothing spent, and nothing saved."""
PLACES = 9
"""How many decimal places an amount has at most."""
AMOUNT_LIMIT = Decimal(10**15)
"""Amounts, and the sum of an attempt by unit, are smaller than this."""
UNIT_LIMIT = 16
"""How many units the costs of one job have at most."""
ATTEMPT_LIMIT = 20
"""How many attempts of a job have costs of their own: the newest ones. Those of earlier attempts are added up."""
EARLIER = 0
"""The number under which the costs of all earlier attempts are added up."""
COST_DAYS = 400
"""For how many days the sums of costs are kept."""
SAVED = frozenset({Outcome.ATTACHED, Outcome.REPLAYED, Outcome.REPLACED})
"""The outcomes of duplicates that would have run without deduplication. A job that was queued next did run."""
_EXACT = Context(prec=60)


class CostsBy(StrEnum):
    """How the sums of costs are grouped."""

    TASK = "task"
    SUBMITTER = "submitter"
    TAG = "tag"
    DAY = "day"

    @property
    def label(self) -> Label:
        """The label of the sums that are added up: each cost is in one sum by submitter, and in one for each tag."""
        return Label.TAG if self is CostsBy.TAG else Label.SUBMITTER


class Label(StrEnum):
    """The kind of the name by which a sum of costs is kept, besides its day, task and unit."""

    SUBMITTER = "submitter"
    TAG = "tag"


@value(slots=True, kw_only=True)
class CostKey:
    """The key under which the amounts of a day are added up: the task, a submitter or a tag, and the unit."""

    task: str
    label: Label
    name: str
    """The submitter or the tag of the job that has the cost."""
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSum:
    """The sums of one day (UTC) under one key."""

    day: str
    """The date, such as `2026-11-28`."""
    key: CostKey
    spent: Decimal
    saved: Decimal

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> Self:
        """Build a sum from a store's row."""
        key = CostKey(task=row["task"], label=Label(row["label"]), name=row["name"], unit=row["unit"])
        return cls(day=row["day"], key=key, spent=Decimal(row["spent"]), saved=Decimal(row["saved"]))


@value(slots=True, kw_only=True)
class CostWrite:
    """One compare-and-set of the costs of a run, and what it adds to the sums of the day."""

    job_id: str
    token: int
    request_id: str
    expected: str | None
    """The costs of the job before it."""
    costs: str
    """The costs afterwards."""
    spent: Mapping[CostKey, Decimal]
    """The amounts that are added to the sums: once to `spent`, and for each duplicate in `SAVED` to `saved`."""


@value(slots=True)
class CostAnswer:
    """The answer to a write of costs."""

    applied: bool
    """Whether the write was applied, also for a repeated request."""
    costs: str | None
    """The costs of the job afterwards."""
    duplicates: int = 0
    """How many duplicates in `SAVED` the job has had; 0 for a write that was not applied, or that is repeated."""


class JobCosts:
    """The costs of one job: amounts by attempt and unit, exact. The value is never changed."""

    def __init__(self, attempts: Mapping[int, Amounts]) -> None:
        self.attempts = attempts
        """The amounts of each attempt by unit, in the order of the attempts; `EARLIER` has those of earlier ones."""

    @classmethod
    def of(cls, text: str | None) -> Self:
        """Return the costs that a row has as a JSON text; None: there are none."""
        found = json.loads(text or "{}")
        return cls({int(number): {u: Decimal(a) for u, a in units.items()} for number, units in found.items()})

    @property
    def total(self) -> dict[str, Decimal]:
        """The amounts of all attempts together, by unit."""
        total: dict[str, Decimal] = {}
        for amounts in self.attempts.values():
            for unit, amount in amounts.items():
                total[unit] = exact_sum(total.get(unit, Decimal(0)), amount)
        return dict(sorted(total.items()))

    def add(self, attempt: int, amounts: Amounts) -> JobCosts:
        """Return the costs with amounts of an attempt added.

        Raises `InvalidArgumentsError` if the job would have more than `UNIT_LIMIT` units, or if the attempt's sum of a
        unit would be negative, or not smaller than `AMOUNT_LIMIT`.
        """
        added = dict(self.attempts.get(attempt, {}))
        for unit, amount in amounts.items():
            before = added.get(unit, Decimal(0))
            added[unit] = exact_sum(before, amount)
            _check_sum(unit, before, amount, added[unit])
        attempts = dict(sorted({**self.attempts, attempt: dict(sorted(added.items()))}.items()))
        units = {unit for each in attempts.values() for unit in each}
        if len(units) > UNIT_LIMIT:
            msg = f"a job has costs in at most {UNIT_LIMIT} units, and these would be {len(units)}: {_names(units)}"
            raise InvalidArgumentsError(msg)
        return JobCosts(_merge_earlier(attempts))

    def to_json(self) -> str:
        """Return the JSON text of a row."""
        texts = {number: amount_texts(amounts) for number, amounts in self.attempts.items()}
        return json.dumps(texts, separators=(",", ":"))


def _names(units: set[str]) -> str:
    return ", ".join(sorted(units))


def _check_sum(unit: str, before: Decimal, amount: Decimal, after: Decimal) -> None:
    if after < 0:
        raise InvalidArgumentsError(
            f"{unit}={amount_text(amount)} would make the cost of this attempt negative: it has {amount_text(before)}. "
            "A negative amount corrects what the same attempt has added before"
        )
    if after >= AMOUNT_LIMIT:
        msg = f"{unit}={amount_text(amount)} would make the cost of this attempt 10^15 or more"
        raise InvalidArgumentsError(msg)


def _merge_earlier(attempts: Mapping[int, Amounts]) -> Mapping[int, Amounts]:
    """Return the costs of the newest attempts, and of all earlier ones together."""
    numbers = [number for number in attempts if number != EARLIER]
    earlier, kept = numbers[:-ATTEMPT_LIMIT], numbers[-ATTEMPT_LIMIT:]
    if not earlier:
        return attempts
    merged = JobCosts({number: attempts[number] for number in (EARLIER, *earlier) if number in attempts}).total
    return {EARLIER: merged, **{number: attempts[number] for number in kept}}


# --- amounts ----------------------------------------------------------------------------------------------------------


def checked_amounts(given: Mapping[str, object]) -> Amounts:
    """Return the amounts that a body passes as keywords, by unit. Raises `InvalidArgumentsError`."""
    if not given:
        raise InvalidArgumentsError(
            'cost takes an amount for each unit as a keyword: job.cost(usd="0.031", tokens=812)'
        )
    return {_checked_unit(unit): _checked_amount(unit, amount) for unit, amount in given.items()}


def _checked_unit(unit: str) -> str:
    if not UNIT.fullmatch(unit):
        raise InvalidArgumentsError(f"{unit!r:.100} is no unit of a cost: {UNIT_RULE}")
    return unit


def _checked_amount(unit: str, amount: object) -> Decimal:
    if isinstance(amount, float) and isfinite(amount):
        raise InvalidArgumentsError(
            f"{unit}={amount!r} is a float, which is not exact: write it as a text, "
            f"{unit}='{Decimal(repr(amount)):f}', or as a Decimal"
        )
    if isinstance(amount, bool) or not isinstance(amount, int | str | Decimal):
        msg = f"{unit}={amount!r:.100} is no amount: write an int, a text such as '0.031', or a Decimal"
        raise InvalidArgumentsError(msg)
    found = _exact(amount)
    if found is None:
        raise InvalidArgumentsError(
            f"{unit}={amount!r:.100} is no amount: write a decimal number with at most {PLACES} decimal places, "
            "smaller than 10^15"
        )
    return found


def _exact(amount: int | str | Decimal) -> Decimal | None:
    """Return an amount as a number with as few digits as it needs; None if it is none, or exceeds a limit."""
    if isinstance(amount, str) and not _TEXT.fullmatch(amount):
        return None
    number = Decimal(amount)
    if not number.is_finite() or number.copy_abs() >= AMOUNT_LIMIT:
        return None
    exact = number.normalize(_EXACT)
    return exact if exact == number and -int(exact.as_tuple().exponent) <= PLACES else None


_TEXT = re.compile(r"[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})", re.ASCII)


def amount_text(amount: Decimal) -> str:
    """Return an amount as a decimal text without an exponent, and without zeros that mean nothing."""
    return f"{amount.normalize(_EXACT):f}" if amount else "0"


def amount_texts(amounts: Amounts) -> dict[str, str]:
    """Return amounts by unit as texts."""
    return {unit: amount_text(amount) for unit, amount in amounts.items()}


# --- the sums ---------------------------------------------------------------------------------------------------------


def keys_of(job: JobRow, unit: str) -> Iterator[CostKey]:
    """Yield the keys of the sums that a cost of a job is added to: that of its submitter, and that of each tag."""
    yield CostKey(task=job.task, label=Label.SUBMITTER, name=job.submitter, unit=unit)
    for tag in dict.fromkeys(job.tags):
        yield CostKey(task=job.task, label=Label.TAG, name=tag, unit=unit)


def by_key(job: JobRow, amounts: Amounts) -> dict[CostKey, Decimal]:
    """Return amounts of a job by the keys of the sums that they are added to."""
    return {key: amount for unit, amount in amounts.items() for key in keys_of(job, unit)}


def exact_sum(one: Decimal, other: Decimal) -> Decimal:
    """Return the sum of two amounts, which is not rounded as the sum in a context of the application may be."""
    return _EXACT.add(one, other)


def times(amount: Decimal, count: int) -> Decimal:
    """Return an amount so many times."""
    return _EXACT.multiply(amount, Decimal(count))


def limbs_of(amount: Decimal) -> tuple[int, int, int]:
    """Return an amount as billionths in three limbs to the base 10^8, the lowest one first, all with its sign."""
    billionths = int(_EXACT.scaleb(amount, PLACES))
    sign, rest = (-1 if billionths < 0 else 1), abs(billionths)
    return sign * (rest % _LIMB), sign * (rest // _LIMB % _LIMB), sign * (rest // _LIMB**2)


def amount_of(limbs: Iterable[tuple[int, int]]) -> Decimal:
    """Return the amount of limbs, each with its position; a sum of limbs may be larger than the base."""
    return _EXACT.scaleb(Decimal(sum(limb * _LIMB**position for position, limb in limbs)), -PLACES)


_LIMB = 10**8


def day_of(seconds: float) -> int:
    """Return the number of the day (UTC) of a time, from the epoch."""
    return int(seconds // DAY)


def day_text(day: int) -> str:
    """Return the date of a day by its number."""
    return (_EPOCH + timedelta(days=day)).isoformat()


def day_number(text: str) -> int:
    """Return the number of the day of a date such as `2026-11-28`. Raises `ValueError` for any other text."""
    return (date.fromisoformat(text) - _EPOCH).days


_EPOCH = date(1970, 1, 1)
