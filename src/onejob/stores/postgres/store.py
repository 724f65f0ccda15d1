"""The PostgreSQL store: one SQL statement per operation; a unique index guarantees one live job per identity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any
from weakref import WeakSet

from onejob.errors import ConfigurationError, StoreBusyError
from onejob.jobs.broker_messages import Delivery
from onejob.jobs.costs import SAVED, CostAnswer, CostKey, CostWrite, amount_text
from onejob.jobs.handover import Way
from onejob.jobs.history import Entry, full_history, row_implies_entry
from onejob.jobs.lifecycle import State
from onejob.jobs.limits import Freed, LimitValue
from onejob.jobs.metric_buckets import NO_AMOUNTS, Period
from onejob.jobs.model import (
    Admission,
    Applied,
    Cancel,
    Change,
    Duplicate,
    HandoverOf,
    JobRow,
    Renewal,
    Submission,
    values_of,
)
from onejob.stores.holder_cache import HolderCache
from onejob.stores.listener import ConnectedListener, Feed
from onejob.stores.postgres.connection import HEARTBEAT_SILENCE, Connection, Connections
from onejob.stores.postgres.errors import rule_of
from onejob.stores.postgres.limits import claim_limited, free_slots
from onejob.stores.postgres.statements import Rows, Statement, Statements, channels_of, sql_values
from onejob.stores.postgres.submission import Submitting, charged_call, exceeded_quota, lock_quotas
from onejob.stores.protocol import HISTORY_LIMIT, Channel
from onejob.stores.schema import LedgerSchema, check_version, checked_schema
from onejob.stores.sql import SQLStore, completion_of, is_handed_over, is_sent, job_in, to_json
from onejob.stores.verdicts import Verdict, explain
from onejob.transactions.sessions import OpenTransaction

PARTS = {
    "append_audit": ("append_audit", "trim_audit"),
    "renew_messages": (
        "renew_messages", "renew_queues", "release_abandoned", "delete_expired_messages", "delete_expired_queues",
    ),
}  # fmt: skip
"""The statements of each operation that has several statements."""


class PostgresStore(SQLStore):
    """A store in one schema of a PostgreSQL database. Safe to use from many threads; survives a fork.

    `clock` (seconds since the epoch) replaces the server's clock, for tests only. Raises `ConfigurationError`.
    """

    _is_pooled = False

    def __init__(self, url: str, *, schema: str = "onejob", clock: Callable[[], float] | None = None) -> None:
        self._connections = Connections(url, self._check_version)
        self._is_pooled = self._connections.is_pooled
        self._sql = Statements(self._connections, checked_schema(schema), clock)
        self._holders = HolderCache()
        feed = partial(PostgresFeed, self._connections.conninfo, channels_of(schema))
        self.signals = ConnectedListener(feed, polls=self._is_pooled)
        self._own_ledger: dict[str, Any] | None = None
        self._verified: WeakSet[Any] = WeakSet()
        """The connections of users that are on the database of this ledger."""

    # --- the operations, documented in onejob.stores.protocol ---------------------------------------------------------

    def submit_many(
        self, submissions: Sequence[Submission], *, handover_of: HandoverOf, wait_for_locks: bool = True
    ) -> list[Admission]:
        return Submitting(self._sql, self._holders, submissions, handover_of, wait_for_locks=wait_for_locks).run()

    def follow(self, submission: Submission, *, follows_id: str) -> JobRow | None:
        values = sql_values(submission) | {"follows_id": follows_id}
        rows = self._sql.run_each([*lock_quotas([submission]), charged_call("follow", values, [submission])])[-1]
        if rows and rows[0].get("quota") is not None:
            raise exceeded_quota(submission, rows[0]["quota"])
        written = job_in(rows[0]) if rows else None
        return written or self.get_many([submission.id]).get(submission.id)  # a concurrent transaction wrote this id

    def record(self, duplicate: Duplicate, *, also: Sequence[str] = ()) -> None:
        if also:
            nonces = [duplicate.submission_nonce, *also]
            self._sql.run("record_many", **sql_values(duplicate), submissions=nonces, nonce=nonces[-1])
        else:
            self._sql.run("record", **sql_values(duplicate))

    def claim(self, job_id: str, *, nonce: str, node: str, sources: frozenset[State], target: State) -> Applied:
        values: dict[str, Any] = {"job_id": job_id, "nonce": nonce, "node": node, "target": target.value}
        values["sources"] = self._states(sources)
        first = _parse_applied(self._sql.run("claim", **values))
        if first.applied or first.job is None or first.job.state not in sources:
            return first
        if first.job.is_limited:
            return self._claim_limited(first.job, values)
        if not first.job.attempt:
            return first
        return _parse_applied(self._sql.run("claim_again", **values))

    def _claim_limited(self, job: JobRow, values: Mapping[str, Any]) -> Applied:
        """Claim a job with limits; once more if it got other keys while the lock was waited for."""
        while True:
            claimed = _parse_applied(claim_limited(self._sql, job, values))
            if claimed.applied or claimed.job is None or claimed.job.limit_keys in (job.limit_keys, None):
                return claimed
            job = claimed.job

    def renew(self, claims: Sequence[tuple[str, str]], *, sources: frozenset[State]) -> list[Renewal]:
        ids, nonces = [job_id for job_id, _ in claims], [nonce for _, nonce in claims]
        rows = self._sql.run("renew", ids=ids, nonces=nonces, sources=self._states(sources))
        renewed = {(row["id"], row["claim"]): Cancel(row["cancel"]) for row in rows}
        return [Renewal(*claim, held=claim in renewed, cancel=renewed.get(claim, Cancel.NO)) for claim in claims]

    def apply(self, change: Change) -> Applied:
        sources, completion = self._states(change.sources), completion_of(change)
        if completion is not None and not self._sql.joins:
            completed = _parse_applied(self._sql.run("complete", sources=sources, **completion))
            if completed.applied:
                return completed
        values = sql_values(change) | {
            "sources": sources, "is_sent": is_sent(change), "keeps_entry": not row_implies_entry(change),
        }  # fmt: skip
        also = ["wake_followers"] if change.ends else []
        if change.parked_on or change.reopens:
            also.append("forfeit_room")
        applied = _parse_applied(self._sql.run("apply", *also, **values))
        return replace(applied, handed_over=applied.applied and is_handed_over(change, applied.job))

    def add_cost(self, write: CostWrite, *, sources: frozenset[State]) -> CostAnswer | None:
        amounts = [values_of(key) | {"spent": amount_text(amount)} for key, amount in write.spent.items()]
        values = values_of(write) | {
            "sources": self._states(sources), "saved_by": sorted(SAVED), "amounts": to_json(amounts),
        }  # fmt: skip
        rows = self._sql.run_each([("lock_run", values), ("add_cost", values)])[-1]
        return CostAnswer(**rows[0]) if rows else None

    def add_saved(self, amounts: Mapping[CostKey, Decimal]) -> None:
        given = [values_of(key) | {"saved": amount_text(amount)} for key, amount in amounts.items()]
        self._sql.run("add_saved", amounts=to_json(given))

    def postpone(
        self, wake_after: Mapping[str, float], *, taken: Mapping[str, float] | None = None, lost: bool = False
    ) -> None:
        seen = [(taken or {}).get(job_id) for job_id in wake_after]
        values = {"ids": list(wake_after), "wake_after": list(map(float, wake_after.values())), "taken": seen}
        self._sql.run("postpone", **values, lost=lost)

    def get_awaited(self, job_ids: Sequence[str]) -> dict[str, JobRow]:
        if self._is_pooled:  # nobody would get the signals
            return self.get_many(job_ids)
        try:
            rows = self._sql.run("get_awaited", job_ids=list(job_ids))
        except StoreBusyError:  # a user's transaction has locked one of them: the caller looks again
            return self.get_many(job_ids)
        found = {row["id"]: job_in(row) for row in rows}
        missing = [job_id for job_id in job_ids if job_id not in found]
        return found | self.get_many(missing) if missing else found

    def read_clock(self) -> float:
        return float(self._sql.run("read_clock")[0]["now"])

    def history(self, job_id: str) -> list[Entry]:
        rows = self._sql.run("history", job_id=job_id)
        if not rows:
            return []
        stored = [Entry(at, event, State(state), *rest) for at, event, state, *rest in rows[0]["entries"] or ()]
        return full_history(job_in(rows[0]), stored)[-HISTORY_LIMIT:]

    def delete(
        self, job_ids: Sequence[str], *, sources: frozenset[State], skip_referenced: bool = False,
        skip_needed: bool = False, successor: str | None = None, tombstone_for: float = 0.0,
    ) -> list[str]:  # fmt: skip
        rows = self._sql.run(
            "delete", job_ids=list(job_ids), sources=self._states(sources), skip_referenced=skip_referenced,
            skip_needed=skip_needed, successor=successor, tombstone_for=tombstone_for,
        )  # fmt: skip
        return [row["id"] for row in rows]

    def put_limits(self, values: Sequence[LimitValue]) -> None:
        given = sorted(values, key=lambda value: (value.key, value.is_default))  # so that no two callers deadlock
        if given:
            self._sql.run_each([("put_limit", values_of(value)) for value in given])

    def _free_slots(self, key: str, way: Way, limit: int, room: int | None) -> Freed:
        return free_slots(self._sql, key, way, limit, room)

    def spend(self, key: str, amount: float) -> None:
        values = {"key": key, "amount": float(amount)}
        self._sql.run_each([("lock_key", values), ("look_at", values), ("spend", values)])

    def take_messages(self, queues: Sequence[str], *, limit: int, consumer: str, hold: float) -> list[Delivery]:
        name = "take_messages" if hold else "receive_messages"
        rows = self._sql.run(name, queues=list(queues), limit=limit, consumer=consumer, hold=hold)
        return [Delivery(**row) for row in rows]

    def purge_queue(self, name: str) -> int:
        return int(self._sql.run("purge_queue", name=name)[0]["size"])

    def increment(self, amounts: Mapping[str, float], *, recent: Mapping[str, float] = NO_AMOUNTS) -> None:
        self._sql.run(
            "increment",
            names=list(amounts), amounts=list(map(float, amounts.values())),
            recent_names=list(recent), recent_amounts=list(map(float, recent.values())),
            periods=[period.seconds for period in Period], kept_for=[period.kept_for for period in Period],
        )  # fmt: skip

    @staticmethod
    def _encode(values: Iterable[Any]) -> list[Any]:
        return list(values)

    @staticmethod
    def _states(states: frozenset[State]) -> list[str]:
        return sorted(state.value for state in states)

    def _rows(self, operation: str, /, **values: Any) -> Rows:
        return self._sql.run(*PARTS.get(operation, (operation,)), **values)

    def _jobs(self, statement: str, /, **values: Any) -> list[JobRow]:
        return [job_in(row) for row in self._sql.run(statement, **values)]

    def close(self) -> None:
        """Close the connections; the next operation opens new ones."""
        self.signals.close()
        self._connections.close()

    # --- taking part in a user's transaction ------------------------------------------------------------------------

    def in_transaction(self, transaction: OpenTransaction, *, writes: bool = True) -> PostgresStore:  # noqa: ARG002 - rows are locked by their writes
        """Return a store that works in a user's open transaction. Raises `ConfigurationError`."""
        if transaction.dialect != "postgresql":
            msg = f"the ledger is in PostgreSQL, and cannot take part in a transaction of {transaction.dialect}"
            raise ConfigurationError(msg)
        joined = replace(self._sql, runner=_TransactionRunner(transaction), joins=True)
        if transaction.connection not in self._verified:
            self._check_ledger(joined)
            self._verified.add(transaction.connection)
        return _JoinedStore(joined)

    def _check_ledger(self, joined: Statements) -> None:
        """Raise `ConfigurationError` unless statements of a user's transaction reach this ledger.

        A ledger is known by its id and the name of its database: a copy of a database has the same id.
        """
        self._own_ledger = self._own_ledger or self._sql.run("get_ledger_info")[0]
        (session,) = joined.run("find_ledger_info")
        if isinstance(session["database"], bytes):
            raise ConfigurationError(
                "this session has the client_encoding SQL_ASCII, perhaps that of its database, and psycopg returns its "
                "texts as bytes: connect with client_encoding=utf8, in the URL or as an option"
            )
        if session["exists"] and joined.run("get_ledger_info") == [self._own_ledger]:
            return
        what = "another ledger" if session["exists"] else "no ledger"
        raise ConfigurationError(
            f"this session is on the database {session['database']!r}, which has {what} in its schema "
            f"{self._sql.schema!r}. The ledger of this app is in that schema of {self._connections.address}: "
            "pass a session on that database"
        )

    # --- opening ----------------------------------------------------------------------------------------------------

    def _check_version(self, connection: Connection) -> None:
        schema = self._sql.schema
        where = f"schema {schema!r} of {self._connections.address}"
        check_version(LedgerSchema(connection.cursor(), "postgresql", schema).version(), where)


