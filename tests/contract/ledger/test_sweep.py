"""The sweep: due and lost jobs are published, expired, recovered or purged, each by one sweeper."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from onejob.errors import BrokerUnavailableError, StoreError, StoreUnavailableError
from onejob.jobs.lifecycle import FINAL, State
from onejob.jobs.policy import DAY, Policy
from onejob.jobs.records import Query
from onejob.ledger.ledger import Ledger
from onejob.ledger.publication import note_publication
from onejob.ledger.sweep import PUBLISH_FAILURES, SweepResult
from onejob.observability.events import SWEEP, JobEvent
from onejob.stores.postgres import PostgresStore
from tests.conftest import every_store
from tests.contract.ledger.world import World, no_broker, publish_nothing, refuse, retry
from tests.contract.support import LEASE, START, end, run, sweep
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import Job
    from tests.services import PostgresServer

HOLD = Policy().hold


def test_a_sweep_says_how_much_it_saw(world: World) -> None:
    """A sweep takes a hundred jobs, and reports in one event how many were due, and how many could not be sent."""
    emitted: list[JobEvent] = []
    world.ledger = Ledger(world.store, emit=emitted.append)
    assert (world.sweep().seen, world.sweep().failed) == (0, 0)
    emitted.clear()
    world.due(*(f"job-{number}" for number in range(101)))
    swept = world.sweep(refuse)
    assert (swept.seen, swept.failed, swept.published) == (100, 100, 0)
    (event,) = (each for each in emitted if each.name == SWEEP)
    assert event.fields == {"published": 0, "lapsed": 0, "canceled": 0, "purged": 0, "failed": 100, "seen": 100}
    assert world.sweep().seen == 1


def test_due_jobs_have_no_order(world: World) -> None:
    """The jobs of one sweep are published in another order each time, so that no job is always the first."""
    for number in range(12):
        world.submit(f"job-{number:02}")
    orders = set()
    for _ in range(3):
        world.clock.advance(DAY)
        world.sweep()
        orders.add(tuple(world.sent_ids))
        world.sent.clear()
    assert len(orders) > 1


# --- publication ----------------------------------------------------------------------------------------------------


def test_a_job_in_a_backlog_is_published_again_when_its_message_is_gone(world: World) -> None:
    """A job that waits in its queue for hours is seldom looked at; once its message is gone, it is published again."""
    world.submit(route="celery")
    looks: list[Job] = []
    for _ in range(12 * 60):
        world.clock.advance(60.0)
        world.sweep(gone_in=looks.append)
    assert (world.sent, 72 <= len(looks) <= 80) == ([], True)
    now = world.clock.advance(DAY)

    def gone_in(job: Job) -> float | None:
        return None if job.published_at == now else 0.0

    assert world.sweep(gone_in=gone_in) == SweepResult(published=1)
    assert world.read().published_at == now
    world.clock.advance(LEASE)
    assert world.sweep(gone_in=gone_in) == SweepResult()


# --- lost runs ------------------------------------------------------------------------------------------------------


def test_an_expired_lease_is_renewed_unless_a_sweep_has_ended_it(world: World) -> None:
    """A sweep that may not end leases leaves lost runs to a later one, and to their heartbeats, and does the rest."""
    job = world.run()
    world.run("lost")
    world.submit("waiting")
    world.clock.advance(2 * LEASE)
    assert world.sweep(may_end_leases=lambda: False) == SweepResult(published=1)
    assert [renewal.held for renewal in world.ledger.renew([(job.id, job.claim)])] == [True]
    assert world.sweep() == SweepResult(published=1, lapsed=1)
    assert (world.sent_ids, world.read().state) == (["waiting", "lost"], State.RUNNING)


def test_a_sweep_that_has_waited_ends_no_lease(world: World) -> None:
    """A sweep asks once more before it ends a lease, since its call for due jobs may have waited for long."""
    world.run()
    world.clock.advance(LEASE)
    given = iter([True, False])
    assert world.sweep(may_end_leases=lambda: next(given)) == SweepResult()
    assert world.read().state is State.RUNNING


# --- followers -------------------------------------------------------------------------------------------------------


@every_store
def test_a_waiting_follower_costs_little(world: World) -> None:
    """A sweep looks at a waiting follower each time that its age has doubled, and publishes it after the end."""
    followed = world.run(identity="same", lease=1e6)
    world.follow()
    looked: list[float] = []
    for _ in range(100):
        world.clock.advance(LEASE / 2)
        before = len(world.events("follower"))
        assert world.sweep(publish_nothing) == SweepResult()
        looked += [world.clock() - START] * (len(world.events("follower")) - before)
    assert [seconds / LEASE for seconds in looked] == [1, 2, 4, 8, 16, 32]
    end(world.store, followed)
    assert world.sweep() == SweepResult(published=1)
    assert (world.sent_ids, world.read("follower").wake_at) == (["follower"], world.clock() + LEASE)


# --- what happens between a publication and its note ----------------------------------------------------------------


MEANWHILE: dict[str, Callable[[World], Job]] = {
    "claim": lambda world: world.start(),
    "retry": lambda world: retry(world.ledger, world.start(), delay=5.0),
    "release": lambda world: world.ledger.release(world.start(), "shutting down"),
    "cancel": lambda world: world.ledger.cancel("job-1"),
}


@pytest.mark.parametrize("before", ["the message", "the note"])
@pytest.mark.parametrize("name", MEANWHILE)
def test_what_happens_during_a_publication_is_not_overwritten(world: World, name: str, before: str) -> None:
    """If a job is changed after the sweep has read it, the publication is a copy, and is not noted on the job."""
    world.submit()
    for _ in range(4):
        world.clock.advance(LEASE * 8)
        world.sweep()
    world.clock.advance(LEASE * 8)
    left: list[Job] = []

    def change(*_: object) -> None:
        left.append(MEANWHILE[name](world))

    if before == "the message":
        world.meanwhile("take_due", change)
    world.sweep(None if before == "the message" else change)
    assert [world.read()] == left
    assert world.events()[-1] == name


# --- a broker, a store and other jobs that fail ---------------------------------------------------------------------


def test_an_outage_delays_no_recovery_and_no_purge(world: World) -> None:
    """A sweep publishes no more after three failures, but has recovered lost runs first, and purges old jobs."""
    world.ledger.complete(world.run("old"), "1")
    world.clock.advance(DAY - LEASE)
    for number in range(10):
        world.submit(f"job-{number}")
    for number in range(2):
        world.run(f"lost-{number}")
    world.clock.advance(LEASE)

    def publish_in_vain(job: Job) -> None:
        world.sent.append(job)
        no_broker(job)

    with pytest.raises(BrokerUnavailableError, match="no broker for lost-"):
        world.sweep(publish_in_vain)
    assert sorted(world.sent_ids[:2]) == ["lost-0", "lost-1"]
    assert len(world.sent) == PUBLISH_FAILURES == 3
    assert [world.read(f"lost-{number}").state for number in range(2)] == [State.QUEUED] * 2
    assert world.gone("old")


@pytest.mark.parametrize("place", ["message_of", "gone_in", "dispatcher"])
def test_an_unexpected_error_of_one_job_is_raised_at_the_end(world: World, place: str) -> None:
    """Any other error of one job is raised at the end, after the other jobs were published and purged."""

    def fail(job: Job) -> None:
        if job.id == "bad":
            raise LookupError(job.id)

    world.ledger.complete(world.run("ended"), "1")
    bad = world.submit("bad", task="carried" if place == "dispatcher" else "app.add", route="celery")
    note_publication(world.ledger, bad, "")
    world.clock.advance(DAY)
    world.due("good")
    options = {"dispatchers": {"carried": fail}} if place == "dispatcher" else {place: fail}
    if place == "message_of":
        world.ledger.mark_lost(["bad"])
    with pytest.raises(LookupError, match="bad"):
        world.sweep(**options)
    assert (world.sent_ids, world.gone("ended")) == (["good"], True)


def test_an_error_of_the_store_ends_the_sweep(world: World) -> None:
    """When the store fails, no other job is published without a record of it, and all are published after `hold`."""

    def away() -> None:
        raise StoreUnavailableError

    world.due("job-0", "job-1", "job-2")
    world.meanwhile("apply", away)
    with pytest.raises(StoreUnavailableError):
        world.sweep()
    assert len(world.sent) == 1
    world.use(Policy())
    world.clock.advance(HOLD)
    assert world.sweep().published >= 2


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


# --- dispatchers ----------------------------------------------------------------------------------------------------


def test_a_dispatcher_gets_jobs_instead_of_the_broker(world: World) -> None:
    """The jobs of a task with a dispatcher go to it, unpublished, and those left are due again after `hold`."""
    world.submit("job-1", task="carried")
    world.submit("job-2")
    carried: list[str] = []
    dispatchers = {"carried": lambda job: carried.append(job.id)}
    world.clock.advance(LEASE)
    assert world.sweep(dispatchers=dispatchers) == SweepResult(published=1)
    assert (world.sent_ids, carried) == (["job-2"], ["job-1"])
    assert (world.read().published, world.read().wake_at, world.events()) == (0, world.clock() + HOLD, ["submit"])
    world.clock.advance(HOLD)
    world.sweep(dispatchers=dispatchers)
    assert carried == ["job-1", "job-1"]


def test_dispatchers_work_while_the_broker_is_down(world: World) -> None:
    """However many publications fail, a dispatcher gets its jobs, also one whose lease has expired."""
    world.run("recovered", task="carried")
    for number in range(10):
        world.submit(f"lost-{number}")
        world.submit(f"carried-{number}", task="carried")
    carried: list[str] = []
    world.clock.advance(LEASE)
    with pytest.raises(BrokerUnavailableError):
        world.sweep(no_broker, dispatchers={"carried": lambda job: carried.append(job.id)})
    assert sorted(carried) == [*(f"carried-{number}" for number in range(10)), "recovered"]
    assert world.events("recovered") == ["submit", "claim", "crash"]
