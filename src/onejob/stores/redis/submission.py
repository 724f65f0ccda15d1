"""Submissions: one script writes new jobs; a duplicate needs a second one, with the keys of the existing job."""

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
from onejob.jobs.model import Admission, Duplicate, Job, MessageOf, Outcome, Submission
from onejob.jobs.transitions import SUBMITTED, new_job
from onejob.stores.holder_cache import HolderCache
from onejob.stores.protocol import SUBMITTER_LIMIT
from onejob.stores.redis.client import Call, Client, get_many, pages_of
from onejob.stores.redis.rows import GIVEN, TIMES, Keys, format_value, given, job_of

T = TypeVar("T")
Calls: TypeAlias = "Generator[Call | None, Any, T]"
"""Yields calls, gets their replies, and returns a result."""
Answer: TypeAlias = "Admission | QuotaExceededError | StoreError"
CALL_SIZE = 100
"""How many submissions one call of the script writes: it blocks the server for a few milliseconds."""
SUBMIT_TRIES = 20
"""How often a submission is tried at most because another job holds its identity by then."""
ORIGIN = ("source", "submitter", "host", "fingerprint")
"""What a duplicate records of its submission: a JSON array that only clients read."""
_origin_values = attrgetter(*ORIGIN)
_ROW_HEADER = Packer().pack_array_header(len(GIVEN) + len(TIMES))
_GIVEN_HEADER_SIZE = len(Packer().pack_array_header(len(GIVEN)))


