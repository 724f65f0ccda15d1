"""How jobs look at the command line: as JSON, or as a table."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from onejob.jobs.lifecycle import State
    from onejob.jobs.model import Job

COLUMNS = ("id", "state", "task", "attempt", "duplicates", "reason")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def job_as_json(job: Job) -> dict[str, Any]:
    """Return a job with its JSON texts opened; its arguments stay in `payload`."""
    opened = ("payload", "options", "progress", "result", "error")
    return {k: json.loads(v) if k in opened and v is not None else v for k, v in asdict(job).items()}


def print_json(value: object) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_job(job: Job, *, as_json: bool) -> None:
    """Print one job, a line for each field that it has."""
    if as_json:
        print_json(job_as_json(job))
        return
    for name, value in job_as_json(job).items():
        if value is not None and value != "":
            click.echo(f"{name:>12}  {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")


def print_jobs(found: Sequence[Job], *, as_json: bool) -> None:
    """Print jobs, a line for each."""
    if as_json:
        print_json([job_as_json(job) for job in found])
    else:
        print_table(COLUMNS, ([getattr(job, name) for name in COLUMNS] for job in found))


def print_counts(counts: Mapping[State, int], *, as_json: bool) -> None:
    """Print how many jobs there are, by state and in all."""
    total = sum(counts.values())
    if as_json:
        print_json({"total": total, "by_state": counts})
    else:
        print_table(("state", "jobs"), [*counts.items(), ("total", total)])


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows below their headings."""
    cells = [list(headings), *([str(value)[:80] for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headings))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def moment(at: float | None) -> str:
    """Return a time as people read it, in UTC."""
    return "?" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
