"""Submissions: one script writes new jobs; a duplicate needs a second one, with the keys of the existing job."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from onejob.errors import StoreError
from onejob.jobs.model import Admission, Outcome
from onejob.jobs.transitions import new_job
from onejob.stores.protocol import SUBMITTER_LIMIT
from onejob.stores.redis.duplicate_stats import origin_of
from onejob.stores.redis.operations import Call, exceeded_quota, get_job, limits_of, quota_keys
from onejob.stores.redis.row import format_value, job_of, pack_given

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from onejob.errors import QuotaExceededError
    from onejob.jobs.model import BrokerMessage, Job, MessageOf, Submission
    from onejob.stores.holder_cache import HolderCache
    from onejob.stores.redis.keys import Keys
    from onejob.stores.redis.operations import Operation, Request

SUBMIT_TRIES = 20
"""How often a submission is retried because another job holds its identity by then."""

T = TypeVar("T")
Steps: TypeAlias = "Generator[Request | Submission, Any, T]"
"""An operation of one submission; among others it yields the submission itself to have it written as a new job."""

Result: TypeAlias = "Admission | QuotaExceededError"
Write: TypeAlias = "Callable[[Submission], Steps[Sequence[Any]]]"
"""Has a submission written as a new job, and returns the script's answer."""


@dataclass(frozen=True, slots=True)
class NewJobs:
    """How a call of `submit_many` writes new jobs. `wake_after`: seconds until a job that is due is published again."""

    keys: Keys
    wake_after: float
    message_of: MessageOf | None

    def call(self, submissions: Sequence[Submission]) -> Call:
        """Return the call that writes new jobs. Its reply has one answer for each submission."""
        keys, script_keys = self.keys, [self.keys.jobs]
        values: list[str | bytes] = [str(self.wake_after)]
        for submission in submissions:
            message, key = self.message(submission), submission.key
            wake_set = keys.wake(submission.publisher_task or submission.task)
            identity = submission.identity
            script_keys += (wake_set, keys.job(submission.id), keys.identity(identity), keys.next(identity))
            values += _arguments(submission)
            values.append("" if message is None else message.text)
            values.append("" if key is None else str(submission.key_for))
            if key is not None:
                script_keys.append(keys.key(key))
            if message is not None:
                script_keys.append(message.destination)
            if submission.charges:
                script_keys += quota_keys(keys, submission)
                values.append(limits_of(submission))
            else:
                values.append("")
        return Call("submit", script_keys, values)

    def message(self, submission: Submission) -> BrokerMessage | None:
        """Return the message that is pushed with a new job; None for one that is not due."""
        return None if self.message_of is None or submission.delay > 0 else self.message_of(submission)


def _arguments(submission: Submission) -> tuple[str | bytes, ...]:
    """Return the arguments of both scripts."""
    return (
        submission.id, pack_given(submission), submission.payload, submission.options,
        format_value(submission.delay), _expiry(submission),
    )  # fmt: skip


def _expiry(submission: Submission) -> str:
    return "" if submission.expires_in is None else str(submission.expires_in)


def _write_together(submission: Submission) -> Steps[Sequence[Any]]:
    """Leave it to the batch to write this submission with the others."""
    answer: Sequence[Any] = yield submission
    return answer


def _is_plain(submission: Submission) -> bool:
    """Return whether a duplicate can change nothing but the times and the priority of the job that answers."""
    return submission.key is None and not (
        submission.rejects or submission.replaces or submission.queue_next or submission.follows or submission.max_wait
    )


