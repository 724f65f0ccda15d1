"""Calls in a canvas: the idempotency key of a link, and identities of members whose replaced job waits for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from onejob.ledger.ledger import Ledger


def link_key(ledger: Ledger, parent_id: str, fingerprint: str) -> str:
    """Return the idempotency key of the call of a lone link or errback, which has no id of its own.

    If a worker dies after the call, another worker makes it again, with the same key. After one more run of the job
    before it, e.g. a redriven dead letter, the key is another.
    """
    parent = ledger.get_or_none(parent_id)
    attempt = 0 if parent is None else parent.attempt
    return "link-" + sha256(f"{parent_id}\n{attempt}\n{fingerprint}".encode()).hexdigest()


def jobs_replaced_by(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ids behind a task with these options that `Task.replace` has passed on: jobs that wait for its canvas.

    A later task in the chain, or a chord's body, has the id of the replaced job.
    """
    elements = [*(options.get("chain") or ()), options.get("chord")]
    for element in filter(None, elements):
        own = element.get("options") or {}
        if own.get("replaced_task_nesting") and own.get("task_id"):
            yield str(own["task_id"])
        yield from jobs_replaced_by(own)
        body = (element.get("kwargs") or {}).get("body")
        if element.get("task") == "celery.chord" and body:
            yield from jobs_replaced_by({"chord": body})


def part_identity(ledger: Ledger, options: Mapping[str, Any], identity: str) -> str:
    """Return the identity of a canvas member, made unique within a job if both would wait for each other.

    A job that was replaced by a canvas holds its identity until the canvas has ended. An equal member must not follow
    that job, which cannot end before it: it is a part of the replaced job, which answers equal calls of others.
    """
    ids = [*dict.fromkeys(jobs_replaced_by(options))]
    for job in ledger.get_many(ids).values() if ids else ():
        if job.identity == identity and job.holds_identity and not job.state.final:
            return f"{identity} in job {job.id}"
    return identity
