"""Show how PostgreSQL executes each statement of the store among a million jobs, and flag scans of whole tables.

    python -m bench.plans --jobs 1000000

Each statement is executed by the operation it belongs to, with real values, in a transaction that is rolled back: as a
custom plan, which knows the values, and as the generic plan that a prepared statement may get. Exit code 1 when one
scans all of jobs, history, steps or tombstones.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.adapt import PyFormat, Transformer

from bench.filling import TASKS, make, some
from onejob.jobs.audit_entries import AuditEntry
from onejob.jobs.blocks import Block, BlockKind
from onejob.jobs.broker_messages import NewMessage
from onejob.jobs.costs import CostsBy, by_key
from onejob.jobs.durations import DAY
from onejob.jobs.handover import BY_SWEEP, Way, by_caller
from onejob.jobs.lifecycle import FINAL, RULES, State, Transition
from onejob.jobs.limits import KeyUse, LimitValue, first_park, rate_value, write_uses
from onejob.jobs.metric_buckets import Period
from onejob.jobs.model import Duplicate, Outcome, Submission
from onejob.jobs.query import Query
from onejob.jobs.schedule_state import ScheduleState
from onejob.jobs.submitter import Charge, Quota
from onejob.jobs.transitions import new_nonce
from onejob.ledger.costs import read_costs
from onejob.ledger.ledger import Ledger, NextRun
from onejob.stores.holder_cache import HolderCache
from onejob.stores.postgres import PostgresStore
from onejob.stores.postgres.statements import SQL, Statements, statement
from onejob.stores.postgres.submission import Submitting
from onejob.stores.protocol import GroupBy
from onejob.transactions.sessions import pyformat
from tests.services import start_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onejob.stores.postgres.statements import Rows, Statement
    from onejob.transactions.sessions import OpenTransaction

MODES = ("custom", "generic")
TABLES = frozenset({"jobs", "history", "steps", "tombstones"})
_NAME = re.compile(r"(?<![:\w]):([a-z_]+)")


def names() -> frozenset[str]:
    """Return the names of all statements of the store."""
    return frozenset(SQL)


@dataclass(frozen=True, slots=True)
class Plan:
    """How one statement was executed."""

    name: str
    mode: str
    top: dict[str, Any]
    """The output of EXPLAIN (FORMAT JSON)."""

    def nodes(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the nodes of the plan with their depth."""
        yield from _below(self.top["Plan"], 0)

    def scanned(self) -> list[str]:
        """Return the tables that are read from their beginning to their end."""
        scans = [node for _, node in self.nodes() if node["Node Type"] == "Seq Scan"]
        return [node["Relation Name"] for node in scans if node["Relation Name"] in TABLES]

    def lines(self) -> Iterator[str]:
        """Yield the plan for people: what is read or written, by which index, how many rows, how many pages."""
        for depth, node in self.nodes():
            if node.get("Relation Name") in TABLES or node["Node Type"] in {"Sort", "Hash", "Bitmap Index Scan"}:
                yield "  " * min(depth, 8) + _described(node)
        for trigger in self.top["Triggers"]:
            yield f"  trigger {trigger.get('Constraint Name', '?')}: {trigger['Calls']} x, {trigger['Time']:.3f} ms"

    def __str__(self) -> str:
        head = f"{self.name} ({self.mode}): {self.top['Execution Time']:.2f} ms, planned in "
        flags = "".join(f"  !! scans all of {table}" for table in self.scanned())
        return "\n".join([f"{head}{self.top['Planning Time']:.2f} ms{flags}", *self.lines()])


def _below(node: dict[str, Any], depth: int) -> Iterator[tuple[int, dict[str, Any]]]:
    yield depth, node
    for child in node.get("Plans", []):
        yield from _below(child, depth + 1)


def _described(node: dict[str, Any]) -> str:
    what = [node.get("Operation") if node["Node Type"] == "ModifyTable" else node["Node Type"]]
    what += [node[key] for key in ("Relation Name", "Index Name") if key in node]
    what += [f"arbiter {name}" for name in node.get("Conflict Arbiter Indexes", [])]
    rows = node["Actual Rows"] * node["Actual Loops"]
    removed = node.get("Rows Removed by Filter", 0) * node["Actual Loops"]
    pages = node["Shared Hit Blocks"] + node["Shared Read Blocks"]
    passed = f", {removed:.0f} passed over" if removed else ""
    return f"{' '.join(map(str, what))}: {rows:.0f} rows{passed}, {pages} pages"


