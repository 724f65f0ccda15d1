"""The PostgreSQL store: every operation is one statement beside this file, and one unique index is the invariant."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from onejob.errors import ConfigurationError, StoreError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import (
    Admission,
    Applied,
    Cancel,
    Duplicate,
    DuplicateCount,
    Entry,
    Job,
    Outcome,
    QuotaUse,
    Renewal,
    Tombstone,
    WorkerInfo,
    values_of,
)
from onejob.stores.holder_cache import HolderCache
from onejob.stores.postgres.connection import Connections
from onejob.stores.postgres.statements import Statements
from onejob.stores.schema_version import TABLE, check_version, checked_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from onejob.jobs.model import Change, Query, Submission
    from onejob.stores.postgres.connection import Connection
    from onejob.stores.postgres.statements import Rows, Statement
    from onejob.stores.protocol import GroupBy, Transaction

Call: TypeAlias = "tuple[str, dict[str, Any]]"
"""The name of a statement, and its values."""
LOCK_TIMEOUT = 250
"""For how many milliseconds those who are not patient wait for the row of somebody else."""
SUBMIT_TRIES = 20
"""How often a submission may find that what it met has changed while it waited."""


class PostgresStore:
    """A store in one schema of a PostgreSQL database. Safe to use from many threads; survives a fork.

    `clock` returns seconds since the epoch; tests inject one, nobody else should. Raises `ConfigurationError`.
    """

    _joins = False

    def __init__(self, url: str, *, schema: str = "onejob", clock: Callable[[], float] | None = None) -> None:
        self._connections = Connections(url, self._check_version)
        self._sql = Statements(self._connections, checked_schema(schema), clock)
        self._holder_cache = HolderCache()

    # --- the operations: see the protocol in onejob.stores.protocol -----------------------------------------------------------

    def submit_many(
        self, submissions: Sequence[Submission], *, wake_in: float, wait_for_locks: bool = True
    ) -> list[Admission]:
        answers = self._admit(submissions, wake_in, wait_for_locks=wait_for_locks)
        for _ in range(SUBMIT_TRIES):
            left = [number for number in _order(submissions) if number not in answers]
            if not left:
                return [answers[number] for number in range(len(submissions))]
            asked = self._ask([submissions[number] for number in left], wake_in, wait_for_locks=wait_for_locks)
            answers |= {number: answer for number, answer in zip(left, asked, strict=True) if answer is not None}
        msg = f"what a submission met changed {SUBMIT_TRIES} times while it was answered"
        raise StoreError(msg)

    def _admit(
        self, submissions: Sequence[Submission], wake_in: float, *, wait_for_locks: bool
    ) -> dict[int, Admission]:
        """Write those that likely meet no job and have no key, nor an equal one with a key; return their answers."""
        keyed = {
            submission.identity
            for submission in submissions
            if submission.key is not None or self._holder_cache.get(submission.identity)
        }
        plain = [number for number in _order(submissions) if submissions[number].identity not in keyed]
        if not plain:
            return {}
        answers = self._each(
            [("admit", _values(submissions[number]) | {"wake_in": wake_in}) for number in plain],
            wait_for_locks=wait_for_locks,
        )
        found = zip(plain, answers, strict=True)
        return {number: Admission(Job.from_row(rows[0]), Outcome.ADMITTED) for number, rows in found if rows}

    def _ask(
        self, submissions: Sequence[Submission], wake_in: float, *, wait_for_locks: bool
    ) -> list[Admission | None]:
        """Submit in this order, in one transaction; an answer is None where the submission has to be repeated."""
        keys = sorted({submission.key for submission in submissions if submission.key is not None})
        taking: list[Call] = [("take_keys", {"keys": keys})] if keys else []
        more = {"wake_in": wake_in, "joins": self._joins}
        calls: list[Call] = [(self._submits_by(submission), _values(submission) | more) for submission in submissions]
        answers = self._each(taking + calls, wait_for_locks=wait_for_locks)[len(taking) :]
        found = [_admission(rows, submission) for rows, submission in zip(answers, submissions, strict=True)]
        for submission, answer in zip(submissions, found, strict=True):
            if answer is not None and answer.outcome is not Outcome.ADMITTED:
                self._holder_cache.met(submission.identity, answer.job.id)
            else:
                self._holder_cache.gone(submission.identity)
        return found

    def _each(self, calls: Sequence[Call], *, wait_for_locks: bool) -> list[Rows]:
        """Run statements as one transaction."""
        if wait_for_locks:
            return self._sql.each(calls)
        return self._sql.each([("set_lock_timeout", {"wait": str(LOCK_TIMEOUT)}), *calls])[1:]

    def _submits_by(self, submission: Submission) -> str:  # noqa: ARG002 - the joined store looks at it
        return "submit"

    def follow(self, submission: Submission, *, follows_id: str) -> Job | None:
        written = self._sql.job("follow", follows_id=follows_id, joins=self._joins, **_values(submission))
        return written or self.get_many([submission.id]).get(submission.id)  # somebody else has just written this id

    def record(self, duplicate: Duplicate, *, also: Sequence[str] = ()) -> None:
        if also:
            self._sql.rows("record_many", **_values(duplicate), submissions=[duplicate.submission_nonce, *also])
        else:
            self._sql.rows("record", **_values(duplicate))

    def duplicates(self, job_id: str) -> list[Duplicate]:
        return [Duplicate.from_row(row) for row in self._sql.rows("duplicates", job_id=job_id)]

    def duplicate_counts(self, by: GroupBy, *, limit: int) -> list[DuplicateCount]:
        rows = self._sql.rows("list_stats", by=by.value, limit=limit)
        return [DuplicateCount(row["name"], row["task"], Outcome(row["outcome"]), row["count"]) for row in rows]

    def claim(self, job_id: str, *, nonce: str, node: str, sources: frozenset[State], target: State) -> Applied:
        values = {"job_id": job_id, "nonce": nonce, "node": node, "sources": _names(sources), "target": target.value}
        return _applied(self._sql.rows("claim", **values))

    def renew(self, claims: Sequence[tuple[str, str]], *, sources: frozenset[State]) -> list[Renewal]:
        ids, nonces = [job_id for job_id, _ in claims], [nonce for _, nonce in claims]
        rows = self._sql.rows("renew", ids=ids, nonces=nonces, sources=_names(sources))
        asked = {(row["id"], row["claim"]): Cancel(row["cancel"]) for row in rows}
        return [Renewal(*claim, held=claim in asked, cancel=asked.get(claim, Cancel.NO)) for claim in claims]

    def apply(self, change: Change) -> Applied:
        values = _values(change) | {"sources": _names(change.sources)}
        also = ("wake",) if change.ends else ()
        return _applied(self._sql.rows("apply", *also, **values))

    def report(self, job_id: str, token: int, progress: str, *, sources: frozenset[State]) -> Cancel | None:
        rows = self._sql.rows("report", job_id=job_id, token=token, progress=progress, sources=_names(sources))
        return Cancel(rows[0]["cancel"]) if rows else None

    def keep_step(self, job_id: str, token: int, name: str, value: str, *, sources: frozenset[State]) -> str | None:
        values = {"job_id": job_id, "token": token, "name": name, "value": value, "sources": _names(sources)}
        rows = self._sql.rows("keep_step", **values)
        return str(rows[0]["value"]) if rows else None

    def steps(self, job_id: str) -> Mapping[str, str]:
        return {row["name"]: row["value"] for row in self._sql.rows("steps", job_id=job_id)}

    def take_due(self, *, limit: int, hold: float) -> list[Job]:
        return [Job.from_row(row) for row in self._sql.rows("take_due", limit=limit, hold=hold)]

    def get_many(self, job_ids: Sequence[str]) -> dict[str, Job]:
        one = len(job_ids) == 1
        rows = self._sql.rows("get", job_id=job_ids[0]) if one else self._sql.rows("get_many", job_ids=list(job_ids))
        return {row["id"]: Job.from_row(row) for row in rows}

    def find_existing(self, identity: str, key: str | None) -> Job | None:
        return self._sql.job("find_existing", identity=identity, key=key)

    def find(self, query: Query) -> list[Job]:
        values = _values(query) | {"states": _names(query.states)}
        return [Job.from_row(row) for row in self._sql.rows("find", **values)]

    def counts(self, query: Query) -> dict[State, int]:
        values = _values(query) | {"states": _names(query.states)}
        return {State(row["state"]): row["count"] for row in self._sql.rows("count_jobs", **values)}

    def history(self, job_id: str) -> list[Entry]:
        rows = self._sql.rows("history", job_id=job_id)
        return [Entry(r["at"], r["event"], State(r["state"]), r["attempt"], r["node"], r["detail"]) for r in rows]

    def delete(
        self, job_ids: Sequence[str], *, sources: frozenset[State], skip_keyed: bool = False, tombstone_for: float = 0.0
    ) -> list[str]:
        values = {"job_ids": list(job_ids), "sources": _names(sources), "skip_keyed": skip_keyed}
        return [row["id"] for row in self._sql.rows("delete", **values, tombstone_for=tombstone_for)]

    def tombstone(self, job_id: str) -> Tombstone | None:
        rows = self._sql.rows("tombstone", job_id=job_id)
        return Tombstone.from_row(rows[0]) if rows else None

    def heartbeat(self, node: str, *, lasts: float) -> None:
        self._sql.rows("heartbeat", node=node, lasts=lasts)

    def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo(row["name"], row["seen_at"]) for row in self._sql.rows("nodes")]

    def increment(self, amounts: Mapping[str, float]) -> None:
        self._sql.rows("increment", names=list(amounts), amounts=[float(amount) for amount in amounts.values()])

    def totals(self) -> dict[str, float]:
        return {row["name"]: row["total"] for row in self._sql.rows("totals")}

    def consume(
        self, name: str, *, nonce: str, limit: int, period: float, amount: int = 1, until: float | None = None
    ) -> QuotaUse:
        values = {"nonce": nonce, "limit": limit, "period": period, "amount": amount, "until": until}
        (row,) = self._sql.rows("consume", name=name, **values)
        left = max(limit - row.pop("used"), 0)
        return QuotaUse(name=name, left=left, **row)

    def close(self) -> None:
        """Close the connections; the next operation opens others."""
        self._connections.close()

    # --- taking part in somebody else's transaction -----------------------------------------------------------------

    def in_transaction(self, transaction: Transaction) -> PostgresStore:
        """Return this store as a part of a transaction that somebody else commits or rolls back."""
        if transaction.dialect != "postgresql":
            msg = f"the ledger lives in PostgreSQL, and a transaction in {transaction.dialect} cannot be one with it"
            raise ConfigurationError(msg)
        return _JoinedStore(replace(self._sql, runner=_Joined(transaction)))

    # --- opening ----------------------------------------------------------------------------------------------------

    def _check_version(self, connection: Connection) -> None:
        schema = self._sql.schema
        where = f"schema {schema!r} of {self._connections.place}"
        table = f'"{schema}".{TABLE}'
        there = connection.execute("select 1 as one where to_regclass($1) is not null", [table]).fetchone()
        row = connection.execute(f"select version_num from {table}").fetchone() if there else None  # noqa: S608 - checked
        check_version(row["version_num"] if row else None, where)


class _JoinedStore(PostgresStore):
    """The store as a part of somebody else's transaction, of which nothing is seen before its commit."""

    _joins = True

    def __init__(self, sql: Statements) -> None:
        self._sql = sql
        self._holder_cache = HolderCache()  # of its own: what it has met may be rolled back

    def close(self) -> None:
        """Do nothing: the connection is somebody else's."""

    def _admit(
        self, submissions: Sequence[Submission], wake_in: float, *, wait_for_locks: bool
    ) -> dict[int, Admission]:
        return {}  # one statement for each, which finds the row that this transaction has just written, too

    def _submits_by(self, submission: Submission) -> str:
        # Whoever touches a live job holds its row until the commit, and its run up: only those who want that do.
        return "submit" if submission.replaces or submission.queues_next else "submit_in"


