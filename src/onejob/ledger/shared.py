"""What all processes share besides jobs: events of webhooks, metrics, the audit log, heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.jobs.records import NO_AMOUNTS, UNREGISTERED
from onejob.ledger.reader import AUDIT_LIMIT, AUDIT_SECONDS, JobReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onejob.jobs.records import AuditEntry, Registration, WorkerInfo


class SharedState(JobReader):
    """The operations of a ledger that write no job."""

    def keep_event(self, event_id: str, body: str | None, *, keep_for: float) -> str | None:
        """Store an event of webhooks unless it is stored, or with None find it; keep it for at least so many seconds.

        Returns the stored body, or None without one.
        """
        return self.store.keep_event(event_id, body, keep_for=keep_for)

    def increment(self, amounts: Mapping[str, float], *, recent: Mapping[str, float] = NO_AMOUNTS) -> None:
        """Add to the metrics that all processes share, by name: to the totals, and `recent` to those by time."""
        self.store.increment(amounts, recent=recent)

    def append_audit(self, entry: AuditEntry) -> None:
        """Append an entry to the audit log, which keeps the newest ones."""
        self.store.append_audit(entry, keep=AUDIT_LIMIT, keep_for=AUDIT_SECONDS)

    def heartbeat(self, node: str, *, lasts: float, registration: Registration = UNREGISTERED) -> None:
        """Record the heartbeat of a worker, which lasts so many seconds; 0: the worker has stopped."""
        self.store.heartbeat(node, lasts=lasts, registration=registration)

    def take_dead_workers(self) -> list[WorkerInfo]:
        """Remove the workers whose heartbeats have expired, and return them: each to one caller."""
        return self.store.take_dead_workers()
