"""Twins: submissions of one batch that want the same in every respect. One is submitted, the others are counted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from onejob.job import Admission, Outcome

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from onejob.job import Submission


def told_apart(news: Sequence[Submission]) -> tuple[list[int], dict[int, list[int]]]:
    """Return the places of those in a batch that have to be submitted, and by such a place those of its twins.

    Where one of an identity may change a job, or has to have an answer of its own, all of that identity are submitted.
    """
    special = {new.identity for new in news if not _is_plain(new)}
    firsts: dict[Hashable, int] = {}
    alone: list[int] = []
    twins: dict[int, list[int]] = defaultdict(list)
    for place, new in enumerate(news):
        first = place if new.identity in special else firsts.setdefault(_alike(new), place)
        if first == place or news[first].nonce == new.nonce:  # or it is a repetition
            alone.append(place)
        else:
            twins[first].append(place)
    return alone, twins


def answers_of(first: Admission, twins: Sequence[Submission]) -> list[Admission]:
    """Return what the twins of a submission come to: they meet the job that answers it, one after the other."""
    counted = first.job.duplicates
    return [
        Admission(replace(first.job, duplicates=counted + number), _outcome_of(first, twin))
        for number, twin in enumerate(twins, start=1)
    ]


def _is_plain(new: Submission) -> bool:
    return new.key is None and not (new.follows or new.canvas or new.replaces or new.queues_next)


def _alike(new: Submission) -> Hashable:
    return (
        new.identity, new.fingerprint, new.task, new.delay, new.expires_in, new.urgency, new.rejects, new.max_wait,
        new.door, new.submitter, new.host,
    )  # fmt: skip


def _outcome_of(first: Admission, twin: Submission) -> Outcome:
    if first.outcome is not Outcome.ADMITTED:
        return first.outcome
    return Outcome.REJECTED if twin.rejects else Outcome.ATTACHED