class Explaining:
    """Runs statements on a connection and keeps how each was executed; of one with the same values, once per mode."""

    def __init__(self, connection: psycopg.Connection[dict[str, Any]], schema: str) -> None:
        self.plans: list[Plan] = []
        self._connection = connection
        self._names = {statement(name, schema): name for name in names()}

    def run(self, statements: Sequence[Statement], **_: object) -> list[Rows]:
        """Explain statements, run them, and return the rows of each."""
        answers = []
        for text, values in statements:
            for mode in MODES:
                self.plans.append(Plan(self._names[text], mode, self._explained(text, dict(values), mode)))
            query = pyformat(text)
            cursor = self._connection.execute(query.encode(), values)
            answers.append(cursor.fetchall() if cursor.description else [])
        return answers

    def _explained(self, text: str, values: dict[str, Any], mode: str) -> dict[str, Any]:
        """Return the plan of a statement as psycopg would prepare it: with the types that psycopg gives its values."""
        used = list(dict.fromkeys(_NAME.findall(text)))
        numbered = _NAME.sub(lambda name: f"${used.index(name[1]) + 1}", text)
        given = [values[name] for name in used]
        transformer = Transformer(self._connection)
        transformer.dump_sequence(given, [PyFormat.AUTO] * len(given))
        with self._connection.transaction(force_rollback=True):
            self._connection.execute(f"set local plan_cache_mode = force_{mode}_plan".encode())
            types = ", ".join(self._type(oid) for oid in transformer.types or ())
            self._connection.execute(f"prepare explained {types and f'({types})'} as {numbered}".encode())
            try:
                return self._execute(given)
            finally:
                self._connection.execute("deallocate explained")

    def _execute(self, given: list[Any]) -> dict[str, Any]:
        values = sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, given))) if given else sql.SQL("")
        query = sql.SQL("explain (analyze, buffers, format json) execute explained {}").format(values)
        row = self._connection.execute(query).fetchone()
        assert row is not None  # noqa: S101 - EXPLAIN always answers
        top: dict[str, Any] = row["QUERY PLAN"][0]
        return top

    def _type(self, oid: int) -> str:
        if not oid:
            return "unknown"
        row = self._connection.execute("select format_type(%s, null) as type", [oid]).fetchone()
        return str(row["type"]) if row else "unknown"


class _Explained(PostgresStore):
    """The store on the caller's connection, with each statement explained."""

    def __init__(self, runner: Explaining, schema: str) -> None:
        self._sql = Statements(runner, schema, None)
        self._holders = HolderCache()

    def in_transaction(self, transaction: OpenTransaction, *, writes: bool = True) -> PostgresStore:
        raise NotImplementedError


WAITING = RULES[Transition.CLAIM].sources
RATED = write_uses([KeyUse("api")])
CHARGES = (Charge("quota", Quota(1_000_000, 60), "plan"),)


def submission(number: int, identity: str, *, follows: bool = False) -> Submission:
    """Return a submission as a task makes it."""
    return Submission(
        id=f"00000000-0000-4000-8000-{number:012}", task="shop.task_1", identity=f"v1-{identity}", lease=30.0,
        fingerprint=f"v1-{identity}", nonce=new_nonce(), payload='{"args": [1]}', follows=follows,
    )  # fmt: skip


def explained(connection: psycopg.Connection[dict[str, Any]], schema: str) -> list[Plan]:
    """Run every operation on a filled ledger in an open transaction, and return how its statements were executed."""
    runner = Explaining(connection, schema)
    store = _Explained(runner, schema)
    _live(store)
    _submit_duplicates(store)
    _in_transaction(runner, schema)
    _shared(store)
    _carry_messages(store)
    _limit(store)
    running = some(connection, schema, "running", 8)
    Ledger(store).renew(running)
    store.get_awaited([job_id for job_id, _ in running])
    old = [job_id for job_id, _ in some(connection, schema, "completed", 100)]
    store.get_many(old)
    store.delete(old, sources=FINAL, tombstone_for=DAY)
    store.tombstone(old[0])
    _list(store, followed=old[-1])
    return runner.plans


