"""The history of a job: the stored entries, and those that its row tells, which are not stored.

The row tells its submission, its latest claim, and its completion. A store keeps an entry for every other transition;
with a claim it first stores that of the claim before, whose time and node the claim overwrites.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.records import Entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.jobs.model import Job

SUBMIT = "submit"
ORIGINS = frozenset({SUBMIT, "queue_next", "follow", "wait"})
"""The events that begin a history. Only that of a job which holds its identity from the beginning is not stored."""
COMPLETED = "completed"
"""The reason of a completed job, and the detail of that entry."""


def claim_detail(attempt: int, node: str) -> str:
    """Return the detail of the entry of a claim."""
    return f"attempt {attempt} on {node}"


def full_history(job: Job | None, stored: Sequence[Entry]) -> list[Entry]:
    """Return the history of a job, oldest first, from its row and its stored entries, in the order of their writing.

    The order follows from attempts and states, not from times, because a clock may stand still or be set back.
    """
    if job is None:
        return []
    # The entry of an earlier claim was stored by the claim after it: behind what happened in between.
    entries = sorted(stored, key=lambda entry: (entry.attempt, entry.event != Transition.CLAIM))
    if not any(entry.event in ORIGINS for entry in entries):
        entries.insert(0, Entry(job.created_at, SUBMIT, State.QUEUED, 0, "", job.source))
    if job.attempt and job.started_at is not None:
        detail = claim_detail(job.attempt, job.node)
        claim = Entry(job.started_at, Transition.CLAIM, State.RUNNING, job.attempt, job.node, detail)
        _insert(entries, claim, [entry.attempt >= job.attempt for entry in entries])
    if job.state is State.COMPLETED and job.finished_at is not None:
        end = Entry(job.finished_at, Transition.COMPLETE, State.COMPLETED, job.attempt, job.node, COMPLETED)
        _insert(entries, end, [entry.attempt == job.attempt and entry.state.final for entry in entries])
    return entries


def _insert(entries: list[Entry], entry: Entry, is_later: Sequence[bool]) -> None:
    """Insert an entry before the first later one, unless it is there already."""
    if not any((each.event, each.attempt) == (entry.event, entry.attempt) for each in entries):
        entries.insert(next((index for index, later in enumerate(is_later) if later), len(entries)), entry)
