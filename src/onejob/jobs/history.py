"""The history of a job: the entries that stores keep, and the entries that the row of the job implies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Change, JobRow

ORIGINS = frozenset({"submit", "queue_next", "follow", "wait"})
"""The events that begin a history. Of these, only `submit` is not stored: the row of the job implies it."""
COMPLETED = "completed"
"""The reason of a completed job, and the detail of the entry of its completion."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a job's history."""

    at: float
    event: str
    state: State
    attempt: int
    node: str
    detail: str


def claim_detail(attempt: int, node: str) -> str:
    """Return the detail of the entry of a claim."""
    return f"attempt {attempt} on {node}"


def row_implies_entry(change: Change) -> bool:
    """Return whether the row of a job implies the history entry of a change, which so need not be stored."""
    return change.event is Transition.COMPLETE and change.detail == COMPLETED


def full_history(job: JobRow | None, stored: Sequence[Entry]) -> list[Entry]:
    """Return the history of a job, oldest first, from its row and its stored entries, in the order of their writing.

    The row tells its submission, its latest claim, and its completion, which are not stored. With a claim a store keeps
    the entry of the claim before, whose time and node the claim overwrites.
    The order follows from attempts and states, not from times, because a clock may stand still or be set back.
    """
    if job is None:
        return []
    # The entry of an earlier claim was stored by the claim after it: behind what happened in between.
    entries = sorted(stored, key=lambda entry: (entry.attempt, entry.event != Transition.CLAIM))
    if not any(entry.event in ORIGINS for entry in entries):
        entries.insert(0, Entry(job.created_at, "submit", State.QUEUED, 0, "", job.source))
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
