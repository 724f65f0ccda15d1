"""Submitting: one script writes a new job; a duplicate takes a second one, with the keys of the job that it meets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.errors import StoreError
from onejob.jobs.model import Admission, Outcome, values_of
from onejob.stores.protocol import DUPLICATE_LIMIT, HISTORY_LIMIT, WINDOW_OVER
from onejob.stores.redis.operations import Call, Operation, get_one, job_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.jobs.model import Job, Submission
    from onejob.stores.holder_cache import HolderCache
    from onejob.stores.redis.keys import Keys

SUBMIT_TRIES = 20
"""How often one submission may find that the job which it was told of is no longer the one in its way."""
_LIMITS = {"history_limit": HISTORY_LIMIT, "duplicate_limit": DUPLICATE_LIMIT, "window_over": WINDOW_OVER}


class Submitting:
    """Submissions, one at a time or several under way together."""

    def __init__(self, keys: Keys, holder_cache: HolderCache, *, wake_in: float) -> None:
        self._keys = keys
        self._holder_cache = holder_cache
        self._values = _LIMITS | {"wake_in": wake_in}
        self._queued: dict[str, str] = {}
        """By identity: what an earlier one that is under way will have queued next by the time that a later one is."""

        self._likely: dict[str, str] = {}
        """By identity: the job that is guessed to hold it."""

    def each(self, submissions: Sequence[Submission]) -> list[Operation[Admission]]:
        """Return what is to be done for submissions that are under way together, in step."""
        # A guess that is wrong for one and right for the next would let it pass: their first requests are to be alike.
        unlike = {
            submission.identity for submission in submissions if submission.key is not None or submission.queues_next
        }
        alike = {submission.identity for submission in submissions} - unlike
        self._likely = {identity: job_id for identity in alike if (job_id := self._holder_cache.get(identity))}
        return [self._one(submission) for submission in submissions]

    def _one(self, submission: Submission) -> Operation[Admission]:
        """Write a submission, or let it meet the job in its way."""
        for _ in range(SUBMIT_TRIES):
            answer, *found = yield self._first(submission)
            if answer == "admitted":
                return Admission(job_of(found[0]), Outcome.ADMITTED)
            if answer == "keyed":
                answer, *found = yield self._attach(submission, found[0], "")
            elif answer == "taken":
                self._holder_cache.met(submission.identity, found[0])
                answer, *found = yield self._attach(submission, found[0], self._waiting(submission, found[1]))
            if answer == "met":
                return (yield from self._met(*found))
            if answer == "own":
                return (yield from self._again(submission, job_of(found[0])))
            self._holder_cache.gone(submission.identity)
            self._likely.pop(submission.identity, None)
        msg = f"the job in the way of identity {submission.identity} changed {SUBMIT_TRIES} times during one submission"
        raise StoreError(msg)

    def _first(self, submission: Submission) -> Call:
        likely = self._likely.get(submission.identity)
        return (
            self._submit(submission)
            if likely is None
            else self._attach(submission, likely, self._waiting(submission, ""))
        )

    def _submit(self, submission: Submission) -> Call:
        keys = self._keys
        touched = (
            keys.job(submission.id), keys.history(submission.id), keys.identity(submission.identity), keys.next(submission.identity), keys.wake,
            keys.jobs, *self._key(submission),
        )  # fmt: skip
        return Call("submit", touched, values_of(submission) | self._values)

    def _attach(self, submission: Submission, met: str, waiting: str) -> Call:
        keys, queued = self._keys, waiting or submission.id
        touched = (
            keys.job(submission.id), keys.history(submission.id), keys.identity(submission.identity), keys.next(submission.identity), keys.wake,
            keys.jobs, keys.following, keys.duplicate_counts, keys.job(met), keys.history(met), keys.duplicates(met),
            keys.followers(met), keys.job(queued), keys.followers(queued), *self._key(submission),
        )  # fmt: skip
        return Call("attach", touched, values_of(submission) | self._values | {"met": met, "waiting": waiting})

    def _key(self, submission: Submission) -> tuple[str, ...]:
        return () if submission.key is None else (self._keys.key(submission.key),)

    def _waiting(self, submission: Submission, waiting: str) -> str:
        waiting = waiting or self._queued.get(submission.identity, "")
        if submission.queues_next and not submission.rejects:
            self._queued[submission.identity] = waiting or submission.id
        return waiting

    def _met(
        self, outcome: str, rescheduled: str, reused: str, answer: str, flat: Sequence[str], *follower: Sequence[str]
    ) -> Operation[Admission]:
        job = job_of(flat)
        if job.id != answer:  # a repeated submission, which another job answered than the one that it met
            job = (yield from get_one(self._keys, answer)) or job
        own = job_of(follower[0]) if follower else None
        return Admission(job, Outcome(outcome), own, rescheduled=rescheduled == "1", key_reused=reused == "1")

    def _again(self, submission: Submission, own: Job) -> Operation[Admission]:
        follows_id = (yield from get_one(self._keys, own.follows_id)) if own.follows_id else None
        return Admission.again(own, follows_id, submission.nonce)
