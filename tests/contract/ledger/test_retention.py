"""Retention: ended jobs are purged in batches, whatever else a sweep does."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from onejob.errors import BrokerUnavailableError, StoreError
from onejob.jobs.lifecycle import FINAL, State
from onejob.jobs.policy import DAY, Policy
from onejob.jobs.records import Query
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import PUBLISH_FAILURES, Swept
from onejob.stores.postgres import PostgresStore
from tests.contract.support import LEASE, ManualClock, run, submit, sweep
from tests.services import eventually

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.stores.protocol import Store
    from tests.services import PostgresServer


def no_broker(job: Job) -> None:
    """Fail like an unavailable broker."""
    msg = f"no broker for {job.id}"
    raise BrokerUnavailableError(msg)


def test_old_jobs_are_purged_while_the_broker_is_down(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A sweep that cannot publish still purges old jobs."""
    for number in range(5):
        ledger.complete(run(store, f"old-{number}"), "1")
        submit(store, f"waiting-{number}", wake_in=DAY)
    clock.advance(DAY)
    with pytest.raises(BrokerUnavailableError):
        sweep(ledger, no_broker)
    assert {job.id for job in store.find(Query())} == {f"waiting-{number}" for number in range(5)}


def test_a_job_that_cannot_be_published_blocks_no_others(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """If the broker is away for one job only, the same sweep still publishes and recovers the others."""
    published: list[str] = []

    def publish(job: Job) -> None:
        if job.id == "poison":
            no_broker(job)
        published.append(job.id)

    for job_id in ("poison", "one", "two"):
        submit(store, job_id, wake_in=0.0)
    run(store, "lapsed")
    clock.advance(LEASE)
    with pytest.raises(BrokerUnavailableError, match="poison"):
        sweep(ledger, publish)
    assert sorted(published) == ["lapsed", "one", "two"]


def test_an_unavailable_broker_is_tried_a_few_times_only(ledger: Ledger, store: Store) -> None:
    """After a few failures a sweep stops publishing, and still recovers lost runs."""
    attempted: list[str] = []

    def publish(job: Job) -> None:
        attempted.append(job.id)
        no_broker(job)

    for number in range(20):
        submit(store, f"job-{number}", wake_in=0.0)
    with pytest.raises(BrokerUnavailableError):
        sweep(ledger, publish)
    assert len(attempted) == PUBLISH_FAILURES


def test_a_job_that_a_foreign_key_refers_to_blocks_no_others(
    postgres_server: PostgresServer, postgres_schema: str
) -> None:
    """If a user's table refers to an old job, the others of its batch are purged, and the error is raised."""
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


def test_a_sweep_reports_whether_more_jobs_may_be_due(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A sweep counts the due jobs of all kinds: if they are as many as its limit, there may be more."""
    for number in range(5):
        ledger.complete(run(store, f"old-{number}"), "1")
    clock.advance(DAY)
    sweeps = [sweep(ledger, lambda job: None, limit=2) for _ in range(3)]
    assert [(swept.seen, swept.purged) for swept in sweeps] == [(2, 2), (2, 2), (1, 1)]


def test_only_ended_jobs_are_purged(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """Of many jobs that are due at once, only the ended ones are purged."""
    for number in range(3):
        ledger.complete(run(store, f"ended-{number}"), "1")
    running = run(store, "running")
    clock.advance(DAY)
    submit(store, "queued", wake_in=LEASE)
    clock.advance(LEASE)
    swept = sweep(ledger, lambda job: None)
    assert swept == Swept(purged=3, lapsed=1, published=2)
    assert {job.id: job.state for job in store.find(Query())} == {running.id: State.QUEUED, "queued": State.QUEUED}
