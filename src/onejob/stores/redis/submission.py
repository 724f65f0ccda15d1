"""Submits jobs: one script writes new jobs; a duplicate needs a second script, with the keys of the existing job."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from msgpack import Packer, packb

from onejob.errors import QuotaExceededError, StoreError, StoreRefusedError
from onejob.jobs.handover import BY_SWEEP
from onejob.jobs.model import Admission, Duplicate, HandoverOf, JobRow, Outcome, Submission
from onejob.jobs.transitions import SUBMITTED, first_reason, new_job
from onejob.stores.holder_cache import HolderCache
from onejob.stores.protocol import SUBMITTER_LIMIT
from onejob.stores.redis.client import Call, Client, get_many, pages_of
from onejob.stores.redis.rows import GIVEN, TIMES, Keys, format_value, given, job_of

T = TypeVar("T")
Calls: TypeAlias = "Generator[Call | None, Any, T]"
"""The generator of an operation: it yields calls, gets their replies, and returns a result."""
Answer: TypeAlias = "Admission | QuotaExceededError | StoreError"
CALL_SIZE = 100
"""How many submissions one call of the script writes: it blocks the server for a few milliseconds."""
SUBMIT_TRIES = 20
"""How often a submission is tried at most because another job holds its identity by then."""
ORIGIN = ("source", "submitter", "host", "fingerprint")
"""The facts that a duplicate records of its submission, in a JSON array that only clients read."""
_origin_values = attrgetter(*ORIGIN)
_ROW_HEADER = Packer().pack_array_header(len(GIVEN) + len(TIMES))
_GIVEN_HEADER_SIZE = len(Packer().pack_array_header(len(GIVEN)))


def arguments_of(submission: Submission) -> tuple[str | bytes, ...]:
    """Return the arguments of scripts: id, row (MessagePack, without `TIMES`), payload, options, delay and expiry."""
    rank, retries, delay, expires_in = (
        submission.priority_rank, submission.retries, submission.delay, submission.expires_in,
    )  # fmt: skip
    row = packb((
        submission.task, submission.submitter or False, submission.source or False, submission.route or False,
        submission.publisher_task or False, submission.tag_lines or False, str(submission.lease),
        str(rank) if rank else False, str(retries) if retries else False, submission.canvas and "1", "queued", "1",
        SUBMITTED if submission.parked_on is None else first_reason(submission), submission.identity,
        submission.fingerprint != submission.identity and submission.fingerprint, submission.nonce or False,
        submission.limit_keys or False, submission.parked_on or False,
    ))  # fmt: skip
    return (
        submission.id, _ROW_HEADER + row[_GIVEN_HEADER_SIZE:], submission.payload, submission.options,
        str(delay) if delay else "", "" if expires_in is None else str(expires_in),
    )  # fmt: skip


class _Pending:
    """A submission until it has its answer."""

    __slots__ = ("_calls", "answer", "is_alone", "request", "submission")

    def __init__(self, submission: Submission, calls: Calls[Answer]) -> None:
        self.submission = submission
        self._calls = calls
        self.request = next(calls)
        """The next call of the submission; None: the submission has to be written as a new job."""
        self.answer: Answer | None = None
        self.is_alone = False
        """Whether the submission needs a call of its own: a call with others was refused, and may have written some."""

    def handle(self, reply: Any) -> None:
        """Go on with the reply to its call, to the next call or the answer."""
        try:
            self.request = self._calls.send(reply)
        except StopIteration as end:
            self.answer = end.value


@dataclass(slots=True)
class Submitting:
    """A call of `submit_many`. `handover_of`: returns the hand-over of a submission's job, if it is due now."""

    client: Client
    keys: Keys
    holder_cache: HolderCache
    handover_of: HandoverOf
    columns: dict[str, tuple[float, bool]] = field(default_factory=dict)
    """The columns of the hand-overs of new jobs, by id."""
    queued: dict[str, str] = field(default_factory=dict)
    """The jobs that earlier submissions of the batch will have queued next, by identity."""
    repeated: frozenset[str] = frozenset()
    """The identities that several submissions of the batch have."""

    def submit(self, submission: Submission) -> Admission:
        """Return the admission of one submission. Raises `StoreError` and `QuotaExceededError`."""
        holder, reply = self.holder_cache.get(submission.identity) if submission.key is None else None, None
        if holder is None:  # most likely a new job
            reply = self.client.send([self.new_jobs([submission])])[0][0]
            if reply[0] == "admitted":
                return self._admitted(submission, *reply[1:])
        pending = _Pending(submission, self._calls_of(submission, holder))
        if reply is not None:
            pending.handle(reply)
        while pending.answer is None:
            reply = self.client.send([pending.request or self.new_jobs([submission])])[0]
            pending.handle(reply if pending.request else reply[0])
        if isinstance(pending.answer, Exception):
            raise pending.answer
        return pending.answer

    def submit_batch(self, submissions: Sequence[Submission]) -> list[Any]:
        """Return the answers to submissions with different ids and keys, or errors, as if one came after the other.

        Each round trip has the next call of each submission that is not answered yet.
        """
        counts = Counter(submission.identity for submission in submissions)
        self.repeated = frozenset(identity for identity, count in counts.items() if count > 1)
        # Equal submissions, and those that use quotas, start with the same script: a stale entry that only some of them
        # use would reorder them.
        in_order = {each.identity for each in submissions if each.key is not None or each.charges}
        holders = [None if each.identity in in_order else self.holder_cache.get(each.identity) for each in submissions]
        batch = [_Pending(each, self._calls_of(each, held)) for each, held in zip(submissions, holders, strict=True)]
        waiting = batch
        while waiting:
            self._send(waiting)
            waiting = [pending for pending in waiting if pending.answer is None]
        return [pending.answer for pending in batch]

    def _send(self, waiting: Sequence[_Pending]) -> None:
        """Send the next calls of submissions, the new jobs first, and handle the replies."""
        new = [pending for pending in waiting if pending.request is None]
        others = [(pending, pending.request) for pending in waiting if pending.request is not None]
        alone = [[pending] for pending in new if pending.is_alone]
        pages = [*pages_of([pending for pending in new if not pending.is_alone], CALL_SIZE), *alone]
        writes = [partial(self.new_jobs, [pending.submission for pending in page]) for page in pages]
        replies = self.client.send([*writes, *(request for _, request in others)], partial=True)
        answers: list[Any] = []
        for page, reply in zip(pages, replies, strict=False):
            answers += [reply] * len(page) if isinstance(reply, StoreError) else reply
            for pending in page:
                pending.is_alone = isinstance(reply, StoreRefusedError) and len(page) > 1
        answers += replies[len(pages) :]
        sent = (*(pending for page in pages for pending in page), *(pending for pending, _ in others))
        for pending, answer in zip(sent, answers, strict=True):
            if not isinstance(answer, StoreError):
                pending.handle(answer)
            elif not pending.is_alone:
                pending.answer = answer

    def new_jobs(self, submissions: Sequence[Submission]) -> Call:
        """Return the call that writes new jobs. The reply has one answer for each submission."""
        keys, script_keys = self.keys, [self.keys.wake(""), self.keys.jobs]
        values: list[str | bytes] = []
        for submission in submissions:
            key, identity = submission.key, submission.identity
            handover = BY_SWEEP if submission.delay > 0 else self.handover_of(submission)
            message, columns = handover.message, handover.columns(submission.lease)
            self.columns[submission.id] = wake_after, is_sent = columns
            wake_set = keys.wake(submission.publisher_task or submission.task)
            script_keys += (wake_set, keys.job(submission.id), keys.identity(identity), keys.next(identity))
            if submission.submitter:
                script_keys.append(keys.submitter(submission.submitter))
            if key is not None:
                script_keys.append(keys.key(key))
            if message is not None:
                script_keys.append(message.destination)
            values += arguments_of(submission)
            values.append(str(wake_after))
            values.append("parked" if submission.parked_on else "1" if is_sent else "")
            values.append("" if message is None else message.text)
            values.append("" if key is None else str(submission.key_for))
            values.append("1" if submission.submitter else "")
            if submission.charges:
                script_keys += quota_keys(keys, submission)
                values.append(limits_of(submission))
            else:
                values.append("")
        return Call("submit", script_keys, values)

    def _calls_of(self, submission: Submission, holder: str | None) -> Calls[Answer]:
        """Yield each next call of a submission (None: write a new job), get its reply, and return the final answer.

        `holder`: the job that holds the identity, as far as it is known.
        """
        identity, queued = submission.identity, ""
        request = None if holder is None else self._meet_holder(submission, holder, queued)
        for _ in range(SUBMIT_TRIES):
            while True:
                reply = yield request
                match reply:
                    case ["admitted", at, pushed]:
                        return self._admitted(submission, at, pushed)
                    case ["held", holder, queued]:
                        request = self._meet_holder(submission, holder, queued)
                    case ["uncommon"]:
                        request = self._attach_to_holder(submission, holder or "", queued)
                    case ["keyed", job_id, key_holder]:
                        request = self._attach(submission, job_id, "", key_holder if key_holder != job_id else "")
                    case _:
                        break
            answer = yield from self._answer(submission, reply)
            if answer is not None:
                return answer
            self.holder_cache.pop(identity, None)
            request = None
        return StoreError(f"the holder of identity {identity} changed {SUBMIT_TRIES} times during one submission")

    def _admitted(self, submission: Submission, at: str, pushed: str) -> Admission:
        """Return the admission of a new job, which was written at a time."""
        wake_after, is_sent = self.columns[submission.id]
        job = new_job(submission, now=float(at), wake_after=wake_after, is_sent=is_sent)
        if submission.key is not None:
            job = replace(job, key_retained_until=job.created_at + submission.key_for)
        return Admission(job, Outcome.ADMITTED, handed_over=pushed == "1")

    def _answer(self, submission: Submission, reply: Any) -> Calls[Answer | None]:
        """Return the answer in a reply; None if another job holds the identity by now: the submission is repeated."""
        match reply:
            case ["duplicate", *found]:
                return (yield from self._answer_duplicate(submission, found))
            case ["exceeded", *found]:
                return exceeded_quota(submission, found)
            case ["own"]:
                return (yield from self._answer_by_id(submission))
        return None

    def _answer_by_id(self, submission: Submission) -> Calls[Admission | None]:
        """Return the answer of the job that has the id; None if it, or the job that answers, was deleted meanwhile."""
        own = yield from self._read(submission.id)
        if own is None:
            return None
        followed = (yield from self._read(own.follows_id)) if own.follows_id else None
        answer = Admission.repeated(own, followed, submission)
        if submission.key is None or own.submission_nonce == submission.nonce:
            return self._repeat(submission, answer)
        stale, reply = "", None
        while reply not in ["free", "lost"]:
            reply, *found = yield self._identify(submission, answer, stale)
            if reply == "named":
                return replace(answer, job=job_of(answer.job.id, found[0]))
            if reply == "keyed":
                stale, fingerprint, kept_until = found
                job = yield from self._read(stale)
                if job is not None and (job.key_retained_until or 0.0) >= float(kept_until):
                    reused = fingerprint != submission.fingerprint
                    return Admission.repeated(own, followed, submission, (job, reused))
        return answer if reply == "free" else None

    def _identify(self, submission: Submission, answer: Admission, stale: str) -> Call:
        keys, job_id = self.keys, answer.job.id
        script_keys = (*keys.wake_sets, keys.job(job_id), keys.key(submission.key or ""), keys.successor(stale))
        key_for = "" if answer.key_reused else str(submission.key_for)
        return Call("identify", script_keys, (job_id, stale, key_for, submission.fingerprint, answer.outcome))

    def _meet_holder(self, submission: Submission, holder: str, queued: str) -> Call:
        """Return the call for a duplicate of the job that holds the identity, by the cheaper script if possible."""
        self.holder_cache.put(submission.identity, holder)
        # Equal submissions have the same script: an uncommon one would fall behind those after it.
        if submission.identity not in self.repeated and _is_plain(submission):
            return self._attach_plain(submission, holder)
        return self._attach_to_holder(submission, holder, queued)

    def _attach_to_holder(self, submission: Submission, holder: str, queued: str) -> Call:
        queued = queued or self.queued.get(submission.identity, "")
        if submission.queue_next and not submission.rejects:
            self.queued[submission.identity] = queued or submission.id
        return self._attach(submission, holder, queued)

    def _attach_plain(self, submission: Submission, existing: str) -> Call:
        keys = self.keys
        script_keys = (
            *keys.wake_sets, keys.job(submission.id), keys.identity(submission.identity), keys.job(existing),
            keys.duplicates(existing), keys.duplicate_counts, keys.duplicate_sums,
        )  # fmt: skip
        values = (
            existing, submission.id, submission.nonce, submission.fingerprint, format_value(submission.delay),
            given(submission.expires_in), format_value(submission.priority_rank), submission.submitter,
            origin_of(submission), str(SUBMITTER_LIMIT),
        )  # fmt: skip
        return Call("attach_plain", script_keys, values)

    def _attach(self, submission: Submission, existing: str, queued: str, holder: str = "") -> Call:
        """Return the call that resolves any duplicate. `queued`: the id of the job that is queued next; "" for none.

        `holder`: the job that holds the identity, if it is not the existing one, which the idempotency key has.
        """
        keys, identity, queued_id = self.keys, submission.identity, queued or submission.id
        script_keys = (
            *keys.wake_sets, keys.job(submission.id), keys.history(submission.id), keys.identity(identity),
            keys.next(identity), keys.jobs, keys.submitter(submission.submitter), keys.follows_ids,
            keys.duplicate_counts, keys.duplicate_sums,
            keys.job(existing), keys.history(existing), keys.duplicates(existing), keys.followers(existing),
            keys.job(queued_id), keys.followers(queued_id),
            *(() if submission.key is None else (keys.key(submission.key), keys.successor(existing))),
            *quota_keys(keys, submission),
            *((keys.job(holder), keys.duplicates(holder)) if holder else ()),
        )  # fmt: skip
        flags = (submission.rejects, submission.replaces, submission.queue_next, submission.follows)
        wake_after, is_sent = self.handover_of(submission).columns(submission.lease)
        values = (
            existing, queued, str(wake_after), format_value(is_sent),
            str(SUBMITTER_LIMIT), *arguments_of(submission),
            "" if submission.key is None else str(submission.key_for), str(submission.max_wait),
            *map(format_value, flags), origin_of(submission), limits_of(submission), format_value(holder != ""),
        )  # fmt: skip
        return Call("attach", script_keys, values)

    def _answer_duplicate(self, submission: Submission, found: Sequence[Any]) -> Calls[Admission]:
        outcome, rescheduled, key_reused, answered_by, job_id, parts, own = found
        if submission.queue_next and answered_by != self.holder_cache.get(submission.identity):
            self.holder_cache.pop(submission.identity, None)  # which does not know the job queued next
        job = job_of(job_id, parts)
        if job_id != answered_by:  # a repeated submission, which the job queued next has answered
            job = (yield from self._read(answered_by)) or job
        follower = job_of(submission.id, own) if own else None
        return Admission(job, Outcome(outcome), follower, rescheduled=rescheduled == "1", key_reused=key_reused == "1")

    def _repeat(self, submission: Submission, answer: Admission) -> Admission:
        """Return the answer to a repeated request, whose job was pushed when it was written, if it was due."""
        is_expired = submission.expires_in is not None and submission.expires_in <= 0
        was_due = answer.outcome is Outcome.ADMITTED and submission.delay <= 0 and not is_expired
        return replace(answer, handed_over=was_due and self.handover_of(submission).message is not None)

    def _read(self, job_id: str) -> Calls[JobRow | None]:
        (parts,) = yield get_many(self.keys, [job_id])
        return job_of(job_id, parts) if parts else None


