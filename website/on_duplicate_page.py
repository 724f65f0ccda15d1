"""The page docs/concepts/on-duplicate.md, made from the rule in onejob.jobs.on_duplicate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Outcome, Submission
from onejob.jobs.on_duplicate import CONFLICT_POLICIES, resolve
from onejob.jobs.transitions import new_job

HEAD = """# Submission outcomes

This page is generated from `src/onejob/jobs/on_duplicate.py` by `python -m website generate`;
`make lint` compares them, and a test checks with thousands of random sequences of operations that every store behaves
as this table says.

The outcome of a submission depends on the job that holds its identity, if there is one, and on `on_duplicate`.
*Same* or *other*: whether the submission has the same arguments as that job.
With `unique_on` they can differ.

| job that holds the identity | arguments | {policies} |
|---|---|{dashes}"""
FOOT = """
- `admitted`: no job held the identity; a new job exists.
  `attached`: the existing job is returned.
  `replayed`: its kept result is returned.
  `replaced`: the existing job is returned, and runs with the newest arguments.
  `queued_next`: a new job runs after the existing one; at most one job waits in this way.
  `rejected`: `DuplicateJobError`.
- An earlier `countdown` or `eta`, or a higher priority,
  reschedules a job that waits for its first run to the earlier time, unless the submission is rejected.
  With `replace` the newest `countdown` counts, also a later one, until `max_wait` after the first submission.
- `replace` and `run_again` exclude `unique_for`: a kept result would answer newer arguments, which would never run.
- A job "has started" when it has been claimed: it is running, waits for its retry, or was requeued.
- Failure and cancellation release the identity at once; success releases it at the end of `unique_for`;
  the start of a run releases it with `unique_until="started"`.
- An idempotency key is checked first: with the same arguments,
  the job of the key's first submission is returned again
  (`attached` while it is live, `replayed` after its end, whatever that was);
  with other arguments the submission raises `KeyReuseMismatchError`.
  An id (`task_id`) that exists comes second:
  its job is returned whatever the arguments are, except that a new key needs those of that id.
  Then comes the identity.
- `raise` and `attach` may also be an option of a single submission, instead of the task's.
- A member of a canvas is never rejected: it follows the existing job.
  Nor is a link: the existing job answers it.
"""
SITUATIONS: dict[str, dict[str, Any] | None] = {
    "none, or one that released its identity": None,
    "waits for its first run": {},
    "has started": {"attempt": 1, "state": State.RUNNING},
    "has started, and another one is queued next": {"attempt": 1, "state": State.RUNNING, "queued": True},
    "has completed, and its result is kept": {"attempt": 1, "state": State.COMPLETED, "finished_at": 1.0},
}


def page() -> str:
    """Return the page."""
    lines = [
        HEAD.format(
            policies=" | ".join(f"`{name}`" for name in CONFLICT_POLICIES), dashes="---|" * len(CONFLICT_POLICIES)
        )
    ]
    for situation, values in SITUATIONS.items():
        for arguments in ("same", "other"):
            cells = (str(outcome(values, arguments, name)) for name in CONFLICT_POLICIES)
            lines.append(f"| {situation} | {arguments} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n" + FOOT


def outcome(values: dict[str, Any] | None, arguments: str, name: str) -> Outcome:
    """Return the outcome of a submission in one situation."""
    if values is None:
        return Outcome.ADMITTED
    conflict_policy = CONFLICT_POLICIES[name]
    new = submission(
        "new", arguments, rejects=conflict_policy.rejects, replaces=conflict_policy.replaces,
        queue_next=conflict_policy.queue_next,
    )  # fmt: skip
    job = new_job(submission("job", "same"), now=0.0, wake_after=1.0, is_sent=True)
    met = resolve(replace(job, **{name: value for name, value in values.items() if name != "queued"}), new, now=0.0)
    if met.outcome is Outcome.QUEUED_NEXT and values.get("queued"):
        met = resolve(job, new, now=0.0)  # the one that is queued
    return met.outcome


def submission(job_id: str, arguments: str, **values: Any) -> Submission:
    """Return a submission of a job."""
    return Submission(
        id=job_id,
        task="task",
        identity="identity",
        fingerprint=arguments,
        nonce=job_id,
        payload="{}",
        lease=1.0,
        **values,
    )