def _list(store: PostgresStore, followed: str) -> None:
    """List and count jobs by each index."""
    store.find(Query())
    store.find(Query(light=True))
    store.find(Query(since=time.time() - 3600.0, until=time.time() - 60.0, offset=5))
    store.counts(Query())
    store.counts(Query(), limit=10)
    for name in ("user-7", "nobody"):
        of_submitter = Query(submitter=name)
        store.find(of_submitter)
        store.find(replace(of_submitter, light=True))
        store.counts(of_submitter)
        store.counts(of_submitter, limit=10)
        store.edge(of_submitter, skip=10)
    for state in (State.FAILED, State.RUNNING):
        of_state = Query(states=frozenset({state}))
        store.find(of_state)
        store.find(replace(of_state, before=time.time() - 60.0, before_id="x"))
        store.find(replace(of_state, light=True))
        store.counts(of_state)
        store.counts(of_state, limit=10)
        store.edge(of_state, skip=10)
    store.count_states(limit=1000)
    store.edge(Query(), skip=1000)
    store.edge(Query(until=time.time() - 60.0, before=time.time() - 3600.0, before_id="x"), skip=1000)
    store.backlog(tasks=TASKS, limit=1000)
    store.followers(followed, limit=10)


def _live(store: PostgresStore) -> None:
    """Run a job with a duplicate and a follower through its life; read it; sweep."""
    ledger = Ledger(store)
    job = ledger.submit(submission(1, "plan"), handover=BY_SWEEP).job
    ledger.submit(submission(2, "plan"))
    ledger.submit(submission(3, "plan", follows=True))
    ledger.follow(submission(4, "plan-of-webhook"), follows_id=job.id)
    store.take_due(tasks=TASKS, limit=100, hold=5)
    ledger.submit(replace(submission(18, "offered"), route="celery"), handover=BY_SWEEP)
    store.next_delivery(["celery"])
    store.deliver(["celery"], limit=2)
    store.postpone({"job-1": 5.0, "job-2": 5.0})
    first = ledger.claim(job.id, nonce=new_nonce(), node="worker-1").job or job
    ledger.retry(first, NextRun.again(first, delay=0.0, retries=1), error=None, reason="once more")
    run = ledger.claim(job.id, nonce=new_nonce(), node="worker-1").job or first
    ledger.report(run, "1")
    ledger.keep_step(run, "outline", "1")
    run = ledger.add_cost(run, {"usd": Decimal("0.031")})
    store.add_saved(by_key(run, {"usd": Decimal("0.031")}))
    read_costs(ledger, CostsBy.TASK)
    ledger.complete(run, "1")
    alone = ledger.submit(submission(6, "alone")).job
    ledger.complete(ledger.claim(alone.id, nonce=new_nonce(), node="worker-1").job or alone, "1")
    ledger.get(job.id)
    ledger.submit(replace(submission(5, "charged"), charges=CHARGES))
    ledger.submit_many([replace(submission(each, f"charged {each}"), charges=CHARGES) for each in (8, 9)])
    ledger.follow(replace(submission(7, "charged follower"), charges=CHARGES), follows_id=job.id)
    store.find_existing("plan", "a key")
    ledger.history(job.id)
    ledger.steps(job)


def _submit_duplicates(store: PostgresStore) -> None:
    """Submit duplicates in all ways, and read them."""
    ledger = Ledger(store)
    first = submission(10, "duplicates")
    run = ledger.submit(first).job
    ledger.submit(replace(submission(11, "duplicates"), fingerprint="other", replaces=True))
    ledger.claim(run.id, nonce=new_nonce(), node="worker-1")
    for number in (12, 13):
        ledger.submit(replace(submission(number, "duplicates"), fingerprint="other", replaces=True, queue_next=True))
    for number in (14, 15):
        ledger.submit(replace(submission(number, "keyed"), key="1:a:key"))
    ledger.submit_many([submission(number, f"many-{number % 3}") for number in range(20, 29)], wait_for_locks=False)
    ledger.record(
        Duplicate(
            job_id=run.id, submission_nonce=new_nonce(), outcome=Outcome.ATTACHED, answered_by=run.id,
            source="apply_async", submitter="", host="", fingerprint="", arguments_differ=False,
        )
    )  # fmt: skip
    ledger.duplicates(run.id)
    for by in GroupBy:
        ledger.duplicate_counts(by)