def split_batch(submissions: Sequence[Submission]) -> Iterator[Sequence[Submission]]:
    """Split a batch where an id or an idempotency key is repeated: its first submission must be answered before."""
    part: list[Submission] = []
    seen: set[tuple[str, str | None]] = set()
    for submission in submissions:
        names = {("id", submission.id), ("key", submission.key)} - {("key", None)}
        if seen & names:
            yield part
            part, seen = [], set()
        part.append(submission)
        seen |= names
    yield part


def _is_plain(submission: Submission) -> bool:
    """Return whether a duplicate can change nothing but the times and the priority of the job that answers."""
    return submission.key is None and not (
        submission.rejects or submission.replaces or submission.queue_next or submission.follows or submission.max_wait
    )


def quota_keys(keys: Keys, submission: Submission) -> list[str]:
    """Return the keys of the quotas that a submission is charged with."""
    return [keys.quota(charge.name) for charge in submission.charges]


def limits_of(submission: Submission) -> str:
    """Return the limits of the quotas that a submission is charged with, as an argument of scripts."""
    return " ".join(f"{charge.quota.limit} {charge.quota.period}" for charge in submission.charges)


def exceeded_quota(submission: Submission, found: Sequence[str]) -> QuotaExceededError:
    """Return the error of a submission to which a script has answered that a quota is used up."""
    number, until, seconds = found
    return submission.charges[int(number)].exceeded(float(until), float(seconds))


def origin_of(submission: Submission | Duplicate) -> str:
    """Return the facts that a duplicate records of its submission, as JSON."""
    return _write_origin(_origin_values(submission))


@lru_cache(1024)
def _write_origin(values: tuple[str, ...]) -> str:
    """Return the values of `ORIGIN` as JSON, from a cache: one submitter repeats them."""
    return json.dumps(values, separators=(",", ":"))
