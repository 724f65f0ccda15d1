"""The Redis store: every write is one Lua script, a row is one hash, and one key per identity is the invariant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.stores.holder_cache import HolderCache
from onejob.stores.redis.batch import submit_many
from onejob.stores.redis.client import Client
from onejob.stores.redis.duplicates import duplicate_counts, duplicates, record
from onejob.stores.redis.find import counts, find
from onejob.stores.redis.keys import Keys
from onejob.stores.redis.operations import Operations
from onejob.stores.redis.shared import heartbeat, increment, totals, workers
from onejob.stores.redis.submission import Submitting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from onejob.jobs.lifecycle import State
    from onejob.jobs.model import (
        Admission,
        Applied,
        Cancel,
        Change,
        Duplicate,
        DuplicateCount,
        Entry,
        Job,
        Query,
        QuotaUse,
        Renewal,
        Submission,
        Tombstone,
        WorkerInfo,
    )
    from onejob.stores.protocol import GroupBy


class RedisStore:
    """A store in Redis 7.0 or later. Safe to use from many threads; survives a fork."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._operations = Operations(keys)
        self._holder_cache = HolderCache()

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "onejob", clock: Callable[[], float] | None = None) -> RedisStore:
        """Return the store at `redis://`, `rediss://` or `unix://`; options of redis-py may follow as the query.

        `prefix` names the ledger's keys. `clock` returns seconds since the epoch; tests inject one, nobody else should.
        Does not connect yet. Raises `ConfigurationError`.
        """
        return cls(Client(url, clock), Keys(prefix))

    # --- the operations: see the protocol in onejob.stores.protocol -----------------------------------------------------------

    def submit(self, new: Submission, *, wake_in: float) -> Admission:
        """Write a submission unless a job holds its identity already."""
        (submission,) = Submitting(self._keys, self._holder_cache, wake_in=wake_in).each([new])
        return self._client.run(submission)

    def submit_many(
        self, submissions: Sequence[Submission], *, wake_in: float, wait_for_locks: bool = True
    ) -> list[Admission]:  # noqa: ARG002 - no row is anybody's here
        """Submit many in step: the first script of each, then the second of those that need one."""
        return self._client.run(submit_many(self._keys, self._holder_cache, submissions, wake_in=wake_in))

    def follow(self, new: Submission, *, follows_id: str) -> Job | None:
        """Write a job that waits for the end of another one."""
        return self._client.run(self._operations.follow(new, follows_id=follows_id))

    def record(self, duplicate: Duplicate, *, also: Sequence[str] = ()) -> None:
        """Keep the duplicates of those who have met a job."""
        self._client.run(record(self._keys, duplicate, also))

    def duplicates(self, job_id: str) -> list[Duplicate]:
        """Return the newest duplicates of a job."""
        return self._client.run(duplicates(self._keys, job_id))

    def duplicate_counts(self, by: GroupBy, *, limit: int) -> list[DuplicateCount]:
        """Return how many have met jobs."""
        return self._client.run(duplicate_counts(self._keys, by, limit=limit))

    def claim(self, job_id: str, *, nonce: str, node: str, sources: frozenset[State], target: State) -> Applied:
        """Start a run if the job is due and free."""
        claim = self._operations.claim(job_id, nonce=nonce, node=node, sources=sources, target=target)
        return self._client.run(claim)

    def renew(self, claims: Sequence[tuple[str, str]], *, sources: frozenset[State]) -> list[Renewal]:
        """Extend many leases in one script."""
        return self._client.run(self._operations.renew(claims, sources=sources))

    def apply(self, change: Change) -> Applied:
        """Compare and set."""
        return self._client.run(self._operations.apply(change))

    def report(self, job_id: str, token: int, progress: str, *, sources: frozenset[State]) -> Cancel | None:
        """Keep a run's progress."""
        return self._client.run(self._operations.report(job_id, token, progress, sources=sources))

    def keep_step(self, job_id: str, token: int, name: str, value: str, *, sources: frozenset[State]) -> str | None:
        """Memoise a step."""
        return self._client.run(self._operations.keep_step(job_id, token, name, value, sources=sources))

    def steps(self, job_id: str) -> Mapping[str, str]:
        """Return memoised steps by name."""
        return self._client.run(self._operations.steps(job_id))

    def take_due(self, *, limit: int, hold: float) -> list[Job]:
        """Take the jobs whose alarm has rung."""
        return self._client.run(self._operations.take_due(limit=limit, hold=hold))

    def get(self, job_id: str) -> Job | None:
        """Return a job."""
        return self._client.run(self._operations.get(job_id))

    def get_many(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """Return jobs by their ids."""
        return self._client.run(self._operations.get_many(job_ids))

    def holder(self, identity: str) -> Job | None:
        """Return the job that holds an identity."""
        return self._client.run(self._operations.holder(identity))

    def find_existing(self, identity: str, key: str | None) -> Job | None:
        """Return the job that would answer."""
        return self._client.run(self._operations.find_existing(identity, key))

    def find(self, query: Query) -> list[Job]:
        """Return jobs, newest first."""
        return self._client.run(find(self._keys, query))

    def counts(self, query: Query) -> dict[State, int]:
        """Return how many jobs match, by state."""
        return self._client.run(counts(self._keys, query))

    def history(self, job_id: str) -> list[Entry]:
        """Return what happened to a job."""
        return self._client.run(self._operations.history(job_id))

    def delete(
        self, job_ids: Sequence[str], *, sources: frozenset[State], skip_keyed: bool = False, tombstone_for: float = 0.0
    ) -> list[str]:
        """Remove jobs."""
        delete = self._operations.delete(job_ids, sources=sources, skip_keyed=skip_keyed, tombstone_for=tombstone_for)
        return self._client.run(delete)

    def tombstone(self, job_id: str) -> Tombstone | None:
        """Return what is remembered of a job that was deleted."""
        return self._client.run(self._operations.tombstone(job_id))

    def heartbeat(self, node: str, *, lasts: float) -> None:
        """Keep a node's sign of life."""
        self._client.run(heartbeat(self._keys, node, lasts=lasts))

    def workers(self) -> list[WorkerInfo]:
        """Return the nodes whose signs of life last."""
        return self._client.run(workers(self._keys))

    def increment(self, amounts: Mapping[str, float]) -> None:
        """Add to running totals."""
        self._client.run(increment(self._keys, amounts))

    def totals(self) -> dict[str, float]:
        """Return all running totals."""
        return self._client.run(totals(self._keys))

    def consume(self, name: str, *, nonce: str, limit: int, period: float) -> QuotaUse:
        """Count one use of a name if there is one left."""
        return self._client.run(self._operations.consume(name, nonce=nonce, limit=limit, period=period))

    def refund(self, name: str, *, nonce: str, until: float) -> None:
        """Take one use back."""
        self._client.run(self._operations.refund(name, nonce=nonce, until=until))

    def close(self) -> None:
        """Close the connections; the next operation opens others."""
        self._client.close()
