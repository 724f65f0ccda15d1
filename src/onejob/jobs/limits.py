"""Limits: how many similar jobs run at once, or how fast they start, in total or for each value of an argument.

A *key* names what a job shares with others: `gpu`, or `customer=42`. A job starts only while each of its keys has room:
a free *slot* of a limit of running jobs, or enough tokens of a rate. Otherwise it is parked in the ledger, and the end
of another job, or the moment of the next token, makes it due. Durations and times are seconds.

Rates follow the generic cell rate algorithm (ITU-T I.371, Annex A): of a key only one time is kept, at which its bucket
will be full again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple

from onejob.errors import ConfigurationError, InvalidArgumentsError
from onejob.jobs.blocks import text_of
from onejob.jobs.model import JobRow
from onejob.jobs.submitter import Quota
from onejob.jobs.timestamps import format_timestamp

NO_KEYS = "[]"
"""The column `limit_keys` of a job that had limits, and was replaced by a task without."""
PARKED_BY_LIMIT = "limit:"
"""The prefix of `JobRow.parked_on` of a job that waits for room; the key follows. Ids of pauses have no colon."""
MAX_RUNNING = 1_000_000
KEY_LENGTH = 200
"""How many characters the key of a limit may have."""
KEY_COUNT = 8
"""How many limits a task may have."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_PATH = re.compile(r"[^\W\d]\w*(\.\w+)*")


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of a task: `Limit("customer", running=3)`, `Limit(name="gpu", running=8)`, `Limit("url", rate="9/hour")`.

    `by`: a path into the arguments, as in `unique_on`, or a function of the arguments, by name; its value makes the
    key, so that each value has a limit of its own. None: all jobs of the limit share one. `running`: how many of them
    run at once. `rate`: how many start, or how much weight starts, in a period: `"90000/minute"`. `burst`: how much may
    start at once after a rest; by default what the rate permits in a second, and at least 1. `weight`: what a job
    counts, a number or a function of its arguments. `name`: tasks that have a limit of this name share it; by default
    the path. Raises `ConfigurationError` for options that cannot work.
    """

    by: str | Callable[..., object] | None = None
    running: int | None = field(default=None, kw_only=True)
    rate: str | None = field(default=None, kw_only=True)
    burst: float | None = field(default=None, kw_only=True)
    weight: float | Callable[..., float] | None = field(default=None, kw_only=True)
    name: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        if (
            self.by is not None
            and not callable(self.by)
            and not (isinstance(self.by, str) and _PATH.fullmatch(self.by))
        ):
            raise ConfigurationError(
                f"a limit by {self.by!r:.100} cannot work: write an argument, a path such as 'user.id', or a function"
            )
        if not self.name:
            if not isinstance(self.by, str):
                raise ConfigurationError("a limit without a path needs a name: Limit(name='gpu', running=8)")
            object.__setattr__(self, "name", self.by)
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"{self.name!r:.100} is no name of a limit: write letters, digits, '_', '-' and '.', at most 64, and a "
                "letter first"
            )
        if (self.running is None) is (self.rate is None):
            raise ConfigurationError(f"limit {self.name} needs either running=... or rate=..., and not both")
        if self.running is not None and not _is_count(self.running):
            raise ConfigurationError(
                f"limit {self.name} has running={self.running!r:.100}: write a number from 1 to {MAX_RUNNING}"
            )
        if self.rate is None and not (self.burst is None and self.weight is None):
            raise ConfigurationError(f"limit {self.name} has no rate, so it has no burst and no weight")
        if self.weight is not None and not callable(self.weight) and not _is_positive(self.weight):
            raise ConfigurationError(f"limit {self.name} has weight={self.weight!r:.100}: write a number above 0")
        if self.rate is not None:
            self.value()

    def value(self) -> LimitValue:
        """Return the value of the limit by its definition. Raises `ConfigurationError`."""
        if self.rate is None:
            return LimitValue(key=self.name, running=self.running, is_default=True)
        return rate_value(self.name, self.rate, self.burst, is_default=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitValue:
    """How much room a key has: that of a definition, or of an operator's exception for a name or for one key."""

    key: str
    """The name of the limit, or one of its keys, as in `customer=42`."""
    running: int | None = None
    """How many jobs may run at once; 0: none may start, whatever the limit is. None: the limit is a rate."""
    rate: str = ""
    """The rate as it was written; "": the limit is none."""
    interval: float | None = None
    """The seconds in which the rate permits a weight of 1."""
    burst: float = 1.0
    is_default: bool = False
    """Whether the value is that of a definition."""
    until: float | None = None
    """When an exception ends by itself; None: not before it is cleared."""

    def is_over(self, now: float) -> bool:
        """Return whether the time of an exception is over."""
        return self.until is not None and self.until <= now

    @property
    def text(self) -> str:
        """The value as an operator writes it: `3`, or `90000/minute`."""
        return self.rate if self.running is None else str(self.running)

    @property
    def description(self) -> str:
        """The value as a sentence's end: "3 at once", "90000/minute, exception until 2026-..."."""
        text = f"{self.text} at once" if self.running is not None else self.text
        if self.is_default:
            return text
        return f"{text}, an exception" + ("" if self.until is None else f" until {format_timestamp(self.until)}")


class KeyUse(NamedTuple):
    """One limit of one job."""

    key: str
    weight: float = 1.0