def _shared(store: PostgresStore) -> None:
    """Increment totals, send a heartbeat, store an event of webhooks and a result, and append to the audit log."""
    store.increment({"a": 1.0, "b": 2.0}, recent={"a": 1.0})
    store.totals()
    store.series(Period.MINUTE, since=0.0)
    store.heartbeat("worker-1", lasts=60.0)
    store.take_dead_workers()
    store.workers()
    store.heartbeat("worker-1", lasts=0.0)
    store.read_clock()
    store.keep_event("plan", "{}", keep_for=60.0)
    store.append_audit(AuditEntry(actor="a", source="cli", address="b", action="c"), keep=10, keep_for=60.0)
    store.audit(limit=10, before=None, keep_for=60.0)
    store.put_result("plan", "{}", keep_for=60.0)
    store.results(["plan"])
    store.delete_result("plan")
    store.keep_run_log("nobody", 1, "text")
    store.run_logs("nobody")
    store.put_block(Block(id="p-1", kind=BlockKind.PAUSE, queue="slow", where={}))
    store.blocks()
    store.unpark("p-1", limit=10, reason="it has ended")
    store.delete_block("p-1")
    store.put_schedule(ScheduleState("nightly", "new", "crontab", since=0.0, seen_at=0.0), expected="")
    store.schedules()
    store.delete_schedule("nightly", expected="new")


def _limit(store: PostgresStore) -> None:
    """Run jobs with limits, some of which have to wait; look at the uses of keys, and make waiting jobs due."""
    store.put_limits([LimitValue(key="gpu", running=1, is_default=True), rate_value("api", "60/minute", 9)])
    keys = write_uses([KeyUse("gpu"), KeyUse("api")])
    jobs = [replace(submission(each, f"limited {each}"), limit_keys=keys) for each in range(30, 33)]
    given = [*jobs, *(replace(submission(each, f"rated {each}"), limit_keys=RATED) for each in range(33, 35))]
    store.submit_many([replace(each, parked_on=first_park(each.limit_keys)) for each in given], handover_of=by_caller)
    for key in ("gpu", "api"):
        store.free_slots(key, way=Way.CALLER, limit=1)
    store.due_limits()
    for job in jobs:
        store.claim(job.id, nonce=new_nonce(), node="worker-1", sources=WAITING, target=State.RUNNING)
    Ledger(store).park(store.get_many([jobs[1].id])[jobs[1].id], Block(id="p-1", kind=BlockKind.PAUSE, where={}))
    store.spend("api", 2.0)
    store.limit_uses(limit=10)
    store.limit_use("gpu")
    store.parked_before(store.get_many([jobs[2].id])[jobs[2].id])
    store.limit_values()
    store.delete_limit("api")


def _carry_messages(store: PostgresStore) -> None:
    """Write messages that are no jobs, take, return and acknowledge them, and delete their queue."""
    store.declare_queue("plan", expires_after=60.0, message_ttl=60.0)
    store.bind_queue("plan", "plans", "a", "^a")
    store.put_messages([NewMessage(name, "plans", "a", body="{}") for name in ("plan-1", "plan-2")])
    taken = store.take_messages(["plan"], limit=1, consumer="c", hold=30.0)
    store.take_messages(["plan"], limit=1, consumer="c", hold=0.0)
    ids = [each.id for each in taken]
    store.renew_messages(ids, ["plan"], consumer="c", hold=30.0)
    store.release_messages(ids, consumer="c")
    store.delete_messages(ids, consumer="c")
    store.bindings("plans")
    store.queue_size("plan")
    store.purge_queue("plan")
    store.unbind_queue("plan", "plans", "a")
    store.delete_queue("plan")


def _in_transaction(runner: Explaining, schema: str) -> None:
    """Check the ledger of the caller's transaction, and submit in it by a statement of its own."""
    joined = Statements(runner, schema, None, joins=True)
    for name in ("find_ledger_info", "get_ledger_info"):
        joined.run(name)
    for number in (4, 5):
        new = submission(number, "joined", follows=True)
        joined.run("submit_in", **asdict(new), wake_after=30.0, is_sent=True)
    charged = replace(submission(8, "joined and charged"), charges=CHARGES)
    Submitting(joined, HolderCache(), [charged], by_caller, wait_for_locks=True).run()


def main() -> int:
    """Print every plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--url", help="a server for trials; one of our own by default")
    options = parser.parse_args()
    if options.url:
        return show(options.url, f"bench_{options.jobs}", options.jobs)
    server = start_postgres("shared_buffers=512MB", "max_wal_size=4GB")
    try:
        return show(server.url, f"bench_{options.jobs}", options.jobs)
    finally:
        server.remove()


def show(url: str, schema: str, jobs: int) -> int:
    """Print every plan on a ledger with so many jobs; return 1 when a table is scanned."""
    make(url, schema, jobs)
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        plans = explained(connection, schema)
        connection.rollback()
    for plan in plans:
        print(plan, end="\n\n")
    return int(any(plan.scanned() for plan in plans))


if __name__ == "__main__":
    sys.exit(main())
