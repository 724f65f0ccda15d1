"""The sentences about the present state of a job are true, on the store's clock."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from onejob.errors import JobPurgedError
from onejob.jobs.model import Cancel, Job, Retention
from onejob.jobs.records import Registration
from onejob.jobs.timestamps import format_timestamp
from onejob.ledger.explain import explain
from onejob.ledger.publication import note_canvas_error
from onejob.ledger.stuck import STUCK_LEASES, Stuck
from onejob.webhooks.job import webhook_submission
from tests.contract.support import LEASE, START, sweep
from tests.fundamentals.shop import claimed, order

if TYPE_CHECKING:
    from onejob.ledger.explain import Explanation
    from onejob.ledger.ledger import Ledger
    from tests.contract.support import ManualClock

TASK = "shop.invoice"
REGISTERED = Registration(tasks=(TASK,), queues=("celery",))
PAST = re.compile(r"Job \S+ runs the task |\d{4}-\d\d-\d\dT\S+  ")
NO_WORKER = "No worker of this ledger is alive: none has sent a heartbeat lately."
CAN_RUN = "Live workers that can run it: north."
LATE = STUCK_LEASES * LEASE + 1.0


def present(explanation: Explanation) -> list[str]:
    """Return the sentences about the present, without the last one if that says why the job is stuck."""
    sentences = [line for line in explanation.sentences if not PAST.match(line)]
    if explanation.stuck is not None:
        assert sentences.pop() == f"It is stuck: {explanation.stuck}."
    return sentences


def past(ledger: Ledger, job: Job) -> list[str]:
    """Return the sentences of the history, without their times."""
    lines = explain(ledger, job.id).sentences[1:]
    return [line.split("  ", 1)[1] for line in lines if PAST.match(line)]


def time_of(offset: float) -> str:
    """Return the exact time that lies so many seconds after the start."""
    return format_timestamp(START + offset)


def submit(ledger: Ledger, number: int = 1, **values: Any) -> Job:
    """Submit a job for the queue `celery`."""
    return ledger.submit(order(number, **({"route": "celery"} | values))).job


def start_worker(ledger: Ledger, name: str = "north", registration: Registration = REGISTERED) -> None:
    """Send a heartbeat that lasts for ever."""
    ledger.heartbeat(name, lasts=1e9, registration=registration)


def send(job: Job) -> None:
    """Send no message."""


def refuse(job: Job) -> None:
    """Raise what a transport does for a queue that does not exist."""
    raise LookupError("no queue typo")


# --- waiting --------------------------------------------------------------------------------------------------------


def test_a_delayed_job_waits_until_it_is_due(ledger: Ledger, clock: ManualClock) -> None:
    """A job with a delay is not due; the sentences say when it is, and that a sweep then sends its first message."""
    start_worker(ledger)
    job = submit(ledger, delay=3600.0)
    clock.advance(60.0)
    found = explain(ledger, job.id)
    assert found.stuck is None
    assert present(found) == [
        f"It waits until it is due at {time_of(3600)} (in 59 min).",
        f"A sweep sends its message to the queue celery at {time_of(3600)} (in 59 min).",
        CAN_RUN,
    ]


def test_the_first_message_of_a_delayed_job_is_not_sent_again(ledger: Ledger, clock: ManualClock) -> None:
    """The first publication of a delayed job is explained by its due time, and not as a repetition."""
    start_worker(ledger)
    job = submit(ledger, delay=3600.0)
    clock.advance(3600.0)
    sweep(ledger, send)
    assert past(ledger, job)[-1] == (
        "A sweep found the job due and unclaimed: published to queue celery: attempt 1; "
        "again in 30 s unless a worker claims it."
    )
    clock.advance(5.0)
    assert present(explain(ledger, job.id)) == [
        f"It has been due since {time_of(3600)} (5 s ago) and waits for a worker.",
        "Sweeps have published its message to the queue celery once.",
        (
            "Unless a worker claims it first, a sweep sends its message to the queue celery again at "
            f"{time_of(3630)} (in 25 s)."
        ),
        CAN_RUN,
    ]


def test_a_job_that_is_due_waits_for_a_worker(ledger: Ledger, clock: ManualClock) -> None:
    """A job that was just submitted is due; its message was sent, and a sweep sends it again after a lease."""
    start_worker(ledger)
    job = submit(ledger)
    clock.advance(2.0)
    found = explain(ledger, job.id)
    assert found.stuck is None
    assert present(found) == [
        f"It has been due since {time_of(0)} (2 s ago) and waits for a worker.",
        "Its message was sent to the queue celery when it was queued, unless the broker was unavailable.",
        (
            "Unless a worker claims it first, a sweep sends its message to the queue celery again at "
            f"{time_of(30)} (in 28 s)."
        ),
        CAN_RUN,
    ]


def test_a_job_in_a_backlog_backs_off(ledger: Ledger, clock: ManualClock) -> None:
    """A job in a backlog was published with growing pauses; after three leases without a claim it is stuck."""
    start_worker(ledger)
    job = submit(ledger)
    for _ in range(4):
        clock.advance(LEASE)
        sweep(ledger, send)
    found = explain(ledger, job.id)
    assert found.stuck is Stuck.NOT_CLAIMED
    assert present(found) == [
        f"It has been due since {time_of(0)} (2 min ago) and waits for a worker.",
        "Sweeps have published its message to the queue celery 3 times in a row.",
        (
            "Unless a worker claims it first, a sweep sends its message to the queue celery again at "
            f"{time_of(240)} (in 2 min)."
        ),
        CAN_RUN,
    ]


def test_a_message_that_cannot_be_sent_is_named(ledger: Ledger, clock: ManualClock) -> None:
    """The error of the publication is a sentence, with the attempts, the queue and the next time."""
    start_worker(ledger, registration=replace(REGISTERED, queues=("celery", "typo")))
    job = submit(ledger, route="typo")
    clock.advance(LEASE)
    sweep(ledger, refuse)
    clock.advance(10.0)
    found = explain(ledger, job.id)
    assert found.stuck is Stuck.NOT_SENDABLE
    assert present(found)[1:3] == [
        "Its message could not be sent to the queue typo, once: LookupError: no queue typo.",
        (
            "Unless a worker claims it first, a sweep sends its message to the queue typo again at "
            f"{time_of(60)} (in 20 s)."
        ),
    ]


def test_a_queue_that_nobody_consumes_is_named(ledger: Ledger) -> None:
    """A job for a queue that no live worker consumes is stuck; the sentences name the queue and what is consumed."""
    start_worker(ledger)
    start_worker(ledger, "other", Registration(tasks=("mail.send",), queues=("slow",)))
    found = explain(ledger, submit(ledger, route="slow").id)
    assert found.stuck is Stuck.QUEUE_NOT_CONSUMED
    assert present(found)[-1] == "No live worker that has the task consumes the queue slow: north consumes celery."


def test_dead_workers_are_named_as_the_cause(ledger: Ledger, clock: ManualClock) -> None:
    """A job that is due while no worker is alive is stuck at once, and its overdue publication is in the past."""
    ledger.heartbeat("north", lasts=LEASE, registration=REGISTERED)
    job = submit(ledger)
    assert explain(ledger, job.id).stuck is None
    clock.advance(300.0)
    found = explain(ledger, job.id)
    assert found.stuck is Stuck.NO_WORKER
    assert present(found)[1:] == [
        (
            "The next sweep of a worker that has its task sends its message to the queue celery: that was due at "
            f"{time_of(30)} (4 min 30 s ago)."
        ),
        NO_WORKER,
    ]


def test_a_task_that_no_worker_has_is_named(ledger: Ledger) -> None:
    """A job whose task no live worker has is stuck; the live workers are named."""
    start_worker(ledger, "mailer", Registration(tasks=("mail.send",), queues=("celery",)))
    found = explain(ledger, submit(ledger).id)
    assert found.stuck is Stuck.TASK_UNKNOWN
    assert present(found)[-1] == f"No live worker has the task {TASK}. Alive: mailer."


def test_a_worker_that_registers_nothing_can_run_anything(ledger: Ledger) -> None:
    """Of a worker that has registered neither tasks nor queues, nothing is claimed."""
    start_worker(ledger, registration=Registration())
    found = explain(ledger, submit(ledger, route="slow").id)
    assert (found.stuck, present(found)[-1]) == (None, CAN_RUN)


def test_a_retry_has_a_due_time(ledger: Ledger, clock: ManualClock) -> None:
    """A job that is retried says when its next attempt is due, and is not stuck before that."""
    start_worker(ledger)
    run = claimed(ledger, submit(ledger).id)
    clock.advance(10.0)
    job = ledger.retry(run, delay=600.0, payload=run.payload, options="{}", retries=1, error=None, reason="Timeout")
    found = explain(ledger, job.id)
    assert (found.stuck, present(found)[0]) == (
        None,
        f"It waits for its next attempt, which is due at {time_of(610)} (in 10 min).",
    )


def test_a_recovered_job_is_due_since_its_recovery(ledger: Ledger, clock: ManualClock) -> None:
    """A job that was queued again is due since then, however long ago it was submitted, and is not stuck."""
    start_worker(ledger)
    job = claimed(ledger, submit(ledger).id)
    clock.advance(LATE)
    sweep(ledger, send)
    clock.advance(5.0)
    found = explain(ledger, job.id)
    assert found.stuck is None
    assert present(found)[0] == f"It has been due since {time_of(LATE)} (5 s ago) and waits for a worker."


def test_an_expiry_is_explained(ledger: Ledger, clock: ManualClock) -> None:
    """A waiting job with an expiry says when that is; when it is over, nothing is sent any more."""
    job = submit(ledger, expires_in=20.0)
    assert f"If no run starts before it expires at {time_of(20)} (in 20 s), it is canceled." in present(
        explain(ledger, job.id)
    )
    clock.advance(25.0)
    assert present(explain(ledger, job.id)) == [
        f"It expired at {time_of(20)} (5 s ago): the next sweep, or a claim, cancels it.",
        NO_WORKER,
    ]
    sweep(ledger, send)
    assert present(explain(ledger, job.id))[0] == (
        f"It was canceled at {time_of(25)} (0 s ago): it expired before a run started."
    )


# --- following ------------------------------------------------------------------------------------------------------


def test_a_follower_waits_for_another_job(ledger: Ledger, clock: ManualClock) -> None:
    """A follower names the job whose end it waits for, and that job's state."""
    first = claimed(ledger, submit(ledger).id)
    follower = ledger.submit(order(1, follows=True, route="celery")).follower
    assert follower is not None
    clock.advance(LATE - 1.0)
    found = explain(ledger, follower.id)
    assert present(found) == [f"It waits for the end of job {first.id}, which is running."]


