"""The Redis store: every write is one Lua script, a row is one hash, and one key per identity is the invariant."""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, TypeVar

from onejob.stores.holder_cache import HolderCache
from onejob.stores.redis import batch, operations, shared
from onejob.stores.redis import duplicates as duplicate_operations
from onejob.stores.redis import find as queries
from onejob.stores.redis.client import Client
from onejob.stores.redis.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Concatenate

    from onejob.jobs.model import Admission, Submission
    from onejob.stores.redis.operations import Operation

P = ParamSpec("P")
T = TypeVar("T")


def _run(operation: Callable[Concatenate[Keys, P], Operation[T]]) -> Callable[Concatenate[RedisStore, P], T]:
    """Return the method of a store that runs an operation."""

    def method(store: RedisStore, /, *args: P.args, **values: P.kwargs) -> T:
        return store._client.run(operation(store._keys, *args, **values))  # noqa: SLF001 - it is the store's method

    return method


class RedisStore:
    """A store in Redis 7.0 or later. Safe to use from many threads; survives a fork."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._holder_cache = HolderCache()

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "onejob", clock: Callable[[], float] | None = None) -> RedisStore:
        """Return the store at `redis://`, `rediss://` or `unix://`; options of redis-py may follow as the query.

        `prefix` names the ledger's keys. `clock` returns seconds since the epoch; tests inject one, nobody else should.
        Does not connect yet. Raises `ConfigurationError`.
        """
        return cls(Client(url, clock), Keys(prefix))

    # --- the operations: see the protocol in onejob.stores.protocol -----------------------------------------------------------

    def submit_many(
        self,
        submissions: Sequence[Submission],
        *,
        wake_in: float,
        wait_for_locks: bool = True,  # noqa: ARG002 - Redis has no locks to wait for
    ) -> list[Admission]:
        return self._client.run(batch.submit_many(self._keys, self._holder_cache, submissions, wake_in=wake_in))

    follow = _run(operations.follow)
    claim = _run(operations.claim)
    renew = _run(operations.renew)
    apply = _run(operations.apply)
    report = _run(operations.report)
    keep_step = _run(operations.keep_step)
    steps = _run(operations.steps)
    take_due = _run(operations.take_due)
    get_many = _run(operations.get_many)
    delete = _run(operations.delete)

    find_existing = _run(operations.find_existing)
    find = _run(queries.find)
    counts = _run(queries.counts)
    history = _run(operations.history)
    tombstone = _run(operations.tombstone)

    record = _run(duplicate_operations.record)
    duplicates = _run(duplicate_operations.duplicates)
    duplicate_counts = _run(duplicate_operations.duplicate_counts)

    consume = _run(operations.consume)

    increment = _run(shared.increment)
    totals = _run(shared.totals)
    heartbeat = _run(shared.heartbeat)
    workers = _run(shared.workers)

    def close(self) -> None:
        """Close the connections; the next operation opens others."""
        self._client.close()
