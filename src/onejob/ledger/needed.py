"""The reasons why an ended job is still needed: its deletion would break a promise."""

from __future__ import annotations

from onejob.jobs.model import JobRow
from onejob.jobs.timestamps import format_timestamp
from onejob.ledger.reader import JobReader
from onejob.observability.metrics import WEBHOOK_TASK

CANVAS = "its canvas (links, chain or chord) is still to be notified of its end: what follows it would never run"
FOLLOWER_LIMIT = 100
"""The number of followers that are searched for an unfinished follower, for an error's message."""


def needed_by_itself(job: JobRow, now: float) -> str:
    """Return the reason in a job's own row why it is needed: an idempotency key or its canvas; "" for none."""
    if job.key_retained_until is not None and job.key_retained_until > now:
        until = format_timestamp(job.key_retained_until)
        return f"answers its idempotency key until {until}: the same call, repeated with it, would run again"
    return CANVAS if job.canvas_pending else ""


def needed_by(ledger: JobReader, job: JobRow) -> str:
    """Return the reason why an ended job is needed, as the end of a sentence."""
    by_itself = needed_by_itself(job, ledger.read_clock())
    if by_itself:
        return by_itself
    for follower in ledger.store.followers(job.id, limit=FOLLOWER_LIMIT):
        if not follower.state.final:
            kind = "webhook" if follower.task == WEBHOOK_TASK else "follower"
            return f"its end is still to be passed on to a {kind}"
    return "its end is still to be passed on to a follower"
