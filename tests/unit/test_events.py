"""Facts: the ledger tells each thing that has happened, once, and nothing that a caller has chosen freely."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import Duplicate
from onejob.jobs.policy import Policy
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import sweep
from onejob.observability.events import EVENTS, NAMES, JobEvent, one_line
from onejob.stores.sqlite import SQLiteStore
from tests.contract.support import LEASE, REPLACE, RUN_AGAIN, ManualClock, after, end, run, submission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from onejob.jobs.model import Job
    from onejob.stores.protocol import Store

PRIVATE = "chosen"
FORGED = "x\nERROR root: forged\x1b[2J\u2028\u202e"


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that the test moves."""
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    """Return a store in a file."""
    store = SQLiteStore(tmp_path / "ledger.db", clock=clock)
    yield store
    store.close()


@pytest.fixture
def told() -> list[JobEvent]:
    """Return what has been told."""
    return []


@pytest.fixture
def ledger(store: Store, told: list[JobEvent]) -> Ledger:
    """Return a ledger that tells."""
    return Ledger(store, Policy(crash_limit=2), told.append)


def names(told: list[JobEvent]) -> list[str]:
    return [event.event for event in told]


def started(ledger: Ledger, job_id: str = "job-1", **values: Any) -> Job:
    ledger.submit(submission(job_id, **values))
    job = ledger.claim(job_id, nonce=f"claim-of-{job_id}", node="node-1").job
    assert job is not None
    return job


def test_a_life_is_told(ledger: Ledger, told: list[JobEvent], clock: ManualClock) -> None:
    """Submission, claim and end of a job are one fact each, with what is known then."""
    ledger.submit(submission())
    clock.advance(2.0)
    job = ledger.claim("job-1", nonce="n", node="node-1").job
    assert job is not None
    clock.advance(3.0)
    ledger.complete(job, "1")
    about: dict[str, Any] = {"attempt": 1, "token": job.token, "node": "node-1"}
    assert told == [
        JobEvent("job_submitted", "job-1", "app.add", {"outcome": "admitted"}),
        JobEvent("job_claimed", "job-1", "app.add", {**about, "wait_seconds": 2.0}),
        JobEvent("job_completed", "job-1", "app.add", {**about, "run_seconds": 3.0}),
    ]


@pytest.mark.parametrize(
    ("wants", "outcome"),
    [({}, "attached"), ({"rejects": True}, "rejected"), (REPLACE, "replaced"), ({"follows": True}, "attached")],
)
def test_a_duplicate_is_told_with_its_outcome(
    ledger: Ledger, told: list[JobEvent], wants: dict[str, Any], outcome: str
) -> None:
    """What a submission came to is a fact about the job that answers, and names the follower, if there is one."""
    ledger.submit(submission("first", identity="same"))
    ledger.submit(submission("again", identity="same", fingerprint="other", **wants))
    follower = {"follower": "again"} if "follows" in wants else {}
    assert told[1] == JobEvent("job_submitted", "first", "app.add", {"outcome": outcome, **follower})


def test_many_submissions_are_many_facts(ledger: Ledger, told: list[JobEvent]) -> None:
    """Each of many submissions is told by itself."""
    ledger.submit_many([submission(f"job-{number}", identity=f"{number % 2}") for number in range(4)])
    assert [event.fields["outcome"] for event in told] == ["admitted", "admitted", "attached", "attached"]


