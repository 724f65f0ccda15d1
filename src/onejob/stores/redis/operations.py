"""The store's operations, drawn without I/O: each asks for a script or for reads, gets the reply, returns the answer.

Whoever runs one (`Client.run`; an asynchronous one would be as short) talks to Redis. Each is named as in the protocol
in onejob.stores.protocol, which says what it does, and takes the ledger's keys first. Others have files of their own.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Applied, Cancel, Entry, Job, QuotaUse, Renewal, Tombstone, values_of
from onejob.stores.protocol import HISTORY_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onejob.jobs.model import Change, Submission
    from onejob.stores.redis.keys import Keys

PAGE = 100
"""How many jobs one request reads at most."""


@dataclass(frozen=True, slots=True)
class Call:
    """Ask for one script. Every key that it touches is in `keys`."""

    script: str
    keys: tuple[str, ...]
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Read:
    """Ask for plain reads, each as of its own moment."""

    commands: Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Together:
    """Ask for several at once, in this order; the reply is the list of theirs."""

    requests: Sequence[Request]


T = TypeVar("T")
Request: TypeAlias = Call | Read | Together
Operation: TypeAlias = Generator[Request, Any, T]
_EMPTY: dict[str, Any] = dict.fromkeys((f.name for f in fields(Job)), "")


def claim(
    keys: Keys, job_id: str, *, nonce: str, node: str, sources: frozenset[State], target: State
) -> Operation[Applied]:
    touched = (keys.job(job_id), keys.history(job_id), keys.wake, keys.leases)
    values = {"job_id": job_id, "nonce": nonce, "node": node, "sources": sources, "target": target}
    return _applied((yield Call("claim", touched, values | {"history_limit": HISTORY_LIMIT})))


def follow(keys: Keys, submission: Submission, *, follows_id: str) -> Operation[Job | None]:
    touched = (
        keys.job(submission.id), keys.history(submission.id), keys.wake, keys.jobs, keys.following, keys.job(follows_id),
        keys.followers(follows_id),
    )  # fmt: skip
    flat = yield Call("follow", touched, values_of(submission) | {"history_limit": HISTORY_LIMIT})
    return job_of(flat) if flat else None


def renew(keys: Keys, claims: Sequence[tuple[str, str]], *, sources: frozenset[State]) -> Operation[list[Renewal]]:
    touched = (keys.wake, keys.leases, *(keys.job(job_id) for job_id, _ in claims))
    nonces = json.dumps([nonce for _, nonce in claims])
    asked = yield Call("renew", touched, {"nonces": nonces, "sources": sources})
    answers = zip(claims, asked, strict=True)
    return [Renewal(*claim, held=cancel != "", cancel=Cancel(int(cancel or 0))) for claim, cancel in answers]


def apply(keys: Keys, change: Change) -> Operation[Applied]:
    touched = (
        keys.job(change.job_id), keys.identity(change.identity), keys.next(change.identity),
        keys.history(change.job_id), keys.wake, keys.leases, keys.followers(change.job_id), keys.following,
        keys.steps(change.job_id),
    )  # fmt: skip
    answer, *found = yield Call("apply", touched, values_of(change) | {"history_limit": HISTORY_LIMIT})
    if len(found) > 1:
        yield _promote(keys, found.pop(), change)
    return _applied([answer, *found])


def _promote(keys: Keys, job_id: str, change: Change) -> Call:
    touched = (
        keys.job(job_id), keys.identity(change.identity), keys.history(job_id), keys.wake, keys.following,
    )  # fmt: skip
    return Call("promote", touched, {"job_id": job_id, "ended": change.job_id, "history_limit": HISTORY_LIMIT})


def report(
    keys: Keys, job_id: str, token: int, progress: str, *, sources: frozenset[State]
) -> Operation[Cancel | None]:
    values = {"token": token, "progress": progress, "sources": sources}
    cancel = yield Call("report", (keys.job(job_id),), values)
    return None if cancel is None else Cancel(int(cancel))


def keep_step(
    keys: Keys, job_id: str, token: int, name: str, value: str, *, sources: frozenset[State]
) -> Operation[str | None]:
    touched = (keys.job(job_id), keys.steps(job_id))
    kept = yield Call("keep_step", touched, {"token": token, "name": name, "value": value, "sources": sources})
    return None if kept is None else str(kept)


def steps(keys: Keys, job_id: str) -> Operation[dict[str, str]]:
    (kept,) = yield Read([("HGETALL", keys.steps(job_id))])
    return dict(kept)


def take_due(keys: Keys, *, limit: int, hold: float) -> Operation[list[Job]]:
    """Take the jobs whose `wake_at` has come; an entry whose row was lost is removed."""
    alarm, ids = yield Call("take_due", (keys.wake, keys.leases), {"limit": limit, "hold": hold})
    found = yield from rows(keys, ids)
    yield from delete(keys, sorted(set(ids) - {job.id for job in found}), sources=frozenset())
    return [job for job in found if job.wake_at == float(alarm)]


def find_existing(keys: Keys, identity: str, key: str | None) -> Operation[Job | None]:
    touched = (keys.identity(identity), *(() if key is None else (keys.key(key),)))
    job_id = yield Call("find_existing", touched, {"key": key})
    return None if job_id is None else (yield from get_one(keys, job_id))


def rows(keys: Keys, ids: Sequence[str]) -> Operation[list[Job]]:
    """Return the jobs of these ids, without those that are gone."""
    calls = [
        Call("get_many", (keys.wake, *map(keys.job, ids[start : start + PAGE])), {})
        for start in range(0, len(ids), PAGE)
    ]
    pages = (yield Together(calls)) if calls else []
    return [job_of(flat) for page in pages for flat in page if flat]


def get_one(keys: Keys, job_id: str) -> Operation[Job | None]:
    """Return a job, None when it is gone."""
    found = yield from rows(keys, [job_id])
    return found[0] if found else None


def get_many(keys: Keys, job_ids: Sequence[str]) -> Operation[dict[str, Job]]:
    found = yield from rows(keys, job_ids)
    return {job.id: job for job in found}


def history(keys: Keys, job_id: str) -> Operation[list[Entry]]:
    (lines,) = yield Read([("LRANGE", keys.history(job_id), "0", "-1")])
    return [_entry(line) for line in lines]


def delete(
    keys: Keys,
    job_ids: Sequence[str],
    *,
    sources: frozenset[State],
    skip_keyed: bool = False,
    tombstone_for: float = 0.0,
) -> Operation[list[str]]:
    removed: list[str] = []
    for start in range(0, len(job_ids), PAGE):
        page = job_ids[start : start + PAGE]
        of_a_job = (keys.job, keys.steps, keys.history, keys.followers, keys.duplicates)
        of_all = (keys.wake, keys.leases, keys.jobs, keys.following, keys.tombstones, keys.forgetting)
        touched = (*of_all, *(key(job_id) for job_id in page for key in of_a_job))
        values = {"job_ids": json.dumps(list(page)), "sources": sources, "skip_keyed": skip_keyed}
        removed += yield Call("delete", touched, values | {"tombstone_for": tombstone_for})
    return removed


def tombstone(keys: Keys, job_id: str) -> Operation[Tombstone | None]:
    touched = (keys.job(job_id), keys.tombstones)
    found = yield Call("tombstone", touched, {"job_id": job_id})
    if found is None:
        return None
    state, finished_at, purged_at, _ = json.loads(found)
    return Tombstone.from_row({"id": job_id, "state": state, "finished_at": finished_at, "purged_at": purged_at})


def consume(
    keys: Keys, name: str, *, nonce: str, limit: int, period: float, amount: int = 1, until: float | None = None
) -> Operation[QuotaUse]:
    values = {"nonce": nonce, "limit": limit, "period": period, "amount": amount, "until": until}
    counted, used, end, seconds = yield Call("consume", (keys.quota(name),), values)
    left = max(limit - int(used), 0)
    return QuotaUse(name=name, counted=counted == "1", left=left, until=float(end), seconds=float(seconds))


def _applied(reply: list[Any]) -> Applied:
    answer, *found = reply
    return Applied(applied=answer == "applied", job=job_of(found[0]) if found else None)


def job_of(flat: Sequence[str]) -> Job:
    """Build a job from names and values in turn. A field that is not there is empty."""
    return Job.from_row(_EMPTY | dict(zip(flat[::2], flat[1::2], strict=True)))


def _entry(line: str) -> Entry:
    at, event, state, attempt, node, detail = json.loads(line)
    return Entry(float(at), event, State(state), int(attempt), node, detail)
