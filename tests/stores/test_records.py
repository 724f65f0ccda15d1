"""What stores keep besides jobs, where the model cannot show it: written by many at once, and bounded in size."""

import math
import sqlite3
import time
from contextlib import closing

import psycopg
import pytest
import redis

from onejob.jobs.audit_entries import AuditEntry
from onejob.jobs.lifecycle import FINAL
from onejob.jobs.metric_buckets import Period
from onejob.jobs.workers import WorkerInfo
from onejob.stores.protocol import OTHER_SUBMITTERS, GroupBy, Store
from tests.stores.processes import RaceProcess, race
from tests.stores.support import START, ManualClock, StoreAddress, counted, duplicate, end, not_none, run, submit

PROCESSES, ADDITIONS = 4, 30
ENTRY = AuditEntry(actor="ops", source="http", address="192.0.2.1", action="cancel", target="job-1")


def write_often(process: RaceProcess) -> str | None:
    """Write the same records as other processes, with the names in ascending or descending order."""
    names = [f"name-{number}" for number in range(20)]
    amounts = dict.fromkeys(names if process.number % 2 else names[::-1], 1.0)
    with process.address.opened() as store:
        process.ready()
        for number in range(ADDITIONS):
            store.increment(amounts, recent=amounts)
            store.heartbeat(f"short-{number % 3}", lasts=0.001)
            store.heartbeat(f"node-{process.number}", lasts=600.0)
            store.append_audit(ENTRY, keep=1000, keep_for=1e12)
        return store.keep_event("event", f"body of {process.number}", keep_for=1e6)


def test_concurrent_records_are_all_kept(store_address: StoreAddress, store: Store) -> None:
    """No amount, heartbeat or entry of many processes is lost or blocks another, and all get the same event."""
    assert set(race(store_address, PROCESSES, write_often)) == {store.keep_event("event", None, keep_for=1.0)}
    totals = store.totals()
    assert set(totals.values()) == {float(PROCESSES * ADDITIONS)}
    for period in Period:
        buckets = store.series(period, since=0.0)
        assert {name: sum(bucket.amounts[name] for bucket in buckets) for name in totals} == totals
    assert {f"node-{number}" for number in range(PROCESSES)} <= {node.name for node in store.workers()}
    found = store.audit(limit=1000, before=None, keep_for=1e12)
    assert len({each.id for each in found}) == len(found) == PROCESSES * ADDITIONS


def test_a_clock_that_was_set_back_hides_no_entry(store: Store, clock: ManualClock) -> None:
    """A page of the audit log is full though entries are among its newest that are expired by their times."""
    for seconds in (0.0, 0.0, -9000.0, 0.0, 0.0, 9000.0):
        clock.advance(seconds)
        store.append_audit(ENTRY, keep=1000, keep_for=5000.0)
    newest = store.audit(limit=2, before=None, keep_for=5000.0)
    assert [each.at for each in newest] == [START, START]
    assert len(store.audit(limit=2, before=newest[-1].id, keep_for=5000.0)) == 1


def test_amounts_lose_nothing(store: Store) -> None:
    """A total is the sum of its amounts, within the precision of floating-point numbers."""
    amounts = [0.1] * 10 + [1e6, 1 / 3, 1e-6]
    for amount in amounts:
        store.increment({"a": amount})
    assert math.isclose(store.totals()["a"], math.fsum(amounts), rel_tol=1e-9)


def stored_amounts(address: StoreAddress) -> int:
    """Return how many amounts a SQL store has in buckets, also in expired ones."""
    query = "select count(*) from {}metric_buckets where period > 0"
    if address.kind == "sqlite":
        with closing(sqlite3.connect(address.url.removeprefix("sqlite:///"))) as connection:
            return int(connection.execute(query.format("")).fetchone()[0])
    with psycopg.connect(address.url) as session:
        ((count,),) = session.execute(query.format(f"{address.namespace}.").encode())
    return int(count)


