"""`audit`: what operators did, and which requests were refused; and the recording of what this command does."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from onejob.cli.access import Access, access
from onejob.cli.printing import fields_of, json_option, print_json, print_table
from onejob.cli.times import Time
from onejob.errors import OneJobError
from onejob.jobs.records import AuditEntry
from onejob.ledger.reader import AUDIT_LIMIT
from onejob.observability.audit import record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onejob.ledger.ledger import Ledger

SOURCE = "cli"
PAGE_SIZE = 200
COLUMNS = ("at", "source", "actor", "address", "action", "target", "outcome", "count", "detail")


@dataclass(slots=True)
class Attempt:
    """What is recorded of an action."""

    outcome: str = "done"


@contextmanager
def audited(ledger: Ledger | None, action: str, target: str, detail: str = "") -> Iterator[Attempt]:
    """Record what happens in a block, done or refused, as the action of this user on this host."""
    attempt = Attempt()
    try:
        yield attempt
    except OneJobError as error:
        attempt.outcome = f"refused: {error}"
        raise
    finally:
        user, host = _user(), socket.gethostname()
        entry = AuditEntry(
            actor=user,
            source=SOURCE,
            address=host,
            action=action,
            target=target,
            outcome=attempt.outcome,
            detail=detail,
        )
        record(None if ledger is None else ledger.append_audit, entry)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run under a user id without a name
        return f"uid {os.getuid()}"


@click.command()
@click.option("--since", type=Time(), help="Only entries of this time or later: 90m, 1d, 2026-01-31T12:00:00Z.")
@click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, AUDIT_LIMIT), help="Maximum number of entries."
)
@json_option
@access
def audit(access: Access, since: float | None, limit: int, *, as_json: bool) -> None:
    """List what operators did and which requests were refused, newest first."""
    found = [fields_of(entry) for entry in _read(access.ledger(), since, limit)]
    if as_json:
        print_json(found)
    else:
        print_table(COLUMNS, ([entry[name] for name in COLUMNS] for entry in found))


def _read(ledger: Ledger, since: float | None, limit: int) -> list[AuditEntry]:
    found: list[AuditEntry] = []
    before: int | None = None
    while len(found) < limit:
        page = ledger.audit(limit=min(PAGE_SIZE, limit - len(found)), before=before)
        wanted = [entry for entry in page if since is None or entry.at >= since]
        found += wanted
        if not page or len(wanted) < len(page):
            break
        before = page[-1].id
    return found
