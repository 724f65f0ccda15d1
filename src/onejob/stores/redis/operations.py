"""The store's operations without I/O: generators that yield requests, are sent the replies, and return the result.

`Client.run` executes them; an asynchronous client would be as short. Each has the name and the contract of a method of
`onejob.stores.protocol`, and takes the ledger's keys first. Submissions, duplicates and queries have their own modules.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Applied, Cancel, Job, Outcome, Renewal, values_of
from onejob.jobs.records import REDELIVERED, Entry, QuotaUse, Tombstone
from onejob.stores.protocol import HISTORY_LIMIT, WINDOW_OVER
from onejob.stores.statement_files import LIGHT_FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onejob.jobs.model import Change, Submission
    from onejob.stores.redis.keys import Keys

COUNTED = " ".join((*Outcome, REDELIVERED))
"""All that duplicates are counted by."""
PAGE_SIZE = 100
"""How many jobs one request reads at most."""


@dataclass(frozen=True, slots=True)
class Call:
    """Calls one script. Every key that it uses is in `keys`."""

    script: str
    keys: tuple[str, ...]
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Read:
    """Plain read commands, not atomic together; the reply is the list of their replies."""

    commands: Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Several requests in one round trip, in this order; the reply is the list of their replies."""

    requests: Sequence[Request]


T = TypeVar("T")
Request: TypeAlias = Call | Read | Batch
Operation: TypeAlias = Generator[Request, Any, T]
_EMPTY: dict[str, Any] = dict.fromkeys((f.name for f in fields(Job)), "")


def claim(
    keys: Keys, job_id: str, *, nonce: str, node: str, sources: frozenset[State], target: State
) -> Operation[Applied]:
    script_keys = (*keys.wake_sets, keys.job(job_id), keys.history(job_id))
    values = {"job_id": job_id, "nonce": nonce, "node": node, "sources": sources, "target": target}
    return _parse_applied((yield Call("claim", script_keys, values | {"history_limit": HISTORY_LIMIT})))


def follow(keys: Keys, submission: Submission, *, follows_id: str) -> Operation[Job | None]:
    script_keys = (
        *keys.wake_sets, keys.job(submission.id), keys.history(submission.id), keys.jobs, keys.follows_ids,
        keys.job(follows_id), keys.followers(follows_id),
    )  # fmt: skip
    flat = yield Call("follow", script_keys, values_of(submission) | {"history_limit": HISTORY_LIMIT})
    return job_of(flat) if flat else None


def renew(keys: Keys, claims: Sequence[tuple[str, str]], *, sources: frozenset[State]) -> Operation[list[Renewal]]:
    script_keys = (keys.leases, *(keys.job(job_id) for job_id, _ in claims))
    nonces = json.dumps([nonce for _, nonce in claims])
    cancels = yield Call("renew", script_keys, {"nonces": nonces, "sources": sources})
    renewed = zip(claims, cancels, strict=True)
    return [Renewal(*claim, held=cancel != "", cancel=Cancel(int(cancel or 0))) for claim, cancel in renewed]


def apply(keys: Keys, change: Change) -> Operation[Applied]:
    script_keys = (
        *keys.wake_sets, keys.job(change.job_id), keys.identity(change.identity), keys.next(change.identity),
        keys.history(change.job_id), keys.followers(change.job_id), keys.follows_ids, keys.steps(change.job_id),
    )  # fmt: skip
    call = Call("apply", script_keys, values_of(change) | {"history_limit": HISTORY_LIMIT})
    status, *found = yield call
    if status == "refused" and len(found) > 1 and (yield _release_expired(keys, found.pop(), change)) == "released":
        status, *found = yield call
    if status == "applied" and len(found) > 1:
        yield _promote(keys, found[1], change)
    return _parse_applied([status, *found])


def _release_expired(keys: Keys, job_id: str, change: Change) -> Call:
    script_keys = (keys.job(job_id), keys.identity(change.identity), keys.history(job_id))
    values = {"job_id": job_id, "window_over": WINDOW_OVER, "history_limit": HISTORY_LIMIT}
    return Call("release_expired", script_keys, values)


def _promote(keys: Keys, job_id: str, change: Change) -> Call:
    script_keys = (
        *keys.wake_sets, keys.job(job_id), keys.identity(change.identity), keys.history(job_id), keys.follows_ids,
    )  # fmt: skip
    return Call("promote", script_keys, {"job_id": job_id, "ended_id": change.job_id, "history_limit": HISTORY_LIMIT})


def report(
    keys: Keys, job_id: str, token: int, progress: str, *, sources: frozenset[State]
) -> Operation[Cancel | None]:
    values = {"token": token, "progress": progress, "sources": sources}
    cancel = yield Call("report", (keys.job(job_id),), values)
    return None if cancel is None else Cancel(int(cancel))


def keep_step(
    keys: Keys, job_id: str, token: int, name: str, value: str, *, sources: frozenset[State]
) -> Operation[str | None]:
    script_keys = (keys.job(job_id), keys.steps(job_id))
    kept = yield Call("keep_step", script_keys, {"token": token, "name": name, "value": value, "sources": sources})
    return None if kept is None else str(kept)


