"""Runs a bulk operation, records it in the audit log, and prints its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onejob.cli.audit import audited
from onejob.cli.printing import clean, echo, print_json
from onejob.ledger.bulk import bulk_apply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    from onejob.jobs.model import Job
    from onejob.ledger.bulk import Selection
    from onejob.ledger.ledger import Ledger

ORIGIN = "at the command line"


def selected_text(options: Mapping[str, Any]) -> str:
    """Return the options that were given, for the audit log."""
    return " ".join(f"{name}={value}" for name, value in options.items() if value)


def run_bulk(
    ledger: Ledger, action: str, done: str, selection: Selection, act: Callable[[Job], object], *,
    check: Callable[[Job], object], dry_run: bool, as_json: bool, detail: str,
) -> NoReturn:  # fmt: skip
    """Act on each selected job, print the result, and exit: with 1 when a job was refused.

    `action` names the operation in the audit log, where a dry run is not recorded; `done` is a participle.
    """
    if dry_run:
        result = bulk_apply(ledger, selection, act, check=check, dry_run=True)
    else:
        with audited(ledger, action, " ".join(selection.job_ids), detail) as attempt:
            result = bulk_apply(ledger, selection, act, check=check)
            attempt.outcome = f"{len(result.done)} done, {len(result.refused)} refused"
    if as_json:
        print_json({"dry_run": dry_run, "done": result.done, "refused": result.refused})
    else:
        for line in (*result.done, *result.refused.values()):
            echo(clean(line))
        would = "would be " if dry_run else ""
        echo(f"{len(result.done)} {would}{done}, {len(result.refused)} refused")
    raise SystemExit(1 if result.refused else 0)
