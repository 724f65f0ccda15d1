"""The sweep, where a script cannot tell it: what fails, or happens meanwhile, and what is sent elsewhere."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pytest

from onejob.errors import BrokerUnavailableError, StoreError, StoreRefusedError, StoreUnavailableError
from onejob.jobs.lifecycle import FINAL, State
from onejob.jobs.model import Applied, BrokerMessage, Cancel, Job
from onejob.jobs.policy import DAY, Policy
from onejob.jobs.records import Query
from onejob.jobs.transitions import cancel_change
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import (
    PUBLISH_FAILURES,
    SweepResult,
    abandon_canvas,
    fail_unpublishable,
    note_canvas_error,
    note_notification,
    note_publication,
    note_unsent,
)
from onejob.observability.events import SWEEP, JobEvent
from onejob.stores.postgres import PostgresStore
from tests.cases import for_each
from tests.conftest import every_store
from tests.contract.ledger.world import World, no_broker, publish_nothing, refuse
from tests.contract.support import LEASE, run, sweep, untouched
from tests.services import PostgresServer, eventually

HOLD = Policy().hold
OFFER = BrokerMessage("celery", "")


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


def test_a_sweep_offers_again_what_no_live_worker_holds(world: World) -> None:
    """Where workers take jobs from the ledger, a sweep leaves them alone, and offers one whose taker is gone again."""
    store: Any = world.store
    delivers: dict[str, Any] = {"message_of": lambda _: OFFER, "is_delivered": lambda _: True}
    world.submit(route="celery", delay=1.0, lease=LEASE)
    world.clock.advance(1.0)
    world.sweep(**delivers)
    assert [entry.event for entry in world.ledger.history("job-1")] == ["submit"]
    assert [job.id for job in store.deliver(["celery"], limit=9)] == ["job-1"]
    taken_at = world.clock.now
    for gone_in, published_at in ((None, taken_at), (0.0, None)):
        world.clock.advance(LEASE)
        world.sweep(**delivers, gone_in=lambda _, seconds=gone_in: seconds)
        assert world.read().published_at == published_at
    assert (world.sent, [job.id for job in store.deliver(["celery"], limit=9)]) == ([], ["job-1"])


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


@every_store
@for_each("note", [note_unsent, partial(note_publication, error=""), partial(fail_unpublishable, reason="no queue")])
def test_a_note_on_an_earlier_wait_changes_nothing(world: World, note: Callable[[Ledger, Job], Applied]) -> None:
    """What is noted of a message is refused when a run has come in between, also if the job waits again."""
    stale = world.submit(str(note))
    world.ledger.release(world.start(stale.id), "again")
    with untouched(world.store, stale.id):
        assert not note(world.ledger, stale).applied


@every_store
@for_each(
    "note, redriven",
    [(note, redriven) for redriven in (False, True) for note in
     (partial(note_notification, error=""), partial(note_canvas_error, error="away"), abandon_canvas)],
)  # fmt: skip
def test_a_note_on_an_earlier_end_changes_nothing(
    world: World, note: Callable[[Ledger, Job], Applied], redriven: bool
) -> None:
    """What is noted of a canvas is refused when it was notified, or when the job has run and ended once more."""
    stale = world.ledger.fail(world.run(f"{redriven} {note}", canvas=True), "{}", "failed")
    if redriven:
        world.ledger.redrive(stale.id, canvas=True)
        world.ledger.fail(world.start(stale.id), "{}", "failed again")
    else:
        world.ledger.mark_canvas_notified(stale)
    with untouched(world.store, stale.id):
        assert not note(world.ledger, stale).applied


@every_store
def test_a_request_to_cancel_an_earlier_run_reaches_no_later_one(world: World) -> None:
    """A request that was made for one run of a job is refused when the job has another one."""
    earlier = world.run("again")
    world.ledger.release(earlier, "again")
    later = world.start(earlier.id)
    with untouched(world.store, later.id):
        assert not world.store.apply(cancel_change(Policy(), earlier, Cancel.FORCED, "too late")).applied


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
    world.clock.advance(HOLD)
    assert world.sweep().published >= 2


def test_an_old_job_that_cannot_be_deleted_keeps_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store cannot delete one old job, the others of its batch are purged, and the error is raised once."""
    delete, refusals = world.store.delete, []

    def refuse_one(job_ids: list[str], **options: object) -> list[str]:
        if "old-2" in job_ids:
            refusals.append(StoreRefusedError(" ".join(job_ids)))
            raise refusals[-1]
        return delete(job_ids, **options)  # type: ignore[arg-type]

    for number in range(4):
        world.ledger.complete(world.run(f"old-{number}"), "1")
    world.clock.advance(DAY)
    monkeypatch.setattr(world.store, "delete", refuse_one)
    with pytest.raises(StoreRefusedError) as caught:
        world.sweep(publish_nothing)
    assert caught.value is refusals[-1]
    assert (str(caught.value), len(refusals)) == ("old-2", 2)
    assert [job.id for job in world.store.find(Query())] == ["old-2"]


def test_only_followers_cost_a_look_at_what_they_follow(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep of jobs that follow none reads no other job."""
    world.submit()
    world.clock.advance(LEASE)
    monkeypatch.setattr(world.store, "get_many", lambda job_ids: pytest.fail(f"read {job_ids}"))
    assert world.sweep() == SweepResult(published=1)


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
