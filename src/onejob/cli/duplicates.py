"""`duplicates`: who asks for what is there already, and what the guard has saved."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from onejob.cli.access import Access, access
from onejob.cli.printing import json_option, moment, print_json, print_table
from onejob.job import Outcome
from onejob.savings import savings
from onejob.store import RECEIPT_LIMIT, By

if TYPE_CHECKING:
    from onejob.ledger import Ledger

MET = tuple(outcome for outcome in Outcome if outcome is not Outcome.ADMITTED)


@click.command()
@click.argument("job_id", required=False)
@click.option("--by", default=str(By.TASK), show_default=True, type=click.Choice([str(by) for by in By]))
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="At most so many lines.")
@json_option
@access
def duplicates(access: Access, job_id: str | None, by: str, limit: int, *, as_json: bool) -> None:
    """Tell who hits the guard most, and what it saved; with JOB_ID, who has met that job."""
    ledger = access.ledger()
    if job_id is None:
        _print_savings(ledger, By(by), limit, as_json=as_json)
    else:
        _print_receipts(ledger, job_id, as_json=as_json)


def _print_savings(ledger: Ledger, by: By, limit: int, *, as_json: bool) -> None:
    found = savings(ledger, by, limit=limit)
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


def _print_receipts(ledger: Ledger, job_id: str, *, as_json: bool) -> None:
    job, receipts = ledger.get(job_id), ledger.receipts(job_id)
    if as_json:
        print_json([asdict(receipt) for receipt in receipts])
        return
    lines = (
        (
            moment(receipt.at), receipt.outcome, receipt.submitter or "(unnamed)", receipt.door, receipt.host,
            "other" if receipt.differs else "same", receipt.answer,
        )
        for receipt in receipts
    )  # fmt: skip
    print_table(("when", "outcome", "submitter", "door", "host", "arguments", "answered by"), lines)
    if job.duplicates > RECEIPT_LIMIT:
        click.echo(f"These are the newest of {job.duplicates}.")
