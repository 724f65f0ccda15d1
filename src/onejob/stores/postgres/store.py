"""The PostgreSQL store: every operation is one statement beside this file, and one unique index is the invariant."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from onejob.errors import ConfigurationError, StoreError
from onejob.job import (
    Admission,
    Applied,
    Cancel,
    Entry,
    Job,
    Node,
    Outcome,
    Receipt,
    Renewal,
    Spent,
    Tally,
    Tombstone,
    values_of,
)
from onejob.lifecycle import State
from onejob.recent import Holders
from onejob.schema import TABLE, check_version, checked_schema
from onejob.stores.postgres.connection import Connections
from onejob.stores.postgres.statements import Statements

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from onejob.job import Change, Query, Submission
    from onejob.store import By, Transaction
    from onejob.stores.postgres.connection import Connection
    from onejob.stores.postgres.statements import Rows, Statement

Call: TypeAlias = "tuple[str, dict[str, Any]]"
"""The name of a statement, and its values."""
HURRY = 250
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
        self._holders = Holders()

    # --- the operations: see the protocol in onejob.store -----------------------------------------------------------

    def submit(self, new: Submission, *, wake_in: float) -> Admission:
        """Write a submission unless a job holds its identity already."""
        return self.submit_many([new], wake_in=wake_in)[0]

    def submit_many(self, news: Sequence[Submission], *, wake_in: float, patient: bool = True) -> list[Admission]:
        """Submit many in one transaction, and those that met a job in a second one."""
        answers = self._admit(news, wake_in, patient=patient)
        for _ in range(SUBMIT_TRIES):
            left = [number for number in _order(news) if number not in answers]
            if not left:
                return [answers[number] for number in range(len(news))]
            asked = self._ask([news[number] for number in left], wake_in, patient=patient)
            answers |= {number: answer for number, answer in zip(left, asked, strict=True) if answer is not None}
        msg = f"what a submission met changed {SUBMIT_TRIES} times while it was answered"
        raise StoreError(msg)

    def _admit(self, news: Sequence[Submission], wake_in: float, *, patient: bool) -> dict[int, Admission]:
        """Write those that likely meet no job and have no key, nor an equal one with a key; return their answers."""
        keyed = {new.identity for new in news if new.key is not None or self._holders.get(new.identity)}
        plain = [number for number in _order(news) if news[number].identity not in keyed]
        if not plain:
            return {}
        answers = self._each(
            [("admit", _values(news[number]) | {"wake_in": wake_in}) for number in plain], patient=patient
        )
        found = zip(plain, answers, strict=True)
        return {number: Admission(Job.from_row(rows[0]), Outcome.ADMITTED) for number, rows in found if rows}

    def _ask(self, news: Sequence[Submission], wake_in: float, *, patient: bool) -> list[Admission | None]:
        """Submit in this order, in one transaction; an answer is None where the submission has to be repeated."""
        keys = sorted({new.key for new in news if new.key is not None})
        taking: list[Call] = [("take_keys", {"keys": keys})] if keys else []
        calls: list[Call] = [(self._submits_by(new), _values(new) | {"wake_in": wake_in}) for new in news]
        answers = self._each(taking + calls, patient=patient)[len(taking) :]
        found = [_admission(rows, new) for rows, new in zip(answers, news, strict=True)]
        for new, answer in zip(news, found, strict=True):
            if answer is not None and answer.outcome is not Outcome.ADMITTED:
                self._holders.met(new.identity, answer.job.id)
            else:
                self._holders.gone(new.identity)
        return found

    def _each(self, calls: Sequence[Call], *, patient: bool) -> list[Rows]:
        """Run statements as one transaction."""
        if patient:
            return self._sql.each(calls)
        return self._sql.each([("hurry", {"wait": str(HURRY)}), *calls])[1:]

    def _submits_by(self, new: Submission) -> str:  # noqa: ARG002 - the joined store looks at it
        return "submit"

    def follow(self, new: Submission, *, leader: str) -> Job | None:
        """Write a job that waits for the end of another one."""
        written = self._sql.job("follow", leader=leader, joins=self._joins, **_values(new))
        return written or self.get(new.id)  # somebody else has just written this id

    def record(self, receipt: Receipt, *, also: Sequence[str] = ()) -> None:
        """Keep the receipts of those who have met a job."""
        if also:
            self._sql.rows("record_many", **_values(receipt), submissions=[receipt.submission, *also])
        else:
            self._sql.rows("record", **_values(receipt))

    def receipts(self, job_id: str) -> list[Receipt]:
        """Return the newest receipts of a job."""
        return [Receipt.from_row(row) for row in self._sql.rows("receipts", job_id=job_id)]

    def tallies(self, by: By, *, limit: int) -> list[Tally]:
        """Return how many have met jobs."""
        rows = self._sql.rows("tallies", by=by.value, limit=limit)
        return [Tally(row["name"], row["task"], Outcome(row["outcome"]), row["count"]) for row in rows]

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

    def get_many(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """Return jobs by their ids."""
        return {row["id"]: Job.from_row(row) for row in self._sql.rows("get_many", job_ids=list(job_ids))}

    def holder(self, identity: str) -> Job | None:
        """Return the job that holds an identity."""
        return self._sql.job("holder", identity=identity)

    def answering(self, identity: str, key: str | None) -> Job | None:
        """Return the job that would answer."""
        return self._sql.job("answering", identity=identity, key=key)

    def find(self, query: Query) -> list[Job]:
        """Return jobs, newest first."""
        values = _values(query) | {"states": _names(query.states)}
        return [Job.from_row(row) for row in self._sql.rows("find", **values)]

    def counts(self, query: Query) -> dict[State, int]:
        """Return how many jobs match, by state."""
        values = _values(query) | {"states": _names(query.states)}
        return {State(row["state"]): row["count"] for row in self._sql.rows("counts", **values)}

    def history(self, job_id: str) -> list[Entry]:
        """Return what happened to a job."""
        rows = self._sql.rows("history", job_id=job_id)
        return [Entry(r["at"], r["event"], State(r["state"]), r["attempt"], r["node"], r["detail"]) for r in rows]

    def delete(
        self, job_ids: Sequence[str], *, sources: frozenset[State], spares: bool = False, tombstone_for: float = 0.0
    ) -> list[str]:
        """Remove jobs."""
        values = {"job_ids": list(job_ids), "sources": _names(sources), "spares": spares}
        return [row["id"] for row in self._sql.rows("delete", **values, tombstone_for=tombstone_for)]

    def tombstone(self, job_id: str) -> Tombstone | None:
        """Return what is remembered of a job that was deleted."""
        rows = self._sql.rows("tombstone", job_id=job_id)
        return Tombstone.from_row(rows[0]) if rows else None

    def beat(self, node: str, *, lasts: float) -> None:
        """Keep a node's sign of life."""
        self._sql.rows("beat", node=node, lasts=lasts)

    def nodes(self) -> list[Node]:
        """Return the nodes whose signs of life last."""
        return [Node(row["name"], row["seen_at"]) for row in self._sql.rows("nodes")]

    def add(self, amounts: Mapping[str, float]) -> None:
        """Add to running totals."""
        self._sql.rows("add", names=list(amounts), amounts=[float(amount) for amount in amounts.values()])

    def totals(self) -> dict[str, float]:
        """Return all running totals."""
        return {row["name"]: row["total"] for row in self._sql.rows("totals")}

    def spend(self, name: str, *, nonce: str, limit: int, period: float) -> Spent:
        """Count one use of a name if there is one left."""
        (row,) = self._sql.rows("spend", name=name, nonce=nonce, limit=limit, period=period)
        left = max(limit - row.pop("used"), 0)
        return Spent(name=name, left=left, **row)

    def give_back(self, name: str, *, nonce: str, until: float) -> None:
        """Take one use back."""
        self._sql.rows("give_back", name=name, nonce=nonce, until=until)

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
        there = connection.execute("select 1 as one where to_regclass($1) is not null", [table]).fetchone()
        row = connection.execute(f"select version_num from {table}").fetchone() if there else None  # noqa: S608 - checked
        check_version(row["version_num"] if row else None, where)


