"""Queued next: one more run after the current one. It waits for the identity and is promoted when that is released."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from onejob.errors import IdentityHeldError
from onejob.jobs.lifecycle import FINAL, RULES, State, Transition
from onejob.jobs.model import Admission, Cancel, Job, Outcome, Retention
from onejob.jobs.policy import DAY, Policy
from onejob.jobs.records import Query
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import Swept
from onejob.stores.protocol import WINDOW_OVER
from tests.contract.support import (
    COLUMNS,
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
    change,
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
    take_due,
    untouched,
)

if TYPE_CHECKING:
    from onejob.stores.protocol import Store

HOLD = Policy().hold
OTHER: dict[str, Any] = {"fingerprint": "other", "payload": "[2]"}
OF_A_RUN = (Transition.COMPLETE, Transition.FAIL, Transition.ABANDON, Transition.DEAD_LETTER)
OF_A_WAIT = (Transition.CANCEL, Transition.EXPIRE)


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


def end_by(store: Store, holder: Job, event: Transition) -> Job:
    """End a run, or a wait after it, by an event."""
    job = apply(store, holder, Transition.RELEASE) if event in OF_A_WAIT else holder
    return apply(store, job, event, wake_in=100.0)


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
        route="", publish_error="",
        key_retained_until=now + 50.0,
        duplicate_count=0, progress=None, result=None, error=None, reason="runs after job-1",
    )  # fmt: skip
    assert submit_one(store, new, wake_in=LEASE) == Admission(expected, Outcome.QUEUED_NEXT)
    assert get(store, "job-2") == expected
    assert_changed(store, holder, get(store, "job-1"), duplicate_count=1)
    assert [(e.at, e.event, e.state, e.attempt, e.node, e.detail) for e in store.history("job-2")] == [
        (now, "queue_next", State.QUEUED, 0, "", "runs after job-1")
    ]


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.usefixtures("holder")
def test_a_queued_run_has_each_value_of_its_submission(store: Store, name: str) -> None:
    """Each value of a submission is stored in its own column."""
    assert getattr(queue_next(store, **{name: COLUMNS[name]}), name) == COLUMNS[name]


@pytest.mark.usefixtures("holder")
def test_a_queued_run_is_due_at_its_expiry(store: Store, clock: ManualClock) -> None:
    """The `wake_at` of a job that is queued next is its expiry, or one lease from now if that is earlier."""
    assert queue_next(store, expires_in=20.0, delay=3.0).wake_at == START + 20.0
    clock.advance(19.5)
    assert take_due(store, limit=10, hold=5.0) == []
    clock.advance(0.5)
    assert [job.id for job in take_due(store, limit=10, hold=5.0)] == ["job-2"]


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.RETRYING])
def test_a_run_is_queued_after_a_started_job_in_every_state(store: Store, holder: Job, state: State) -> None:
    """A run is queued after a job that has run at least once, in whatever state that is."""
    by = {State.QUEUED: Transition.RELEASE, State.RETRYING: Transition.RETRY}
    if state in by:
        apply(store, holder, by[state])
    assert queue_next(store).follows_id == "job-1"
    assert [job.id for job in holders(store, "same")] == ["job-1"]


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


@pytest.mark.usefixtures("holder")
def test_the_newest_arguments_are_queued(store: Store) -> None:
    """The job that is queued next takes over only the arguments of each later submission."""
    queued = queue_next(store)
    for number in range(3, 6):
        answer = submit_again(
            store, f"job-{number}", fingerprint=str(number), payload=str(number), options="[9]", lease=5.0
        )
        assert answer.outcome is Outcome.REPLACED
        assert_changed(store, queued, answer.job, fingerprint=str(number), payload=str(number))
    end(store, read(store))
    assert start(store, "job-2").payload == "5"


@pytest.mark.parametrize(
    ("values", "columns"),
    [
        ({"delay": 30.0}, {"run_at": START + 40.0}),
        ({"delay": 0.0}, {"run_at": START + 10.0}),
        ({"delay": 90.0}, {}),
        ({"delay": 500.0}, {}),
        ({"delay": 90.0, "priority_rank": 3}, {"priority_rank": 3}),
        ({"delay": 0.0, "priority_rank": 1}, {"run_at": START + 10.0}),
    ],
)
@pytest.mark.usefixtures("holder")
def test_a_queued_run_is_rescheduled_without_wake_at(
    store: Store, clock: ManualClock, values: dict[str, Any], columns: dict[str, Any]
) -> None:
    """An earlier submission, or one of higher priority, reschedules the queued run, whose `wake_at` stays unset."""
    queued = queue_next(store, delay=100.0, priority_rank=2)
    clock.advance(10.0)
    answer = submit_again(store, **values)
    assert answer == Admission(answer.job, Outcome.ATTACHED, rescheduled=bool(columns))
    assert_changed(store, queued, answer.job, **columns)


@pytest.mark.usefixtures("holder")
def test_a_queued_run_takes_over_the_expiry_with_the_arguments(store: Store, clock: ManualClock) -> None:
    """The job that is queued next has the expiry of the submission of its arguments, and `wake_at` by then."""
    queued = queue_next(store, expires_in=60.0)
    now = clock.advance(10.0)
    job = submit_again(store, expires_in=20.0, **OTHER).job
    assert_changed(store, queued, job, expires_at=now + 20.0, wake_at=now + 20.0, **OTHER)
    job = submit_again(store, "job-4", expires_in=5000.0, payload="[4]", fingerprint="4").job
    assert job.expires_at == now + 5000.0
    assert job.wake_at is not None
    assert job.wake_at <= job.expires_at
    assert submit_again(store, "job-5", **OTHER).job.expires_at is None


@pytest.mark.parametrize("conflict_policy", ["attach", "raise", "replace"])
def test_other_policies_are_resolved_against_the_running_job(store: Store, holder: Job, conflict_policy: str) -> None:
    """Only a submission with the policy `run_again` is a duplicate of the queued run."""
    queued = queue_next(store)
    answer = admission(store, "job-3", identity="same", priority_rank=9, **OTHER, **CONFLICT_POLICIES[conflict_policy])
    outcome = Outcome.REJECTED if conflict_policy == "raise" else Outcome.ATTACHED
    assert answer == Admission(replace(holder, duplicate_count=2), outcome)
    assert read(store, "job-2") == queued


@pytest.mark.usefixtures("holder")
def test_a_queued_run_cannot_be_claimed_before_its_promotion(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A claim before the promotion is refused, and does not end a job that has not expired."""
    queue_next(store, expires_in=1000.0)
    clock.advance(500.0)
    with untouched(store, "job-2"):
        answer = ledger.claim("job-2", nonce="early", node="n")
    assert (answer.applied, answer.job) == (False, read(store, "job-2"))


