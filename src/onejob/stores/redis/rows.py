"""The keys of a ledger in Redis, and the row of a job.

The prefix of the keys is a hash tag, so that all keys of a ledger are in one slot of a cluster. The row is the list at
a job's key, by position; scripts use the same positions. The first element is the row, in MessagePack: texts, and false
for a field that has its default ("", 0, None). The other elements are large, or rare, and written when they change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onejob.errors import ConfigurationError
from onejob.jobs.audit_entries import AUDIT_KINDS
from onejob.jobs.lifecycle import State
from onejob.jobs.metric_buckets import Period
from onejob.jobs.model import Cancel, JobRow
from onejob.stores.protocol import INDEXED_STATES, Channel


class Keys:
    """The keys of the ledger named `prefix`. docs/decisions/0001-redis-keys.md has the content of each."""

    def __init__(self, prefix: str) -> None:
        if not prefix or "{" in prefix or "}" in prefix:
            msg = f"the prefix {prefix!r} of the keys in Redis is invalid: it must not be empty, and contain no brace"
            raise ConfigurationError(msg)
        tag = f"{{{prefix}}}"
        wake, self.leases, self.ended = (f"{tag}:{name}" for name in ("wake:", "leases", "ended"))
        self.wake_sets = (wake, self.leases, self.ended)
        """The keys of the sorted sets of `wake_at`; for waiting jobs, the prefix of the sorted sets of all tasks.

        The prefix itself is the key of the sorted set of these sets, by the earliest `wake_at` of each or before it.
        """
        self.state_sets = {state: f"{tag}:{state}" for state in INDEXED_STATES}
        """The sorted sets of the jobs in a state, by `created_at`."""
        self.channels = {channel: f"{tag}:signals:{channel}" for channel in Channel}
        """The channels of the ledger's signals, which are no keys."""
        self.jobs, self.follows_ids = (f"{tag}:{name}" for name in ("jobs", "follows_ids"))
        self.duplicate_counts, self.duplicate_sums = (f"{tag}:duplicate_{name}" for name in ("counts", "sums"))
        self.workers, self.registrations, self.cost_sums = (
            f"{tag}:{name}" for name in ("workers", "registrations", "cost_sums:")
        )
        """The last one is the prefix of the keys of the sums of the costs of a day."""
        self.metrics = f"{tag}:metrics"
        self.buckets = {period: f"{tag}:bucket:{period.seconds}:" for period in Period}
        """The prefixes of the keys of the buckets of metrics."""
        self.audit = {kind: f"{tag}:audit:{kind}" for kind in AUDIT_KINDS}
        self.schedules, self.blocks, self.limits, self.limit_alarms, self.waiting = (
            f"{tag}:{name}" for name in ("schedules", "blocks", "limits", "limit_alarms", "waiting")
        )
        # The last two: the alarms of keys of rates, and how many jobs are parked on each key of a limit. Scripts know
        # more of each such key: `slots:`, the jobs that have room on it, by the time until which they have it; `tokens:`,
        # what those of them have got from a rate that are about to run; `full_at:`, when its bucket is full again.
        self.tombstones, self.tombstone_expiry = (f"{tag}:{name}" for name in ("tombstones", "tombstone_expiry"))
        # The others belong to a name: a bound `str.__add__` returns the prefix with the name, quicker than a function.
        self.wake = wake.__add__
        """The `wake_at` of the waiting jobs that the workers of a task handle."""
        self.submitter = f"{tag}:submitter:".__add__
        """The jobs of a submitter, by `created_at`; of "" the prefix of these sorted sets, which is no key."""
        self.job = f"{tag}:job:".__add__
        """A job's row."""
        self.steps = f"{tag}:steps:".__add__
        """A job's memoised steps."""
        self.history = f"{tag}:history:".__add__
        self.run_logs = f"{tag}:run_logs:".__add__
        """The logs of the attempts of a job."""
        self.duplicates = f"{tag}:duplicates:".__add__
        self.followers = f"{tag}:followers:".__add__
        """A job's followers: their ids, and the tasks whose workers handle them."""
        self.identity = f"{tag}:identity:".__add__
        """The id of the job that holds an identity: the key exists exactly while a job holds it."""
        self.next = f"{tag}:next:".__add__
        """The id of the job that is queued next for an identity."""
        self.key = f"{tag}:key:".__add__
        """The first answer to an idempotency key."""
        self.successor = f"{tag}:successor:".__add__
        """The job that was submitted in place of a deleted job, while idempotency keys of the deleted job are kept."""
        self.quota = f"{tag}:quota:".__add__
        self.event = f"{tag}:event:".__add__
        """An event that webhooks report."""
        self.parked = f"{tag}:parked:".__add__
        """The jobs that are parked on a pause, or on the key of a limit, in the order in which they run."""
        self.result = f"{tag}:result:".__add__
        """The result of a Celery task that is no job, or of a group."""


