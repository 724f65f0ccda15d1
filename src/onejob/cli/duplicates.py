"""`duplicates`: how many duplicates there were, who sent them, and what that saved."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from onejob.cli.access import Access, access
from onejob.cli.completions import JOB
from onejob.cli.printing import duplicate_fields, echo, json_option, print_json, print_table
from onejob.jobs.model import Outcome
from onejob.jobs.timestamps import local_text
from onejob.ledger.duplicate_stats import summarize_duplicates
from onejob.stores.protocol import DUPLICATE_LIMIT, GroupBy

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger

OUTCOMES = tuple(outcome for outcome in Outcome if outcome is not Outcome.ADMITTED)


@click.command()
@click.argument("job_id", required=False, type=JOB)
@click.option("--by", default=str(GroupBy.TASK), show_default=True, type=click.Choice([str(by) for by in GroupBy]))
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="Maximum number of lines.")
@json_option
@access
def duplicates(access: Access, job_id: str | None, by: str, limit: int, *, as_json: bool) -> None:
    """Count duplicates and the runs that they saved; with JOB_ID, list the duplicates of that job."""
    ledger = access.ledger()
    if job_id is None:
        _print_statistics(ledger, GroupBy(by), limit, as_json=as_json)
    else:
        _print_duplicates(ledger, job_id, as_json=as_json)


def _print_statistics(ledger: Ledger, by: GroupBy, limit: int, *, as_json: bool) -> None:
    found = summarize_duplicates(ledger, by, limit=limit)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    lines = (
        (
            each.name or "(unnamed)", each.runs, _seconds(each.seconds),
            *(each.counts[outcome] for outcome in OUTCOMES), each.redelivered,
        )
        for each in found
    )  # fmt: skip
    print_table((str(by), "runs saved", "seconds saved", *map(str, OUTCOMES), "redelivered"), lines)


def _seconds(saved: float | None) -> str:
    return "?" if saved is None else f"{saved:.1f}"


def _print_duplicates(ledger: Ledger, job_id: str, *, as_json: bool) -> None:
    job, found = ledger.get(job_id), ledger.duplicates(job_id)
    if as_json:
        print_json([duplicate_fields(each) for each in found])
        return
    lines = (
        (
            local_text(each.at), each.outcome, each.submitter or "(unnamed)", each.source, each.host,
            "different" if each.arguments_differ else "same", each.answered_by,
        )
        for each in found
    )  # fmt: skip
    print_table(("at", "outcome", "submitter", "source", "host", "arguments", "answered by"), lines)
    if job.duplicate_count > DUPLICATE_LIMIT:
        echo(f"These are the newest of {job.duplicate_count}.")