@pytest.mark.parametrize(
    "event",
    [Transition.RETRY, Transition.RELEASE, Transition.CRASH, Transition.REQUEST_CANCEL, Transition.UPDATE_PROGRESS],
)
def test_only_an_end_promotes(store: Store, holder: Job, event: Transition) -> None:
    """Every other event of the previous job leaves the job that is queued next unchanged."""
    queue_next(store)
    with untouched(store, "job-2"):
        apply(store, holder, event, wake_in=1.0)


def test_a_claim_of_the_previous_job_does_not_promote(store: Store, clock: ManualClock, holder: Job) -> None:
    """A claim and a renewal of the previous job leave the job that is queued next unchanged."""
    queue_next(store)
    apply(store, holder, Transition.RELEASE)
    clock.advance(1.0)
    with untouched(store, "job-2"):
        job = start(store)
        store.renew([(job.id, job.claim)], sources=frozenset({State.RUNNING}))


# --- promotion ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", OF_A_RUN + OF_A_WAIT)
def test_every_end_promotes(store: Store, clock: ManualClock, holder: Job, event: Transition) -> None:
    """Every end of the previous job passes the identity to the job that is queued next and sets its `wake_at`."""
    queued = queue_next(store, canvas=True, retries=1)
    now = clock.advance(5.0)
    ended = end_by(store, holder, event)
    assert (ended.state, ended.holds_identity) == (RULES[event].target, False)
    assert_changed(
        store, queued, get(store, "job-2"), holds_identity=True, queued_next=False, follows_id=None, wake_at=now,
        reason="promoted",
    )  # fmt: skip
    assert holders(store, "same") == [read(store, "job-2")]
    entry = store.history("job-2")[-1]
    assert (entry.at, entry.event, entry.state, entry.attempt, entry.node) == (now, "promote", State.QUEUED, 0, "")
    assert "job-1" in entry.detail


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


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"delay": 3.0}, 10.0),
        ({"delay": 30.0}, 30.0),
        ({"delay": 30.0, "expires_in": 20.0}, 20.0),
        ({"delay": 30.0, "expires_in": 50.0}, 30.0),
        ({"expires_in": 50.0}, 10.0),
        ({"expires_in": 4.0}, 4.0),
    ],
)
def test_a_promotion_sets_wake_at(
    store: Store, clock: ManualClock, holder: Job, values: dict[str, Any], expected: float
) -> None:
    """A promoted job has `wake_at` at once, or at `run_at` if that is later, and at its expiry at the latest."""
    queue_next(store, **values)
    clock.advance(10.0)
    end(store, holder)
    assert read(store, "job-2").wake_at == START + expected


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


