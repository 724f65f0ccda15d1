"""`duplicates`: who asks for what is there already, and what the guard has saved."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from onejob.cli.access import Access, access
from onejob.cli.printing import json_option, moment, print_json, print_table
from onejob.jobs.model import Outcome
from onejob.ledger.duplicate_stats import duplicate_stats
from onejob.stores.protocol import DUPLICATE_LIMIT, GroupBy

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger

MET = tuple(outcome for outcome in Outcome if outcome is not Outcome.ADMITTED)


@click.command()
@click.argument("job_id", required=False)
@click.option("--by", default=str(GroupBy.TASK), show_default=True, type=click.Choice([str(by) for by in GroupBy]))
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="At most so many lines.")
@json_option
@access
def duplicates(access: Access, job_id: str | None, by: str, limit: int, *, as_json: bool) -> None:
    """Tell who hits the guard most, and what it saved; with JOB_ID, who has met that job."""
    ledger = access.ledger()
    if job_id is None:
        _print_savings(ledger, GroupBy(by), limit, as_json=as_json)
    else:
        _print_duplicates(ledger, job_id, as_json=as_json)


def _print_savings(ledger: Ledger, by: GroupBy, limit: int, *, as_json: bool) -> None:
    found = duplicate_stats(ledger, by, limit=limit)
    if as_json:
        print_json([asdict(saving) for saving in found])
        return
    lines = (
        (saving.name or "(unnamed)", saving.runs, _seconds(saving.seconds), *(saving.counts[met] for met in MET))
        for saving in found
    )
    print_table((str(by), "runs saved", "seconds saved", *map(str, MET)), lines)


def _seconds(saved: float | None) -> str:
    return "?" if saved is None else f"{saved:.1f}"


def _print_duplicates(ledger: Ledger, job_id: str, *, as_json: bool) -> None:
    job, duplicates = ledger.get(job_id), ledger.duplicates(job_id)
    if as_json:
        print_json([asdict(duplicate) for duplicate in duplicates])
        return
    lines = (
        (
            moment(duplicate.at), duplicate.outcome, duplicate.submitter or "(unnamed)", duplicate.source, duplicate.host,
            "other" if duplicate.arguments_differ else "same", duplicate.answered_by,
        )
        for duplicate in duplicates
    )  # fmt: skip
    print_table(("when", "outcome", "submitter", "source", "host", "arguments", "answered by"), lines)
    if job.duplicate_count > DUPLICATE_LIMIT:
        click.echo(f"These are the newest of {job.duplicate_count}.")
