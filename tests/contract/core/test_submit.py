"""Submit: one identity, one job; every column of a new row; what a duplicate writes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Admission, Cancel, Job, Outcome, Submission
from tests.contract.support import (
    COLUMNS,
    CONFLICT_POLICIES,
    ENDINGS,
    LEASE,
    START,
    ManualClock,
    admission,
    apply,
    assert_changed,
    end,
    get,
    holders,
    read,
    run,
    start,
    submission,
    submit,
    submit_one,
    untouched,
)

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store


def _expected_row(new: Submission, *, wake_at: float | None = None) -> Job:
    """Return the row that a submission writes at `START`."""
    expires_at = None if new.expires_in is None else START + new.expires_in
    return Job(
        id=new.id, task=new.task, identity=new.identity, fingerprint=new.fingerprint, submission_nonce=new.nonce,
        submitter=new.submitter, payload=new.payload, options=new.options, priority_rank=new.priority_rank,
        source=new.source,
        state=State.QUEUED,
        holds_identity=True, queued_next=False, identity_until=None, follows_id=None, token=0, claim="", node="",
        attempt=0,
        retries=new.retries, crashes=0, lease=new.lease, lease_until=None, created_at=START, run_at=START + new.delay,
        expires_at=expires_at, started_at=None, finished_at=None, wake_at=wake_at,
        route="", publish_error="", published=0, cancel=Cancel.NO,
        canvas_pending=new.canvas, key_retained_until=None if new.key is None else START + new.key_for,
        duplicate_count=0,
        progress=None, result=None, error=None, reason="submitted",
    )  # fmt: skip


def test_a_new_job_is_queued_and_holds_its_identity(store: Store, clock: ManualClock) -> None:
    """A first submission is written as a queued job, due at once, that holds its identity."""
    new = submission()
    assert submit_one(store, new, wake_in=7.0) == Admission(_expected_row(new, wake_at=START + 7.0), Outcome.ADMITTED)
    assert get(store, "job-1") == _expected_row(new, wake_at=START + 7.0)


def test_a_new_job_has_every_value_of_its_submission(store: Store, clock: ManualClock) -> None:
    """Every value of a submission is stored in the row."""
    new = submission(
        "job-2", task="other.task", identity="identity-2", fingerprint="fingerprint-2", nonce="nonce-2", payload="[]",
        options='{"queue": "slow"}', priority_rank=9, lease=12.5, delay=3.0, expires_in=60.0, retries=4, follows=True,
        canvas=True, rejects=True, replaces=True, queues_next=True, max_wait=9.0, key="key-1", key_for=50.0,
        source="delay", submitter="user:1", host="host-1",
    )  # fmt: skip
    assert submit_one(store, new, wake_in=30.0) == Admission(_expected_row(new, wake_at=START + 3.0), Outcome.ADMITTED)
    assert get(store, "job-2") == _expected_row(new, wake_at=START + 3.0)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_new_job_has_each_value_of_its_submission(store: Store, name: str) -> None:
    """Each value of a submission is stored in its own column."""
    plain, special = submit(store, "plain"), submit(store, "special", **{name: COLUMNS[name]})
    assert getattr(special, name) == COLUMNS[name] != getattr(plain, name)


@pytest.mark.parametrize(
    "payload", ['{"kwargs": {"name": "Žofie 😀"}}', '"quote \' \\" back\\\\slash\\nnew"', "", " 0 "]
)
def test_a_payload_is_returned_unchanged(store: Store, payload: str) -> None:
    """A payload is stored exactly, whatever it contains."""
    assert submit(store, payload=payload).payload == payload
    assert read(store).payload == payload


@pytest.mark.parametrize(
    ("delay", "expires_in", "expected"),
    [(0.0, 5.0, 5.0), (0.0, 50.0, 30.0), (0.0, 30.0, 30.0), (40.0, 50.0, 40.0), (40.0, 20.0, 20.0), (-5.0, 50.0, 30.0)],
)
def test_the_first_wake_at_is_no_later_than_the_expiry(
    store: Store, clock: ManualClock, delay: float, expires_in: float, expected: float
) -> None:
    """The first `wake_at` is `run_at`, or `wake_in` from now if the job is due, but never after the expiry."""
    job = submit(store, delay=delay, expires_in=expires_in, wake_in=30.0)
    assert job.wake_at == START + expected


@pytest.mark.parametrize("identity", ["v1-Ω:with:colons", "{v1}", "a b", "v1-" + "x" * 200])
def test_an_identity_is_any_text(store: Store, identity: str) -> None:
    """An identity is compared as a whole, and may be any text."""
    job = submit(store, identity=identity)
    assert submit(store, "job-2", identity=identity).id == job.id
    assert submit(store, "job-3", identity=identity + "x").id == "job-3"


def test_a_duplicate_returns_the_job_that_holds_the_identity(store: Store, clock: ManualClock) -> None:
    """A duplicate returns the job that holds the identity, and only raises its duplicate count."""
    job = submit(store, identity="same")
    clock.advance(1.0)
    answer = admission(store, "job-2", identity="same", payload="[2]", options="[2]", canvas=True, wake_in=1.0)
    assert answer == Admission(answer.job, Outcome.ATTACHED)
    assert_changed(store, job, answer.job, duplicate_count=1)
    assert get(store, "job-2") is None


def test_every_duplicate_is_counted(store: Store) -> None:
    """Each duplicate adds one to the count of the job that it returns, and to no other."""
    job = submit(store, identity="same")
    other = submit(store, "other")
    counts = [submit(store, f"job-{n}", identity="same").duplicate_count for n in range(2, 6)]
    assert counts == [1, 2, 3, 4]
    assert read(store) == replace(job, duplicate_count=4)
    assert read(store, "other") == other


def test_different_identities_are_no_duplicates(store: Store) -> None:
    """Jobs of different identities are all admitted."""
    jobs = [submit(store, f"job-{n}") for n in range(3)]
    assert [job.id for job in jobs] == ["job-0", "job-1", "job-2"]
    assert all(job.holds_identity and job.duplicate_count == 0 for job in jobs)


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.RETRYING])
def test_a_live_job_holds_its_identity_in_every_state(store: Store, state: State) -> None:
    """A job holds its identity in every state before its end."""
    job = submit(store, identity="same")
    if state is not State.QUEUED:
        job = start(store)
    if state is State.RETRYING:
        job = apply(store, job, Transition.RETRY)
    assert submit(store, "job-2", identity="same") == replace(job, duplicate_count=1)
    assert [holder.id for holder in holders(store, "same")] == ["job-1"]


@pytest.mark.parametrize("event", ENDINGS)
def test_an_ended_job_releases_its_identity(store: Store, event: Transition) -> None:
    """The submission after an end is admitted, and the ended job keeps its row."""
    ended = end(store, run(store, identity="same"), event)
    assert submit(store, "job-2", identity="same").id == "job-2"
    assert read(store) == ended
    assert [holder.id for holder in holders(store, "same")] == ["job-2"]


@pytest.mark.parametrize("ends", [True, False])
def test_holding_an_identity_does_not_depend_on_the_state(store: Store, ends: bool) -> None:
    """A change specifies whether the identity is kept: an end may keep it, and a run may release it."""
    job = run(store, identity="same")
    if ends:
        apply(store, job, Transition.COMPLETE, keeps_identity=True)
    else:
        apply(store, job, Transition.UPDATE_PROGRESS, keeps_identity=False)
    expected = "job-1" if ends else "job-2"
    assert submit(store, "job-2", identity="same").id == expected
    assert [holder.id for holder in holders(store, "same")] == [expected]


def test_a_known_id_returns_its_row(store: Store) -> None:
    """A submission whose id is known returns that job, whatever its other values."""
    job = submit(store)
    with untouched(store):
        answer = admission(store, identity="another", payload="[]", nonce="other", wake_in=1.0)
        assert answer == Admission(job, Outcome.ATTACHED)


@pytest.mark.parametrize("event", ENDINGS)
def test_a_known_id_returns_its_ended_row(store: Store, event: Transition) -> None:
    """A submission with the id of an ended job does not start it again, although its identity is free."""
    ended = end(store, run(store), event)
    with untouched(store):
        assert admission(store, nonce="other") == Admission(ended, Outcome.ATTACHED)
    assert holders(store, ended.identity) == []


def test_a_known_id_takes_precedence_over_the_holder_of_the_identity(store: Store) -> None:
    """A known id returns its own row, even while another job holds the identity."""
    ended = end(store, run(store, identity="same"))
    submit(store, "job-2", identity="same")
    with untouched(store, "job-1", "job-2"):
        assert admission(store, identity="same") == Admission(ended, Outcome.ADMITTED)


@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
def test_conflict_policies_do_not_apply_to_a_known_id(store: Store, clock: ManualClock, conflict_policy: str) -> None:
    """The conflict policy of a submission is not applied to the job with its own id."""
    job = submit(store, delay=50.0)
    with untouched(store):
        values = {
            "nonce": "other",
            "payload": "[]",
            "fingerprint": "other",
            "priority_rank": 5,
            **CONFLICT_POLICIES[conflict_policy],
        }
        assert admission(store, **values) == Admission(job, Outcome.ATTACHED)


def test_a_submission_is_recorded_in_the_history_and_its_duplicates_are_not(store: Store, clock: ManualClock) -> None:
    """The history records when and from which source a job was submitted; a later duplicate adds no entry to it."""
    submit(store, identity="same", source="delay")
    clock.advance(2.0)
    submit(store, "job-2", identity="same", source="http")
    lines = [(e.at, e.event, e.state, e.attempt, e.node, e.detail) for e in store.history("job-1")]
    assert lines == [(START, "submit", State.QUEUED, 0, "", "delay")]
    assert [duplicate.source for duplicate in store.duplicates("job-1")] == ["http"]
    assert store.history("job-2") == []


def test_timestamps_use_the_clock_of_the_store(store: Store) -> None:
    """Without an injected clock a store uses its own time, to a fraction of a second."""
    before = time.time()
    job = submit(store, delay=5.0, expires_in=7.0, wake_in=3.0, key="key-1", key_for=9.0)
    assert before - 0.01 <= job.created_at <= time.time() + 0.01
    timestamps = [
        at and at - job.created_at for at in (job.run_at, job.expires_at, job.wake_at, job.key_retained_until)
    ]
    assert timestamps == pytest.approx([5.0, 7.0, 5.0, 9.0], abs=1e-5)


def test_the_ledger_returns_which_submission_was_admitted(ledger: Ledger) -> None:
    """The ledger returns `admitted` to the submission that wrote the job and `attached` to every other."""
    first = ledger.submit(submission(identity="same"))
    second = ledger.submit(submission("job-2", identity="same"))
    assert (first.outcome, first.job.id, first.follower) == (Outcome.ADMITTED, "job-1", None)
    assert (second.outcome, second.job.id, second.follower) == (Outcome.ATTACHED, "job-1", None)


@pytest.mark.parametrize("ended", [False, True])
def test_another_submission_of_a_known_id_is_attached(ledger: Ledger, store: Store, ended: bool) -> None:
    """A submission with the id of another submission's job is attached, not admitted."""
    ledger.submit(submission())
    if ended:
        ledger.cancel("job-1")
    with untouched(store):
        other = ledger.submit(submission(nonce="another"))
    assert (other.outcome, other.job, other.follower) == (Outcome.ATTACHED, read(store), None)


@pytest.mark.parametrize(("delay", "wake_in"), [(0.0, LEASE), (-5.0, LEASE), (2.0, 2.0), (3600.0, 3600.0)])
def test_wake_at_of_a_new_job_is_run_at_or_after_one_lease(
    ledger: Ledger, clock: ManualClock, delay: float, wake_in: float
) -> None:
    """The `wake_at` of a delayed job is `run_at`; that of a job published at once is one lease from now."""
    job = ledger.submit(submission(delay=delay)).job
    assert job.wake_at == START + wake_in
    assert job.run_at == START + delay
