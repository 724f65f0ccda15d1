"""Records in the audit log what a user of this host does, in Python or at the command line."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from onejob.errors import OneJobError, describe
from onejob.jobs.audit_entries import AuditEntry
from onejob.ledger.ledger import Ledger
from onejob.observability.logs import record_audit


@dataclass(slots=True)
class Attempt:
    """An action that is recorded when it has ended."""

    outcome: str = "done"
    fault: OneJobError | None = None
    """Why the audit log has no entry of the action; it is set when the action is over."""


@contextmanager
def recorded(
    ledger: Ledger | None, action: str, target: str, detail: str = "", *, source: str, actor: str | None = None
) -> Iterator[Attempt]:
    """Record a block as an action of `actor` (None: this user) that was done, refused, failed, or had an `outcome`.

    `target`: the ids of jobs, or the name of what is changed. Without a ledger only the log has the record.
    """
    attempt = Attempt()
    try:
        yield attempt
    except OneJobError as error:
        attempt.outcome = f"refused: {error}"
        raise
    except BaseException as error:  # also an interrupt, before which some of many jobs may have changed
        attempt.outcome = f"failed: {describe(error)}"
        raise
    finally:
        entry = AuditEntry(
            actor=actor or user_name(), source=source, address=socket.gethostname(), action=action, target=target,
            outcome=attempt.outcome, detail=detail,
        )  # fmt: skip
        attempt.fault = record_audit(None if ledger is None else ledger.append_audit, entry)


def user_name() -> str:
    """Return the name of the user of this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run under a user id without a name
        return f"uid {os.getuid()}"