def arguments_of(submission: Submission) -> tuple[str | bytes, ...]:
    """Return what scripts need: id, row (in MessagePack, without `TIMES`), payload, options, delay and expiry."""
    rank, retries, delay, expires_in = (
        submission.priority_rank, submission.retries, submission.delay, submission.expires_in,
    )  # fmt: skip
    row = packb((
        submission.task, submission.submitter or False, submission.source or False, submission.route or False,
        submission.publisher_task or False, submission.tag_lines or False, str(submission.lease),
        str(rank) if rank else False, str(retries) if retries else False, submission.canvas and "1", "queued", "1",
        SUBMITTED, submission.identity, submission.fingerprint != submission.identity and submission.fingerprint,
        submission.nonce or False,
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
        """Its next call; None: it has to be written as a new job."""
        self.answer: Answer | None = None
        self.is_alone = False
        """Whether it needs a call of its own: one with others was refused, after it may have written some of them."""

    def handle(self, reply: Any) -> None:
        """Go on with the reply to its call, to the next call or the answer."""
        try:
            self.request = self._calls.send(reply)
        except StopIteration as end:
            self.answer = end.value


@dataclass(slots=True)
class Submitting:
    """A call of `submit_many`. `wake_after`: seconds until a sweep publishes a job that is due, once more."""

    client: Client
    keys: Keys
    holder_cache: HolderCache
    wake_after: float
    message_of: MessageOf | None
    queued: dict[str, str] = field(default_factory=dict)
    """By identity: the job that an earlier submission of the batch will have queued next."""
    repeated: frozenset[str] = frozenset()
    """The identities that several submissions of the batch have."""

    def submit(self, submission: Submission) -> Admission:
        """Return the admission of one submission. Raises `StoreError` and `QuotaExceededError`."""
        holder = self.holder_cache.get(submission.identity) if submission.key is None else None
        pending = _Pending(submission, self._calls_of(submission, holder))
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
        """Return the call that writes new jobs. Its reply has one answer for each."""
        keys, script_keys = self.keys, [self.keys.wake(""), self.keys.jobs]
        values: list[str | bytes] = [str(self.wake_after)]
        for submission in submissions:
            key, identity = submission.key, submission.identity
            message = self.message_of(submission) if self.message_of and submission.delay <= 0 else None
            wake_set = keys.wake(submission.publisher_task or submission.task)
            script_keys += (wake_set, keys.job(submission.id), keys.identity(identity), keys.next(identity))
            if key is not None:
                script_keys.append(keys.key(key))
            if message is not None:
                script_keys.append(message.destination)
            values += arguments_of(submission)
            values.append("" if message is None else message.text)
            values.append("" if key is None else str(submission.key_for))
            if submission.charges:
                script_keys += quota_keys(keys, submission)
                values.append(limits_of(submission))
            else:
                values.append("")
        return Call("submit", script_keys, values)

    def _calls_of(self, submission: Submission, holder: str | None) -> Calls[Answer]:
        """Yield the next call of a submission, None to be written as a new job, get the reply, and return the answer.

        `holder`: the job that holds the identity, as far as it is known.
        """
        identity, queued = submission.identity, ""
        request = None if holder is None else self._meet_holder(submission, holder, queued)
        for _ in range(SUBMIT_TRIES):
            while True:
                reply = yield request
                match reply:
                    case ["admitted", at, sent]:
                        job = new_job(submission, now=float(at), wake_after=self.wake_after)
                        if submission.key is not None:
                            job = replace(job, key_retained_until=job.created_at + submission.key_for)
                        return Admission(job, Outcome.ADMITTED, sent=sent == "1")
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

    def _answer(self, submission: Submission, reply: Any) -> Calls[Answer | None]:
        """Return the answer in a reply; None if another job holds the identity by now: it has to be submitted anew."""
        match reply:
            case ["duplicate", *found]:
                return (yield from self._answer_duplicate(submission, found))
            case ["exceeded", *found]:
                return exceeded_quota(submission, found)
            case ["own"]:
                own = yield from self._read(submission.id)
                followed = (yield from self._read(own.follows_id)) if own and own.follows_id else None
                return self._repeat(submission, own, followed) if own else None
        return None

    def _meet_holder(self, submission: Submission, holder: str, queued: str) -> Call:
        """Return the call for a duplicate of the job that holds the identity, of the cheaper script if possible."""
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
        """Return the call that resolves any duplicate. `queued`: the job that will be queued next then; "" for none.

        `holder`: the job that holds the identity, if it is not the existing one, which the idempotency key has.
        """
        keys, identity, queued_id = self.keys, submission.identity, queued or submission.id
        script_keys = (
            *keys.wake_sets, keys.job(submission.id), keys.history(submission.id), keys.identity(identity),
            keys.next(identity), keys.jobs, keys.follows_ids, keys.duplicate_counts, keys.duplicate_sums,
            keys.job(existing), keys.history(existing), keys.duplicates(existing), keys.followers(existing),
            keys.job(queued_id), keys.followers(queued_id),
            *(() if submission.key is None else (keys.key(submission.key),)), *quota_keys(keys, submission),
            *((keys.job(holder), keys.duplicates(holder)) if holder else ()),
        )  # fmt: skip
        flags = (submission.rejects, submission.replaces, submission.queue_next, submission.follows)
        values = (
            existing, queued, str(self.wake_after), str(SUBMITTER_LIMIT), *arguments_of(submission),
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

    def _repeat(self, submission: Submission, own: Job, followed: Job | None) -> Admission:
        """Answer by the job that has the id. Its message was pushed with it if it has one, and the job was due."""
        answer = Admission.repeated(own, followed, submission.nonce)
        is_expired = submission.expires_in is not None and submission.expires_in <= 0
        was_due = answer.outcome is Outcome.ADMITTED and submission.delay <= 0 and not is_expired
        return replace(answer, sent=was_due and self.message_of is not None and self.message_of(submission) is not None)

    def _read(self, job_id: str) -> Calls[Job | None]:
        (parts,) = yield get_many(self.keys, [job_id])
        return job_of(job_id, parts) if parts else None


def split_batch(submissions: Sequence[Submission]) -> Iterator[Sequence[Submission]]:
    """Split a batch where an id or an idempotency key is repeated: the first must be answered before that."""
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
    """Return the limits of these quotas as an argument of the scripts."""
    return " ".join(f"{charge.quota.limit} {charge.quota.period}" for charge in submission.charges)


def exceeded_quota(submission: Submission, found: Sequence[str]) -> QuotaExceededError:
    """Return the error of a submission to which a script has answered that a quota is used up."""
    number, until, seconds = found
    return submission.charges[int(number)].exceeded(float(until), float(seconds))


def origin_of(submission: Submission | Duplicate) -> str:
    """Return what a duplicate records of its submission, as JSON."""
    return _write_origin(_origin_values(submission))


@lru_cache(1024)
def _write_origin(values: tuple[str, ...]) -> str:
    """Return the values of `ORIGIN` as JSON: a submitter asks for the same again."""
    return json.dumps(values, separators=(",", ":"))