def test_a_follower_of_an_ended_job_is_due(ledger: Ledger, clock: ManualClock) -> None:
    """A follower whose job has ended says how and when, and is stuck when no sweep has processed it."""
    first = claimed(ledger, submit(ledger).id)
    follower = ledger.submit(order(1, follows=True, route="celery")).follower
    assert follower is not None
    clock.advance(10.0)
    ledger.complete(first, "1")
    clock.advance(LATE)
    found = explain(ledger, follower.id)
    assert found.stuck is Stuck.NOT_SWEPT
    ended = f"{time_of(10)} (1 min 31 s ago)"
    assert present(found) == [
        f"Job {first.id}, whose end it waited for, ended at {ended}: it is completed.",
        f"A sweep of a worker that has its task processes it; that is due at {ended}.",
        NO_WORKER,
    ]
    start_worker(ledger)
    sweep(ledger, send)
    found = explain(ledger, follower.id)
    assert found.stuck is None
    assert present(found)[0] == f"It has been due since {ended} and waits for a worker."


def test_the_job_that_is_queued_next_waits(ledger: Ledger) -> None:
    """The job that is queued next names the job after which it runs."""
    first = claimed(ledger, submit(ledger).id)
    queued = ledger.submit(order(1, queues_next=True, replaces=True)).job
    assert present(explain(ledger, queued.id)) == [
        f"It runs when job {first.id} has ended, which is running.",
        "Newer submissions until then replace its arguments.",
    ]


