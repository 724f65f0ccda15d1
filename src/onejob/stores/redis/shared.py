"""Metrics, worker heartbeats, events of webhooks and the audit log, which all processes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.jobs.records import AUDIT_KINDS, NO_AMOUNTS, UNREGISTERED, AuditEntry, Bucket, Period, WorkerInfo
from onejob.stores.redis.operations import Call, Operation, Read, pairs_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onejob.jobs.records import Registration
    from onejob.stores.redis.keys import Keys


def increment(keys: Keys, amounts: Mapping[str, float], *, recent: Mapping[str, float] = NO_AMOUNTS) -> Operation[None]:
    """Add to the totals and to the current buckets, in one script, atomically."""
    periods = [str(seconds) for period in Period for seconds in (period.seconds, period.kept_for)]
    totals = _flatten(amounts)
    script_keys = (keys.metrics, *(keys.buckets(period.seconds) for period in Period))
    yield Call("increment", script_keys, (*periods, str(len(totals)), *totals, *_flatten(recent)))


def _flatten(amounts: Mapping[str, float]) -> list[str]:
    return [text for name, amount in amounts.items() for text in (name, repr(float(amount)))]


def totals(keys: Keys) -> Operation[dict[str, float]]:
    """Return all totals by name."""
    (found,) = yield Read([("HGETALL", keys.metrics)])
    return _parse_amounts(found)


def series(keys: Keys, period: Period, *, since: float) -> Operation[list[Bucket]]:
    """Return the buckets of a period, oldest first."""
    values = (str(period.seconds), str(period.kept_for), repr(float(since)))
    flat = yield Call("series", (keys.buckets(period.seconds),), values)
    return [Bucket(float(start), _parse_amounts(found)) for start, found in zip(flat[::2], flat[1::2], strict=True)]


def _parse_amounts(flat: Sequence[str]) -> dict[str, float]:
    return {name: float(amount) for name, amount in pairs_of(flat).items()}


def heartbeat(keys: Keys, node: str, *, lasts: float, registration: Registration = UNREGISTERED) -> Operation[None]:
    """Record a worker's heartbeat."""
    values = (node, str(lasts), registration.to_json())
    yield Call("heartbeat", (keys.workers, keys.registrations), values)


def workers(keys: Keys) -> Operation[list[WorkerInfo]]:
    """Return the workers whose heartbeats have not expired, by name."""
    return _parse_workers((yield Call("workers", (keys.workers, keys.registrations))))


def take_dead_workers(keys: Keys) -> Operation[list[WorkerInfo]]:
    """Remove and return the workers whose heartbeats have expired, by name."""
    return _parse_workers((yield Call("take_dead_workers", (keys.workers, keys.registrations))))


def _parse_workers(flat: Sequence[str]) -> list[WorkerInfo]:
    rows = sorted(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
    return [WorkerInfo.from_row(dict(zip(("name", "seen_at", "registration"), row, strict=True))) for row in rows]


def keep_event(keys: Keys, event_id: str, body: str | None, *, keep_for: float) -> Operation[str | None]:
    """Store an event, unless it is stored, and extend the time for which it is needed."""
    values = (str(keep_for), *(() if body is None else (body,)))
    kept: str | None = yield Call("keep_event", (keys.event(event_id),), values)
    return kept


def append_audit(keys: Keys, entry: AuditEntry, *, keep: int, keep_for: float) -> Operation[None]:
    """Append an entry to the audit log."""
    others = [keys.audit[kind] for kind in AUDIT_KINDS if kind != entry.kind]
    yield Call("append_audit", (keys.audit[entry.kind], *others), (entry.to_json(), str(keep), str(keep_for)))


def audit(keys: Keys, *, limit: int, before: int | None, keep_for: float) -> Operation[list[AuditEntry]]:
    """Return entries of the audit log, newest first."""
    values = ("" if before is None else str(before), str(limit), str(keep_for))
    texts = yield Call("audit", tuple(keys.audit.values()), values)
    found = [AuditEntry.from_row(*text.split(" ", 2)) for text in texts]
    return sorted(found, key=lambda entry: entry.id, reverse=True)[:limit]