def test_expired_buckets_are_deleted(store: Store, store_address: StoreAddress, clock: ManualClock) -> None:
    """Later increments delete expired buckets, twice as many amounts as they add at most; on Redis each has a TTL."""
    many = {f"name-{number}": 1.0 for number in range(10)}
    store.increment(many, recent=many)
    if store_address.kind == "redis":
        with redis.Redis.from_url(store_address.url) as client:
            found = {key.split(b":")[-2]: client.ttl(key) for key in client.scan_iter(match="*:bucket:*")}
        assert set(found) == {b"60", b"3600"}
        for period in Period:
            assert period.kept_for < found[str(period.seconds).encode()] <= period.kept_for + 3600
        return
    clock.advance(1e6)
    kept = [stored_amounts(store_address)]
    for _ in range(6):
        store.increment({}, recent={"a": 1.0})
        kept.append(stored_amounts(store_address))
    assert kept == [20, 18, 14, 10, 6, 2, 2]


def test_expired_tombstones_are_deleted(store: Store, clock: ManualClock) -> None:
    """A deletion removes at most two expired tombstones per deleted job, so they go faster than new ones are added."""
    ids = [end(store, run(store, f"old-{number}")).id for number in range(7)]
    store.delete(ids, sources=FINAL, tombstone_for=100.0)
    for left in (5, 3, 1, 0):
        clock.now = START + 1000.0
        store.delete([end(store, run(store, f"new-{left}")).id], sources=FINAL, tombstone_for=1e6)
        clock.now = START  # where those that are left are kept still
        assert sum(store.tombstone(job_id) is not None for job_id in ids) == left


@pytest.fixture
def few_submitters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distinguish three submitters only."""
    modules = ("postgres.statements", "sqlite.store", "sqlite.submission", "redis.records", "redis.submission")
    for module in modules:
        monkeypatch.setattr(f"onejob.stores.{module}.SUBMITTER_LIMIT", 3)


@pytest.mark.usefixtures("few_submitters")
def test_the_submitters_of_a_job_are_limited(store: Store) -> None:
    """Beyond the limit, new submitters of duplicates are counted together, and the known ones as before."""
    submit(store, identity="same")
    for number, name in enumerate("abcdea"):
        submit(store, f"late-{number}", identity="same", submitter=name)
    store.record(duplicate(submission_nonce="n", submitter="f"), also=["m"])
    expected = {("a", "attached"): 2, ("b", "attached"): 1, ("c", "attached"): 1, (OTHER_SUBMITTERS, "attached"): 4}
    assert counted(store, GroupBy.SUBMITTER) == expected


@pytest.mark.usefixtures("few_submitters")
def test_the_submitters_of_a_task_are_limited(store: Store) -> None:
    """The sums of deleted jobs distinguish so many submitters of a task, however many jobs it has had."""
    for names in ("ab", "cd", "ae"):
        job = run(store, names, identity="same")
        for name in names:
            submit(store, f"{names}-{name}", identity="same", submitter=name)
        end(store, job)
        store.delete([names], sources=FINAL)
    expected = {("a", "attached"): 2, ("b", "attached"): 1, ("c", "attached"): 1, (OTHER_SUBMITTERS, "attached"): 2}
    assert counted(store, GroupBy.SUBMITTER) == expected


def test_a_store_has_a_clock_of_its_own(store: Store) -> None:
    """Without an injected clock a store uses its own time, to a fraction of a second, also for tokens."""
    before = time.time()
    job = submit(store, "later", delay=5.0, expires_in=7.0, wake_after=3.0, key="key-1", key_for=9.0)
    assert before - 0.01 <= job.created_at <= time.time() + 0.01
    times = [at and at - job.created_at for at in (job.run_at, job.expires_at, job.wake_at, job.key_retained_until)]
    assert times == pytest.approx([5.0, 7.0, 5.0, 9.0], abs=1e-5)
    begun = run(store)
    assert begun.token / 1e6 == pytest.approx(not_none(begun.started_at), abs=1.0)


def test_a_newer_workers_registration_is_read() -> None:
    """What a newer worker registers besides is ignored; its versions are read."""
    registration = '{"tasks": ["t"], "versions": ["celery 9.0"], "mood": "good"}'
    assert WorkerInfo.from_row("a", 1.0, registration) == WorkerInfo("a", 1.0, tasks=("t",), versions=("celery 9.0",))