def steps(keys: Keys, job_id: str) -> Operation[dict[str, str]]:
    (kept,) = yield Read([("HGETALL", keys.steps(job_id))])
    return dict(kept)


def take_due(
    keys: Keys, *, tasks: frozenset[str], limit: int, hold: float, expired_runs: bool = True
) -> Operation[list[Job]]:
    """Take the jobs whose `wake_at` is due, and delete what belongs to lost rows."""
    sets = (keys.leases, keys.ended, *map(keys.wake, sorted(tasks)))
    wake_at, ids, found_in = yield Call("take_due", sets, {"limit": limit, "hold": hold, "expired_runs": expired_runs})
    taken = [(job_id, sets[number - 1]) for job_id, number in zip(ids, found_in, strict=True)]
    pages = [taken[start : start + PAGE_SIZE] for start in range(0, len(taken), PAGE_SIZE)]
    replies = (yield Batch([_read_due(keys, page, wake_at) for page in pages])) if pages else []
    found = dict(zip(ids, (flat for reply in replies for flat in reply), strict=True))
    yield from delete(keys, [job_id for job_id, flat in found.items() if flat == ["lost"]], sources=frozenset())
    return [job_of(flat) for flat in found.values() if len(flat) > 1]


def _read_due(keys: Keys, taken: Sequence[tuple[str, str]], wake_at: str) -> Call:
    script_keys = (*keys.wake_sets, *(key for job_id, set_key in taken for key in (set_key, keys.job(job_id))))
    return Call("read_due", script_keys, {"job_ids": json.dumps([job_id for job_id, _ in taken]), "wake_at": wake_at})


def read_clock(keys: Keys) -> Operation[float]:
    return float((yield Call("read_clock", (keys.jobs,), {})))


def find_existing(keys: Keys, identity: str, key: str | None) -> Operation[Job | None]:
    script_keys = (keys.identity(identity), *(() if key is None else (keys.key(key),)))
    found = yield Call("find_existing", script_keys, {"key": key})
    if found is None:
        return None
    job_id, now = found
    job = yield from get_job(keys, job_id)
    is_over = now and job is not None and job.identity_until is not None and job.identity_until <= float(now)
    return None if is_over else job


def read_jobs(keys: Keys, ids: Sequence[str], *, light: bool = False) -> Operation[list[Job]]:
    """Return the jobs of these ids that exist; `light`: without their large fields."""
    values = {"fields": " ".join(LIGHT_FIELDS)} if light else {}
    calls = [
        Call("get_many", (*keys.wake_sets, *map(keys.job, ids[start : start + PAGE_SIZE])), values)
        for start in range(0, len(ids), PAGE_SIZE)
    ]
    pages = (yield Batch(calls)) if calls else []
    return [job_of(flat) for page in pages for flat in page if flat]


def get_job(keys: Keys, job_id: str) -> Operation[Job | None]:
    """Return a job, or None when it does not exist."""
    found = yield from read_jobs(keys, [job_id])
    return found[0] if found else None


def get_many(keys: Keys, job_ids: Sequence[str]) -> Operation[dict[str, Job]]:
    found = yield from read_jobs(keys, job_ids)
    return {job.id: job for job in found}


def history(keys: Keys, job_id: str) -> Operation[list[Entry]]:
    (elements,) = yield Read([("LRANGE", keys.history(job_id), "0", "-1")])
    return [_parse_entry(element) for element in elements]


def delete(
    keys: Keys,
    job_ids: Sequence[str],
    *,
    sources: frozenset[State],
    skip_referenced: bool = False,
    tombstone_for: float = 0.0,
) -> Operation[list[str]]:
    deleted: list[str] = []
    for start in range(0, len(job_ids), PAGE_SIZE):
        page = job_ids[start : start + PAGE_SIZE]
        job_keys = (keys.job, keys.steps, keys.history, keys.followers, keys.duplicates)
        shared = (keys.jobs, keys.follows_ids, keys.duplicate_counts, keys.tombstones, keys.tombstone_expiry)
        script_keys = (*keys.wake_sets, *shared, *(key(job_id) for job_id in page for key in job_keys))
        values = {
            "job_ids": json.dumps(list(page)), "sources": sources, "skip_referenced": skip_referenced,
            "outcomes": COUNTED,
        }  # fmt: skip
        deleted += yield Call("delete", script_keys, values | {"tombstone_for": tombstone_for})
    return deleted


def tombstone(keys: Keys, job_id: str) -> Operation[Tombstone | None]:
    script_keys = (keys.job(job_id), keys.tombstones)
    found = yield Call("tombstone", script_keys, {"job_id": job_id})
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


def _parse_applied(reply: list[Any]) -> Applied:
    status, *found = reply
    return Applied(applied=status == "applied", job=job_of(found[0]) if found else None)


def job_of(flat: Sequence[str]) -> Job:
    """Build a job from names and values in turn. A missing field is empty."""
    return Job.from_row(_EMPTY | dict(zip(flat[::2], flat[1::2], strict=True)))


def _parse_entry(element: str) -> Entry:
    at, event, state, attempt, node, detail = json.loads(element)
    return Entry(float(at), event, State(state), int(attempt), node, detail)