def test_a_webhook_needs_no_broker(ledger: Ledger, clock: ManualClock) -> None:
    """A webhook that is due is sent by a worker of its job's task, whatever queues that consumes."""
    start_worker(ledger)
    first = claimed(ledger, submit(ledger).id)
    webhook = ledger.follow(webhook_submission("https://example.org/", first), follows_id=first.id)
    assert webhook is not None
    ledger.complete(first, "1")
    run = claimed(ledger, webhook.id)
    ledger.retry(run, delay=60.0, payload=run.payload, options="{}", retries=1, error=None, reason="answered 503")
    clock.advance(10.0)
    assert present(explain(ledger, webhook.id)) == [
        f"It waits for its next attempt, which is due at {time_of(60)} (in 50 s).",
        f"A worker that has the task {TASK} sends it without the broker.",
        CAN_RUN,
    ]


# --- running --------------------------------------------------------------------------------------------------------


def test_a_run_has_a_lease(ledger: Ledger, clock: ManualClock) -> None:
    """A running job says where it runs since when, and when its lease ends."""
    start_worker(ledger)
    job = claimed(ledger, submit(ledger).id)
    clock.advance(5.0)
    found = explain(ledger, job.id)
    assert found.stuck is None
    assert present(found) == [
        f"It runs on north: attempt 1, which started at {time_of(0)} (5 s ago).",
        f"Its lease ends at {time_of(30)} (in 25 s), unless the worker renews it.",
    ]


