"""What a sweep does with kinds of jobs that only a race leaves behind. `tests/contract/ledger` has the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.errors import StoreError, StoreRefusedError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Cancel
from onejob.jobs.policy import DAY, Policy
from onejob.jobs.records import Query
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import SweepResult
from tests.contract.support import (
    LEASE,
    ManualClock,
    after,
    apply,
    events,
    queue_next,
    read,
    run,
    start,
    submission,
    submit,
    sweep,
)

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.stores.protocol import Store


def test_a_ledger_without_a_policy_has_the_default_one(store: Store) -> None:
    """A ledger without a policy uses the default one."""
    assert Ledger(store).policy == Policy()
    assert Ledger(store, Policy(hold=1.0)).policy == Policy(hold=1.0)


def test_a_released_job_with_a_cancel_request_is_canceled(store: Store, clock: ManualClock) -> None:
    """A job that was released after a cancel request, and not canceled by its worker, is canceled and not published."""
    asked = apply(store, run(store), Transition.REQUEST_CANCEL, cancel=Cancel.ASKED)
    apply(store, asked, Transition.RELEASE, wake_after=1.0)
    clock.advance(1000.0)
    assert sweep(Ledger(store), lambda job: pytest.fail(f"published {job.id}")) == SweepResult(canceled=1)
    assert (read(store).state, events(store)[-1]) == (State.CANCELED, "cancel")


def test_a_job_whose_predecessor_released_its_identity_is_promoted(store: Store, clock: ManualClock) -> None:
    """A job that is queued after one that released its identity without an end is promoted and published."""
    before = run(store, "job-0", identity="same", lease=5000.0)
    queue_next(store, "job-1")
    apply(store, before, Transition.RELEASE_IDENTITY, keeps_identity=False)
    apply(store, read(store), Transition.PUBLISH, wake_after=1.0)
    clock.advance(1000.0)
    published: list[str] = []
    assert sweep(Ledger(store), lambda job: published.append(job.id)) == SweepResult(published=1)
    assert (published, events(store)[-2:]) == (["job-1"], ["promote", "publish"])


def test_a_queued_run_is_not_published_while_its_identity_is_held(store: Store, clock: ManualClock) -> None:
    """A job that is queued next waits for its identity, although the job that it was queued after has ended."""
    before = run(store, "job-0", identity="same")
    queue_next(store, "job-1")
    apply(store, before, Transition.COMPLETE, keeps_identity=True, identity_for=5000.0, wake_after=5000.0)
    clock.advance(LEASE)
    assert sweep(Ledger(store), publish_nothing) == SweepResult()
    assert (read(store, "job-1").queued_next, events(store, "job-1")) == (True, ["queue_next"])


def test_a_follower_that_retries_is_published(store: Store, clock: ManualClock) -> None:
    """Only a queued follower waits for the end of what it follows: one whose run is to be retried is published."""
    run(store, "job-0", lease=5000.0)
    follower = store.follow(submission("job-1"), follows_id="job-0")
    assert follower is not None
    apply(store, start(store, "job-1"), Transition.RETRY, wake_after=1.0)
    clock.advance(LEASE)
    assert sweep(Ledger(store), lambda _: None) == SweepResult(published=1)


def test_the_pause_after_a_publication_doubles_without_a_cap(store: Store, clock: ManualClock) -> None:
    """The pause after each publication is twice the one before, and no number of publications is too large for it."""
    job = submit(store, lease=10.0)
    ledger = Ledger(store)
    for published, leases in ((0, 1), (1, 2), (2, 4), (10, 1024), (32, 2**32), (10_000, 2**32)):
        apply(store, job, Transition.PUBLISH, published=published, wake_after=0.0)
        sweep(ledger, lambda _: None)
        assert read(store).wake_at == pytest.approx(clock() + 10.0 * leases, abs=1.0)


def publish_nothing(job: Job) -> None:
    """Fail a test whose sweep publishes a job."""
    pytest.fail(f"published {job.id}")


@pytest.mark.parametrize("gone_in", [0.25, 0.75])
def test_a_message_is_sent_when_it_is_gone_and_not_before(store: Store, clock: ManualClock, gone_in: float) -> None:
    """A job whose message is gone in less than a second is looked at then, and not published earlier."""
    submit(store, route="celery")
    now = clock.advance(LEASE)
    assert sweep(Ledger(store), publish_nothing, gone_in=lambda _: gone_in) == SweepResult()
    assert read(store).wake_at == pytest.approx(now + gone_in, abs=0.001)
    clock.advance(gone_in)
    assert sweep(Ledger(store), lambda _: None, gone_in=lambda _: 0.0) == SweepResult(published=1)
    assert read(store).wake_at == pytest.approx(clock() + LEASE, abs=0.001)


@pytest.mark.parametrize(("waited", "leases"), [(0.5, 1), (2.5, 2.5), (19, 19), (21, 20)])
def test_a_job_in_its_queue_is_looked_at_after_as_long_again(
    store: Store, clock: ManualClock, waited: float, leases: float
) -> None:
    """A job whose message may still be delivered is looked at after as long as it has waited: 1 to 20 leases."""
    submit(store, route="celery", wake_after=waited * LEASE)
    now = clock.advance(waited * LEASE)
    assert sweep(Ledger(store), publish_nothing, gone_in=lambda _: None) == SweepResult()
    assert read(store).wake_at == pytest.approx(now + leases * LEASE, abs=0.001)


@pytest.mark.parametrize("left", [0.5, LEASE / 2])
def test_an_ended_job_with_a_sent_message_waits_for_its_retention(
    store: Store, clock: ManualClock, left: float
) -> None:
    """A job whose end is in its queue, for its canvas, is looked at again when its retention is over at the latest."""
    ledger = Ledger(store, Policy(retention=dict.fromkeys(State, 2 * LEASE + left)))
    ledger.complete(run(store, canvas=True, route="celery"), "1")
    clock.advance(LEASE)
    assert sweep(ledger, lambda _: None) == SweepResult(published=1)
    now = clock.advance(LEASE)
    assert sweep(ledger, publish_nothing, gone_in=lambda _: None) == SweepResult()
    assert read(store).wake_at == pytest.approx(now + left, abs=0.001)


def test_a_run_that_was_released_is_not_recovered(store: Store, clock: ManualClock) -> None:
    """A lost run whose worker releases it before the sweep writes is neither recovered nor published by that sweep."""
    job = run(store)
    clock.advance(LEASE)
    ledger = Ledger(after(store, "take_due", lambda: Ledger(store).release(job, "its worker is back")))
    assert sweep(ledger, publish_nothing) == SweepResult()
    assert events(store)[-1] == "release"


def test_a_store_that_refuses_during_a_publication_ends_the_sweep(store: Store, clock: ManualClock) -> None:
    """An error of the store while a message is sent is raised at once: the publication counts and is noted nowhere."""
    submit(store)
    clock.advance(LEASE)
    with pytest.raises(StoreError):
        sweep(Ledger(store), refuse)
    assert (read(store).published, events(store)) == (0, ["submit"])


def test_an_old_job_that_cannot_be_deleted_keeps_no_other(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the store cannot delete one old job, the others of its batch are purged, and the error is raised once."""
    ledger, delete, refusals = Ledger(store), store.delete, []

    def refuse_one(job_ids: list[str], **options: object) -> list[str]:
        if "old-2" in job_ids:
            refusals.append(StoreRefusedError(" ".join(job_ids)))
            raise refusals[-1]
        return delete(job_ids, **options)  # type: ignore[arg-type]

    for number in range(4):
        ledger.complete(run(store, f"old-{number}"), "1")
    clock.advance(DAY)
    monkeypatch.setattr(store, "delete", refuse_one)
    with pytest.raises(StoreRefusedError) as caught:
        sweep(ledger, publish_nothing)
    assert caught.value is refusals[-1]
    assert (str(caught.value), len(refusals)) == ("old-2", 2)
    assert [job.id for job in store.find(Query())] == ["old-2"]


def test_only_followers_cost_a_look_at_what_they_follow(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep of jobs that follow none reads no other job."""
    submit(store)
    clock.advance(LEASE)
    monkeypatch.setattr(store, "get_many", lambda job_ids: pytest.fail(f"read {job_ids}"))
    assert sweep(Ledger(store), lambda _: None) == SweepResult(published=1)


def refuse(job: Job) -> None:
    """Fail as a store that refuses a write."""
    raise StoreRefusedError(job.id)
