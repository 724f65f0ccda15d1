"""The sweep, where a script cannot tell it: what fails, or happens meanwhile, and what is sent elsewhere."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pytest

from onejob.errors import BrokerUnavailableError, StoreError, StoreRefusedError, StoreUnavailableError
from onejob.jobs.durations import DAY
from onejob.jobs.handover import OFFERED
from onejob.jobs.ledger_settings import LedgerSettings
from onejob.jobs.lifecycle import FINAL, State
from onejob.jobs.model import Applied, Cancel, JobRow
from onejob.jobs.query import Query
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
from tests.ledger.harness import LedgerHarness, no_broker, publish_nothing, refuse
from tests.services import PostgresServer, eventually
from tests.stores.support import LEASE, run, sweep, untouched

HOLD = LedgerSettings().hold


def test_a_sweep_says_how_much_it_saw(harness: LedgerHarness) -> None:
    """A sweep takes a hundred jobs, and reports in one event how many were due, and how many could not be sent."""
    emitted: list[JobEvent] = []
    harness.ledger = Ledger(harness.store, emit=emitted.append)
    assert (harness.sweep().seen, harness.sweep().failed) == (0, 0)
    emitted.clear()
    harness.due(*(f"job-{number}" for number in range(101)))
    swept = harness.sweep(refuse)
    assert (swept.seen, swept.failed, swept.published) == (100, 100, 0)
    (event,) = (each for each in emitted if each.name == SWEEP)
    fields = {"published": 0, "lapsed": 0, "canceled": 0, "purged": 0, "parked": 0, "failed": 100, "seen": 100}
    assert event.fields == fields
    assert harness.sweep().seen == 1


def test_a_sweep_offers_again_what_no_live_worker_holds(harness: LedgerHarness) -> None:
    """Where workers take jobs from the ledger, a sweep leaves them alone, and offers one whose taker is gone again."""
    store: Any = harness.store
    delivers: dict[str, Any] = {"by_store": lambda _: OFFERED, "workers_take": lambda _: True}
    harness.submit(route="celery", delay=1.0, lease=LEASE)
    harness.clock.advance(1.0)
    harness.sweep(**delivers)
    assert [entry.event for entry in harness.ledger.history("job-1")] == ["submit"]
    assert [job.id for job in store.deliver(["celery"], limit=9)] == ["job-1"]
    taken_at = harness.clock.now
    for gone_in, published_at in ((None, taken_at), (0.0, None)):
        harness.clock.advance(LEASE)
        harness.sweep(**delivers, gone_in=lambda _, seconds=gone_in: seconds)
        assert harness.read().published_at == published_at
    assert (harness.sent, [job.id for job in store.deliver(["celery"], limit=9)]) == ([], ["job-1"])


def test_due_jobs_have_no_order(harness: LedgerHarness) -> None:
    """The jobs of one sweep are published in another order each time, so that no job is always the first."""
    for number in range(12):
        harness.submit(f"job-{number:02}")
    orders = set()
    for _ in range(3):
        harness.clock.advance(DAY)
        harness.sweep()
        orders.add(tuple(harness.sent_ids))
        harness.sent.clear()
    assert len(orders) > 1


@every_store
@for_each("note", [note_unsent, partial(note_publication, error=""), partial(fail_unpublishable, reason="no queue")])
def test_a_note_on_an_earlier_wait_changes_nothing(
    harness: LedgerHarness, note: Callable[[Ledger, JobRow], Applied]
) -> None:
    """What is noted of a message is refused when a run has come in between, also if the job waits again."""
    stale = harness.submit(str(note))
    harness.ledger.release(harness.start(stale.id), "again")
    with untouched(harness.store, stale.id):
        assert not note(harness.ledger, stale).applied


@every_store
@for_each(
    "note, redriven",
    [(note, redriven) for redriven in (False, True) for note in
     (partial(note_notification, error=""), partial(note_canvas_error, error="away"), abandon_canvas)],
)  # fmt: skip
def test_a_note_on_an_earlier_end_changes_nothing(
    harness: LedgerHarness, note: Callable[[Ledger, JobRow], Applied], redriven: bool
) -> None:
    """What is noted of a canvas is refused when it was notified, or when the job has run and ended once more."""
    stale = harness.ledger.fail(harness.run(f"{redriven} {note}", canvas=True), "{}", "failed")
    if redriven:
        harness.ledger.redrive(stale.id, canvas=True)
        harness.ledger.fail(harness.start(stale.id), "{}", "failed again")
    else:
        harness.ledger.mark_canvas_notified(stale)
    with untouched(harness.store, stale.id):
        assert not note(harness.ledger, stale).applied


@every_store
def test_a_request_to_cancel_an_earlier_run_reaches_no_later_one(harness: LedgerHarness) -> None:
    """A request that was made for one run of a job is refused when the job has another one."""
    earlier = harness.run("again")
    harness.ledger.release(earlier, "again")
    later = harness.start(earlier.id)
    with untouched(harness.store, later.id):
        assert not harness.store.apply(cancel_change(LedgerSettings(), earlier, Cancel.FORCED, "too late")).applied


# --- a broker, a store and other jobs that fail ---------------------------------------------------------------------


def test_an_outage_delays_no_recovery_and_no_purge(harness: LedgerHarness) -> None:
    """A sweep publishes no more after three failures, but has recovered lost runs first, and purges old jobs."""
    harness.ledger.complete(harness.run("old"), "1")
    harness.clock.advance(DAY - LEASE)
    for number in range(10):
        harness.submit(f"job-{number}")
    for number in range(2):
        harness.run(f"lost-{number}")
    harness.clock.advance(LEASE)

    def publish_in_vain(job: JobRow) -> None:
        harness.sent.append(job)
        no_broker(job)

    with pytest.raises(BrokerUnavailableError, match="no broker for lost-"):
        harness.sweep(publish_in_vain)
    assert sorted(harness.sent_ids[:2]) == ["lost-0", "lost-1"]
    assert len(harness.sent) == PUBLISH_FAILURES == 3
    assert [harness.read(f"lost-{number}").state for number in range(2)] == [State.QUEUED] * 2
    assert harness.gone("old")


@pytest.mark.parametrize("place", ["by_store", "gone_in", "dispatcher"])
def test_an_unexpected_error_of_one_job_is_raised_at_the_end(harness: LedgerHarness, place: str) -> None:
    """Any other error of one job is raised at the end, after the other jobs were published and purged."""

    def fail(job: JobRow) -> None:
        if job.id == "bad":
            raise LookupError(job.id)

    harness.ledger.complete(harness.run("ended"), "1")
    bad = harness.submit("bad", task="carried" if place == "dispatcher" else "app.add", route="celery")
    note_publication(harness.ledger, bad, "")
    harness.clock.advance(DAY)
    harness.due("good")
    options = {"dispatchers": {"carried": fail}} if place == "dispatcher" else {place: fail}
    if place == "by_store":
        harness.ledger.mark_lost(["bad"])
    with pytest.raises(LookupError, match="bad"):
        harness.sweep(**options)
    assert harness.sent_ids == ["good"]
    assert harness.gone("ended")


def test_an_error_of_the_store_ends_the_sweep(harness: LedgerHarness) -> None:
    """When the store fails, no other job is published without a record of it, and all are published after `hold`."""

    def away() -> None:
        raise StoreUnavailableError

    harness.due("job-0", "job-1", "job-2")
    harness.meanwhile("apply", away)
    with pytest.raises(StoreUnavailableError):
        harness.sweep()
    assert len(harness.sent) == 1
    harness.clock.advance(HOLD)
    assert harness.sweep().published >= 2


def test_an_old_job_that_cannot_be_deleted_keeps_no_other(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the store cannot delete one old job, the others of its batch are purged, and the error is raised once."""
    delete, refusals = harness.store.delete, []

    def refuse_one(job_ids: list[str], **options: object) -> list[str]:
        if "old-2" in job_ids:
            refusals.append(StoreRefusedError(" ".join(job_ids)))
            raise refusals[-1]
        return delete(job_ids, **options)  # type: ignore[arg-type]

    for number in range(4):
        harness.ledger.complete(harness.run(f"old-{number}"), "1")
    harness.clock.advance(DAY)
    monkeypatch.setattr(harness.store, "delete", refuse_one)
    with pytest.raises(StoreRefusedError) as caught:
        harness.sweep(publish_nothing)
    assert caught.value is refusals[-1]
    assert (str(caught.value), len(refusals)) == ("old-2", 2)
    assert [job.id for job in harness.store.find(Query())] == ["old-2"]


