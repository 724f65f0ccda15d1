"""Submissions: one script writes a new job; a duplicate needs a second one, with the keys of the existing job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.errors import StoreError
from onejob.jobs.model import Admission, Outcome, values_of
from onejob.stores.protocol import DUPLICATE_LIMIT, HISTORY_LIMIT, OTHER_SUBMITTERS, SUBMITTER_LIMIT, WINDOW_OVER
from onejob.stores.redis.operations import Call, Operation, get_job, job_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.jobs.model import Job, Submission
    from onejob.stores.holder_cache import HolderCache
    from onejob.stores.redis.keys import Keys

SUBMIT_TRIES = 20
"""How often a submission is retried because another job holds its identity by then."""
_LIMITS = {
    "history_limit": HISTORY_LIMIT, "duplicate_limit": DUPLICATE_LIMIT, "window_over": WINDOW_OVER,
    "submitter_limit": SUBMITTER_LIMIT, "other_submitters": OTHER_SUBMITTERS,
}  # fmt: skip


class Submitter:
    """Creates the operations of one submission, or of several that run in phases."""

    def __init__(self, keys: Keys, holder_cache: HolderCache, *, wake_in: float) -> None:
        self._keys = keys
        self._holder_cache = holder_cache
        self._values = _LIMITS | {"wake_in": wake_in}
        self._queued: dict[str, str] = {}
        """By identity: the job that an earlier submission of the batch will have queued next."""
        self._cached: dict[str, str] = {}
        """By identity: its holder according to the cache."""

    def each(self, submissions: Sequence[Submission]) -> list[Operation[Admission]]:
        """Return the operations of submissions, which have to run in phases."""
        # Equal submissions must start with the same script: a stale entry used by only some of them would reorder them.
        uncached = {
            submission.identity for submission in submissions if submission.key is not None or submission.queues_next
        }
        cacheable = {submission.identity for submission in submissions} - uncached
        self._cached = {identity: job_id for identity in cacheable if (job_id := self._holder_cache.get(identity))}
        return [self._submit(submission) for submission in submissions]

    def _submit(self, submission: Submission) -> Operation[Admission]:
        """Write a new job, or resolve the duplicate of an existing one."""
        for _ in range(SUBMIT_TRIES):
            answer, *found = yield self._first_call(submission)
            if answer == "admitted":
                return Admission(job_of(found[0]), Outcome.ADMITTED)
            if answer == "keyed":
                answer, *found = yield self._attach(submission, found[0], "")
            elif answer == "held":
                self._holder_cache.put(submission.identity, found[0])
                answer, *found = yield self._attach(submission, found[0], self._queued_next(submission, found[1]))
            if answer == "duplicate":
                return (yield from self._duplicate_admission(*found))
            if answer == "own":
                return (yield from self._repeated_admission(submission, job_of(found[0])))
            self._holder_cache.discard(submission.identity)
            self._cached.pop(submission.identity, None)
        msg = f"the holder of identity {submission.identity} changed {SUBMIT_TRIES} times during one submission"
        raise StoreError(msg)

    def _first_call(self, submission: Submission) -> Call:
        cached = self._cached.get(submission.identity)
        if cached is not None:
            return self._attach(submission, cached, self._queued_next(submission, ""))
        script_keys = (*self._submission_keys(submission), *self._idempotency_key(submission))
        return Call("submit", script_keys, values_of(submission) | self._values)

    def _attach(self, submission: Submission, existing: str, queued: str) -> Call:
        keys, queued_id = self._keys, queued or submission.id
        script_keys = (
            *self._submission_keys(submission), keys.follows_ids, keys.duplicate_counts, keys.duplicate_sums,
            keys.job(existing), keys.history(existing), keys.duplicates(existing), keys.followers(existing),
            keys.job(queued_id), keys.followers(queued_id), *self._idempotency_key(submission),
        )  # fmt: skip
        others = {"existing": existing, "queued": queued}
        return Call("attach", script_keys, values_of(submission) | self._values | others)

    def _submission_keys(self, submission: Submission) -> tuple[str, ...]:
        keys, identity = self._keys, submission.identity
        own = (keys.job(submission.id), keys.history(submission.id))
        return (*keys.wake_sets, *own, keys.identity(identity), keys.next(identity), keys.jobs)

    def _idempotency_key(self, submission: Submission) -> tuple[str, ...]:
        return () if submission.key is None else (self._keys.key(submission.key),)

    def _queued_next(self, submission: Submission, queued: str) -> str:
        """Return the id of the job that will be queued next when the script runs; "" for none."""
        queued = queued or self._queued.get(submission.identity, "")
        if submission.queues_next and not submission.rejects:
            self._queued[submission.identity] = queued or submission.id
        return queued

    def _duplicate_admission(
        self,
        outcome: str,
        rescheduled: str,
        key_reused: str,
        answered_by: str,
        flat: Sequence[str],
        *follower: Sequence[str],
    ) -> Operation[Admission]:
        job = job_of(flat)
        if job.id != answered_by:  # a repeated submission, which the job queued next has answered
            job = (yield from get_job(self._keys, answered_by)) or job
        own = job_of(follower[0]) if follower else None
        return Admission(job, Outcome(outcome), own, rescheduled=rescheduled == "1", key_reused=key_reused == "1")

    def _repeated_admission(self, submission: Submission, own: Job) -> Operation[Admission]:
        followed = (yield from get_job(self._keys, own.follows_id)) if own.follows_id else None
        return Admission.repeated(own, followed, submission.nonce)
