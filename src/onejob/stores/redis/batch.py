"""Many submissions at once: they come to what they would come to one after the other, in a few round trips."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onejob.stores.redis.operations import Operation, Request, T, Together
from onejob.stores.redis.submission import Submitting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onejob.jobs.model import Admission, Submission
    from onejob.stores.holder_cache import HolderCache
    from onejob.stores.redis.keys import Keys


def submit_many(
    keys: Keys, holder_cache: HolderCache, submissions: Sequence[Submission], *, wake_in: float
) -> Operation[list[Admission]]:
    """Submit in this order: the first script of all, then the second of those that need one, and so on."""
    if len(submissions) == 1:
        (one,) = Submitting(keys, holder_cache, wake_in=wake_in).each(submissions)
        return [(yield from one)]
    answers: list[Admission] = []
    for part in _parts(submissions):
        answers += yield from _in_step(Submitting(keys, holder_cache, wake_in=wake_in).each(part))
    return answers


def _parts(submissions: Sequence[Submission]) -> Iterator[list[Submission]]:
    """Cut a batch where an id or an idempotency key comes again: the first with it must have its answer by then."""
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


def _in_step(operations: Sequence[Operation[T]]) -> Operation[list[T]]:
    """Ask in each round trip for what all the operations ask for next."""
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
        replies = dict(zip(requests, (yield Together([*requests.values()])), strict=True))
