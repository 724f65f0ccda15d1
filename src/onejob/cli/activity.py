"""`activity`: submissions, runs and their times of the last hour by minute, or of the last days by hour."""

from __future__ import annotations

from typing import Any

import click

from onejob.cli.access import Access, access
from onejob.cli.printing import echo, json_option, print_json, print_table
from onejob.jobs.records import Period
from onejob.jobs.timestamps import local_text
from onejob.ledger.activity import LENGTHS, activity_to_dict, read_activity

COLUMNS = (
    "submissions", "prevented", "seconds saved", "runs", "failed", "run p50", "run p95", "wait p50", "wait p95",
)  # fmt: skip


@click.command()
@click.option(
    "--period", default=str(Period.MINUTE), show_default=True, type=click.Choice([str(period) for period in Period]),
    help="The last hour by minute, or the last seven days by hour.",
)  # fmt: skip
@json_option
@access
def activity(access: Access, period: str, *, as_json: bool) -> None:
    """Count submissions, prevented duplicates and runs, by time and by task; with their times in seconds."""
    chosen = Period(period)
    found = activity_to_dict(read_activity(access.ledger(), chosen, length=LENGTHS[chosen]))
    if as_json:
        print_json(found)
        return
    total = ("total", *_cells(found["totals"]))
    slots = [(local_text(each["begin"]), *_cells(each)) for each in found["slots"] if not _is_empty(each)]
    print_table((f"{period} from", *COLUMNS), [*slots, total])
    echo("")
    print_table(("task", *COLUMNS), [*((each["task"], *_cells(each)) for each in found["tasks"]), total])


def _is_empty(figures: dict[str, Any]) -> bool:
    return not (figures["submissions"] or figures["runs"] or figures["wait_seconds"]["count"])


def _cells(figures: dict[str, Any]) -> list[object]:
    run, wait = figures["run_seconds"], figures["wait_seconds"]
    seconds = [_seconds_text(times[name]) for times in (run, wait) for name in ("p50", "p95")]
    share = figures["failed_share"]
    return [
        sum(figures["submissions"].values()), figures["duplicates_prevented"],
        _seconds_text(figures["seconds_saved"]) or "?", sum(figures["runs"].values()),
        "" if share is None else f"{share:.1%}", *seconds,
    ]  # fmt: skip


def _seconds_text(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3g}" if seconds < 1 else f"{seconds:.1f}"