def test_the_worker_of_a_run_has_no_heartbeat(ledger: Ledger) -> None:
    """A run whose worker sends no heartbeat says so, and that its forced cancellation was requested."""
    job = claimed(ledger, submit(ledger).id)
    assert ledger.cancel(job.id, force=True).cancel is Cancel.FORCED
    assert present(explain(ledger, job.id))[2:] == [
        "The worker north has no valid heartbeat: if it is dead, a sweep recovers the job after that.",
        "Its forced cancellation was requested.",
    ]


def test_an_expired_lease_is_in_the_past(ledger: Ledger, clock: ManualClock) -> None:
    """A run whose lease has expired is stuck; the sentences say who recovers it: nobody, while no worker is alive."""
    job = claimed(ledger, submit(ledger).id)
    clock.advance(LEASE + 60.0)
    found = explain(ledger, job.id)
    assert found.stuck is Stuck.LEASE_EXPIRED
    assert present(found) == [
        (
            f"It ran on north: attempt 1, which started at {time_of(0)} (1 min 30 s ago). "
            f"Its lease expired at {time_of(30)} (1 min ago)."
        ),
        "No worker of this ledger is alive, so no sweep recovers it: start a worker.",
    ]
    start_worker(ledger, "south")
    assert present(explain(ledger, job.id))[-1] == "A sweep of a live worker recovers it. Alive: south."


# --- ended ----------------------------------------------------------------------------------------------------------


def test_a_completed_job_is_kept(ledger: Ledger, clock: ManualClock) -> None:
    """A completed job says until when it is kept and answers duplicates, and afterwards that both are over."""
    job = ledger.complete(claimed(ledger, submit(ledger).id), "1", keep=Retention(identity_for=60.0))
    assert job.wake_at is not None
    kept = format_timestamp(job.wake_at)
    assert present(explain(ledger, job.id)) == [
        f"It completed at {time_of(0)} (0 s ago).",
        f"It is kept at least until {kept} (in 1 d 1 h).",
        f"It answers duplicates until {time_of(60)} (in 1 min).",
    ]
    clock.advance(job.wake_at - START + 3600.0)
    assert present(explain(ledger, job.id))[1:] == [
        f"Its retention ended at {kept} (1 h ago): a sweep purges it.",
        (
            f"Its uniqueness window ended at {time_of(60)} (1 d 1 h ago): "
            "the next submission or sweep releases its identity."
        ),
    ]


def test_a_canvas_that_waits_is_named(ledger: Ledger, clock: ManualClock) -> None:
    """An ended job says that its canvas waits, what was tried and when next; after three leases it is stuck."""
    job = ledger.complete(claimed(ledger, submit(ledger, canvas=True).id), "1")
    found = explain(ledger, job.id)
    assert (found.stuck, present(found)[1:]) == (
        None,
        [
            "Its canvas (links, chain or chord) is still to be notified of its end.",
            f"Unless a worker does it first, a sweep does so at {time_of(30)} (in 30 s).",
        ],
    )
    clock.advance(LATE)
    sweep(ledger, send)
    note_canvas_error(ledger, ledger.get(job.id), "OperationalError: no backend.")
    found = explain(ledger, job.id)
    assert found.stuck is Stuck.CANVAS_PENDING
    assert present(found)[1:] == [
        (
            "Its canvas (links, chain or chord) is still to be notified of its end. "
            "The last error: OperationalError: no backend."
        ),
        "Sweeps have sent its end to Celery for that once.",
        f"Unless a worker does it first, a sweep does so at {time_of(LATE + 30)} (in 30 s).",
    ]


def test_a_dead_letter_has_its_reason(ledger: Ledger, clock: ManualClock) -> None:
    """A dead letter says when and why it failed, and is not stuck."""
    job = ledger.fail(claimed(ledger, submit(ledger).id), '{"type": "E"}', "ValueError: {no} %s.")
    clock.advance(LATE)
    found = explain(ledger, job.id)
    assert (found.stuck, present(found)[0]) == (
        None,
        f"It failed at {time_of(0)} (1 min 31 s ago): ValueError: {{no}} %s. It is a dead letter.",
    )


def test_a_canceled_job_has_its_reason(ledger: Ledger, clock: ManualClock) -> None:
    """A canceled job says when and why it was canceled."""
    job = ledger.cancel(submit(ledger).id, reason="by the shop")
    assert (
        present(explain(ledger, job.id))[0]
        == f"It was canceled at {time_of(clock.now - START)} (0 s ago): by the shop."
    )


def test_a_purged_job_is_gone(ledger: Ledger, clock: ManualClock) -> None:
    """For a purged job the error says how it ended, and when it was purged."""
    job = ledger.cancel(submit(ledger).id)
    clock.advance(1e6)
    sweep(ledger, send)
    with pytest.raises(JobPurgedError, match=rf"canceled at {re.escape(time_of(0))} and purged at 2027-01-26"):
        explain(ledger, job.id)
