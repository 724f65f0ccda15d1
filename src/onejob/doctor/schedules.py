"""Checks of the beat schedule: its versions in live workers, and entries whose next tick is overdue."""

from collections.abc import Iterable, Iterator
from itertools import chain

from celery import Celery

from onejob.health.finding import Check, Finding, Installation, Level, count_text, names_text, or_ok
from onejob.jobs.schedule_state import ScheduleState
from onejob.jobs.workers import WorkerInfo
from onejob.ledger.ledger import Ledger

# fmt: off
VERSIONS = Check("schedule-versions", "schedules", Level.WARNING,
    when="live workers have different schedules for one entry of the beat schedule",
    meaning="harmless during a deployment: the most recent one applies, until the last worker that has it ends",
    remedy="finish the deployment, or undo it: restart the workers that have the schedule you do not want")
LATE = Check("schedule-late", "schedules", Level.WARNING,
    when="the next tick of an entry is overdue by more than a minute, cannot be computed, or never comes",
    meaning="nobody submits its ticks; those that are due now are made up for as `missed` says",
    remedy="start a worker with `onejob_beat`, look at the log of the workers, or remove an entry that has ended")
# fmt: on


def examine(installation: Installation) -> Iterator[Finding]:
    """Examine the app's schedule, if an app is given whose workers run it, and the schedules that workers register."""
    app, ledger = installation.app, installation.ledger
    if app is None or not installation.settings.beat:
        return
    from onejob.celery.beat.ticks import entries_of

    own = {name: entry.timetable.spec for name, entry in entries_of(app).items()}
    versions = check_versions(ledger.store.schedules(), ledger.workers(), own)
    yield from or_ok(chain(versions, check_ticks(app, ledger)), "schedules", count_text(len(own), "schedule"))


def check_versions(
    states: Iterable[ScheduleState], workers: Iterable[WorkerInfo], own: dict[str, str]
) -> Iterator[Finding]:  # fmt: skip
    """Check that live workers have one schedule of each entry. `own`: the app's schedules by the entry's name."""
    live = [worker for worker in workers if worker.schedules]
    for state in states:
        specs = dict.fromkeys((state.spec, *state.former_specs, own.get(state.name, state.spec)))
        holders = {spec: [each.name for each in live if each.has_schedule(state.name, spec)] for spec in specs}
        found = [f"{spec!r} on {names_text(nodes)}" for spec, nodes in holders.items() if nodes]
        if len(found) > 1:
            yield VERSIONS.found(f"{state.name} is {', '.join(found)}")


def check_ticks(app: Celery, ledger: Ledger) -> Iterator[Finding]:
    """Check that no tick of the app's entries is overdue."""
    from onejob.client.schedules import list_entries

    for entry in list_entries(app, ledger):
        if entry.error:
            yield LATE.found(f"the entry {entry.name} {entry.error}")
