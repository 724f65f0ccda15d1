"""The Redis store: a write is one Lua script, a row is one list, and a key per identity admits one live job only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from redis import ConnectionPool, exceptions
from redis.crc import key_slot

from onejob.errors import all_written
from onejob.jobs.handover import UNSENT, BrokerMessage
from onejob.jobs.history import Entry, full_history, row_implies_entry
from onejob.jobs.lifecycle import State
from onejob.jobs.model import (
    REDELIVERED,
    Admission,
    Applied,
    Cancel,
    Change,
    HandoverOf,
    JobRow,
    Outcome,
    Renewal,
    Submission,
    Tombstone,
)
from onejob.stores.holder_cache import HolderCache
from onejob.stores.listener import ConnectedListener, Feed
from onejob.stores.protocol import HISTORY_LIMIT, LOGS_KEPT, Channel
from onejob.stores.redis.client import Call, Client, get_many, pages_of, pairs_of
from onejob.stores.redis.connection import Connection
from onejob.stores.redis.costs import Costs
from onejob.stores.redis.limits import Limits
from onejob.stores.redis.queries import Queries
from onejob.stores.redis.records import Records
from onejob.stores.redis.rows import POSITIONS, Keys, format_value, given, job_of
from onejob.stores.redis.submission import Submitting, arguments_of, exceeded_quota, limits_of, quota_keys, split_batch
from onejob.stores.statement_files import NEW_VALUES

COUNTED = " ".join((*Outcome, REDELIVERED))
"""The names under which duplicates are counted: every outcome, and redelivered messages."""


class RedisStore(Queries, Records, Costs, Limits):
    """A store in Redis 7.0 or later. Safe to use from many threads; survives a fork."""

    def __init__(self, client: Client, keys: Keys) -> None:
        super().__init__(client, keys)
        self._holder_cache = HolderCache()
        self.signals = ConnectedListener(partial(RedisFeed, client.pool, keys.channels))

    @classmethod
    def from_url(cls, url: str, *, prefix: str = "onejob", clock: Callable[[], float] | None = None) -> RedisStore:
        """Return the store at `redis://`, `rediss://` or `unix://`; options of redis-py may follow as the query.

        `prefix`: of the ledger's keys. `clock` (seconds since the epoch) replaces the server's clock, for tests only.
        No connection is opened. Raises `ConfigurationError`.
        """
        return cls(Client(url, clock), Keys(prefix))

    @property
    def address(self) -> str:
        """The server, the database and the user, without secrets: the store can push messages to this address only."""
        return self._client.address

    @property
    def slot(self) -> int:
        """The slot of all keys of this ledger in a cluster."""
        return key_slot(self._keys.jobs.encode())

    def pop_messages(self, destinations: Sequence[str], *, containing: str, limit: int) -> list[str]:
        found: list[str] = self._client.call("pop_messages", destinations, (containing, str(limit)))
        return found

    def close(self) -> None:
        """Close the connections; the next operation opens new ones."""
        self.signals.close()
        self._client.close()

    # The methods are documented in onejob.stores.protocol.

    def submit_many(
        self, submissions: Sequence[Submission], *, handover_of: HandoverOf,
        wait_for_locks: bool = True,  # noqa: ARG002 - Redis has no locks to wait for
    ) -> list[Admission]:  # fmt: skip
        submitting = Submitting(self._client, self._keys, self._holder_cache, handover_of)
        if len(submissions) == 1:
            return [submitting.submit(submissions[0])]
        return all_written([answer for batch in split_batch(submissions) for answer in submitting.submit_batch(batch)])

    def follow(self, submission: Submission, *, follows_id: str) -> JobRow | None:
        keys = self._keys
        script_keys = (
            *keys.wake_sets, keys.job(submission.id), keys.history(submission.id), keys.jobs,
            keys.submitter(submission.submitter), keys.follows_ids, keys.job(follows_id),
            keys.followers(follows_id), *quota_keys(keys, submission),
        )  # fmt: skip
        values = (follows_id, *arguments_of(submission)[:4], limits_of(submission))
        parts = self._client.call("follow", script_keys, values)
        if parts and parts[0] == "exceeded":
            raise exceeded_quota(submission, parts[1:])
        return job_of(submission.id, parts) if parts else None

    def claim(self, job_id: str, *, nonce: str, node: str, sources: frozenset[State], target: State) -> Applied:
        indexed, sets = self._state_sets((*sources, target))
        script_keys = (*self._keys.wake_sets, self._keys.job(job_id), self._keys.history(job_id), *sets)
        values = (job_id, nonce, node, _words(sources), target, indexed)
        return _parse_applied(job_id, *self._client.call("claim", script_keys, values))

    def renew(self, claims: Sequence[tuple[str, str]], *, sources: frozenset[State]) -> list[Renewal]:
        script_keys = (self._keys.leases, *(self._keys.job(job_id) for job_id, _ in claims))
        values = (_words(sources), *(text for claim in claims for text in claim))
        renewed = zip(claims, self._client.call("renew", script_keys, values), strict=True)
        return [Renewal(*claim, held=cancel != "", cancel=Cancel(int(cancel or 0))) for claim, cancel in renewed]

    def apply(self, change: Change) -> Applied:
        keys, job_id, identity = self._keys, change.job_id, self._keys.identity(change.identity)
        indexed, sets = self._state_sets((*change.sources, change.target) if change.target else ())
        message = message_in(change)
        script_keys = (
            *keys.wake_sets, keys.job(job_id), identity, keys.next(change.identity), keys.history(job_id),
            keys.followers(job_id), keys.follows_ids, keys.steps(job_id),
            *((message.destination,) if message is not None else ()), *sets,
        )  # fmt: skip
        values = _change_values(change, indexed)
        status, *found = self._client.call("apply", script_keys, values)
        if status == "refused" and len(found) > 1:
            holder = found.pop()
            released = (keys.job(holder), identity, keys.history(holder))
            if self._client.call("release_expired", released, (holder,)) == "released":
                status, *found = self._client.call("apply", script_keys, values)
        if status == "applied" and found[2:] and found[2] is not None:
            promoted = (*keys.wake_sets, keys.job(found[2]), identity, keys.history(found[2]), keys.follows_ids)
            self._client.call("promote", promoted, (found[2], job_id))
        return _parse_applied(job_id, status, *found[:2])

    def report(self, job_id: str, token: int, progress: str, *, sources: frozenset[State]) -> Cancel | None:
        cancel = self._client.call("report", (self._keys.job(job_id),), (str(token), _words(sources), progress))
        return None if cancel is None else Cancel(int(cancel))

    def keep_step(self, job_id: str, token: int, name: str, value: str, *, sources: frozenset[State]) -> str | None:
        script_keys = (self._keys.job(job_id), self._keys.steps(job_id))
        kept: str | None = self._client.call("keep_step", script_keys, (str(token), _words(sources), name, value))
        return kept

    def steps(self, job_id: str) -> dict[str, str]:
        (flat,) = self._client.read(("HGETALL", self._keys.steps(job_id)))
        return pairs_of(flat)

    def keep_run_log(self, job_id: str, token: int, text: str) -> bool:
        script_keys = (self._keys.job(job_id), self._keys.run_logs(job_id))
        return self._client.call("keep_run_log", script_keys, (str(token), text, str(LOGS_KEPT))) is not None

    def run_logs(self, job_id: str) -> dict[int, str]:
        (flat,) = self._client.read(("HGETALL", self._keys.run_logs(job_id)))
        return {int(attempt): text for attempt, text in sorted(pairs_of(flat).items(), key=lambda each: int(each[0]))}

    def take_due(self, *, tasks: frozenset[str], limit: int, hold: float, expired_runs: bool = True) -> list[JobRow]:
        keys = self._keys
        sets = (*keys.wake_sets, *map(keys.wake, sorted(tasks)))
        values = (str(limit), str(hold), format_value(expired_runs))
        wake_at, ids, found_in = self._client.call("take_due", sets, values)
        calls = []
        for page in pages_of([(job_id, sets[number - 1]) for job_id, number in zip(ids, found_in, strict=True)]):
            script_keys = (*keys.wake_sets, *(key for job_id, found in page for key in (found, keys.job(job_id))))
            calls.append(Call("read_due", script_keys, (wake_at, *(job_id for job_id, _ in page))))
        replies = self._client.send(calls)
        found = dict(zip(ids, (parts for reply in replies for parts in reply), strict=True))
        self.delete([job_id for job_id, parts in found.items() if parts == ["lost"]], sources=frozenset())
        return [job_of(job_id, parts) for job_id, parts in found.items() if len(parts) > 1]

    def postpone(
        self, wake_after: Mapping[str, float], *, taken: Mapping[str, float] | None = None, lost: bool = False
    ) -> None:
        calls, seen = [], taken or {}
        for page in pages_of([*wake_after]):
            values = (str(value) for job_id in page for value in (job_id, wake_after[job_id], seen.get(job_id, "")))
            script_keys = (*self._keys.wake_sets, *map(self._keys.job, page))
            calls.append(Call("postpone", script_keys, (format_value(lost), *values)))
        self._client.send(calls)

    def get_many(self, job_ids: Sequence[str]) -> dict[str, JobRow]:
        return {job.id: job for job in self._read_jobs(job_ids)}

    get_awaited = get_many  # scripts signal every end

    def delete(
        self, job_ids: Sequence[str], *, sources: frozenset[State], skip_referenced: bool = False,
        skip_needed: bool = False, successor: str | None = None, tombstone_for: float = 0.0,
    ) -> list[str]:  # fmt: skip
        keys, deleted = self._keys, []
        job_keys = (
            keys.job, keys.steps, keys.history, keys.followers, keys.duplicates, keys.run_logs, keys.successor,
        )  # fmt: skip
        shared = (
            keys.jobs, keys.submitter(""), keys.follows_ids, keys.duplicate_counts, keys.tombstones,
            keys.tombstone_expiry, keys.job(successor or ""),
        )  # fmt: skip
        skips = (format_value(skip_referenced), format_value(skip_needed))
        indexed, sets = self._state_sets(tuple(State))
        for page in pages_of(job_ids):
            script_keys = (*keys.wake_sets, *shared, *(key(job_id) for job_id in page for key in job_keys), *sets)
            values = (_words(sources), *skips, successor or "", str(tombstone_for), COUNTED, indexed, *page)
            deleted += self._client.call("delete", script_keys, values)
        return deleted

    def read_clock(self) -> float:
        return float(self._client.call("read_clock", (self._keys.jobs,)))

    def find_existing(self, identity: str, key: str | None) -> JobRow | None:
        script_keys = (self._keys.identity(identity), *(() if key is None else (self._keys.key(key),)))
        found = self._client.call("find_existing", script_keys)
        if found is None:
            return None
        job_id, now, until = found
        job = self.get_many([job_id]).get(job_id)
        while until and (job is None or (job.key_retained_until or 0.0) < float(until)):
            # The key is that of a deleted job, whose id another one may have.
            (job_id,) = self._client.read(("GET", self._keys.successor(job_id)))
            if job_id is None:
                return self.find_existing(identity, None)
            job = self.get_many([job_id]).get(job_id)
        return None if now and job is not None and job.has_lost_identity(float(now)) else job

    def history(self, job_id: str) -> list[Entry]:
        read_job = get_many(self._keys, [job_id], light=True)
        (parts,), elements = self._client.send([read_job, ("LRANGE", self._keys.history(job_id), "0", "-1")])
        stored = [
            Entry(float(at), event, State(state), int(attempt), node, detail)
            for at, event, state, attempt, node, detail in map(json.loads, elements)
        ]
        return full_history(job_of(job_id, parts) if parts else None, stored)[-HISTORY_LIMIT:]

    def tombstone(self, job_id: str) -> Tombstone | None:
        found = self._client.call("tombstone", (self._keys.job(job_id), self._keys.tombstones), (job_id,))
        if found is None:
            return None
        row = zip(("state", "finished_at", "purged_at"), json.loads(found), strict=False)  # and when it expires
        return Tombstone.from_row({"id": job_id, **dict(row)})

    def _state_sets(self, states: Sequence[State]) -> tuple[str, Sequence[str]]:
        """Return the given states that have a sorted set, as words, and their sorted sets in the opposite order."""
        sets = self._keys.state_sets
        names = [state for state in sets if state in states]
        return _words(names), [sets[name] for name in reversed(names)]


def _change_values(change: Change, indexed: str) -> tuple[str, ...]:
    event, message = "" if row_implies_entry(change) else change.event, message_in(change)
    conditions = (change.lapsed, change.overdue, change.unnotified, change.ends, change.keeps_identity)
    given_values = ((name, getattr(change, name)) for name in (*NEW_VALUES, "result", "error"))
    values = [(POSITIONS[name], value) for name, value in given_values if value is not None]
    if change.handover is not None:
        values.append((POSITIONS["published_at"], "0" if change.handover.way in UNSENT else "now"))
    return (
        change.job_id, change.identity, change.request_id, event, _words(change.sources),
        change.target or "", given(change.token), given(change.seen_run_at), *map(format_value, conditions),
        given(change.identity_for), given(change.identity_until),
        "rejoins" if change.reopens and change.rejoins else format_value(change.reopens),
        format_value(change.forgets_steps), given(change.wake_after), given(change.run_in), change.detail,
        "" if message is None else message.text,
        indexed, *(text for position, value in values for text in (str(position), format_value(value))),
    )  # fmt: skip


def _words(values: Iterable[str]) -> str:
    return " ".join(values)


def message_in(change: Change) -> BrokerMessage | None:
    """Return the message that a change pushes."""
    return None if change.handover is None else change.handover.message


def _parse_applied(job_id: str, status: str, parts: Sequence[Any] | None = None, pushed: str = "") -> Applied:
    job = job_of(job_id, parts) if parts else None
    return Applied(applied=status == "applied", job=job, handed_over="1" in pushed, frees="w" in pushed)


# --- the signals: scripts publish them, and one connection per process is subscribed to them --------------------------


class RedisFeed(Feed):
    """A connection that is subscribed to channels, named `names`."""

    def __init__(self, pool: ConnectionPool, names: Mapping[Channel, str]) -> None:
        super().__init__(Connection(pool), names)
        self._is_checked = False

    def change(self, added: Iterable[Channel], removed: Iterable[Channel]) -> None:
        """Subscribe to channels, and unsubscribe from others."""
        for command, channels in (("SUBSCRIBE", added), ("UNSUBSCRIBE", removed)):
            self._connection.send((command, self._names[channel]) for channel in channels)

    def read(self) -> Iterator[tuple[Channel, str | None, str]]:
        """Yield channel, key and payload of each signal that has arrived; key None: the channel was subscribed to."""
        for reply in self._connection.receive_available():
            if isinstance(reply, Exception):
                raise reply
            self._is_checked = False
            kind, name, text = reply if len(reply) == 3 else (*reply, "")  # noqa: PLR2004 - a PONG has two
            if kind == "message":
                yield self._signal(name, text)
            elif kind == "subscribe":
                yield self._channels[name], None, ""

    def check(self) -> None:
        """Send a ping, whose reply has to arrive before the next call."""
        if self._is_checked:
            raise exceptions.TimeoutError("the server does not answer")
        self._connection.send([("PING",)])
        self._is_checked = True
