"""The sweep: due and lost jobs are published, expired, recovered or purged, each by one sweeper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from onejob.errors import BrokerUnavailableError, StoreUnavailableError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Outcome
from onejob.jobs.policy import DAY, Policy
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import Swept
from tests.contract.support import (
    LEASE,
    RUNNING,
    START,
    ManualClock,
    after,
    apply,
    assert_changed,
    end,
    events,
    get,
    holders,
    read,
    run,
    start,
    submission,
    submit,
    sweep,
    take_due,
    untouched,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import Job
    from onejob.stores.protocol import Store

HOLD = Policy().hold


class Publisher:
    """Records the jobs that it publishes."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def __call__(self, job: Job) -> None:
        self.jobs.append(job)

    @property
    def ids(self) -> list[str]:
        return [job.id for job in self.jobs]


@pytest.fixture
def publish() -> Publisher:
    """Return a publisher that always succeeds."""
    return Publisher()


def fail_to_publish(job: Job) -> None:
    """Fail like an unavailable broker."""
    msg = f"no broker for {job.id}"
    raise BrokerUnavailableError(msg)


def test_jobs_that_are_not_due_are_left_alone(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """A sweep touches no job whose `wake_at` is not due, in any state."""
    ids = ["job-1", "job-2", "job-3"]
    submit(store, "job-1")
    run(store, "job-2")
    end(store, run(store, "job-3"))
    clock.advance(LEASE - 0.5)
    with untouched(store, *ids):
        assert sweep(ledger, publish) == Swept()
    assert publish.ids == []


def test_a_lost_message_is_published_again(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """A queued job that was not claimed for one lease is published, and due again after another one."""
    ledger.submit(submission())
    job = read(store)
    now = clock.advance(LEASE)
    assert sweep(ledger, publish) == Swept(published=1)
    assert publish.ids == ["job-1"]
    assert_changed(store, job, get(store, "job-1"), published=1, wake_at=now + LEASE)
    assert events(store) == ["submit", "publish"]


def test_a_delayed_job_is_published_when_it_is_due(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """A job with a delay is published when it is due, and not before."""
    ledger.submit(submission(delay=3600.0))
    clock.advance(3599.5)
    assert sweep(ledger, publish) == Swept()
    clock.advance(0.5)
    assert sweep(ledger, publish) == Swept(published=1)
    assert start(store).attempt == 1


def test_a_retry_is_published_when_it_is_due(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """A retry with a delay is published with its new payload and options when it is due."""
    ledger.retry(run(store), delay=60.0, payload="[7]", options="[8]", retries=1, error=None, reason="again")
    clock.advance(59.5)
    assert sweep(ledger, publish) == Swept()
    clock.advance(0.5)
    assert sweep(ledger, publish) == Swept(published=1)
    assert (publish.jobs[0].payload, publish.jobs[0].options) == ("[7]", "[8]")
    assert start(store).attempt == 2


def test_publications_back_off(ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher) -> None:
    """Each publication of a waiting job is followed by a pause twice as long as the one before, without a cap."""
    ledger.submit(submission(lease=10.0))
    clock.advance(10.0)
    for number, count in enumerate([1, 2, 4, 8, 16, 32, 64], start=1):
        assert sweep(ledger, publish) == Swept(published=1)
        assert read(store).published == number
        assert read(store).wake_at == clock() + 10.0 * count
        clock.advance(10.0 * count - 0.5)
        assert sweep(ledger, publish) == Swept()
        clock.advance(0.5)


def test_a_job_in_a_backlog_is_published_a_few_times_a_day(
    ledger: Ledger, clock: ManualClock, publish: Publisher
) -> None:
    """A job that waits for a worker for twelve hours is published at most a dozen times."""
    ledger.submit(submission(lease=30.0))
    for _ in range(12 * 60):
        clock.advance(60.0)
        sweep(ledger, publish)
    assert 8 <= len(publish.ids) <= 12


def test_publications_back_off_anew_after_a_run(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """After a run, a job starts with the shortest pause again."""
    ledger.submit(submission())
    for _ in range(3):
        clock.advance(LEASE * 8)
        sweep(ledger, publish)
    ledger.release(start(store), "shutting down")
    now = clock.advance(LEASE)
    sweep(ledger, publish)
    assert read(store).wake_at == now + LEASE


def test_a_publication_sets_no_wake_at_after_the_expiry(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """A publication does not set `wake_at` later than the job's expiry."""
    ledger.submit(submission(expires_in=LEASE + 4.0))
    clock.advance(LEASE)
    assert sweep(ledger, publish) == Swept(published=1)
    assert read(store).wake_at == START + LEASE + 4.0


def test_an_expired_job_is_canceled(ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher) -> None:
    """A job that expires before a run is canceled, not published, and its identity is free."""
    ledger.submit(submission(expires_in=5.0))
    job = read(store)
    now = clock.advance(5.0)
    assert sweep(ledger, publish) == Swept(canceled=1)
    assert publish.ids == []
    assert_changed(
        store, job, get(store, "job-1"), state=State.CANCELED, holds_identity=False, finished_at=now, wake_at=now + DAY,
        reason="it expired before a run started",
    )  # fmt: skip
    assert holders(store, job.identity) == []


@pytest.mark.parametrize(("rejects", "many"), [(False, False), (True, False), (False, True)])
def test_an_expired_job_does_not_answer_a_submission(
    ledger: Ledger, store: Store, clock: ManualClock, rejects: bool, many: bool
) -> None:
    """A submission that is a duplicate of an expired job cancels that job, and is admitted."""
    ledger.submit(submission("job-1", identity="same", expires_in=5.0))
    clock.advance(4.9)
    assert ledger.submit(submission("job-2", identity="same")).outcome is Outcome.ATTACHED
    clock.advance(0.1)
    new = submission("job-3", identity="same", rejects=rejects)
    (answer,) = ledger.submit_many([new]) if many else [ledger.submit(new)]
    assert (answer.outcome, answer.job.id) == (Outcome.ADMITTED, "job-3")
    assert (read(store).state, events(store)[-1]) == (State.CANCELED, "expire")


def test_the_canvas_of_an_expired_job_is_notified(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """If a canvas waits, the next sweep publishes the expired job, so that a worker notifies the canvas."""
    ledger.submit(submission(expires_in=5.0, canvas=True))
    clock.advance(5.0)
    assert sweep(ledger, publish) == Swept(canceled=1)
    assert sweep(ledger, publish) == Swept(published=1)
    assert publish.jobs[0].state is State.CANCELED


def test_a_run_whose_lease_expired_is_queued_and_published(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """A job whose run was lost is queued again and published by the same sweep, with one more crash."""
    job = run(store)
    now = clock.advance(LEASE)
    assert sweep(ledger, publish) == Swept(published=1, lapsed=1)
    assert publish.jobs == [read(store)]
    assert_changed(
        store, job, get(store, "job-1"), state=State.QUEUED, crashes=1, lease_until=None, wake_at=now + LEASE,
        reason="its lease expired",
    )  # fmt: skip
    assert events(store)[-1] == "crash"


def test_an_expired_lease_is_renewed_unless_a_sweep_has_ended_it(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """A sweep that may not end leases leaves a run alone whose lease has expired, and the run can renew its lease."""
    job = run(store)
    clock.advance(2 * LEASE)
    assert sweep(ledger, publish, may_end_leases=lambda: False) == Swept()
    assert [renewal.held for renewal in ledger.renew([(job.id, job.claim)])] == [True]
    clock.advance(HOLD)
    assert sweep(ledger, publish) == Swept()
    assert (read(store).state, read(store).attempt, read(store).crashes) == (State.RUNNING, 1, 0)


def test_a_sweep_that_may_not_end_leases_delays_no_other(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """A run whose lease has expired is recovered at once by a sweep that may, after one that may not."""
    run(store)
    clock.advance(2 * LEASE)
    assert sweep(ledger, publish, may_end_leases=lambda: False) == Swept()
    assert sweep(ledger, publish).lapsed == 1


def test_a_renewed_run_is_left_alone(ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher) -> None:
    """A run whose lease was renewed is not swept at the end of its first lease."""
    job = run(store)
    clock.advance(LEASE - 1.0)
    ledger.renew([(job.id, job.claim)])
    clock.advance(2.0)
    with untouched(store):
        assert sweep(ledger, publish) == Swept()


def test_a_lease_that_is_renewed_during_the_sweep_has_not_expired(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """A renewal after the sweep has read the job prevents its recovery."""
    job = run(store)
    clock.advance(LEASE)
    seen = take_due(store, limit=1, hold=HOLD)[0]
    ledger.renew([(job.id, job.claim)])
    assert not ledger.crash(seen, "its lease expired", "{}", lapsed=True).applied
    assert read(store).state is State.RUNNING


@pytest.mark.parametrize("limit", [1, 3])
def test_a_run_that_is_renewed_during_the_sweep_goes_on(
    store: Store, clock: ManualClock, publish: Publisher, limit: int
) -> None:
    """A late heartbeat, before the sweep writes, prevents a crash and a dead letter."""
    job = run(store)
    now = clock.advance(LEASE)
    meanwhile = after(store, "take_due", lambda: store.renew([(job.id, job.claim)], sources=RUNNING))
    assert sweep(Ledger(meanwhile, Policy(crash_limit=limit)), publish) == Swept()
    assert_changed(store, job, get(store, "job-1"), lease_until=now + LEASE, wake_at=now + LEASE)


def test_a_run_that_ends_during_the_sweep_has_ended(store: Store, clock: ManualClock, publish: Publisher) -> None:
    """A late end, before the sweep writes, is the job's end."""
    job = run(store)
    clock.advance(LEASE)
    meanwhile = after(store, "take_due", lambda: Ledger(store).complete(job, "1"))
    assert sweep(Ledger(meanwhile), publish) == Swept()
    assert (read(store).state, publish.ids) == (State.COMPLETED, [])


def test_a_job_that_is_claimed_during_the_sweep_runs(store: Store, clock: ManualClock, publish: Publisher) -> None:
    """If a job is claimed after the sweep has read it, the publication is a harmless copy."""
    Ledger(store).submit(submission())
    now = clock.advance(LEASE)
    sweep(Ledger(after(store, "take_due", lambda: start(store))), publish)
    assert (read(store).state, read(store).published, read(store).wake_at) == (State.RUNNING, 0, now + LEASE)


def test_a_sweep_dead_letters_a_job_at_the_crash_limit(store: Store, clock: ManualClock, publish: Publisher) -> None:
    """At the crash limit, an expired lease fails the job: nothing is published, and the error says what happened."""
    ledger = Ledger(store, Policy(crash_limit=1))
    run(store)
    now = clock.advance(LEASE)
    assert sweep(ledger, publish) == Swept(lapsed=1)
    assert publish.ids == []
    failed = read(store)
    assert (failed.state, failed.holds_identity, failed.wake_at) == (State.FAILED, False, now + 14 * DAY)
    assert failed.error is not None
    assert "WorkerLost" in failed.error


def test_a_lapsed_run_with_a_cancel_request_is_canceled(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """A cancel request outlives the worker: the expired lease cancels the job, and nothing is published."""
    run(store)
    ledger.cancel("job-1", force=True)
    clock.advance(LEASE)
    assert sweep(ledger, publish) == Swept(lapsed=1)
    assert publish.ids == []
    assert read(store).state is State.CANCELED


@pytest.mark.parametrize(
    ("event", "days"),
    [(Transition.COMPLETE, 1), (Transition.FAIL, 14), (Transition.ABANDON, 1), (Transition.CANCEL, 1)],
)
def test_an_ended_job_is_purged_after_its_retention(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher, event: Transition, days: int
) -> None:
    """An ended job is kept for its state's retention, and then deleted with its history."""
    _end_through(ledger, store, event)
    clock.advance(days * DAY - 0.5)
    with untouched(store):
        assert sweep(ledger, publish) == Swept()
    clock.advance(0.5)
    assert sweep(ledger, publish) == Swept(purged=1)
    assert get(store, "job-1") is None
    assert store.history("job-1") == []
    assert publish.ids == []


def _end_through(ledger: Ledger, store: Store, event: Transition) -> None:
    if event is Transition.CANCEL:
        ledger.cancel(submit(store).id)
        return
    job = run(store)
    ends: dict[Transition, Callable[[Job, str], object]] = {
        Transition.COMPLETE: ledger.complete,
        Transition.ABANDON: ledger.abandon,
    }
    ends[event](job, "1") if event in ends else ledger.fail(job, "1", "broken")


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELED])
def test_each_state_has_its_retention(store: Store, clock: ManualClock, state: State) -> None:
    """Each state's retention can be set, and the default is one day."""
    ledger = Ledger(store, Policy(retention={state: 7.0}))
    for each in (Transition.COMPLETE, Transition.FAIL, Transition.ABANDON):
        submit(store, each)
        ended = _apply_end(ledger, start(store, each), each)
        assert ended.wake_at == START + (7.0 if ended.state is state else DAY)


def _apply_end(ledger: Ledger, job: Job, event: Transition) -> Job:
    if event is Transition.COMPLETE:
        return ledger.complete(job, "1")
    return ledger.abandon(job, "stopped") if event is Transition.ABANDON else ledger.fail(job, "1", "broken")


@pytest.mark.parametrize("event", [Transition.CANCEL, Transition.EXPIRE])
def test_a_job_whose_canvas_was_notified_is_kept_for_its_retention(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher, event: Transition
) -> None:
    """After its canvas was notified, a job is kept for its retention, also after its expiry."""
    submit(store, canvas=True, expires_in=5.0)
    apply(store, read(store), event, wake_in=0.0)
    now = clock.advance(5.0)
    ledger.mark_canvas_notified(read(store))
    assert read(store).wake_at == now + DAY
    assert sweep(ledger, publish) == Swept()


def test_a_job_without_a_canvas_keeps_its_retention(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A notification of a canvas does not extend the retention of a job without a canvas."""
    ledger.complete(run(store), "1")
    clock.advance(1.0)
    with untouched(store):
        ledger.mark_canvas_notified(read(store))


def test_a_second_notification_of_the_canvas_changes_nothing(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A second notification of a job's canvas changes nothing."""
    ledger.complete(run(store, canvas=True), "1")
    ledger.mark_canvas_notified(read(store))
    clock.advance(1.0)
    with untouched(store):
        ledger.mark_canvas_notified(read(store))


def test_a_publication_that_fails_is_tried_again(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """When the broker is down, the job's `wake_at` is due again after `hold`, and no publication is counted."""
    ledger.submit(submission())
    clock.advance(LEASE)
    with pytest.raises(BrokerUnavailableError):
        sweep(ledger, fail_to_publish)
    assert (read(store).published, events(store)) == (0, ["submit"])
    assert sweep(ledger, publish) == Swept()
    clock.advance(HOLD)
    assert sweep(ledger, publish) == Swept(published=1)


def test_a_recovered_run_survives_a_publication_that_fails(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """When the broker is down, a lost run's job is still queued, and published one lease later."""
    run(store)
    clock.advance(LEASE)
    with pytest.raises(BrokerUnavailableError):
        sweep(ledger, fail_to_publish)
    assert read(store).state is State.QUEUED
    clock.advance(LEASE)
    assert sweep(ledger, publish) == Swept(published=1)


def test_a_claim_during_the_publication_is_not_overwritten(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """If a worker claims the job before the sweep notes the publication, the run keeps its lease and `wake_at`."""
    ledger.submit(submission())
    now = clock.advance(LEASE)
    sweep(ledger, lambda job: start(store, job.id))
    job = read(store)
    assert (job.state, job.published, job.wake_at) == (State.RUNNING, 0, now + LEASE)


def test_a_run_during_the_publication_is_not_overwritten(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """If a worker runs and releases the job before the publication is noted, the new wait keeps its `wake_at`."""
    ledger.submit(submission())
    clock.advance(LEASE)
    again = partial(ledger.retry, delay=5.0, payload="[]", options="[]", retries=1, error=None, reason="again")
    sweep(ledger, lambda job: again(start(store, job.id)))
    job = read(store)
    assert (job.state, job.published, job.wake_at) == (State.RETRYING, 0, clock() + 5.0)


def test_a_release_during_the_publication_is_not_overwritten(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """The publication of one wait is not noted on the next one."""
    ledger.submit(submission())
    for _ in range(3):
        clock.advance(LEASE * 8)
        sweep(ledger, lambda _: None)
    now = clock.advance(LEASE * 8)
    sweep(ledger, lambda job: ledger.release(start(store, job.id), "shutting down"))
    assert (read(store).published, read(store).wake_at) == (0, now + LEASE)


def test_a_job_that_ended_during_the_sweep_is_left_alone(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A publication is not noted on a job that has ended meanwhile."""
    ledger.submit(submission())
    clock.advance(LEASE)
    sweep(ledger, lambda job: ledger.cancel(job.id))
    assert events(store) == ["submit", "cancel"]
    assert read(store).wake_at == clock() + DAY


def test_followers_are_published_when_the_followed_job_has_ended(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """A follower is published by the sweep after the followed job's end, and backs off like any job."""
    followed = run(store, identity="same")
    ledger.submit(submission("job-2", identity="same", follows=True))
    clock.advance(1.0)
    assert sweep(ledger, publish) == Swept()
    ledger.complete(followed, "1")
    assert sweep(ledger, publish) == Swept(published=1)
    assert publish.ids == ["job-2"]
    assert read(store, "job-2").wake_at == clock() + LEASE


def test_a_sweep_takes_no_more_jobs_than_the_limit(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """A sweep takes the jobs with the oldest `wake_at` first and leaves the others to the next sweep."""
    for number in range(5):
        submit(store, f"job-{number}", wake_in=1.0 + number)
    clock.advance(10.0)
    assert sweep(ledger, publish, limit=3) == Swept(published=3)
    assert sorted(publish.ids) == ["job-0", "job-1", "job-2"]
    assert sweep(ledger, publish, limit=3) == Swept(published=2)


def test_a_sweep_counts_what_it_did(ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher) -> None:
    """One sweep publishes, recovers, expires and purges jobs, and counts each kind."""
    submit(store, "queued")
    run(store, "lapsed")
    submit(store, "expired", expires_in=3.0)
    ledger.complete(run(store, "kept"), "1")
    ledger.complete(run(store, "canvas_pending", canvas=True), "1")
    apply(store, read(store, "kept"), Transition.CANVAS_NOTIFIED, wake_in=2.0)
    clock.advance(LEASE)
    assert sweep(ledger, publish) == Swept(published=3, lapsed=1, canceled=1, purged=1)
    assert sorted(publish.ids) == ["canvas_pending", "lapsed", "queued"]


@pytest.mark.parametrize("hold", [2.0, 90.0])
def test_a_policy_sets_the_hold(store: Store, clock: ManualClock, hold: float) -> None:
    """A job that one sweeper has taken can be taken by another after the policy's `hold`."""
    ledger = Ledger(store, Policy(hold=hold))
    ledger.submit(submission())
    now = clock.advance(LEASE)
    with pytest.raises(BrokerUnavailableError):
        sweep(ledger, fail_to_publish)
    assert read(store).wake_at == now + hold


def test_a_crash_during_the_publication_causes_one_more_message(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """If a sweeper dies after a publication and before noting it, the job is published again after `hold`."""

    def die(job: Job) -> None:
        publish(job)
        raise StoreUnavailableError

    ledger.submit(submission())
    clock.advance(LEASE)
    with pytest.raises(StoreUnavailableError):
        sweep(ledger, die)
    clock.advance(HOLD)
    assert sweep(ledger, publish) == Swept(published=1)
    assert publish.ids == ["job-1", "job-1"]


# --- dispatchers ----------------------------------------------------------------------------------------------------


def test_a_dispatcher_gets_jobs_instead_of_the_broker(
    ledger: Ledger, store: Store, clock: ManualClock, publish: Publisher
) -> None:
    """The jobs of a task with a dispatcher go to it, unpublished, and those left are due again after `hold`."""
    submit(store, "job-1", task="carried")
    submit(store, "job-2")
    delivery_queue = Publisher()
    clock.advance(LEASE)
    assert sweep(ledger, publish, dispatchers={"carried": delivery_queue}) == Swept(published=1)
    assert (publish.ids, delivery_queue.ids) == (["job-2"], ["job-1"])
    assert (read(store).published, read(store).wake_at, events(store)) == (0, clock() + HOLD, ["submit"])
    clock.advance(HOLD)
    sweep(ledger, publish, dispatchers={"carried": delivery_queue})
    assert delivery_queue.ids == ["job-1", "job-1"]


def test_a_dispatcher_gets_recovered_jobs(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A job of a dispatcher whose lease has expired is recovered like any other, and goes to a dispatcher at once."""
    run(store, task="carried")
    delivery_queue = Publisher()
    clock.advance(LEASE)
    assert sweep(ledger, fail_to_publish, dispatchers={"carried": delivery_queue}) == Swept(lapsed=1)
    assert (delivery_queue.ids, events(store)) == (["job-1"], ["submit", "claim", "crash"])


def test_dispatchers_work_while_the_broker_is_down(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """However many publications fail, each job with a dispatcher goes to it."""
    for number in range(10):
        submit(store, f"lost-{number}")
        submit(store, f"carried-{number}", task="carried")
    delivery_queue = Publisher()
    clock.advance(LEASE)
    with pytest.raises(BrokerUnavailableError):
        sweep(ledger, fail_to_publish, dispatchers={"carried": delivery_queue})
    assert sorted(delivery_queue.ids) == [f"carried-{number}" for number in range(10)]
