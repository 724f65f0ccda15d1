"""Reports on a ledger's records: `duplicates`, `costs`, `activity`, `audit`, `workers`, `queues` and `metrics`."""

from dataclasses import asdict
from datetime import date, timedelta
from typing import Any

import click

from onejob.celery.messages.payload import preview, read_message
from onejob.cli.access import DAY, TIME, Access, access, json_access, needs_extra
from onejob.cli.printing import duplicate_fields, echo, print_csv, print_json, print_list, print_table
from onejob.jobs.costs import CostsBy
from onejob.jobs.metric_buckets import Period
from onejob.jobs.model import Outcome
from onejob.jobs.public_view import fields_of
from onejob.jobs.query import Query
from onejob.jobs.timestamps import local_text, seconds_of
from onejob.ledger.costs import cost_to_dict, read_costs
from onejob.ledger.ledger import Ledger
from onejob.ledger.reader import AUDIT_LIMIT
from onejob.ledger.search import search
from onejob.ledger.stats import (
    LENGTHS,
    DuplicateSummary,
    activity_to_dict,
    read_activity,
    read_queues,
    summarize_duplicates,
)
from onejob.stores.protocol import DUPLICATE_LIMIT, GroupBy

OUTCOMES = tuple(outcome for outcome in Outcome if outcome is not Outcome.ADMITTED)


@click.command()
@click.argument("job_id", required=False)
@click.option("--by", default=str(GroupBy.TASK), show_default=True, type=click.Choice([str(by) for by in GroupBy]))
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="Maximum number of lines.")
@json_access
def duplicates(access: Access, job_id: str | None, by: str, limit: int, *, as_json: bool) -> None:
    """Count duplicates and the runs that they saved; with JOB_ID, list the duplicates of that job."""
    ledger = access.ledger()
    if job_id is None:
        _print_statistics(ledger, GroupBy(by), limit, as_json=as_json)
    else:
        _print_duplicates(ledger, job_id, as_json=as_json)


def _print_statistics(ledger: Ledger, by: GroupBy, limit: int, *, as_json: bool) -> None:
    found = summarize_duplicates(ledger, by, limit=limit)
    calls = {each.name: _call_of(ledger, each) if by is GroupBy.IDENTITY else {} for each in found}
    lines = (
        (
            each.name or "(unnamed)", *calls[each.name].values(), each.runs,
            "?" if each.seconds is None else f"{each.seconds:.1f}",
            *(each.counts[outcome] for outcome in OUTCOMES), each.redelivered,
        )
        for each in found
    )  # fmt: skip
    call = ("task", "arguments") if by is GroupBy.IDENTITY else ()
    headings = (str(by), *call, "runs saved", "seconds saved", *map(str, OUTCOMES), "redelivered")
    print_list([asdict(each) | calls[each.name] for each in found], headings, lines, as_json=as_json)
    if not as_json and any(each.seconds is None and each.runs for each in found):
        echo("?: not known, since no completed job of the task is kept.")


def _call_of(ledger: Ledger, summary: DuplicateSummary) -> dict[str, str]:
    """Return the task of an identity, and the arguments of its newest job; "" if the job is not found at once."""
    found = search(ledger, Query(identity=summary.name, limit=1), is_over=lambda: True).jobs
    message = read_message(found[0]) if found else None
    arguments = preview({"args": message.args, "kwargs": message.kwargs}) if message else ""
    return {"task": ", ".join(summary.tasks), "arguments": arguments}


def _print_duplicates(ledger: Ledger, job_id: str, *, as_json: bool) -> None:
    job, found = ledger.get(job_id), ledger.duplicates(job_id)
    lines = (
        (
            local_text(each.at), each.outcome, each.submitter or "(unnamed)", each.source, each.host,
            "different" if each.arguments_differ else "same", each.answered_by,
        )
        for each in found
    )  # fmt: skip
    headings = ("at", "outcome", "submitter", "source", "host", "arguments", "answered by")
    print_list([*map(duplicate_fields, found)], headings, lines, as_json=as_json)
    if job.duplicate_count > DUPLICATE_LIMIT and not as_json:
        echo(f"These are the newest of {job.duplicate_count}.")


