"""How an event becomes a change of one job: the one place where the table of rules meets the policy."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import RULES, State, Transition
from onejob.jobs.model import Cancel, Change
from onejob.jobs.policy import DAY

if TYPE_CHECKING:
    from onejob.jobs.lifecycle import Rule
    from onejob.jobs.model import Job
    from onejob.jobs.policy import Policy

LONG_DAY = 3600.0
"""Seconds by which a calendar window can be longer than its name says; a job in its window is kept as much longer."""


def new_nonce() -> str:
    """Return 16 random hex digits that name one request."""
    return secrets.token_hex(8)


def change_of(policy: Policy, job: Job, event: Transition, reason: str | None, **values: object) -> Change:
    """Return the change that an event makes to a job, with `values` besides or instead of what the rules say.

    `reason`: why the job is in its state then, for people; it is the history's detail, too, unless `values` has one.
    """
    rule = RULES[event]
    if rule.target is not None and rule.target.final:
        values = {"ends": True, "keeps_identity": False, "wake_in": _after_end(policy, job, rule)} | values
    return Change(
        job_id=job.id,
        identity=job.identity,
        request_id=new_nonce(),
        event=event,
        sources=rule.sources,
        target=rule.target,
        reason=reason,
        **({"detail": reason or ""} | values),  # type: ignore[arg-type]
    )


def cancel_change(policy: Policy, job: Job, cancel: Cancel, reason: str) -> Change:
    """Return the change that cancels a waiting job, or asks a running one to stop."""
    if job.state is State.RUNNING:
        asked = max(cancel, job.cancel)
        return change_of(policy, job, Transition.REQUEST_CANCEL, None, cancel=asked, token=job.token, detail=reason)
    return change_of(policy, job, Transition.CANCEL, reason)


def ending_change(policy: Policy, job: Job) -> Change | None:
    """Return the change that ends a waiting job which was asked to cancel, or whose expiry may have come."""
    if job.cancel is not Cancel.NO:
        return change_of(policy, job, Transition.CANCEL, "canceled on request")
    if job.expires_at is not None:
        return change_of(policy, job, Transition.EXPIRE, "it expired before a run started", overdue=True)
    return None


def retention(policy: Policy, state: State, *, holds_identity: bool = False) -> float:
    """Return for how many seconds an ended job is kept; `holds_identity`: one that still holds its identity."""
    return policy.retention.get(state, DAY) + (LONG_DAY if holds_identity else 0.0)


def _after_end(policy: Policy, job: Job, rule: Rule) -> float:
    """Return the seconds until an ended job's next alarm: to tell its canvas, or else to purge it."""
    if not job.canvas_pending:
        return retention(policy, rule.target or job.state)
    return job.lease if rule.fenced else 0.0  # the worker of a run tells the canvas; elsewhere nobody would
