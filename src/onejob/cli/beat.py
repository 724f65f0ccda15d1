"""The commands on the beat schedule: `beat list`, `pause`, `resume` and `run`."""

from typing import TYPE_CHECKING

import click

from onejob.cli.access import Access, access, audited, json_access
from onejob.cli.printing import echo, print_list
from onejob.jobs.public_view import fields_of
from onejob.jobs.timestamps import local_text

if TYPE_CHECKING:
    from onejob.client.schedules import ScheduleEntry

SCHEDULE = "its schedule"
COLUMNS = ("entry", "task", "schedule", "missed", "last tick", "last job", "next tick")


@click.group()
def beat() -> None:
    """Inspect and operate the schedule that the workers run with `onejob_beat`."""


@beat.command("list")
@json_access
def list_(access: Access, *, as_json: bool) -> None:
    """List the entries of the app's schedule with their last and next ticks."""
    access.app_for(SCHEDULE)
    found = access.operator().list_schedules()
    rows = (
        (each.name, each.task, each.schedule, each.missed, _time(each.last_tick_at), each.last_job, _next(each))
        for each in found
    )
    print_list([fields_of(each) for each in found], COLUMNS, rows, as_json=as_json)


@beat.command()
@click.argument("entry")
@access
def pause(access: Access, entry: str) -> None:
    """Pause ENTRY: it has no ticks until it is resumed."""
    _set_paused(access, entry, paused=True)


@beat.command()
@click.argument("entry")
@access
def resume(access: Access, entry: str) -> None:
    """Resume ENTRY. The ticks of the pause are not made up for."""
    _set_paused(access, entry, paused=False)


@beat.command()
@click.argument("entry")
@access
def run(access: Access, entry: str) -> None:
    """Submit the call of ENTRY now, besides its ticks."""
    operator = access.submitting(SCHEDULE)
    with audited(operator.ledger, "beat run", entry):
        job_id = operator.run_entry(entry)
    echo(f"Submitted: job {job_id}.")


def _set_paused(access: Access, entry: str, *, paused: bool) -> None:
    access.app_for(SCHEDULE)
    operator = access.operator()
    with audited(operator.ledger, "beat pause" if paused else "beat resume", entry):
        operator.set_paused(entry, paused=paused)
    echo(f"{entry} is paused." if paused else f"{entry} goes on.")


def _time(at: float | None) -> str:
    return "" if at is None else local_text(at)


def _next(entry: "ScheduleEntry") -> str:
    if entry.paused:
        return "paused"
    return " ".join(filter(None, (_time(entry.next_tick_at), entry.error)))