class _Joined:
    """Runs statements in a transaction. What its driver raises is its owner's to handle."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def run(self, statements: Sequence[Statement], *, wait_for_locks: bool = False) -> list[Rows]:  # noqa: ARG002 - the runner's
        """Run statements and return the rows of each."""
        return [self._transaction.rows(text, values) for text, values in statements]


def _values(value: Any) -> dict[str, Any]:
    """Return the fields of a value as plain texts and numbers, which every driver knows."""
    return {name: one.value if isinstance(one, Enum) else one for name, one in values_of(value).items()}


def _names(states: frozenset[State]) -> list[str]:
    return sorted(state.value for state in states)


def _order(submissions: Sequence[Submission]) -> Sequence[int]:
    """Return in which order to submit many: by identity, so that no two batches wait for each other in a circle.

    But what one key says to several identities depends on who is the first, so then the order stays as it is.
    """
    keyed = {(submission.key, submission.identity) for submission in submissions if submission.key is not None}
    if len(keyed) > len({key for key, _ in keyed}):
        return range(len(submissions))
    return sorted(range(len(submissions)), key=lambda number: submissions[number].identity)


def _admission(rows: Rows, submission: Submission) -> Admission | None:
    """Return what the rows of a submission say; None when they say to ask again."""
    found = {row["role"]: row for row in rows}
    jobs = {role: Job.from_row(row) for role, row in found.items()}
    if "own" in jobs:
        return Admission.again(jobs["own"], jobs.get("followed"), submission.nonce)
    if "answer" not in jobs:
        return None
    outcome, rescheduled, reused = (found["answer"][name] for name in ("outcome", "rescheduled", "key_reused"))
    return Admission(jobs["answer"], Outcome(outcome), jobs.get("follower"), rescheduled=rescheduled, key_reused=reused)


def _applied(rows: Rows) -> Applied:
    return Applied(applied=rows[0]["applied"], job=Job.from_row(rows[0])) if rows else Applied(applied=False, job=None)
