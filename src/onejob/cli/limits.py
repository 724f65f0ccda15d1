"""The commands on limits: `limits list`, `show`, `set` and `clear`."""

import shlex
from datetime import timedelta

import click

from onejob.cli.access import TIME, Access, audited, json_access
from onejob.cli.printing import echo, print_job, print_job_list, print_list
from onejob.client.limits import LimitRow, describe_value, new_exception, row_of, shown_exception
from onejob.jobs.public_view import fields_of
from onejob.jobs.timestamps import local_text, seconds_of

COLUMNS = ("key", "value", "definition", "until", "use", "waiting")
_ENDS = "When the exception ends by itself: 2026-01-31T12:00:00Z, or in a duration such as 2h.  [default: never]"


@click.group()
def limits() -> None:
    """Inspect limits on how many jobs run at once, or start in a time, and set exceptions."""


@limits.command("list")
@json_access
def list_(access: Access, *, as_json: bool) -> None:
    """List the limits of tasks, the exceptions, and the keys that jobs wait for."""
    found = [row_of(each) for each in access.operator().list_limits()]
    print_list([fields_of(each) for each in found], COLUMNS, map(_row, found), as_json=as_json)


@limits.command()
@click.argument("key")
@json_access
def show(access: Access, key: str, *, as_json: bool) -> None:
    """Show the limit KEY, such as customer or customer=42: its value, who has its slots, and how many jobs wait."""
    operator = access.operator()
    found = row_of(operator.find_limit(key))
    if as_json:
        print_job(fields_of(found), as_json=True)
        return
    print_job(dict(zip(COLUMNS, _row(found), strict=True)), as_json=False)
    if holders := operator.ledger.get_each(found.holders):
        echo("")
        print_job_list(holders, operator.ledger.read_clock(), limit=len(holders), as_json=False)


@limits.command("set")
@click.argument("key")
@click.argument("value")
@click.option("--until", type=TIME, help=_ENDS)
@json_access
def set_(access: Access, key: str, value: str, until: float | timedelta | None, *, as_json: bool) -> None:
    """Set an exception for KEY, such as customer or customer=42.

    VALUE is how many jobs may run at once, 0 to stop them, or a rate such as 90/minute. Running jobs are left alone.
    """
    operator = access.operator()
    ends_at = seconds_of(until, operator.ledger.read_clock(), sign=1)
    with audited(operator.ledger, "set_limit", key, shown_exception(value, ends_at)):
        state = operator.set_limit(key, value, until=ends_at)
    if as_json:
        print_job(fields_of(row_of(state)), as_json=True)
        return
    made = new_exception(key, value, until=ends_at)
    echo(f"Set: {describe_value(key, made)}. End it with: onejob limits clear {shlex.quote(key)}")


@limits.command()
@click.argument("key")
@json_access
def clear(access: Access, key: str, *, as_json: bool) -> None:
    """End the exception of KEY, if it has one: its definition is valid again."""
    operator = access.operator()
    with audited(operator.ledger, "clear_limit", key):
        state = operator.clear_limit(key)
    if as_json:
        print_job(fields_of(row_of(state)), as_json=True)
        return
    echo(f"Cleared: {describe_value(key, state.value)}.")


def _row(limit: LimitRow) -> tuple[object, ...]:
    default = (limit.default or "none") if limit.is_exception else ""
    until = "" if limit.until is None else local_text(limit.until)
    return limit.key, limit.value, default, until, limit.use, limit.waiting
