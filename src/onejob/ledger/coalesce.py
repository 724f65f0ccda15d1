"""Coalesces equal submissions of a batch: one of them is submitted, the others are only counted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from onejob.jobs.model import Admission, Outcome

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from onejob.jobs.model import Submission


def split_duplicates(submissions: Sequence[Submission]) -> tuple[list[int], dict[int, list[int]]]:
    """Return the indexes of the submissions that have to be submitted, and by such an index those of its duplicates.

    If one submission of an identity may change a job or needs its own answer, all of that identity are submitted.
    """
    special = {submission.identity for submission in submissions if not _can_coalesce(submission)}
    firsts: dict[Hashable, int] = {}
    unique: list[int] = []
    duplicates: dict[int, list[int]] = defaultdict(list)
    for index, submission in enumerate(submissions):
        first = index if submission.identity in special else firsts.setdefault(_coalescing_key(submission), index)
        if first == index or submissions[first].nonce == submission.nonce:  # the latter is a repeated request
            unique.append(index)
        else:
            duplicates[first].append(index)
    return unique, duplicates


def duplicate_admissions(first: Admission, duplicates: Sequence[Submission]) -> list[Admission]:
    """Return the answers to the duplicates of a submission, as if they were submitted one after the other."""
    count = first.job.duplicate_count
    return [
        Admission(replace(first.job, duplicate_count=count + number), _duplicate_outcome(first, duplicate))
        for number, duplicate in enumerate(duplicates, start=1)
    ]


def _can_coalesce(submission: Submission) -> bool:
    return submission.key is None and not (
        submission.follows or submission.canvas or submission.replaces or submission.queue_next
    )


def _coalescing_key(submission: Submission) -> Hashable:
    return (
        submission.identity, submission.fingerprint, submission.task, submission.delay, submission.expires_in,
        submission.priority_rank, submission.rejects, submission.max_wait, submission.source, submission.submitter,
        submission.host, submission.charges,
    )  # fmt: skip


def _duplicate_outcome(first: Admission, duplicate: Submission) -> Outcome:
    if first.outcome is not Outcome.ADMITTED:
        return first.outcome
    return Outcome.REJECTED if duplicate.rejects else Outcome.ATTACHED
