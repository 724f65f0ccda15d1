"""The row of a job in Redis: the list at its key, by position. Scripts use the same positions.

The first element is the row, packed by MessagePack: texts, and false for a field that has its default ("", 0, None).
The others are large, or rare, and a change writes only those that it changes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel, Job
from onejob.jobs.transitions import SUBMITTED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onejob.jobs.model import Submission

GIVEN = (
    "task", "submitter", "source", "route", "publisher_task", "lease", "priority_rank", "retries", "canvas_pending",
    "state", "holds_identity", "reason", "identity", "fingerprint", "submission_nonce",
)  # fmt: skip
"""The fields of a new row that the client knows. A fingerprint is stored if it is not the identity."""
TIMES = ("created_at", "run_at", "expires_at", "key_retained_until", "published_at")
"""The fields that the script adds to them. `run_at` and `published_at` are stored if they are not `created_at`.

A `published_at` of "0" is none."""
ROW = (
    *GIVEN, *TIMES, "duplicate_count", "attempt", "token", "claim", "node", "lease_until", "started_at", "requests",
    "finished_at", "identity_until", "follows_id", "queued_next", "followed", "crashes", "published", "publish_error",
    "cancel",
)  # fmt: skip
"""All fields of a row; a job that was never changed has those that are named above.

Not of the job itself: `requests`, the last eight request ids, and `followed`, whether `followers` has members.
"""
PARTS = ("error", "payload", "options", "progress", "result", "redelivery")
"""The elements after the row. `redelivery`: the record of the latest redelivered message."""

_STATES: Mapping[str, State] = {state.value: state for state in State}  # an enum's own look-up takes much longer
POSITIONS: Mapping[str, int] = {name: position for position, name in enumerate(ROW, 1)} | {
    name: -position for position, name in enumerate(PARTS, 1)
}
"""The position of a field in the row, and as a negative number that of an element after it."""
CONSTANTS: Mapping[str, int] = {
    **{name.upper(): position for position, name in enumerate(ROW, 1)},
    **{name.upper(): position for position, name in enumerate(PARTS, 2)},
    "ROW_SIZE": len(ROW),
    "PARTS_READ": len(PARTS) - 1,
}
"""What scripts call the positions: those of the row, and those of the elements of the list (the row is the first)."""


def format_value(value: Any) -> str:
    """Return a value as rows have it: "" is the default."""
    if value is None or value is False or value == 0:
        return ""
    return "1" if value is True else str(value)


def pack_given(submission: Submission) -> bytes:
    """Return the fields `GIVEN` of a submission in MessagePack: a row that lacks its last elements, `TIMES`."""
    template = _pack_template(
        submission.task, submission.submitter, submission.source, submission.route, submission.publisher_task,
        submission.lease, submission.priority_rank, submission.retries, submission.canvas,
    )  # fmt: skip
    identity, fingerprint = submission.identity, submission.fingerprint
    own = "" if fingerprint == identity else fingerprint
    return b"".join((template, _pack(identity), _pack(own), _pack(submission.nonce)))


@lru_cache(1024)
def _pack_template(*fields: Any) -> bytes:
    """Return the part of a new row that is the same for many submissions."""
    texts = (*map(format_value, fields), State.QUEUED, "1", SUBMITTED)
    return b"\xdc" + (len(GIVEN) + len(TIMES)).to_bytes(2, "big") + b"".join(map(_pack, texts))


def _pack(text: str) -> bytes:
    """Return a text in MessagePack; "" as false."""
    if not text:
        return b"\xc2"
    data = text.encode()
    size = len(data)
    if size < 32:  # noqa: PLR2004 - the limits are those of the format
        return bytes((0xA0 | size,)) + data
    if size < 256:  # noqa: PLR2004
        return bytes((0xD9, size)) + data
    return b"\xdb" + size.to_bytes(4, "big") + data


def job_of(job_id: str, parts: Sequence[Any]) -> Job:
    """Build a job from a script's reply: the row, the elements after it (of a light job only the first), `wake_at`."""
    row, error, *large, wake_at = parts
    payload, options, progress, result = large or ("", "", "", "")
    (
        task, submitter, source, route, publisher_task, lease, priority_rank, retries, canvas_pending, state,
        holds_identity, reason, identity, fingerprint, submission_nonce, created_at, run_at, expires_at,
        key_retained_until, published_at, duplicate_count, attempt, token, claim, node, lease_until, started_at,
        _requests, finished_at, identity_until, follows_id, queued_next, _followed, crashes, published, publish_error,
        cancel,
    ) = row + [None] * (len(ROW) - len(row))  # fmt: skip
    return Job(
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
        error=error or None, reason=reason or "", publisher_task=publisher_task,
    )  # fmt: skip


def _time(text: str | None) -> float | None:
    return None if text is None else float(text)
