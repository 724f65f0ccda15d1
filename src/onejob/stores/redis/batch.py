"""Batches of submissions: the same outcomes as one after the other, in a few round trips."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onejob.stores.redis.operations import Batch, Operation, Request, T
from onejob.stores.redis.submission import Submitter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onejob.jobs.model import Admission, Submission
    from onejob.stores.holder_cache import HolderCache
    from onejob.stores.redis.keys import Keys


def submit_many(
    keys: Keys, holder_cache: HolderCache, submissions: Sequence[Submission], *, wake_in: float
) -> Operation[list[Admission]]:
    """Submit in this order: one pipeline has the first script of each, another the second of those that need it."""
    if len(submissions) == 1:
        (operation,) = Submitter(keys, holder_cache, wake_in=wake_in).each(submissions)
        return [(yield from operation)]
    answers: list[Admission] = []
    for part in _split_batch(submissions):
        answers += yield from _run_in_phases(Submitter(keys, holder_cache, wake_in=wake_in).each(part))
    return answers


def _split_batch(submissions: Sequence[Submission]) -> Iterator[list[Submission]]:
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


def _run_in_phases(operations: Sequence[Operation[T]]) -> Operation[list[T]]:
    """Send the next request of each operation in one round trip, until all have returned."""
    answers: dict[int, T] = {}
    replies: dict[int, Any] = dict.fromkeys(range(len(operations)))
    while True:
        requests: dict[int, Request] = {}
        for number, reply in replies.items():
            try:
                requests[number] = operations[number].send(reply)
            except StopIteration as end:
                answers[number] = end.value
        if not requests:
            return [answers[number] for number in range(len(operations))]
        replies = dict(zip(requests, (yield Batch([*requests.values()])), strict=True))
