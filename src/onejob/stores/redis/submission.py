"""Submitting: one script writes a new job; a duplicate takes a second one, with the keys of the job that it meets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.errors import StoreError
from onejob.job import Admission, Outcome, values_of
from onejob.store import HISTORY_LIMIT, RECEIPT_LIMIT, WINDOW_OVER
from onejob.stores.redis.operations import Call, Operation, Operations, job_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.job import Job, Submission
    from onejob.recent import Holders
    from onejob.stores.redis.keys import Keys

SUBMIT_TRIES = 20
"""How often one submission may find that the job which it was told of is no longer the one in its way."""
_LIMITS = {"history_limit": HISTORY_LIMIT, "receipt_limit": RECEIPT_LIMIT, "window_over": WINDOW_OVER}


class Submitting:
    """Submissions, one at a time or several under way together."""

    def __init__(self, keys: Keys, holders: Holders, *, wake_in: float) -> None:
        self._keys = keys
        self._holders = holders
        self._values = _LIMITS | {"wake_in": wake_in}
        self._queued: dict[str, str] = {}
        """By identity: what an earlier one that is under way will have queued next by the time that a later one is."""

        self._likely: dict[str, str] = {}
        """By identity: the job that is guessed to hold it."""

    def each(self, news: Sequence[Submission]) -> list[Operation[Admission]]:
        """Return what is to be done for submissions that are under way together, in step."""
        # A guess that is wrong for one and right for the next would let it pass: their first requests are to be alike.
        unlike = {new.identity for new in news if new.key is not None or new.queues_next}
        alike = {new.identity for new in news} - unlike
        self._likely = {identity: job_id for identity in alike if (job_id := self._holders.get(identity))}
        return [self._one(new) for new in news]

    def _one(self, new: Submission) -> Operation[Admission]:
        """Write a submission, or let it meet the job in its way."""
        for _ in range(SUBMIT_TRIES):
            answer, *found = yield self._first(new)
            if answer == "admitted":
                return Admission(job_of(found[0]), Outcome.ADMITTED)
            if answer == "keyed":
                answer, *found = yield self._attach(new, found[0], "")
            elif answer == "taken":
                self._holders.met(new.identity, found[0])
                answer, *found = yield self._attach(new, found[0], self._waiting(new, found[1]))
            if answer == "met":
                return (yield from self._met(*found))
            if answer == "own":
                return (yield from self._again(new, job_of(found[0])))
            self._holders.gone(new.identity)
            self._likely.pop(new.identity, None)
        msg = f"the job in the way of identity {new.identity} changed {SUBMIT_TRIES} times during one submission"
        raise StoreError(msg)

    def _first(self, new: Submission) -> Call:
        likely = self._likely.get(new.identity)
        return self._submit(new) if likely is None else self._attach(new, likely, self._waiting(new, ""))

    def _submit(self, new: Submission) -> Call:
        keys = self._keys
        touched = (
            keys.job(new.id), keys.history(new.id), keys.identity(new.identity), keys.next(new.identity), keys.wake,
            keys.jobs, *self._key(new),
        )  # fmt: skip
        return Call("submit", touched, values_of(new) | self._values)

    def _attach(self, new: Submission, met: str, waiting: str) -> Call:
        keys, queued = self._keys, waiting or new.id
        touched = (
            keys.job(new.id), keys.history(new.id), keys.identity(new.identity), keys.next(new.identity), keys.wake,
            keys.jobs, keys.following, keys.tallies, keys.job(met), keys.history(met), keys.receipts(met),
            keys.followers(met), keys.job(queued), keys.followers(queued), *self._key(new),
        )  # fmt: skip
        return Call("attach", touched, values_of(new) | self._values | {"met": met, "waiting": waiting})

    def _key(self, new: Submission) -> tuple[str, ...]:
        return () if new.key is None else (self._keys.key(new.key),)

    def _waiting(self, new: Submission, waiting: str) -> str:
        waiting = waiting or self._queued.get(new.identity, "")
        if new.queues_next and not new.rejects:
            self._queued[new.identity] = waiting or new.id
        return waiting

    def _met(
        self, outcome: str, moved: str, reused: str, answer: str, flat: Sequence[str], *follower: Sequence[str]
    ) -> Operation[Admission]:
        job = job_of(flat)
        if job.id != answer:  # a repeated submission, which another job answered than the one that it met
            job = (yield from Operations(self._keys).get(answer)) or job
        own = job_of(follower[0]) if follower else None
        return Admission(job, Outcome(outcome), own, moved=moved == "1", key_reused=reused == "1")

    def _again(self, new: Submission, own: Job) -> Operation[Admission]:
        leader = (yield from Operations(self._keys).get(own.leader)) if own.leader else None
        return Admission.again(own, leader, new.nonce)