class Freed(NamedTuple):
    """The answer of `Limits.free_slots` about the jobs that were parked on a key."""

    jobs: Sequence[JobRow] = ()
    """The jobs that have room on all their keys now, and are due; each has its room until one lease has passed."""
    moved_to: frozenset[str] = frozenset()
    """The keys on which other jobs are parked now, since these are full for them: look at these keys, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse:
    """The use of a key at one time."""

    key: str
    holders: Sequence[str] = ()
    """The ids of the jobs that run, or are about to run, with its slots; of a rate those that are about to run."""
    waiting: int = 0
    """How many jobs are parked on it."""


def rate_value(
    key: str, rate: str, burst: float | None = None, *, is_default: bool = False, until: float | None = None
) -> LimitValue:
    """Return the value of a rate such as `90000/minute`. Raises `ConfigurationError`."""
    try:
        quota = Quota.parse(rate)
    except ConfigurationError as error:
        raise ConfigurationError(f"limit {key}: {str(error).replace('a quota', 'a rate')}") from None
    per_second = quota.limit / quota.period
    if burst is not None and not (_is_positive(burst) and burst >= 1):
        raise ConfigurationError(f"limit {key} has burst={burst!r:.100}: write a number from 1 on")
    found = max(1.0, per_second) if burst is None else float(burst)
    return LimitValue(
        key=key, rate=str(quota), interval=1 / per_second, burst=found, is_default=is_default, until=until
    )


def value_of_text(key: str, text: str, *, until: float | None = None) -> LimitValue:
    """Return an exception of an operator: a number of running jobs, 0, or a rate. Raises `ConfigurationError`."""
    if "/" in text:
        return rate_value(key, text, until=until)
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_RUNNING):
        raise ConfigurationError(
            f"{text!r:.100} is no limit: write how many jobs may run at once, up to {MAX_RUNNING}, 0 to stop them, or "
            "a rate such as 90/minute"
        )
    return LimitValue(key=key, running=int(text), until=until)


def name_of(key: str) -> str:
    """Return the name of the limit that a key belongs to."""
    return key.partition("=")[0]


def key_of(name: str, value: object) -> str:
    """Return the key of a value of a limit. Raises `InvalidArgumentsError` for one that is too long, or no scalar."""
    if not isinstance(value, str | int | float | bool | None):
        raise InvalidArgumentsError(
            f"limit {name}: its key is {type(value).__name__}, and must be a text, a number, true, false or null"
        )
    key = f"{name}={text_of(value)}"
    if len(key) > KEY_LENGTH or not key.isprintable():
        raise InvalidArgumentsError(
            f"limit {name}: the key {key!r:.100} must have at most {KEY_LENGTH} characters, all printable"
        )
    return key


def uses_of(limits: Sequence[Limit], arguments: Mapping[str, object], value_at: Callable[[str], object]) -> str:
    """Return the keys of a call as the column `limit_keys` has them.

    `value_at` returns the argument at a path. Raises `InvalidArgumentsError` for a call without a key, and for a
    function of the definition that fails on these arguments or returns what is no key or weight.
    """
    return write_uses([KeyUse(_key(each, arguments, value_at), _weight(each, arguments)) for each in limits])


def _key(limit: Limit, arguments: Mapping[str, object], value_at: Callable[[str], object]) -> str:
    if limit.by is None:
        return limit.name
    if callable(limit.by):
        return key_of(limit.name, _call(limit.name, limit.by, arguments))
    try:
        return key_of(limit.name, value_at(limit.by))
    except KeyError:
        raise InvalidArgumentsError(
            f"limit {limit.name} is by {limit.by!r}, which is missing in this call: pass it, or use a function"
        ) from None


def _weight(limit: Limit, arguments: Mapping[str, object]) -> float:
    if not callable(limit.weight):
        return 1.0 if limit.weight is None else float(limit.weight)
    weight = _call(limit.name, limit.weight, arguments)
    if not _is_positive(weight):
        raise InvalidArgumentsError(f"limit {limit.name}: its weight is {weight!r:.100}, and must be a number above 0")
    return float(weight)  # type: ignore[arg-type] # checked


def _call(name: str, function: Callable[..., object], arguments: Mapping[str, object]) -> object:
    try:
        return function(**arguments)
    except Exception as error:
        raise InvalidArgumentsError(
            f"limit {name}: its function failed on these arguments: {type(error).__name__}"
        ) from error


def write_uses(uses: Sequence[KeyUse]) -> str:
    """Return the keys of a job as JSON: an array of arrays of a key and its weight."""
    return json.dumps([[use.key, use.weight] for use in uses], ensure_ascii=False, separators=(",", ":"))


def read_uses(limit_keys: str | None) -> tuple[KeyUse, ...]:
    """Return the keys of a job from its column; none of a job without limits."""
    return () if limit_keys is None else tuple(KeyUse(key, weight) for key, weight in json.loads(limit_keys))


def parked_on_key(parked_on: str | None) -> str | None:
    """Return the key on which a job is parked, from its column; None: it is not parked, or on a pause."""
    found = parked_on or ""
    return found.removeprefix(PARKED_BY_LIMIT) if found.startswith(PARKED_BY_LIMIT) else None


def first_park(limit_keys: str | None) -> str | None:
    """Return `parked_on` of a new job with these keys, which waits for its room before a worker gets it."""
    uses = read_uses(limit_keys)
    return PARKED_BY_LIMIT + uses[0].key if uses else None


def waits_for(key: str) -> str:
    """Return the reason of a job that is parked on a key."""
    return f"waits for {key}"


def has_room(key: str) -> str:
    """Return the reason of a job that has got room on a key."""
    return f"has room on {key}"


def _is_count(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= MAX_RUNNING


def _is_positive(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and isfinite(given) and given > 0