@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
@pytest.mark.parametrize("event", OF_A_RUN)
def test_the_submission_after_an_end_is_a_duplicate_of_the_promoted_job(
    store: Store, holder: Job, event: Transition, conflict_policy: str
) -> None:
    """No submission can take the identity between an end and the promotion: the next one is a duplicate."""
    queue_next(store)
    end(store, holder, event)
    answer = admission(
        store, "job-3", identity="same", **OTHER, **(CONFLICT_POLICIES[conflict_policy] | {"max_wait": 0.0})
    )
    takes_over = conflict_policy in {"replace", "run_again"}
    outcome = Outcome.REPLACED if takes_over else Outcome.REJECTED if conflict_policy == "raise" else Outcome.ATTACHED
    assert (answer.outcome, answer.job.id, answer.job.duplicate_count) == (outcome, "job-2", 1)
    assert answer.job.payload == ("[2]" if takes_over else '{"args": [1, 2]}')


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


def test_a_job_is_promoted_once(store: Store, clock: ManualClock, holder: Job) -> None:
    """Events after the end of the previous job, and the same end repeated, change nothing of the promoted job."""
    queue_next(store)
    request = change(holder, Transition.COMPLETE, wake_in=100.0)
    assert store.apply(request).applied
    apply(store, read(store, "job-2"), Transition.PUBLISH, wake_in=60.0)
    clock.advance(1.0)
    with untouched(store, "job-2"):
        assert store.apply(request).applied
        apply(store, read(store), Transition.CANVAS_NOTIFIED, wake_in=1.0)


def test_a_refused_end_does_not_promote(store: Store, holder: Job) -> None:
    """An end that is refused promotes no job."""
    queue_next(store)
    with untouched(store, "job-1", "job-2"):
        assert not store.apply(change(holder, Transition.COMPLETE, token=1)).applied


def test_the_end_of_another_job_does_not_promote(store: Store, holder: Job) -> None:
    """The ends of followers, and of jobs with another identity, promote no job."""
    queue_next(store)
    other = run(store, "other")
    follower = admission(store, "follower", identity="same", follows=True).follower
    assert follower is not None
    with untouched(store, "job-1", "job-2"):
        end(store, other)
        apply(store, follower, Transition.CANCEL)


def test_the_previous_dead_letter_cannot_be_redriven(ledger: Ledger, store: Store, holder: Job) -> None:
    """While the promoted job is live, the previous job cannot be redriven."""
    queue_next(store)
    ledger.fail(holder, "{}", "no")
    with untouched(store, "job-1", "job-2"), pytest.raises(IdentityHeldError) as caught:
        ledger.redrive("job-1")
    assert caught.value.holder_id == "job-2"


def test_the_previous_row_can_be_deleted(store: Store, holder: Job) -> None:
    """The deletion of the previous job leaves the promoted job."""
    queue_next(store)
    end(store, holder)
    with untouched(store, "job-2"):
        assert store.delete(["job-1"], sources=FINAL) == ["job-1"]
    assert claim(store, "job-2").applied


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


@pytest.mark.parametrize("event", OF_A_WAIT)
def test_followers_are_woken_when_a_queued_run_ends_early(
    store: Store, clock: ManualClock, holder: Job, event: Transition
) -> None:
    """Followers of a job that is canceled or expires while it is queued next are due at once."""
    queued = queue_next(store, expires_in=5.0)
    submit_again(store, "job-3", follows=True, expires_in=5.0)
    now = clock.advance(5.0)
    with untouched(store, "job-1"):
        apply(store, queued, event)
    assert read(store, "job-3").wake_at == now


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


def test_a_promotion_is_refused_while_the_identity_is_held(ledger: Ledger, store: Store, holder: Job) -> None:
    """No job is promoted while another job holds the identity."""
    queued = queue_next(store)
    with untouched(store, "job-1", "job-2"):
        assert ledger.promote(queued) is None
    end(store, holder)
    with untouched(store, "job-2"):
        assert ledger.promote(read(store, "job-2")) is None
