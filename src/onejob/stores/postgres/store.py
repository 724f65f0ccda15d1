"""The PostgreSQL store: every operation is one statement beside this file, and one unique index is the invariant."""

from __future__ import annotations

from dataclasses import fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from onejob.errors import ConfigurationError, StoreError
from onejob.job import Applied, Cancel, Entry, Job, Renewal
from onejob.lifecycle import State
from onejob.schema import TABLE, check_version, checked_schema
from onejob.stores.postgres.connection import Connections
from onejob.stores.postgres.statements import Statements

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from onejob.job import Change, Query, Submission
    from onejob.store import Transaction
    from onejob.stores.postgres.connection import Connection
    from onejob.stores.postgres.statements import Rows, Statement

SUBMIT_TRIES = 20
"""How often a submission may find that the holder it was told of has given the identity back meanwhile."""


class PostgresStore:
    """A store in one schema of a PostgreSQL database. Safe to use from many threads; survives a fork.

    `clock` returns seconds since the epoch; tests inject one, nobody else should. Raises `ConfigurationError`.
    """

    def __init__(self, url: str, *, schema: str = "onejob", clock: Callable[[], float] | None = None) -> None:
        self._connections = Connections(url, self._check_version)
        self._sql = Statements(self._connections, checked_schema(schema), clock)

    # --- the operations: see the protocol in onejob.store -----------------------------------------------------------

    def submit(self, new: Submission, *, wake_in: float) -> tuple[Job, Job | None]:
        """Write a submission unless a job holds its identity already."""
        found = {row["role"]: Job.from_row(row) for row in self._sql.rows("submit", **_values(new), wake_in=wake_in)}
        own = found.get("own")
        return found.get("holder") or found["own"], own if "holder" in found else None

    def claim(self, job_id: str, *, nonce: str, node: str, sources: frozenset[State], target: State) -> Applied:
        """Start a run if the job is due and free."""
        values = {"job_id": job_id, "nonce": nonce, "node": node, "sources": _names(sources), "target": target.value}
        return _applied(self._sql.rows("claim", **values))

    def renew(self, claims: Sequence[tuple[str, str]], *, sources: frozenset[State]) -> list[Renewal]:
        """Extend many leases in one statement."""
        ids, nonces = [job_id for job_id, _ in claims], [nonce for _, nonce in claims]
        rows = self._sql.rows("renew", ids=ids, nonces=nonces, sources=_names(sources))
        asked = {(row["id"], row["claim"]): Cancel(row["cancel"]) for row in rows}
        return [Renewal(*claim, held=claim in asked, cancel=asked.get(claim, Cancel.NO)) for claim in claims]

    def apply(self, change: Change) -> Applied:
        """Compare and set."""
        values = _values(change) | {"sources": _names(change.sources)}
        also = ("wake",) if change.ends else ()
        return _applied(self._sql.rows("apply", *also, **values))

    def report(self, job_id: str, token: int, progress: str, *, sources: frozenset[State]) -> Cancel | None:
        """Keep a run's progress."""
        rows = self._sql.rows("report", job_id=job_id, token=token, progress=progress, sources=_names(sources))
        return Cancel(rows[0]["cancel"]) if rows else None

    def keep_step(self, job_id: str, token: int, name: str, value: str, *, sources: frozenset[State]) -> str | None:
        """Memoise a step."""
        values = {"job_id": job_id, "token": token, "name": name, "value": value, "sources": _names(sources)}
        rows = self._sql.rows("keep_step", **values)
        return str(rows[0]["value"]) if rows else None

    def steps(self, job_id: str) -> Mapping[str, str]:
        """Return memoised steps by name."""
        return {row["name"]: row["value"] for row in self._sql.rows("steps", job_id=job_id)}

    def due(self, *, limit: int, hold: float) -> list[Job]:
        """Take the jobs whose alarm has rung."""
        return [Job.from_row(row) for row in self._sql.rows("due", limit=limit, hold=hold)]

    def get(self, job_id: str) -> Job | None:
        """Return a job."""
        return self._sql.job("get", job_id=job_id)

    def find(self, query: Query) -> list[Job]:
        """Return jobs, newest first."""
        values = _values(query) | {"states": _names(query.states)}
        return [Job.from_row(row) for row in self._sql.rows("find", **values)]

    def history(self, job_id: str) -> list[Entry]:
        """Return what happened to a job."""
        rows = self._sql.rows("history", job_id=job_id)
        return [Entry(r["at"], r["event"], State(r["state"]), r["attempt"], r["node"], r["detail"]) for r in rows]

    def delete(self, job_ids: Sequence[str], *, sources: frozenset[State]) -> list[str]:
        """Remove jobs."""
        return [row["id"] for row in self._sql.rows("delete", job_ids=list(job_ids), sources=_names(sources))]

    def close(self) -> None:
        """Close the connections; the next operation opens others."""
        self._connections.close()

    # --- taking part in somebody else's transaction -----------------------------------------------------------------

    def joined(self, transaction: Transaction) -> PostgresStore:
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
        there = connection.execute("select 1 as one where to_regclass(%s) is not null", [table]).fetchone()
        row = connection.execute(f"select version_num from {table}").fetchone() if there else None  # noqa: S608 - checked
        check_version(row["version_num"] if row else None, where)


class _JoinedStore(PostgresStore):
    """The store as a part of somebody else's transaction, of which nothing is seen before its commit."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql

    def close(self) -> None:
        """Do nothing: the connection is somebody else's."""

    def submit(self, new: Submission, *, wake_in: float) -> tuple[Job, Job | None]:
        """Write a submission unless a job holds its identity already; that job's row is only read."""
        for _ in range(SUBMIT_TRIES):
            job = self._sql.job("submit_in", **_values(new), wake_in=wake_in)
            if job is not None:
                return job, None
            own = self.get(new.id)
            if own is not None:
                leader = self.get(own.leader) if own.leader else None
                return (leader, own) if leader else (own, None)
            holder = self._sql.job("holder", identity=new.identity)
            if holder is not None:
                return holder, self._sql.job("follow_in", **_values(new), leader=holder.id) if new.follows else None
        msg = f"identity {new.identity} changed hands {SUBMIT_TRIES} times during one submission"
        raise StoreError(msg)


class _Joined:
    """Runs statements in a transaction. What its driver raises is its owner's to handle."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def run(self, statements: Sequence[Statement], *, patient: bool = False) -> Rows:  # noqa: ARG002 - the runner's
        """Run statements and return the rows of the first."""
        answers = [self._transaction.rows(text, values) for text, values in statements]
        return answers[0]


def _values(value: Any) -> dict[str, Any]:
    """Return the fields of a value as plain texts and numbers, which every driver knows."""
    each = ((field.name, getattr(value, field.name)) for field in fields(value))
    return {name: one.value if isinstance(one, Enum) else one for name, one in each}


def _names(states: frozenset[State]) -> list[str]:
    return sorted(state.value for state in states)


def _applied(rows: Rows) -> Applied:
    return Applied(done=rows[0]["done"], job=Job.from_row(rows[0])) if rows else Applied(done=False, job=None)
