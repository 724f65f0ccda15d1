"""The store's operations, drawn without I/O: each asks for a script or for reads, gets the reply, returns the answer.

Whoever runs one (`Client.run`; an asynchronous twin would be as short) does the talking to Redis. Here are those that
concern one job; the others have files of their own.
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


class Operations:
    """The operations of the ledger whose keys are `keys`, named as in the protocol in onejob.stores.protocol."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def claim(
        self, job_id: str, *, nonce: str, node: str, sources: frozenset[State], target: State
    ) -> Operation[Applied]:
        """Start a run if the job is due and free."""
        touched = (self._keys.job(job_id), self._keys.history(job_id), self._keys.wake, self._keys.leases)
        values = {"job_id": job_id, "nonce": nonce, "node": node, "sources": sources, "target": target}
        return _applied((yield Call("claim", touched, values | {"history_limit": HISTORY_LIMIT})))

    def follow(self, submission: Submission, *, follows_id: str) -> Operation[Job | None]:
        """Write a job that waits for the end of another one."""
        keys = self._keys
        touched = (
            keys.job(submission.id), keys.history(submission.id), keys.wake, keys.jobs, keys.following, keys.job(follows_id),
            keys.followers(follows_id),
        )  # fmt: skip
        flat = yield Call("follow", touched, values_of(submission) | {"history_limit": HISTORY_LIMIT})
        return job_of(flat) if flat else None

    def renew(self, claims: Sequence[tuple[str, str]], *, sources: frozenset[State]) -> Operation[list[Renewal]]:
        """Extend many leases in one script."""
        touched = (self._keys.wake, self._keys.leases, *(self._keys.job(job_id) for job_id, _ in claims))
        nonces = json.dumps([nonce for _, nonce in claims])
        asked = yield Call("renew", touched, {"nonces": nonces, "sources": sources})
        answers = zip(claims, asked, strict=True)
        return [Renewal(*claim, held=cancel != "", cancel=Cancel(int(cancel or 0))) for claim, cancel in answers]

    def apply(self, change: Change) -> Operation[Applied]:
        """Compare and set."""
        keys = self._keys
        touched = (
            keys.job(change.job_id), keys.identity(change.identity), keys.next(change.identity),
            keys.history(change.job_id), keys.wake, keys.leases, keys.followers(change.job_id), keys.following,
            keys.steps(change.job_id),
        )  # fmt: skip
        answer, *found = yield Call("apply", touched, values_of(change) | {"history_limit": HISTORY_LIMIT})
        if len(found) > 1:
            yield self._promote(found.pop(), change)
        return _applied([answer, *found])

    def _promote(self, job_id: str, change: Change) -> Call:
        keys = self._keys
        touched = (
            keys.job(job_id), keys.identity(change.identity), keys.history(job_id), keys.wake, keys.following,
        )  # fmt: skip
        return Call("promote", touched, {"job_id": job_id, "ended": change.job_id, "history_limit": HISTORY_LIMIT})

    def report(self, job_id: str, token: int, progress: str, *, sources: frozenset[State]) -> Operation[Cancel | None]:
        """Keep a run's progress."""
        values = {"token": token, "progress": progress, "sources": sources}
        cancel = yield Call("report", (self._keys.job(job_id),), values)
        return None if cancel is None else Cancel(int(cancel))

    def keep_step(
        self, job_id: str, token: int, name: str, value: str, *, sources: frozenset[State]
    ) -> Operation[str | None]:
        """Memoise a step."""
        touched = (self._keys.job(job_id), self._keys.steps(job_id))
        kept = yield Call("keep_step", touched, {"token": token, "name": name, "value": value, "sources": sources})
        return None if kept is None else str(kept)

    def steps(self, job_id: str) -> Operation[dict[str, str]]:
        """Return memoised steps by name."""
        (kept,) = yield Read([("HGETALL", self._keys.steps(job_id))])
        return dict(kept)

    def take_due(self, *, limit: int, hold: float) -> Operation[list[Job]]:
        """Take the jobs whose alarm has rung. An alarm whose row was lost is removed."""
        alarm, ids = yield Call("due", (self._keys.wake, self._keys.leases), {"limit": limit, "hold": hold})
        found = yield from self.rows(ids)
        yield from self.delete(sorted(set(ids) - {job.id for job in found}), sources=frozenset())
        return [job for job in found if job.wake_at == float(alarm)]

    def get(self, job_id: str) -> Operation[Job | None]:
        """Return a job."""
        found = yield from self.rows([job_id])
        return found[0] if found else None

    def find_existing(self, identity: str, key: str | None) -> Operation[Job | None]:
        """Return the job that would answer."""
        touched = (self._keys.identity(identity), *(() if key is None else (self._keys.key(key),)))
        job_id = yield Call("answering", touched, {"key": key})
        return None if job_id is None else (yield from self.get(job_id))

    def rows(self, ids: Sequence[str]) -> Operation[list[Job]]:
        """Return the jobs of these ids, without those that are gone."""
        calls = [
            Call("get", (self._keys.wake, *map(self._keys.job, ids[start : start + PAGE])), {})
            for start in range(0, len(ids), PAGE)
        ]
        pages = (yield Together(calls)) if calls else []
        return [job_of(flat) for page in pages for flat in page if flat]

    def get_many(self, job_ids: Sequence[str]) -> Operation[dict[str, Job]]:
        """Return jobs by their ids."""
        found = yield from self.rows(job_ids)
        return {job.id: job for job in found}

    def holder(self, identity: str) -> Operation[Job | None]:
        """Return the job that holds an identity."""
        (job_id,) = yield Read([("GET", self._keys.identity(identity))])
        job = (yield from self.get(job_id)) if job_id else None
        return job if job is not None and job.holds_identity else None

    def history(self, job_id: str) -> Operation[list[Entry]]:
        """Return what happened to a job."""
        (lines,) = yield Read([("LRANGE", self._keys.history(job_id), "0", "-1")])
        return [_entry(line) for line in lines]

    def delete(
        self, job_ids: Sequence[str], *, sources: frozenset[State], skip_keyed: bool = False, tombstone_for: float = 0.0
    ) -> Operation[list[str]]:
        """Remove jobs, a page of them with each script."""
        keys, removed = self._keys, []
        for start in range(0, len(job_ids), PAGE):
            page = job_ids[start : start + PAGE]
            of_a_job = (keys.job, keys.steps, keys.history, keys.followers, keys.duplicates)
            of_all = (keys.wake, keys.leases, keys.jobs, keys.following, keys.tombstones, keys.forgetting)
            touched = (*of_all, *(key(job_id) for job_id in page for key in of_a_job))
            values = {"job_ids": json.dumps(list(page)), "sources": sources, "skip_keyed": skip_keyed}
            removed += yield Call("delete", touched, values | {"tombstone_for": tombstone_for})
        return removed

    def tombstone(self, job_id: str) -> Operation[Tombstone | None]:
        """Return what is remembered of a job that was deleted."""
        touched = (self._keys.job(job_id), self._keys.tombstones)
        found = yield Call("tombstone", touched, {"job_id": job_id})
        if found is None:
            return None
        state, finished_at, purged_at, _ = json.loads(found)
        return Tombstone.from_row({"id": job_id, "state": state, "finished_at": finished_at, "purged_at": purged_at})

    def consume(self, name: str, *, nonce: str, limit: int, period: float) -> Operation[QuotaUse]:
        """Count one use of a name if there is one left."""
        values = {"nonce": nonce, "limit": limit, "period": period}
        counted, used, until, seconds = yield Call("spend", (self._keys.quota(name),), values)
        left = max(limit - int(used), 0)
        return QuotaUse(name=name, counted=counted == "1", left=left, until=float(until), seconds=float(seconds))

    def refund(self, name: str, *, nonce: str, until: float) -> Operation[None]:
        """Take one use back."""
        yield Call("give_back", (self._keys.quota(name),), {"nonce": nonce, "until": until})


def _applied(reply: list[Any]) -> Applied:
    answer, *found = reply
    return Applied(applied=answer == "applied", job=job_of(found[0]) if found else None)


def job_of(flat: Sequence[str]) -> Job:
    """Build a job from names and values in turn. A field that is not there is empty."""
    return Job.from_row(_EMPTY | dict(zip(flat[::2], flat[1::2], strict=True)))


def _entry(line: str) -> Entry:
    at, event, state, attempt, node, detail = json.loads(line)
    return Entry(float(at), event, State(state), int(attempt), node, detail)