ENDS: dict[str, Callable[[Ledger, Job], object]] = {
    "job_completed": lambda ledger, job: ledger.complete(job, "1"),
    "job_failed": lambda ledger, job: ledger.fail(job, '"error"', "failed"),
    "job_canceled": lambda ledger, job: ledger.abandon(job, "canceled"),
    "job_retrying": lambda ledger, job: ledger.retry(
        job, delay=7.0, payload="{}", options="{}", retries=1, error=None, reason="again"
    ),
    "job_released": lambda ledger, job: ledger.release(job, "released", wake_in=0.0),
    "job_crashed": lambda ledger, job: ledger.crash(job, "crashed", '"lost"'),
    "job_dead_lettered": lambda ledger, job: ledger.crash(replace(job, crashes=1), "crashed", '"lost"'),
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("canvas_pending", [False, True])
def test_the_end_of_a_run_tells_how_long_it_took(
    ledger: Ledger, told: list[JobEvent], clock: ManualClock, name: str, *, canvas_pending: bool
) -> None:
    """However a run ends, its fact has its length, also when the job goes on."""
    job = started(ledger, canvas=canvas_pending, expires_in=3.0)
    clock.advance(4.5)
    ENDS[name](ledger, job)
    event = told[-1]
    assert (event.event, event.fields["run_seconds"], event.fields["node"]) == (name, 4.5, "node-1")


@pytest.mark.parametrize(("limit", "name"), [(2, "job_crashed"), (1, "job_dead_lettered")])
def test_a_lease_that_ran_out_is_told(
    store: Store, told: list[JobEvent], clock: ManualClock, limit: int, name: str
) -> None:
    """A run that a sweep finds lost is told as lapsed; one that its own parent gives up is not."""
    ledger = Ledger(store, Policy(crash_limit=limit), told.append)
    started(ledger)
    clock.advance(LEASE)
    sweep(ledger, lambda _job: None)
    assert [event.fields["lapsed"] for event in told if event.event == name] == [True]
    ledger.crash(started(ledger, "job-2"), "its child died", '"lost"')
    assert told[-1].fields["lapsed"] is False


def test_a_refused_claim_is_told(ledger: Ledger, told: list[JobEvent]) -> None:
    """A claim of a job that runs already is told with its state; one of an unknown job is not told."""
    started(ledger)
    ledger.claim("job-1", nonce="another", node="node-2")
    assert told[-1] == JobEvent("claim_refused", "job-1", "app.add", {"state": "running", "node": "node-2"})
    ledger.claim("unknown", nonce="another", node="node-2")
    assert names(told) == ["job_submitted", "job_claimed", "claim_refused"]


def test_only_a_first_run_tells_how_long_the_job_waited(
    ledger: Ledger, told: list[JobEvent], clock: ManualClock
) -> None:
    """The wait counts from the moment at which the job was due; of later runs that moment is not known."""
    ledger.submit(submission(delay=10.0))
    clock.advance(12.5)
    job = ledger.claim("job-1", nonce="first", node="node-1").job
    assert job is not None
    assert told[-1].fields["wait_seconds"] == 2.5
    ledger.release(job, "released", wake_in=0.0)
    ledger.claim("job-1", nonce="second", node="node-1")
    assert "wait_seconds" not in told[-1].fields


def test_a_follower_is_told_as_one(ledger: Ledger, told: list[JobEvent], clock: ManualClock) -> None:
    """What happens to a job that follows another names the other."""
    ledger.submit(submission("first", identity="same"))
    ledger.submit(submission("again", identity="same", follows=True))
    ledger.cancel("first")
    clock.advance(1.0)
    ledger.claim("again", nonce="n", node="node-1")
    assert (told[-1].event, told[-1].fields["follows_id"]) == ("job_claimed", "first")


def test_cancellations_are_told(ledger: Ledger, told: list[JobEvent], clock: ManualClock) -> None:
    """To ask a run to stop, to cancel a job that waits, and an expiry are three things."""
    started(ledger, "running")
    ledger.cancel("running", force=True)
    ledger.submit(submission("waiting"))
    ledger.cancel("waiting")
    ledger.submit(submission("late", expires_in=1.0))
    clock.advance(2.0)
    ledger.claim("late", nonce="n", node="node-1")
    assert names(told) == [
        "job_submitted", "job_claimed", "job_cancel_requested",
        "job_submitted", "job_canceled",
        "job_submitted", "job_expired", "claim_refused",
    ]  # fmt: skip
    assert told[2].fields == {"force": True}
    assert told[-1].fields["state"] == "canceled"


def test_a_job_canceled_while_it_came_to_wait_is_told_twice(ledger: Ledger, told: list[JobEvent]) -> None:
    """A run that hands its job back after it was asked to stop has ended, and then the job was canceled."""
    job = started(ledger)
    ledger.cancel(job.id)
    ledger.release(job, "released")
    assert names(told)[-2:] == ["job_released", "job_canceled"]
    assert "run_seconds" in told[-2].fields
    assert "run_seconds" not in told[-1].fields


def test_what_was_refused_is_not_told(ledger: Ledger, told: list[JobEvent], store: Store) -> None:
    """A change that the store refuses has not happened."""
    job = run(store)
    end(store, job)
    ledger.crash(job, "crashed", '"lost"')
    ledger.mark_canvas_notified(job)
    assert told == []


def test_a_sweep_is_told(ledger: Ledger, told: list[JobEvent], clock: ManualClock) -> None:
    """A sweep tells what it published, and its counts last; also when the broker is away."""
    ledger.submit(submission())
    clock.advance(LEASE)
    sweep(ledger, lambda _job: None)
    assert names(told) == ["job_submitted", "job_published", "sweep"]
    assert told[1].fields == {"times": 1}
    assert told[2].fields == {"published": 1, "lapsed": 0, "canceled": 0, "purged": 0, "seen": 1}
    clock.advance(2 * LEASE)
    with pytest.raises(ZeroDivisionError):
        sweep(ledger, lambda _job: 1 / 0)
    assert told[-1].fields == {"published": 0, "lapsed": 0, "canceled": 0, "purged": 0, "seen": 1}


def test_what_is_removed_is_told(ledger: Ledger, told: list[JobEvent], clock: ManualClock) -> None:
    """Old jobs are counted when they are purged; a dead letter that is dropped, or sent again, is named."""
    for number in range(3):
        ledger.complete(started(ledger, f"job-{number}"), "1")
    clock.advance(1e6)
    sweep(ledger, lambda _job: None)
    assert [event.fields for event in told if event.event == "jobs_purged"] == [{"count": 3}]
    ledger.fail(started(ledger, "dead"), '"error"', "failed")
    ledger.redrive("dead")
    assert (told[-1].event, told[-1].job_id) == ("job_redriven", "dead")
    ledger.cancel("dead")
    ledger.fail(started(ledger, "dead-2"), '"error"', "failed")
    ledger.drop("dead-2")
    assert told[-1] == JobEvent("job_dropped", "dead-2")


def test_every_event_that_changes_a_job_has_a_name() -> None:
    """All events are told but signs of life and progress, and every name is that of a fact."""
    assert set(Transition) - set(NAMES) == {Transition.RENEW, Transition.UPDATE_PROGRESS}
    assert set(NAMES.values()) <= set(EVENTS)
    assert len(set(EVENTS)) == len(EVENTS)


def test_what_callers_choose_is_not_told(ledger: Ledger, told: list[JobEvent]) -> None:
    """No argument, result, error, reason, key, submitter or host gets into a fact."""
    chosen = {
        "payload": f'"{PRIVATE}"',
        "options": f'"{PRIVATE}"',
        "key": PRIVATE,
        "submitter": PRIVATE,
        "host": PRIVATE,
    }
    job = started(ledger, identity="same", fingerprint=PRIVATE, source=PRIVATE, **chosen)
    ledger.submit(submission("again", identity="same", **(chosen | {"key": f"{PRIVATE}2"}), **RUN_AGAIN))
    ledger.report(job, f'"{PRIVATE}"')
    ledger.keep_step(job, PRIVATE, f'"{PRIVATE}"')
    ledger.record(
        Duplicate(
            job_id=job.id, submission_nonce=PRIVATE, outcome=ledger.submit(submission()).outcome, answered_by=job.id, source=PRIVATE,
            submitter=PRIVATE, host=PRIVATE, fingerprint=PRIVATE, arguments_differ=False,
        )
    )  # fmt: skip
    job = ledger.retry(job, delay=0.0, payload=f'"{PRIVATE}"', options="{}", retries=1, error=PRIVATE, reason=PRIVATE)
    again = ledger.claim(job.id, nonce="second", node="node-1").job
    assert again is not None
    ledger.cancel(job.id, reason=PRIVATE)
    ledger.fail(again, f'"{PRIVATE}"', PRIVATE)
    ledger.cancel("again", reason=PRIVATE)
    ledger.redrive(job.id, reason=PRIVATE)
    assert len(told) > 7
    assert PRIVATE not in repr(told)


def test_a_forged_id_stays_on_its_line(ledger: Ledger, told: list[JobEvent]) -> None:
    """Ids, names of tasks and of nodes are told with their odd characters escaped, so that no line begins in them."""
    ledger.submit(submission(FORGED, task=FORGED))
    job = ledger.claim(FORGED, nonce="n", node=FORGED).job
    assert job is not None
    ledger.claim(FORGED, nonce="m", node=FORGED)
    ledger.submit(submission("again", identity=job.identity, follows=True))
    ledger.fail(job, '"error"', "failed")
    ledger.drop(FORGED)
    texts = [text for event in told for text in (event.job_id, event.task, *map(str, event.fields.values()))]
    assert [text for text in texts if not text.isprintable()] == []
    assert one_line(FORGED) == r"x\nERROR root: forged\x1b[2J\u2028\u202e"
    assert one_line("plain-ž") == "plain-ž"


def test_nothing_is_told_of_a_transaction_unless_it_is_asked_for(ledger: Ledger, told: list[JobEvent]) -> None:
    """What happens as a part of somebody's transaction is told to nobody, or to whom the joined ledger was given."""

    class Joins:
        def in_transaction(self, _transaction: object) -> Store:
            return ledger.store

    other: list[JobEvent] = []
    joining = Ledger(Joins(), emit=told.append)  # type: ignore[arg-type] # all that is asked of it here
    joining.in_transaction(object()).submit(submission("a"))  # type: ignore[arg-type]
    joining.in_transaction(object(), other.append).submit(submission("b"))  # type: ignore[arg-type]
    assert (told, [event.job_id for event in other]) == ([], ["b"])


def test_who_listens_hears_before_the_store_is_closed(store: Store) -> None:
    """What is to be done at the close is done while the store still answers as before."""
    order: list[str] = []
    closing = after(store, "close", lambda: order.append("store"))
    Ledger(closing, at_close=lambda: order.append("listener")).close()
    assert order == ["listener", "store"]
