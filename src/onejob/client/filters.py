"""The filters of jobs as keyword arguments: their types, and their values as the ledger takes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, TypeAlias, TypedDict

from onejob.celery.option_declarations import did_you_mean
from onejob.client.operation import Operation
from onejob.jobs.lifecycle import State
from onejob.jobs.timestamps import format_timestamp
from onejob.ledger.bulk import NO_LIMIT, Selection
from onejob.ledger.cursor import decode_cursor
from onejob.ledger.job_filters import FILTERS, audit_text, query_of

StateName: TypeAlias = Literal["queued", "running", "retrying", "completed", "failed", "canceled"]
OperationName: TypeAlias = Literal["cancel", "force_cancel", "run_now", "redrive", "delete", "force_delete"]
Time: TypeAlias = datetime | timedelta
"""A time with a time zone, or a duration before now."""


class Filters(TypedDict, total=False):
    """The filters of jobs, combined with AND; those of the command line, of HTTP and of the pages. None selects all."""

    state: StateName | State | Collection[StateName | State] | None
    """Only jobs in this state, or in one of these."""
    task: str | None
    argument: str | None
    """Only with this text in an argument, or `name=value`, which may go on: 4 finds 42."""
    error: str | None
    """Only with this text in the reason, such as the name of an exception."""
    submitter: str | None
    """Only jobs that this submitter submitted first; "" for unknown ones."""
    tag: str | None
    queue: str | None
    worker: str | None
    """Only jobs whose latest run is, or was, on this worker."""
    pause: str | None
    """Only jobs that wait for the end of this pause, by its id."""
    room: str | None
    """Only jobs that wait for room on this key of a limit, such as `customer=42`."""
    identity: str | None
    since: Time | None
    """Only jobs that were submitted at this time or later."""
    until: Time | None
    """Only jobs that were submitted before this time."""


def read_filters(given: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return the filters that were given, as `query_of` takes them. Raises `TypeError` and `ValueError`."""
    kinds = {each.name: each.kind for each in FILTERS}
    for name in given:
        if name not in kinds:
            hint = did_you_mean(name, kinds) or f": the filters are {', '.join(kinds)}"
            raise TypeError(f"{name!r} is no filter of jobs{hint}")
    readers: dict[type, Callable[[str, Any], Any]] = {str: _text, State: _states, float: partial(_time, now)}
    return {name: readers[kinds[name]](name, value) for name, value in given.items() if value is not None}


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the filter {name} is a text, not {value!r:.100}")
    return value


def _states(name: str, value: Any) -> list[State]:
    try:
        return [State(each) for each in ([value] if isinstance(value, str) else value)]
    except (ValueError, TypeError):
        raise ValueError(f"the filter {name}={value!r:.100} is one of {', '.join(State)}, or a list of these") from None


def _time(now: float, name: str, value: object) -> float:
    return _moment(f"the filter {name}", value, now, sign=-1)


def _moment(name: str, value: object, now: float, *, sign: int) -> float:
    """Return a time, or a duration before or after now (`sign`), in seconds since the epoch."""
    if isinstance(value, timedelta):
        return now + sign * value.total_seconds()
    if not isinstance(value, datetime):
        side = "after" if sign > 0 else "before"
        raise TypeError(f"{name} is a datetime, or a timedelta {side} now, not {value!r:.100}")
    if value.tzinfo is None:
        raise ValueError(f"{name}={value!r} has no time zone: write datetime(..., tzinfo=UTC)")
    return value.timestamp()


def later_time(name: str, value: object, now: float) -> float:
    """Return a time, or a duration after now, in seconds since the epoch. Raises `TypeError` and `ValueError`."""
    return _moment(name, value, now, sign=1)


def select_matching(
    operation: Operation, filters: Mapping[str, Any], *, now: float, limit: int = NO_LIMIT, cursor: str | None = None,
    **more: Any,
) -> Selection:  # fmt: skip
    """Select the jobs that filters match, of those that were submitted by now.

    Without a state these are the jobs in all states that the operation applies to. `more`: fields of `Selection`.
    """
    chosen = {"state": operation.states, "until": now} | dict(filters)
    return Selection(query=query_of(chosen, limit=limit, **decode_cursor(cursor)), **more)


def filters_text(filters: Mapping[str, Any], limit: int = NO_LIMIT, *, everything: bool = False) -> str:
    """Return a selection of jobs as text for the audit log, without values that may quote arguments."""
    return audit_text([
        *((name, each) for name, value in filters.items() for each in _texts(value)),
        *([("all", True)] if everything else []), *([] if limit == NO_LIMIT else [("limit", limit)]),
    ])  # fmt: skip


def _texts(value: Any) -> Sequence[str]:
    if isinstance(value, float):
        return [format_timestamp(value)]
    return [value] if isinstance(value, str) else value