def test_only_followers_cost_a_look_at_what_they_follow(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep of jobs that follow none reads no other job."""
    harness.submit()
    harness.clock.advance(LEASE)
    monkeypatch.setattr(harness.store, "get_many", lambda job_ids: pytest.fail(f"read {job_ids}"))
    assert harness.sweep() == SweepResult(published=1)


def test_a_job_that_a_foreign_key_refers_to_blocks_no_others(
    postgres_server: PostgresServer, postgres_schema: str
) -> None:
    """If a user's table refers to an old job, the others of its batch are purged, and the error is raised."""
    with closing(PostgresStore(postgres_server.url, schema=postgres_schema)) as store:
        ledger = Ledger(store, LedgerSettings(retention=dict.fromkeys(FINAL, 0.001)))
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


def test_a_dispatcher_gets_jobs_instead_of_the_broker(harness: LedgerHarness) -> None:
    """The jobs of a task with a dispatcher go to it, unpublished, and those left are due again after `hold`."""
    harness.submit("job-1", task="carried")
    harness.submit("job-2")
    carried: list[str] = []
    dispatchers = {"carried": lambda job: carried.append(job.id)}
    harness.clock.advance(LEASE)
    assert harness.sweep(dispatchers=dispatchers) == SweepResult(published=1)
    assert (harness.sent_ids, carried) == (["job-2"], ["job-1"])
    assert (harness.read().published, harness.read().wake_at, harness.events()) == (
        0,
        harness.clock() + HOLD,
        ["submit"],
    )
    harness.clock.advance(HOLD)
    harness.sweep(dispatchers=dispatchers)
    assert carried == ["job-1", "job-1"]


def test_dispatchers_work_while_the_broker_is_down(harness: LedgerHarness) -> None:
    """However many publications fail, a dispatcher gets its jobs, also one whose lease has expired."""
    harness.run("recovered", task="carried")
    for number in range(10):
        harness.submit(f"lost-{number}")
        harness.submit(f"carried-{number}", task="carried")
    carried: list[str] = []
    harness.clock.advance(LEASE)
    with pytest.raises(BrokerUnavailableError):
        harness.sweep(no_broker, dispatchers={"carried": lambda job: carried.append(job.id)})
    assert sorted(carried) == [*(f"carried-{number}" for number in range(10)), "recovered"]
    assert harness.events("recovered") == ["submit", "claim", "crash"]
