"""The output of the command line: JSON, tables and fields. Times are local, with their offset; in JSON, UTC."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import click

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Duplicate, JobRow
from onejob.jobs.public_view import fields_of, job_to_dict
from onejob.jobs.spreadsheets import guard_cell
from onejob.jobs.timestamps import duration_text, format_timestamp, local_text, relative_text
from onejob.ledger.stuck import Stuck

JSON_TEXTS = ("payload", "options", "progress", "result", "error")
FLAGS = ("queued_next", "cancel_requested")
"""Fields of a job that are printed only when they are true."""


def columns_of(job: JobRow) -> dict[str, Any]:
    """Return every column of a job, its JSON texts parsed."""
    values = fields_of(job).items()
    return {name: json.loads(value) if value and name in JSON_TEXTS else value for name, value in values}


def duplicate_fields(duplicate: Duplicate) -> dict[str, Any]:
    """Return the fields of a duplicate that mean something to its reader."""
    return {
        name: value for name, value in fields_of(duplicate).items() if name not in {"submission_nonce", "fingerprint"}
    }


def clean(text: str, keep: str = "") -> str:
    """Escape every character, except those in `keep`, that a terminal may interpret: control and format characters.

    Tasks, submitters and receivers of webhooks choose texts that are printed here: an escape sequence could change what
    the terminal shows, its title or its clipboard, and a bidirectional override could reverse a line.
    """
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def echo(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Print a text of one or more lines, cleaned. Every command prints through the functions of this module."""
    click.echo(clean(text, keep="\n\t") + end, err=err, nl=False)


def print_json(value: object) -> None:
    """Print a value as JSON, in which unprintable characters are escaped as JSON has it."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=format_timestamp)
    escaped = "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
    click.echo(escaped)


def print_list(found: object, headings: Sequence[str], rows: Iterable[Sequence[object]], *, as_json: bool) -> None:
    """Print results as JSON, or as rows below their headings."""
    if as_json:
        print_json(found)
    else:
        print_table(headings, rows)


def print_csv(headings: Sequence[str], rows: Iterable[Sequence[str | Decimal]]) -> None:
    """Print rows as CSV (RFC 4180), with a quote before text that a spreadsheet would execute."""
    writer = csv.writer(text := io.StringIO())
    writer.writerow(headings)
    writer.writerows([guard_cell(clean(cell)) if isinstance(cell, str) else cell for cell in row] for row in rows)
    click.echo(text.getvalue(), nl=False)


def print_job(fields: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one job, a line for each field that has a value."""
    if as_json:
        print_json(fields)
        return
    lines = {name: _text(value) for name, value in fields.items() if value or name not in FLAGS}
    width = max(map(len, lines))
    for name, text in lines.items():
        if text:
            echo(f"{name:>{width}}  {clean(text)}")


def print_job_list(given: Sequence[JobRow | tuple[JobRow, Stuck]], now: float, *, limit: int, as_json: bool) -> None:
    """Print up to `limit` jobs, a line for each, with durations that end at `now`; and whether there are more.

    A stuck job is given with its reason.
    """
    rows = [each if isinstance(each, tuple) else (each, None) for each in given[:limit]]
    if len(given) > limit:
        echo(f"These are the newest {limit}, and more match: raise --limit, or narrow the filter", err=True)
    is_stuck = any(stuck for _, stuck in rows)
    headings = ("id", "state", "task", "queue", "age", "due", "running", "attempt", "duplicates", "reason")
    cells = ([*_list_cells(job, now), *([stuck] if is_stuck else [])] for job, stuck in rows)
    found = [job_to_dict(job) | ({"stuck": stuck} if stuck else {}) for job, stuck in rows]
    print_list(found, [*headings, *(["stuck"] if is_stuck else [])], cells, as_json=as_json)


def _list_cells(job: JobRow, now: float) -> list[object]:
    is_waiting = not job.state.final and job.state is not State.RUNNING and job.follows_id is None
    return [
        job.id, job.state, job.task, job.queue, duration_text(now - job.created_at),
        relative_text(job.run_at, now) if is_waiting else "",
        duration_text(now - (job.started_at or now)) if job.state is State.RUNNING else "",
        job.attempt, job.duplicate_count, job.reason,
    ]  # fmt: skip


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows below their headings."""
    cells = [list(headings), *([clean(_text(value)[:80]) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headings))]
    for row in cells:
        echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return local_text(value)
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
