"""The Redis store: every write is one Lua script, a row is one list, and one key per identity makes it unique."""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, TypeVar

from redis.crc import key_slot

from onejob.stores.holder_cache import HolderCache
from onejob.stores.redis import batch, duplicate_stats, operations, queries, shared
from onejob.stores.redis.client import Client
from onejob.stores.redis.keys import Keys
from onejob.stores.redis.submission import NewJobs
from onejob.stores.state_index import is_indexed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Concatenate

    from onejob.jobs.model import Admission, MessageOf, Submission
    from onejob.jobs.records import Query
    from onejob.stores.redis.operations import Operation

P = ParamSpec("P")
T = TypeVar("T")


def _method(operation: Callable[Concatenate[Keys, P], Operation[T]]) -> Callable[Concatenate[RedisStore, P], T]:
    """Return a method of the store that runs an operation."""

    def run(store: RedisStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store._client.run(operation(store._keys, *args, **kwargs))  # noqa: SLF001 - it is the store's method

    return run


class RedisStore:
    """A store in Redis 7.0 or later. Safe to use from many threads; survives a fork."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._holder_cache = HolderCache()

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "onejob", clock: Callable[[], float] | None = None) -> RedisStore:
        """Return the store at `redis://`, `rediss://` or `unix://`; options of redis-py may follow as the query.

        `prefix` is that of the ledger's keys. `clock` (seconds since the epoch) replaces the server's, for tests only.
        Does not connect. Raises `ConfigurationError`.
        """
        return cls(Client(url, clock), Keys(prefix))

    # The methods are documented in onejob.stores.protocol.

    def submit_many(
        self,
        submissions: Sequence[Submission],
        *,
        wake_after: float,
        wait_for_locks: bool = True,  # noqa: ARG002 - Redis has no locks to wait for
        message_of: MessageOf | None = None,
    ) -> list[Admission]:
        new_jobs = NewJobs(self._keys, wake_after, message_of)
        return self._client.run(batch.submit_many(new_jobs, self._holder_cache, submissions))

    follow = _method(operations.follow)
    claim = _method(operations.claim)
    renew = _method(operations.renew)
    apply = _method(operations.apply)
    report = _method(operations.report)
    keep_step = _method(operations.keep_step)
    steps = _method(operations.steps)
    take_due = _method(operations.take_due)
    postpone = _method(operations.postpone)
    get_many = _method(operations.get_many)
    delete = _method(operations.delete)

    read_clock = _method(operations.read_clock)
    find_existing = _method(operations.find_existing)
    find = _method(queries.find)
    counts = _method(queries.counts)
    count_states = _method(queries.count_states)
    edge = _method(queries.edge)
    backlog = _method(queries.backlog)
    followers = _method(queries.followers)
    history = _method(operations.history)
    tombstone = _method(operations.tombstone)

    record = _method(duplicate_stats.record)
    duplicates = _method(duplicate_stats.duplicates)
    duplicate_counts = _method(duplicate_stats.duplicate_counts)

    keep_event = _method(shared.keep_event)
    append_audit = _method(shared.append_audit)
    audit = _method(shared.audit)

    increment = _method(shared.increment)
    totals = _method(shared.totals)
    series = _method(shared.series)
    heartbeat = _method(shared.heartbeat)
    workers = _method(shared.workers)
    take_dead_workers = _method(shared.take_dead_workers)

    def is_indexed(self, query: Query) -> bool:
        return is_indexed(query, of_submitter=False)

    @property
    def place(self) -> str:
        """The server, the database and the user, without secrets: messages can be pushed to this place only."""
        return self._client.push_place

    @property
    def slot(self) -> int:
        """The slot of all keys of this ledger in a cluster."""
        return key_slot(self._keys.jobs.encode())

    def close(self) -> None:
        """Close the connections; the next operation opens new ones."""
        self._client.close()
