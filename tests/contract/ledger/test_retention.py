"""Retention: ended jobs go in batches, whatever else there is to do."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from onejob.errors import StoreError
from onejob.jobs.lifecycle import FINAL, State
from onejob.jobs.policy import DAY, Policy
from onejob.jobs.records import Query
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import PUBLISH_FAILURES, Swept, sweep
from onejob.stores.postgres import PostgresStore
from tests.contract.support import LEASE, ManualClock, run, submit
from tests.services import eventually

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.stores.protocol import Store
    from tests.services import PostgresServer


def no_broker(job: Job) -> None:
    """Fail as a broker does that is down."""
    msg = f"no broker for {job.id}"
    raise ConnectionError(msg)


def test_old_jobs_go_while_the_broker_is_down(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A sweep that can publish nothing still purges what is old."""
    for number in range(5):
        ledger.complete(run(store, f"old-{number}"), "1")
        submit(store, f"waiting-{number}", wake_in=DAY)
    clock.advance(DAY)
    with pytest.raises(ConnectionError):
        sweep(ledger, no_broker)
    assert {job.id for job in store.find(Query())} == {f"waiting-{number}" for number in range(5)}


def test_a_job_that_cannot_be_published_holds_nobody_up(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """One job for which publishing always fails keeps no other from being published or recovered in the same sweep."""
    published: list[str] = []

    def publish(job: Job) -> None:
        if job.id == "poison":
            no_broker(job)
        published.append(job.id)

    for job_id in ("poison", "one", "two"):
        submit(store, job_id, wake_in=0.0)
    run(store, "lapsed")
    clock.advance(LEASE)
    with pytest.raises(ConnectionError, match="poison"):
        sweep(ledger, publish)
    assert sorted(published) == ["lapsed", "one", "two"]


def test_a_broker_that_is_away_is_not_asked_for_each_job(ledger: Ledger, store: Store) -> None:
    """After a few failures a sweep publishes no more, but takes back the runs that were lost."""
    asked: list[str] = []

    def publish(job: Job) -> None:
        asked.append(job.id)
        no_broker(job)

    for number in range(20):
        submit(store, f"job-{number}", wake_in=0.0)
    with pytest.raises(ConnectionError):
        sweep(ledger, publish)
    assert len(asked) == PUBLISH_FAILURES


def test_an_old_job_that_somebody_refers_to_holds_nobody_up(
    postgres_server: PostgresServer, postgres_schema: str
) -> None:
    """Where a user's table keeps an old job from being purged, the others of its batch go, and the error is told."""
    with closing(PostgresStore(postgres_server.url, schema=postgres_schema)) as store:
        ledger = Ledger(store, Policy(retention=dict.fromkeys(FINAL, 0.001)))
        for number in range(5):
            ledger.complete(run(store, f"old-{number}"), "1")
        with psycopg.connect(postgres_server.url, autocommit=True) as session:
            table = f"{postgres_schema}.orders (job text references {postgres_schema}.jobs (id))"
            session.execute(f"create table {table}".encode())
            session.execute(f"insert into {postgres_schema}.orders values ('old-2')".encode())  # noqa: S608 - ours
        with pytest.raises(StoreError, match="orders"):
            eventually(lambda: sweep(ledger, no_broker).purged < 0)
        assert [job.id for job in store.find(Query())] == ["old-2"]


def test_a_sweep_tells_whether_there_may_be_more(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A sweep counts the alarms that had rung: as many as its limit when there may be more, of whatever kind."""
    for number in range(5):
        ledger.complete(run(store, f"old-{number}"), "1")
    clock.advance(DAY)
    sweeps = [sweep(ledger, lambda job: None, limit=2) for _ in range(3)]
    assert [(swept.seen, swept.purged) for swept in sweeps] == [(2, 2), (2, 2), (1, 1)]


def test_a_purge_leaves_what_still_lives(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """Of many jobs whose alarms ring at once, only the ended ones are purged."""
    for number in range(3):
        ledger.complete(run(store, f"ended-{number}"), "1")
    running = run(store, "running")
    clock.advance(DAY)
    submit(store, "queued", wake_in=LEASE)
    clock.advance(LEASE)
    swept = sweep(ledger, lambda job: None)
    assert swept == Swept(purged=3, lapsed=1, published=2)
    assert {job.id: job.state for job in store.find(Query())} == {running.id: State.QUEUED, "queued": State.QUEUED}