class _JoinedStore(PostgresStore):
    """The store as a part of a user's transaction, whose writes are invisible to others before its commit."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql
        self._holders = HolderCache()  # of its own, because its transaction may be rolled back

    def close(self) -> None:
        """Do nothing: the connection belongs to the user."""


class _TransactionRunner:
    """Runs statements in a user's transaction, or on a connection in autocommit mode as a transaction of their own.

    Driver errors are not translated; a note of them says what they mean.
    """

    def __init__(self, transaction: OpenTransaction) -> None:
        self._transaction = transaction

    def run(self, statements: Sequence[Statement], **_: object) -> list[Rows]:
        try:
            return self._run_as_one(statements)
        except Exception as error:
            rule = rule_of(error)
            if rule.verdict is Verdict.STALE and self._transaction.autocommits:
                self._transaction.drop_statements()
                return self._run_as_one(statements)
            explain(error, rule, "the PostgreSQL ledger of this session")
            raise

    def _run_as_one(self, statements: Sequence[Statement]) -> list[Rows]:
        if len(statements) == 1 or not self._transaction.autocommits:
            return self._run(statements)
        self._transaction.rows("begin", {})
        try:
            found = self._run(statements)
        except BaseException:
            with suppress(Exception):  # the connection may be lost
                self._transaction.rows("rollback", {})
            raise
        self._transaction.rows("commit", {})
        return found

    def _run(self, statements: Sequence[Statement]) -> list[Rows]:
        return [self._transaction.rows(text, values) for text, values in statements]


def _parse_applied(rows: Rows) -> Applied:
    return Applied(applied=rows[0]["applied"], job=job_in(rows[0])) if rows else Applied(applied=False, job=None)


# --- the signals: statements notify of them, and one connection per process listens -----------------------------------


class PostgresFeed(Feed):
    """A connection that listens to channels, named `names`."""

    def __init__(self, conninfo: str, names: Mapping[Channel, str]) -> None:
        connection = Connection.connect(conninfo, autocommit=True)
        connection.silence = HEARTBEAT_SILENCE
        super().__init__(connection, names)
        self._arrived: list[tuple[Channel, str | None, str]] = []
        self._connection.add_notify_handler(
            lambda notify: self._arrived.append(self._signal(notify.channel, notify.payload))
        )

    def change(self, added: Iterable[Channel], removed: Iterable[Channel]) -> None:
        """Begin to listen to the `added` channels, and stop for the `removed` channels."""
        for command, channels in (("listen", added), ("unlisten", removed)):
            for channel in channels:
                self._connection.execute(f'{command} "{self._names[channel]}"'.encode())
        self._arrived += [(channel, None, "") for channel in added]

    def read(self) -> Iterator[tuple[Channel, str | None, str]]:
        """Yield channel, key and payload of each signal that has arrived; key None: the channel is now listened to."""
        self._connection.pgconn.consume_input()
        while notify := self._connection.pgconn.notifies():
            self._arrived.append(self._signal(notify.relname.decode(), notify.extra.decode()))
        arrived, self._arrived = self._arrived, []
        yield from arrived

    def check(self) -> None:
        """Run a statement, so that a lost connection raises an error."""
        self._connection.execute(b"select")