GIVEN = (
    "task", "submitter", "source", "route", "publisher_task", "tag_lines", "lease", "priority_rank", "retries",
    "canvas_pending", "state", "holds_identity", "reason", "identity", "fingerprint", "submission_nonce",
    "limit_keys", "parked_on",
)  # fmt: skip
"""The fields of a new row that the client knows. A fingerprint is stored if it is not the identity."""
TIMES = ("created_at", "run_at", "expires_at", "key_retained_until", "published_at")
"""The fields that the script adds to `GIVEN`. `run_at` and `published_at` are stored if they are not `created_at`.

A `published_at` of "0" is none."""
ROW = (
    *GIVEN, *TIMES, "duplicate_count", "attempt", "token", "claim", "node", "lease_until", "started_at", "requests",
    "finished_at", "identity_until", "follows_id", "queued_next", "followed", "crashes", "published", "publish_error",
    "cancel", "costs",
)  # fmt: skip
"""All fields of a row; a job that was never changed has only the fields of `GIVEN` and `TIMES`.

Two fields are not the job's own: `requests`, the last eight request ids; `followed`, whether `followers` has members.
"""
PARTS = ("error", "payload", "options", "progress", "result", "redelivery")
"""The elements after the row. `redelivery`: the record of the latest redelivered message."""

_STATES: Mapping[str, State] = {state.value: state for state in State}  # an enum's own look-up takes much longer
POSITIONS: Mapping[str, int] = {name: position for position, name in enumerate(ROW, 1)} | {
    name: -position for position, name in enumerate(PARTS, 1)
}
"""The position of each field in the row, and of each element after the row as a negative number."""
CONSTANTS: dict[str, int | float | str] = {
    **{name.upper(): position for position, name in enumerate(ROW, 1)},
    **{name.upper(): position for position, name in enumerate(PARTS, 2)},
    "ROW_SIZE": len(ROW),
    "PARTS_READ": len(PARTS) - 1,
}
"""The names of positions in scripts: positions in the row, and of elements in the list, whose first is the row."""


def format_value(value: Any) -> str:
    """Return a value as the text that rows have for it: "" is the default."""
    if value is None or value is False or value == 0:
        return ""
    return "1" if value is True else str(value)


def given(value: float | None) -> str:
    """Return a number as an argument of a script; "" if it was not given."""
    return "" if value is None else str(value)


def job_of(job_id: str, parts: Sequence[Any]) -> JobRow:
    """Build a job from a script's reply: the row, the elements after it (for a light job only `error`), `wake_at`."""
    row, error, *large, wake_at = parts
    payload, options, progress, result = large or ("", "", "", "")
    (
        task, submitter, source, route, publisher_task, tag_lines, lease, priority_rank, retries, canvas_pending,
        state, holds_identity, reason, identity, fingerprint, submission_nonce, limit_keys, parked_on, created_at,
        run_at, expires_at, key_retained_until, published_at, duplicate_count, attempt, token, claim, node, lease_until,
        started_at, _requests, finished_at, identity_until, follows_id, queued_next, _followed, crashes, published,
        publish_error, cancel, costs,
    ) = row + [None] * (len(ROW) - len(row))  # fmt: skip
    return JobRow(
        id=job_id, task=task, identity=identity, fingerprint=fingerprint or identity,
        submission_nonce=submission_nonce or "", submitter=submitter or "", source=source or "", payload=payload,
        options=options, route=route or "", priority_rank=int(priority_rank or 0), state=_STATES[state],
        holds_identity=holds_identity is not None, queued_next=queued_next is not None,
        identity_until=_time(identity_until), follows_id=follows_id, token=int(token or 0), claim=claim or "",
        node=node or "", attempt=int(attempt or 0), retries=int(retries or 0), crashes=int(crashes or 0),
        lease=float(lease), lease_until=_time(lease_until), created_at=float(created_at),
        run_at=float(run_at or created_at), expires_at=_time(expires_at), started_at=_time(started_at),
        finished_at=_time(finished_at), wake_at=_time(wake_at), published=int(published or 0),
        published_at=None if published_at == "0" else float(published_at or created_at),
        publish_error=publish_error or "", cancel=Cancel(int(cancel)) if cancel else Cancel.NO,
        canvas_pending=canvas_pending is not None, key_retained_until=_time(key_retained_until),
        duplicate_count=int(duplicate_count or 0), progress=progress or None, result=result or None,
        error=error or None, reason=reason or "", publisher_task=publisher_task, tag_lines=tag_lines,
        parked_on=parked_on, costs=costs, limit_keys=limit_keys,
    )  # fmt: skip


def _time(text: str | None) -> float | None:
    return None if text is None else float(text)
