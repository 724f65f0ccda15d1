"""Queued next: one more run after the current one. It waits for the identity and is promoted when that is released."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onejob.errors import IdentityHeldError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Admission, Cancel, Job, Outcome, Retention
from onejob.jobs.policy import DAY, Policy
from onejob.jobs.records import Query
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import Swept
from onejob.stores.protocol import WINDOW_OVER
from tests.contract.support import (
    CONFLICT_POLICIES,
    LEASE,
    RUN_AGAIN,
    START,
    ManualClock,
    admission,
    after,
    apply,
    assert_changed,
    assert_legal,
    claim,
    end,
    events,
    get,
    holders,
    queue_next,
    read,
    run,
    start,
    submission,
    submit,
    submit_one,
    sweep,
    untouched,
)

if TYPE_CHECKING:
    from onejob.stores.protocol import Store

HOLD = Policy().hold
OTHER: dict[str, Any] = {"fingerprint": "other", "payload": "[2]"}


@pytest.fixture
def holder(store: Store) -> Job:
    """Return a running job that holds the identity `same`."""
    return run(store, identity="same")


def submit_again(store: Store, job_id: str = "job-3", **values: Any) -> Admission:
    """Submit one more run."""
    return admission(store, job_id, identity="same", **(RUN_AGAIN | values))


def waiting_ids(store: Store) -> list[str]:
    """Return the ids of the jobs that wait for the identity."""
    return [job.id for job in store.find(Query(identity="same", limit=1000)) if job.queued_next]


# --- waiting --------------------------------------------------------------------------------------------------------


def test_a_queued_run_has_a_row_of_its_own(store: Store, clock: ManualClock, holder: Job) -> None:
    """A run that is queued next has all values of its submission, without the identity and without `wake_at`."""
    now = clock.advance(1.0)
    new = submission(
        "job-2", task="other.task", identity="same", fingerprint="other", nonce="nonce-2", payload="[2]",
        options='{"queue": "slow"}', priority_rank=4, lease=9.0, delay=4.0, retries=2, canvas=True, follows=True,
        key="key-1", key_for=50.0, submitter="user:2", **RUN_AGAIN,
    )  # fmt: skip
    expected = Job(
        id="job-2", task="other.task", identity="same", fingerprint="other", submission_nonce="nonce-2",
        submitter="user:2", payload="[2]", options='{"queue": "slow"}', priority_rank=4, state=State.QUEUED,
        source="submit",
        holds_identity=False,
        queued_next=True, identity_until=None, follows_id="job-1", token=0, claim="", node="", attempt=0, retries=2,
        crashes=0, lease=9.0, lease_until=None, created_at=now, run_at=now + 4.0, expires_at=None, started_at=None,
        finished_at=None, wake_at=now + 9.0, published=0, cancel=Cancel.NO, canvas_pending=True,
        route="", published_at=None, publish_error="",
        key_retained_until=now + 50.0,
        duplicate_count=0, progress=None, result=None, error=None, reason="runs after job-1",
    )  # fmt: skip
    assert submit_one(store, new, wake_in=LEASE) == Admission(expected, Outcome.QUEUED_NEXT)
    assert get(store, "job-2") == expected
    assert_changed(store, holder, get(store, "job-1"), duplicate_count=1)
    assert [(e.at, e.event, e.state, e.attempt, e.node, e.detail) for e in store.history("job-2")] == [
        (now, "queue_next", State.QUEUED, 0, "", "runs after job-1")
    ]


def test_at_most_one_run_is_queued_next(store: Store, holder: Job) -> None:
    """Of many submissions of one more run, one is queued, and the others are attached to it."""
    queued = queue_next(store)
    for number in range(3, 8):
        answer = submit_again(store, f"job-{number}")
        assert answer == Admission(queued, Outcome.ATTACHED)
        assert get(store, f"job-{number}") is None
    assert waiting_ids(store) == ["job-2"]
    assert_changed(store, holder, get(store, "job-1"), duplicate_count=6)
    assert store.duplicates("job-2") == []


@pytest.mark.parametrize("in_batch", [False, True])
def test_the_newest_arguments_run_after_a_run(store: Store, clock: ManualClock, in_batch: bool) -> None:
    """With `replace` the newest arguments run after a run, after their countdown, also if that had the same."""
    holder = run(store, identity="same")
    saves = [
        submission(f"late-{number}", identity="same", **CONFLICT_POLICIES["replace"] | {
            "fingerprint": text, "payload": text, "delay": 5.0,
        })
        for number, text in enumerate(("b", "c", holder.fingerprint))
    ]  # fmt: skip
    answers = []
    for batch in [saves] if in_batch else [[each] for each in saves]:
        clock.advance(1.0)
        answers = store.submit_many(batch, wake_in=LEASE)
        assert {(each.job.id, each.job.run_at) for each in answers} == {("late-0", clock() + 5.0)}
    assert answers[-1].outcome is Outcome.REPLACED
    end(store, holder)
    assert not claim(store, "late-0").applied
    clock.advance(5.0)
    assert start(store, "late-0").payload == holder.fingerprint


# --- promotion ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["complete", "fail", "abandon"])
def test_every_end_through_the_ledger_promotes(ledger: Ledger, store: Store, holder: Job, operation: str) -> None:
    """Each way in which a worker ends a run through the ledger promotes the job that is queued next."""
    queue_next(store)
    {
        "complete": lambda: ledger.complete(holder, "1"),
        "fail": lambda: ledger.fail(holder, "{}", "no"),
        "abandon": lambda: ledger.abandon(holder, "stopped"),
    }[operation]()
    assert [job.id for job in holders(store, "same")] == ["job-2"]


def test_a_dead_letter_promotes(store: Store, clock: ManualClock, holder: Job) -> None:
    """The sweep that dead-letters the previous job promotes the job that is queued next."""
    queue_next(store)
    clock.advance(LEASE)
    published: list[str] = []
    ledger = Ledger(store, Policy(crash_limit=1))
    assert sweep(ledger, lambda job: published.append(job.id)) == Swept(lapsed=1)
    assert sweep(ledger, lambda job: published.append(job.id)) == Swept(published=1)
    assert (published, read(store).state) == (["job-2"], State.FAILED)


def test_a_promoted_job_is_published_by_the_next_sweep(
    ledger: Ledger, store: Store, clock: ManualClock, holder: Job
) -> None:
    """A sweep publishes the promoted job and schedules its next publication, and the job runs."""
    queue_next(store)
    now = clock.advance(1.0)
    end(store, holder)
    published: list[Job] = []
    assert sweep(ledger, published.append) == Swept(published=1)
    assert [(job.id, job.holds_identity) for job in published] == [("job-2", True)]
    assert (read(store, "job-2").wake_at, read(store, "job-2").published) == (now + LEASE, 1)
    assert start(store, "job-2").attempt == 1


def test_queued_runs_follow_each_other(store: Store, clock: ManualClock, holder: Job) -> None:
    """Runs that are submitted one at a time run one after the other, each queued after the previous one."""
    job = holder
    for number in range(2, 6):
        queued = queue_next(store, f"job-{number}", payload=str(number))
        assert queued.follows_id == job.id
        clock.advance(1.0)
        end(store, job)
        job = start(store, queued.id)
        assert (job.payload, [each.id for each in holders(store, "same")]) == (str(number), [job.id])
    end(store, job)
    assert (holders(store, "same"), waiting_ids(store)) == ([], [])
    for found in store.find(Query(identity="same")):
        assert_legal(store.history(found.id), found)
    assert events(store, "job-5") == ["queue_next", "promote", "claim", "complete"]


def test_the_previous_dead_letter_cannot_be_redriven(ledger: Ledger, store: Store, holder: Job) -> None:
    """While the promoted job is live, the previous job cannot be redriven."""
    queue_next(store)
    ledger.fail(holder, "{}", "no")
    with untouched(store, "job-1", "job-2"), pytest.raises(IdentityHeldError) as caught:
        ledger.redrive("job-1")
    assert caught.value.holder_id == "job-2"


# --- ends before the promotion --------------------------------------------------------------------------------------


def test_a_queued_run_can_be_canceled(ledger: Ledger, store: Store, clock: ManualClock, holder: Job) -> None:
    """A cancellation of the job that is queued next ends that job only, and another can be queued."""
    queued = queue_next(store)
    now = clock.advance(1.0)
    before = read(store)
    canceled = ledger.cancel("job-2", reason="not needed")
    assert_changed(
        store, queued, canceled, state=State.CANCELED, queued_next=False, follows_id=None, finished_at=now,
        wake_at=now + DAY, reason="not needed",
    )  # fmt: skip
    assert_legal(store.history("job-2"), canceled)
    assert read(store) == before
    assert queue_next(store, "job-3").follows_id == "job-1"
    with untouched(store, "job-2"):
        end(store, holder)
    assert [job.id for job in holders(store, "same")] == ["job-3"]


def test_a_queued_run_can_expire(ledger: Ledger, store: Store, clock: ManualClock, holder: Job) -> None:
    """The sweep cancels a job that is queued next at its expiry, and the previous job continues."""
    queue_next(store, expires_in=5.0)
    clock.advance(4.5)
    assert sweep(ledger, lambda job: pytest.fail(f"published {job.id}")) == Swept()
    now = clock.advance(0.5)
    assert sweep(ledger, lambda job: pytest.fail(f"published {job.id}")) == Swept(canceled=1)
    ended = read(store, "job-2")
    assert (ended.state, ended.finished_at, ended.queued_next, ended.holds_identity) == (
        State.CANCELED,
        now,
        False,
        False,
    )
    assert_legal(store.history("job-2"), ended)
    assert [job.id for job in holders(store, "same")] == ["job-1"]
    end(store, holder)
    assert holders(store, "same") == []


def test_a_run_that_expired_before_its_promotion_does_not_run(
    ledger: Ledger, store: Store, clock: ManualClock, holder: Job
) -> None:
    """A job that is promoted after its expiry, before any sweep, is canceled at its claim."""
    queue_next(store, expires_in=5.0)
    clock.advance(6.0)
    end(store, holder)
    answer = ledger.claim("job-2", nonce="late", node="n")
    assert (answer.applied, answer.job and answer.job.state) == (False, State.CANCELED)
    assert holders(store, "same") == []


# --- followers ------------------------------------------------------------------------------------------------------


def test_each_follower_is_woken_by_its_own_followed_job(store: Store, clock: ManualClock, holder: Job) -> None:
    """A follower of the running job is due at its end, and a follower of the job queued next at the end of that."""
    submit(store, "follows-1", identity="same", follows=True)
    queue_next(store)
    second = submit_again(store, "follows-2", follows=True).follower
    assert second is not None
    now = clock.advance(1.0)
    with untouched(store, "follows-2"):
        end(store, holder)
        job = start(store, "job-2")
    assert read(store, "follows-1").wake_at == now
    later = clock.advance(1.0)
    end(store, job)
    assert_changed(store, second, get(store, "follows-2"), wake_at=later)


# --- promotion delayed by another holder ----------------------------------------------------------------------------


def _queue_behind_another_holder(store: Store) -> Job:
    """Queue job-2 after a job that releases its identity, which another job takes; return that one, running."""
    before = run(store, identity="same")
    queue_next(store)
    apply(store, before, Transition.RELEASE_IDENTITY, keeps_identity=False)
    other = run(store, "other", identity="same")
    end(store, before)
    return other


def test_a_job_is_not_promoted_while_another_holds_the_identity(store: Store, clock: ManualClock) -> None:
    """When another job holds the identity, an end only wakes the job that is queued next."""
    other = _queue_behind_another_holder(store)
    queued = read(store, "job-2")
    assert (queued.holds_identity, queued.queued_next, queued.follows_id, queued.wake_at) == (
        False,
        True,
        "job-1",
        START,
    )
    assert events(store, "job-2") == ["queue_next"]
    assert holders(store, "same") == [other]
    assert not claim(store, "job-2").applied


def test_a_sweep_promotes_a_delayed_job(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """Sweeps retry the promotion of a job that was not promoted, until the identity is released."""
    other = _queue_behind_another_holder(store)
    published: list[Job] = []
    for _ in range(3):
        with untouched(store, "other"):
            assert sweep(ledger, published.append) == Swept()
        clock.advance(HOLD)
    end(store, other)
    clock.advance(HOLD)
    assert sweep(ledger, published.append) == Swept(published=1)
    assert [(job.id, job.holds_identity) for job in published] == [("job-2", True)]
    job = read(store, "job-2")
    assert (job.holds_identity, job.queued_next, job.follows_id, job.reason) == (True, False, None, "promoted")
    assert_legal(store.history("job-2"), job)
    assert events(store, "job-2") == ["queue_next", "promote", "publish"]


def test_a_submission_is_a_duplicate_of_a_delayed_job(store: Store, clock: ManualClock) -> None:
    """A submission of one more run is a duplicate of a job that was not promoted: there are never two."""
    _queue_behind_another_holder(store)
    answer = submit_again(store, "job-3", **OTHER)
    assert (answer.outcome, answer.job.id, answer.job.payload) == (Outcome.REPLACED, "job-2", "[2]")
    assert read(store, "job-2").wake_at is not None
    assert waiting_ids(store) == ["job-2"]


def test_a_window_delays_the_promotion(ledger: Ledger, store: Store, clock: ManualClock, holder: Job) -> None:
    """While a completed job keeps its identity, the job that is queued next waits for its release."""
    queue_next(store)
    clock.advance(1.0)
    ledger.complete(holder, "1", keep=Retention(identity_for=60.0))
    assert sweep(ledger, lambda job: pytest.fail(f"published {job.id}")) == Swept()
    assert [job.id for job in holders(store, "same")] == ["job-1"]
    apply(store, read(store), Transition.RELEASE_IDENTITY, keeps_identity=False, detail=WINDOW_OVER)
    clock.advance(HOLD)
    assert sweep(ledger, lambda job: None) == Swept(published=1)
    assert [job.id for job in holders(store, "same")] == ["job-2"]


@pytest.mark.parametrize("limit", [1, 10])
def test_a_job_promoted_during_a_sweep_is_promoted_once(store: Store, clock: ManualClock, limit: int) -> None:
    """An end between `take_due` and `promote` of a sweep promotes the job once."""
    other = _queue_behind_another_holder(store)
    meanwhile = after(store, "take_due", lambda: Ledger(store).promote(read(store, "job-2")) or end(store, other))
    sweep(Ledger(meanwhile), lambda job: None, limit=limit)
    clock.advance(HOLD)
    sweep(Ledger(store), lambda job: None)
    assert events(store, "job-2").count("promote") == 1
    assert [job.id for job in holders(store, "same")] == ["job-2"]
