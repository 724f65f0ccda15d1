"""Batches of submissions: the same outcomes as one after the other, in a few round trips."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from onejob.errors import PartlySubmittedError, StoreError
from onejob.jobs.model import Submission
from onejob.stores.redis.operations import Batch, Operation, Request
from onejob.stores.redis.submission import Submitter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from onejob.jobs.model import Admission
    from onejob.stores.holder_cache import HolderCache
    from onejob.stores.redis.submission import NewJobs, Result, Steps

CALL_SIZE = 100
"""How many submissions one call of the script writes: it blocks the server for a few milliseconds."""


def submit_many(
    new_jobs: NewJobs, holder_cache: HolderCache, submissions: Sequence[Submission]
) -> Operation[list[Admission]]:
    """Submit in this order: one round trip has the first script of all, another the second of those that need it."""
    if len(submissions) == 1:
        alone = yield from Submitter(new_jobs, holder_cache).alone(submissions[0])
        return PartlySubmittedError.checked([alone])
    answers: list[Any] = []
    for part in _split_batch(submissions):
        steps = Submitter(new_jobs, holder_cache).each(part)
        answers += yield from _run_in_phases(new_jobs, steps)
    return PartlySubmittedError.checked(answers)


def _split_batch(submissions: Sequence[Submission]) -> Iterator[Sequence[Submission]]:
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


def _run_in_phases(new_jobs: NewJobs, operations: Sequence[Steps[Result]]) -> Operation[list[Result | StoreError]]:
    """Send the next request of each operation in one round trip, until all have returned, or got an error."""
    answers: dict[int, Result | StoreError] = {}
    replies: dict[int, Any] = dict.fromkeys(range(len(operations)))
    while True:
        requests: dict[int, Request | Submission] = {}
        for number, reply in replies.items():
            if isinstance(reply, StoreError):
                answers[number] = reply
                continue
            try:
                requests[number] = operations[number].send(reply)
            except StopIteration as end:
                answers[number] = end.value
        if not requests:
            return [answers[number] for number in range(len(operations))]
        replies = yield from _send(new_jobs, requests)


def _send(new_jobs: NewJobs, requests: Mapping[int, Request | Submission]) -> Operation[dict[int, Any]]:
    """Return the replies by number: the submissions go to a few calls, each of the other requests is one."""
    submissions = {number: request for number, request in requests.items() if isinstance(request, Submission)}
    others = {number: request for number, request in requests.items() if not isinstance(request, Submission)}
    new = [*submissions.values()]
    pages = [new[start : start + CALL_SIZE] for start in range(0, len(new), CALL_SIZE)]
    calls = [partial(new_jobs.call, page) for page in pages]
    replies = yield Batch([*calls, *others.values()], partial=True)
    answers: list[Any] = []
    for page, reply in zip(pages, replies, strict=False):
        answers += [reply] * len(page) if isinstance(reply, StoreError) else reply
    answers += map(_error_in, replies[len(calls) :])
    return dict(zip([*submissions, *others], answers, strict=True))


def _error_in(reply: Any) -> Any:
    """Return the error in the reply to a request, which may be a batch itself; the reply if there is none."""
    errors = (each for each in reply if isinstance(each, StoreError)) if isinstance(reply, list) else ()
    return next(iter(errors), reply)