class Submitter:
    """Creates the operations of one submission, or of several that run in phases."""

    def __init__(self, new_jobs: NewJobs, holder_cache: HolderCache) -> None:
        self._new_jobs = new_jobs
        self._keys = new_jobs.keys
        self._holder_cache = holder_cache
        self._wake_after = new_jobs.wake_after
        self._queued: dict[str, str] = {}
        """By identity: the job that an earlier submission of the batch will have queued next."""
        self._cached: dict[str, str] = {}
        """By identity: its holder according to the cache."""
        self._repeated: frozenset[str] = frozenset()
        """The identities that several submissions have."""

    def alone(self, submission: Submission) -> Operation[Result]:
        """Return the operation of one submission."""
        if submission.key is None:
            cached = self._holder_cache.get(submission.identity)
            self._cached = {submission.identity: cached} if cached else {}
        return self._submit(submission, self._write_alone)  # type: ignore[return-value] # which yields calls only

    def each(self, submissions: Sequence[Submission]) -> list[Steps[Result]]:
        """Return the operations of submissions, which have to run in phases."""
        counts = Counter(submission.identity for submission in submissions)
        self._repeated = frozenset(identity for identity, count in counts.items() if count > 1)
        # Equal submissions must start with the same script: a stale entry used by only some of them would reorder them.
        uncached = {submission.identity for submission in submissions if submission.key is not None}
        cacheable = {submission.identity for submission in submissions} - uncached
        self._cached = {identity: job_id for identity in cacheable if (job_id := self._holder_cache.get(identity))}
        return [self._submit(submission, _write_together) for submission in submissions]

    def _submit(self, submission: Submission, write: Write) -> Steps[Result]:
        """Write a new job, or resolve the duplicate of an existing one."""
        for _ in range(SUBMIT_TRIES):
            cached = self._cached.get(submission.identity)
            answer, *found = ("held", cached, "") if cached else (yield from write(submission))
            if answer == "admitted":
                return self._admission(submission, float(found[0]), sent=found[1] == "1")
            if answer == "keyed":
                answer, *found = yield self._attach(submission, found[0], "")
            elif answer == "held":
                self._holder_cache.put(submission.identity, found[0])
                answer, *found = yield from self._resolve(submission, *found)
            if answer == "duplicate":
                if submission.queue_next and found[3] != self._holder_cache.get(submission.identity):
                    self._holder_cache.discard(submission.identity)  # which does not know the job queued next
                return (yield from self._duplicate_admission(submission.id, found))
            if answer == "exceeded":
                return exceeded_quota(submission, found)
            if answer == "own":
                own = yield from get_job(self._keys, submission.id)
                if own is not None:
                    return (yield from self._repeated_admission(submission, own))
            self._holder_cache.discard(submission.identity)
            self._cached.pop(submission.identity, None)
        msg = f"the holder of identity {submission.identity} changed {SUBMIT_TRIES} times during one submission"
        raise StoreError(msg)

    def _write_alone(self, submission: Submission) -> Steps[Sequence[Any]]:
        (answer,) = yield self._new_jobs.call([submission])
        return answer  # type: ignore[no-any-return]

    def _resolve(self, submission: Submission, existing: str, queued: str) -> Steps[list[Any]]:
        """Return the answer of `attach`, or of `attach_plain`, which is cheaper."""
        # Equal submissions have the same script: an uncommon one would fall behind those after it.
        if submission.identity not in self._repeated and _is_plain(submission):
            reply: list[Any] = yield self._attach_plain(submission, existing)
            if reply[0] != "uncommon":
                return reply
        reply = yield self._attach(submission, existing, self._queued_next(submission, queued))
        return reply

    def _admission(self, submission: Submission, now: float, *, sent: bool) -> Admission:
        job = new_job(submission, now=now, wake_after=self._wake_after)
        if submission.key is not None:
            job = replace(job, key_retained_until=now + submission.key_for)
        return Admission(job, Outcome.ADMITTED, sent=sent)

    def _attach_plain(self, submission: Submission, existing: str) -> Call:
        keys = self._keys
        script_keys = (
            *keys.wake_sets, keys.job(submission.id), keys.identity(submission.identity), keys.job(existing),
            keys.duplicates(existing), keys.duplicate_counts, keys.duplicate_sums,
        )  # fmt: skip
        values = (
            existing, submission.id, submission.nonce, submission.fingerprint, format_value(submission.delay),
            _expiry(submission), format_value(submission.priority_rank), submission.submitter, origin_of(submission),
            str(SUBMITTER_LIMIT),
        )  # fmt: skip
        return Call("attach_plain", script_keys, values)

    def _attach(self, submission: Submission, existing: str, queued: str) -> Call:
        keys, identity, queued_id = self._keys, submission.identity, queued or submission.id
        script_keys = (
            *keys.wake_sets, keys.job(submission.id), keys.history(submission.id), keys.identity(identity),
            keys.next(identity), keys.jobs, keys.follows_ids, keys.duplicate_counts, keys.duplicate_sums,
            keys.job(existing), keys.history(existing), keys.duplicates(existing), keys.followers(existing),
            keys.job(queued_id), keys.followers(queued_id),
            *(() if submission.key is None else (keys.key(submission.key),)), *quota_keys(keys, submission),
        )  # fmt: skip
        flags = (submission.rejects, submission.replaces, submission.queue_next, submission.follows)
        values = (
            existing, queued, str(self._wake_after), str(SUBMITTER_LIMIT), *_arguments(submission),
            "" if submission.key is None else str(submission.key_for), str(submission.max_wait),
            *map(format_value, flags), origin_of(submission), limits_of(submission),
        )  # fmt: skip
        return Call("attach", script_keys, values)

    def _queued_next(self, submission: Submission, queued: str) -> str:
        """Return the id of the job that will be queued next when the script runs; "" for none."""
        queued = queued or self._queued.get(submission.identity, "")
        if submission.queue_next and not submission.rejects:
            self._queued[submission.identity] = queued or submission.id
        return queued

    def _duplicate_admission(self, own_id: str, found: Sequence[Any]) -> Steps[Admission]:
        outcome, rescheduled, key_reused, answered_by, job_id, parts, own = found
        job = job_of(job_id, parts)
        if job_id != answered_by:  # a repeated submission, which the job queued next has answered
            job = (yield from get_job(self._keys, answered_by)) or job
        follower = job_of(own_id, own) if own else None
        return Admission(job, Outcome(outcome), follower, rescheduled=rescheduled == "1", key_reused=key_reused == "1")

    def _repeated_admission(self, submission: Submission, own: Job) -> Steps[Admission]:
        followed = (yield from get_job(self._keys, own.follows_id)) if own.follows_id else None
        answer = Admission.repeated(own, followed, submission.nonce)
        return replace(answer, sent=answer.outcome is Outcome.ADMITTED and self._was_sent(submission))

    def _was_sent(self, submission: Submission) -> bool:
        """Return whether the message of a repeated submission was pushed with its new job: it has one, and was due."""
        is_expired = submission.expires_in is not None and submission.expires_in <= 0
        return not is_expired and self._new_jobs.message(submission) is not None
