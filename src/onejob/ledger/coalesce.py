"""Twins: submissions of one batch that want the same in every respect. One is submitted, the others are counted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from onejob.jobs.model import Admission, Outcome

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from onejob.jobs.model import Submission


def split_duplicates(submissions: Sequence[Submission]) -> tuple[list[int], dict[int, list[int]]]:
    """Return the places of those in a batch that have to be submitted, and by such a place those of its twins.

    Where one of an identity may change a job, or has to have an answer of its own, all of that identity are submitted.
    """
    special = {submission.identity for submission in submissions if not _is_plain(submission)}
    firsts: dict[Hashable, int] = {}
    alone: list[int] = []
    repeats: dict[int, list[int]] = defaultdict(list)
    for place, submission in enumerate(submissions):
        first = place if submission.identity in special else firsts.setdefault(_alike(submission), place)
        if first == place or submissions[first].nonce == submission.nonce:  # or it is a repetition
            alone.append(place)
        else:
            repeats[first].append(place)
    return alone, repeats


def duplicate_admissions(first: Admission, repeats: Sequence[Submission]) -> list[Admission]:
    """Return what the twins of a submission come to: they meet the job that answers it, one after the other."""
    counted = first.job.duplicate_count
    return [
        Admission(replace(first.job, duplicate_count=counted + number), _outcome_of(first, repeat))
        for number, repeat in enumerate(repeats, start=1)
    ]


def _is_plain(submission: Submission) -> bool:
    return submission.key is None and not (
        submission.follows or submission.canvas or submission.replaces or submission.queues_next
    )


def _alike(submission: Submission) -> Hashable:
    return (
        submission.identity, submission.fingerprint, submission.task, submission.delay, submission.expires_in, submission.priority_rank, submission.rejects, submission.max_wait,
        submission.source, submission.submitter, submission.host,
    )  # fmt: skip


def _outcome_of(first: Admission, repeat: Submission) -> Outcome:
    if first.outcome is not Outcome.ADMITTED:
        return first.outcome
    return Outcome.REJECTED if repeat.rejects else Outcome.ATTACHED