class _JoinedStore(PostgresStore):
    """The store as a part of somebody else's transaction, of which nothing is seen before its commit."""

    _joins = True

    def __init__(self, sql: Statements) -> None:
        self._sql = sql
        self._holders = Holders()  # of its own: what it has met may be rolled back

    def close(self) -> None:
        """Do nothing: the connection is somebody else's."""

    def _admit(self, news: Sequence[Submission], wake_in: float, *, patient: bool) -> dict[int, Admission]:  # noqa: ARG002 - as above
        return {}  # one statement for each, which finds the row that this transaction has just written, too

    def _submits_by(self, new: Submission) -> str:
        # Whoever touches a live job holds its row until the commit, and its run up: only those who want that do.
        return "submit" if new.replaces or new.queues_next else "submit_in"


class _Joined:
    """Runs statements in a transaction. What its driver raises is its owner's to handle."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def run(self, statements: Sequence[Statement], *, patient: bool = False) -> list[Rows]:  # noqa: ARG002 - the runner's
        """Run statements and return the rows of each."""
        return [self._transaction.rows(text, values) for text, values in statements]


def _values(value: Any) -> dict[str, Any]:
    """Return the fields of a value as plain texts and numbers, which every driver knows."""
    return {name: one.value if isinstance(one, Enum) else one for name, one in values_of(value).items()}


def _names(states: frozenset[State]) -> list[str]:
    return sorted(state.value for state in states)


def _order(news: Sequence[Submission]) -> Sequence[int]:
    """Return in which order to submit many: by identity, so that no two batches wait for each other in a circle.

    But what one key says to several identities depends on who is the first, so then the order stays as it is.
    """
    keyed = {(new.key, new.identity) for new in news if new.key is not None}
    if len(keyed) > len({key for key, _ in keyed}):
        return range(len(news))
    return sorted(range(len(news)), key=lambda number: news[number].identity)


def _admission(rows: Rows, new: Submission) -> Admission | None:
    """Return what the rows of a submission say; None when they say to ask again."""
    found = {row["role"]: row for row in rows}
    jobs = {role: Job.from_row(row) for role, row in found.items()}
    if "own" in jobs:
        return Admission.again(jobs["own"], jobs.get("leader"), new.nonce)
    if "answer" not in jobs:
        return None
    outcome, moved, reused = (found["answer"][name] for name in ("outcome", "moved", "key_reused"))
    return Admission(jobs["answer"], Outcome(outcome), jobs.get("follower"), moved=moved, key_reused=reused)


def _applied(rows: Rows) -> Applied:
    return Applied(done=rows[0]["done"], job=Job.from_row(rows[0])) if rows else Applied(done=False, job=None)