@click.command()
@click.option("--by", default=str(CostsBy.TASK), show_default=True, type=click.Choice([str(by) for by in CostsBy]))
@click.option("--since", type=DAY, help="The first day (UTC), as 2026-01-31.  [default: 30 days in all]")
@click.option("--until", type=DAY, help="The last day (UTC).  [default: today]")
@click.option("--task", help="Only the jobs of this task.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@json_access
def costs(
    access: Access, by: str, since: date | None, until: date | None, task: str | None, *, as_csv: bool, as_json: bool
) -> None:
    """Add up what jobs have spent, and what their duplicates have saved, by unit.

    A duplicate that did not run has saved the cost of the job that answered it. The cost of a job counts for each of
    its tags, so that the costs of tags do not add up.
    """
    found = read_costs(access.ledger(), CostsBy(by), since=since, until=until, task=task)
    headings = (by, "unit", "spent", "saved")
    if as_csv:
        print_csv(headings, [(each.name, each.unit, each.spent, each.saved) for each in found])
        return
    shown = [cost_to_dict(each) for each in found]
    rows = ((each["name"] or "(unnamed)", each["unit"], each["spent"], each["saved"]) for each in shown)
    print_list(shown, headings, rows, as_json=as_json)


ACTIVITY_COLUMNS = (
    "submissions", "prevented", "seconds saved", "runs", "failed", "run p50", "run p95", "wait p50", "wait p95",
)  # fmt: skip


@click.command()
@click.option(
    "--period", default=str(Period.MINUTE), show_default=True, type=click.Choice([str(period) for period in Period]),
    help="The last hour by minute, or the last seven days by hour.",
)  # fmt: skip
@json_access
def activity(access: Access, period: str, *, as_json: bool) -> None:
    """Count submissions, prevented duplicates and runs, by time and by task; with their times in seconds.

    p50 and p95 are estimated from a histogram; a lost run counts until its lease ended.
    """
    chosen = Period(period)
    found = activity_to_dict(read_activity(access.ledger(), chosen, length=LENGTHS[chosen]))
    if as_json:
        print_json(found)
        return
    total = ("total", *_cells(found["totals"]))
    used = [each for each in found["slots"] if each["submissions"] or each["runs"] or each["wait_seconds"]["count"]]
    slots = [(local_text(each["begin"]), *_cells(each)) for each in used]
    print_table((f"{period} from", *ACTIVITY_COLUMNS), [*slots, total])
    echo("")
    print_table(("task", *ACTIVITY_COLUMNS), [*((each["task"], *_cells(each)) for each in found["tasks"]), total])


def _cells(stats: dict[str, Any]) -> list[object]:
    run, wait = stats["run_seconds"], stats["wait_seconds"]
    seconds = [_seconds_text(times[name]) for times in (run, wait) for name in ("p50", "p95")]
    share = stats["failed_share"]
    return [
        sum(stats["submissions"].values()), stats["duplicates_prevented"],
        _seconds_text(stats["seconds_saved"]) or "?", sum(stats["runs"].values()),
        "" if share is None else f"{share:.1%}", *seconds,
    ]  # fmt: skip


def _seconds_text(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3g}" if seconds < 1 else f"{seconds:.1f}"


AUDIT_COLUMNS = ("at", "source", "actor", "address", "action", "target", "outcome", "count", "detail")


@click.command()
@click.option("--since", type=TIME, help="Only entries of this time or later: 90m, 1d, 2026-01-31T12:00:00Z.")
@click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, AUDIT_LIMIT), help="Maximum number of entries."
)
@json_access
def audit(access: Access, since: float | timedelta | None, limit: int, *, as_json: bool) -> None:
    """List the actions of operators and the refused requests, newest first."""
    ledger = access.ledger()
    begin = seconds_of(since, ledger.read_clock()) or 0.0
    found = [fields_of(entry) for entry in ledger.audit(limit=limit) if entry.at >= begin]
    print_list(found, AUDIT_COLUMNS, ([entry[name] for name in AUDIT_COLUMNS] for entry in found), as_json=as_json)


@click.command()
@json_access
def workers(access: Access, *, as_json: bool) -> None:
    """List the workers whose latest heartbeat is still valid."""
    found = [*map(fields_of, access.ledger().store.workers())]
    rows = (
        (each["name"], each["seen_at"], each["pool"], each["concurrency"], " ".join(each["queues"]), len(each["tasks"]))
        for each in found
    )
    headings = ("node", "latest heartbeat", "pool", "concurrency", "queues", "tasks")
    print_list(found, headings, rows, as_json=as_json)


@click.command()
@json_access
def queues(access: Access, *, as_json: bool) -> None:
    """List the queues with their due and running jobs, and the slots of their workers."""
    found = [asdict(load) for load in read_queues(access.ledger())]
    rows = ([*(each | {"oldest_due": _seconds_text(each["oldest_due"])}).values()] for each in found)
    print_list(found, ("queue", "due", "running", "oldest due", "slots", "workers"), rows, as_json=as_json)


@click.command()
@access
def metrics(access: Access) -> None:
    """Print the metrics as `GET /metrics` does, in the text format of Prometheus."""
    with needs_extra("metrics", "`onejob metrics`"):
        from onejob.prometheus import render_metrics
    echo(render_metrics(access.ledger()).decode(), end="")
