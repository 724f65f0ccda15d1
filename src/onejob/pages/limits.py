"""The page of limits, the forms that set and clear exceptions, and the limits of a job for its page."""

from collections.abc import Mapping
from typing import Any

from onejob.api.problems import Problem
from onejob.client.limits import LimitRow, describe_value, row_of
from onejob.jobs.limits import name_of, parked_on_key, read_uses
from onejob.jobs.model import JobRow
from onejob.jobs.public_view import fields_of
from onejob.jobs.timestamps import parse_time, seconds_of
from onejob.ledger.limits import LISTED_KEYS
from onejob.pages.access import Form, User
from onejob.pages.context import Context
from onejob.pages.page_request import PageRequest
from onejob.pages.rendering import Page, Redirect, View

NAMED = 5
"""How many of the jobs that have a slot a row names."""


def _build_limits(context: Context, _request: PageRequest) -> Page:
    limits = [_row(context, row_of(each)) for each in context.operator().list_limits()]
    data = {"limits": limits, "key_limit": LISTED_KEYS}
    return Page(template="limits.html", title="Limits", data=data, rows="limits", live="ledger")


def _row(context: Context, limit: LimitRow) -> dict[str, Any]:
    """Return the fields of a limit; where the values of jobs are redacted, a key is shown without its value."""
    is_shown = context.redact is None or name_of(limit.key) == limit.key
    shown = {"key": _shown(context, limit.key), "is_shown": is_shown, "more": len(limit.holders[NAMED:])}
    return fields_of(limit) | shown | {"holders": list(limit.holders[:NAMED])}


def limits_of(context: Context, job: JobRow) -> list[dict[str, Any]]:
    """Return the limits of a job that has not ended, each with its weight, and whether the job waits for it."""
    if job.state.final:
        return []
    operator, waits_for = context.operator(), parked_on_key(job.parked_on)
    return [
        _row(context, row_of(operator.find_limit(use.key))) | {"weight": use.weight, "waits": use.key == waits_for}
        for use in read_uses(job.limit_keys)
    ]


def set_limit(context: Context, user: User, form: Form, _path: Mapping[str, str]) -> Redirect:
    """Set an exception for the key of a form. Raises `Problem`, and as `Operator.set_limit` does."""
    operator, key = context.operator(user), form.text("limit_key").strip()
    try:
        until = seconds_of(parse_time(text), operator.ledger.read_clock(), 1) if (text := form.text("until")) else None
    except ValueError as error:
        raise Problem("invalid-request", str(error)) from error
    state = operator.set_limit(key, form.text("value").strip(), until=until)
    return Redirect(LIMITS.path, f"Set: {describe_value(_shown(context, key), state.value)}.")


def clear_limit(context: Context, user: User, form: Form, _path: Mapping[str, str]) -> Redirect:
    """End the exception of the key of a form. Raises as `Operator.clear_limit` does."""
    key = form.text("limit_key").strip()
    state = context.operator(user).clear_limit(key)
    return Redirect(LIMITS.path, f"Cleared: {describe_value(_shown(context, key), state.value)}.")


def _shown(context: Context, key: str) -> str:
    """Return a key as it may be shown: its value is an argument of jobs."""
    name = name_of(key)
    return key if context.redact is None or name == key else f"{name}=…"


LIMITS = View("limits", "/limits", _build_limits)
