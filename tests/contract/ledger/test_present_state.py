"""The sentences about the present state of a job are true, on the store's clock, and say why a job is stuck."""

import re
from dataclasses import replace
from typing import Any

import pytest

from onejob.errors import JobPurgedError, UniquenessWindowError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel, Job, Retention
from onejob.jobs.records import REGISTERED_TASKS_LIMIT, Query, Registration, WorkerInfo
from onejob.jobs.timestamps import format_timestamp
from onejob.ledger import stuck as stuck_module
from onejob.ledger.explain import explain
from onejob.ledger.stuck import STUCK_LEASES, Snapshot, Stuck, find_stuck, list_stuck
from onejob.ledger.sweep import note_canvas_error
from onejob.webhooks.job import webhook_submission
from tests.cases import for_each
from tests.conftest import every_store
from tests.contract.ledger.world import World, refuse, retry
from tests.contract.support import LEASE, START, not_none
from tests.fundamentals.shop import claimed, order

TASK = "shop.invoice"
REGISTERED = Registration(tasks=(TASK,), queues=("celery",))
PAST = re.compile(r"Job \S+ runs the task |\d{4}-\d\d-\d\dT\S+  ")
NO_WORKER = "No worker of this ledger is alive: none has sent a heartbeat lately."
CAN_RUN = "Live workers that can run it: north."
LOST = "It is sent again when it is known to be lost."
LATE = STUCK_LEASES * LEASE + 1.0


def at(offset: float) -> str:
    """Return the exact time that lies so many seconds after the start."""
    return format_timestamp(START + offset)


def submit(world: World, number: int = 1, **values: Any) -> Job:
    """Submit a job for the queue `celery`."""
    return world.ledger.submit(order(number, **({"route": "celery"} | values))).job


def run(world: World, number: int = 1, **values: Any) -> Job:
    """Submit a job and claim it for the node `north`."""
    return claimed(world.ledger, submit(world, number, **values).id)


def start_worker(world: World, name: str = "north", registration: Registration = REGISTERED) -> None:
    """Send a heartbeat that lasts for ever."""
    world.ledger.heartbeat(name, lasts=1e9, registration=registration)


def assert_present(world: World, job: Job, *expected: str, stuck: Stuck | None = None) -> None:
    """Assert which sentences are said about the present; one that says why the job is stuck is the last."""
    explanation = explain(world.ledger, job.id)
    sentences = [line for line in explanation.sentences if not PAST.match(line)]
    assert sentences == [*expected, *([f"It is stuck: {stuck}."] if stuck else [])]
    assert explanation.stuck is stuck


# --- waiting --------------------------------------------------------------------------------------------------------


def test_a_delayed_job_waits_until_it_is_due_and_then_for_a_worker(world: World) -> None:
    """The sentences say when a job is due, and that a sweep then sends its message; three leases later it is stuck."""
    start_worker(world)
    job = submit(world, delay=3600.0)
    world.clock.advance(60.0)
    until = f"It waits until it is due at {at(3600)} (in 59 min)."
    assert_present(
        world, job, until, f"A sweep sends its message to the queue celery at {at(3600)} (in 59 min).", CAN_RUN
    )
    world.clock.advance(3540.0)
    world.sweep()
    for pause, ago, stuck in ((5.0, "5 s ago", None), (4 * LEASE - 5.0, "2 min ago", Stuck.NOT_CLAIMED)):
        world.clock.advance(pause)
        since = f"It has been due since {at(3600)} ({ago}) and waits for a worker."
        sent = f"Its message was sent to the queue celery at {at(3600)} ({ago}) by a sweep (once)."
        assert_present(world, job, since, sent, LOST, CAN_RUN, stuck=stuck)


def test_a_job_that_the_ledger_delivers_waits_for_a_process(world: World) -> None:
    """Where workers take jobs from the ledger, the sentences tell who may take a job, and later when one took it."""
    start_worker(world, registration=replace(REGISTERED, takes_jobs=True))
    job = submit(world, delay=LEASE)
    world.clock.advance(LEASE)
    since = f"It has been due since {at(30)} (0 s ago) and waits for a worker."
    offered = "A worker of the queue celery takes it from the ledger when it is due and a process is free."
    assert_present(world, job, since, offered, CAN_RUN)
    world.ledger.store.deliver(["celery"], limit=1)  # type: ignore[attr-defined] # of a `DeliveringStore`
    taken = f"A worker took it from the ledger at {at(30)} (0 s ago)."
    assert_present(world, job, since, taken, "It is offered again when no live worker holds it.", CAN_RUN)


def test_a_job_waits_for_a_worker_that_starts(world: World) -> None:
    """While no worker is alive, no sweep is promised, nor a message, which a job of the ledger as broker has not."""
    job = submit(world, delay=3600.0)
    until = f"It waits until it is due at {at(3600)} (in 1 h)."
    starts = "A worker that starts takes it from the ledger, or sends its message to the queue celery, when it is due."
    assert_present(world, job, until, starts, NO_WORKER)


def test_a_worker_of_the_queue_without_the_task_is_named(world: World) -> None:
    """A broker may deliver a job to a worker that lacks its task, and discards it: the sentences name that worker."""
    start_worker(world)
    start_worker(world, "south", registration=replace(REGISTERED, tasks=("other",)))
    job = submit(world, delay=3600.0)
    until = f"It waits until it is due at {at(3600)} (in 1 h)."
    sent = f"A sweep sends its message to the queue celery at {at(3600)} (in 1 h)."
    other = "Its broker may deliver it to a worker that lacks the task, and discards it: south."
    assert_present(world, job, until, sent, CAN_RUN, other, "It is sent again then.")


def test_a_message_that_cannot_be_sent_is_named(world: World) -> None:
    """The error of the publication is a sentence, with the attempts, the queue and the next time."""
    start_worker(world, registration=replace(REGISTERED, queues=("celery", "typo")))
    job = submit(world, route="typo", delay=LEASE)
    world.clock.advance(LEASE)
    world.sweep(refuse)
    world.clock.advance(10.0)
    assert_present(
        world,
        job,
        f"It has been due since {at(30)} (10 s ago) and waits for a worker.",
        "Its message could not be sent to the queue typo, once: LookupError: typo.",
        f"A sweep sends its message to the queue typo at {at(60)} (in 20 s).",
        CAN_RUN,
        stuck=Stuck.NOT_SENDABLE,
    )


@for_each(
    "worker, stuck, sentence",
    [
        (None, Stuck.NO_WORKER, NO_WORKER),
        (REGISTERED, Stuck.QUEUE_NOT_CONSUMED,
         "No live worker that has the task consumes the queue slow: north consumes celery."),
        (Registration(tasks=("mail.send",), queues=("slow",)), Stuck.TASK_UNKNOWN,
         f"No live worker has the task {TASK}. Alive: north."),
        (Registration(), None, CAN_RUN),
        (Registration(silent_since=START - 19.6), Stuck.BROKER_SILENT,
         "Worker north has heard nothing from its broker for 20 s."),
    ],
)  # fmt: skip
def test_what_workers_lack_is_named(
    world: World, worker: Registration | None, stuck: Stuck | None, sentence: str
) -> None:
    """A job whose task no live worker has, or whose queue none consumes, is stuck, if workers registered any."""
    if worker is not None:
        start_worker(world, registration=worker)
    explanation = explain(world.ledger, submit(world, route="slow").id)
    assert (sentence in explanation.sentences, explanation.stuck) == (True, stuck)


def test_an_expiry_is_explained(world: World) -> None:
    """A waiting job with an expiry says when that is; when it is over, nothing is sent any more."""
    job = submit(world, expires_in=20.0)
    expiry = f"If no run starts before it expires at {at(20)} (in 20 s), it is canceled."
    assert expiry in explain(world.ledger, job.id).sentences
    world.clock.advance(25.0)
    over = f"It expired at {at(20)} (5 s ago): the next sweep, or a claim, cancels it."
    assert_present(world, job, over, NO_WORKER, stuck=Stuck.NO_WORKER)


# --- following ------------------------------------------------------------------------------------------------------


def test_a_follower_waits_for_another_job(world: World) -> None:
    """A follower names the job whose end it waits for, how and when that ended, and is stuck if no sweep takes it."""
    first = run(world)
    follower = world.ledger.submit(order(1, follows=True, route="celery")).follower
    queued = world.ledger.submit(order(1, queue_next=True, replaces=True)).job
    assert follower is not None
    world.clock.advance(10.0)
    assert_present(world, follower, f"It waits for the end of job {first.id}, which is running.")
    newer = "Newer submissions until then replace its arguments."
    assert_present(world, queued, f"It runs when job {first.id} has ended, which is running.", newer)
    world.ledger.complete(first, "1")
    world.clock.advance(LATE)
    ended = f"{at(10)} (1 min 31 s ago)"
    assert_present(
        world,
        follower,
        f"Job {first.id}, whose end it waited for, ended at {ended}: it is completed.",
        f"A sweep of a worker that has its task processes it; that is due at {ended}.",
        NO_WORKER,
        stuck=Stuck.NOT_SWEPT,
    )
    start_worker(world)
    world.sweep()
    assert f"It has been due since {ended} and waits for a worker." in explain(world.ledger, follower.id).sentences


def test_a_webhook_needs_no_broker(world: World) -> None:
    """A webhook that is due is sent by a worker of its job's task, whatever queues that consumes."""
    start_worker(world, registration=replace(REGISTERED, queues=("mail",)))
    first = run(world)
    webhook = not_none(world.ledger.follow(webhook_submission("https://example.org/", first), follows_id=first.id))
    world.ledger.complete(first, "1")
    retry(world.ledger, claimed(world.ledger, webhook.id), delay=60.0)
    world.clock.advance(10.0)
    waits = f"It waits for its next attempt, which is due at {at(60)} (in 50 s)."
    assert_present(world, webhook, waits, f"A worker that has the task {TASK} sends it without the broker.", CAN_RUN)


# --- running --------------------------------------------------------------------------------------------------------


def test_a_run_has_a_lease(world: World) -> None:
    """A running job says where it runs, when its lease ends, whether its worker lives, and who recovers it."""
    job = run(world)
    assert world.ledger.cancel(job.id, force=True).cancel is Cancel.FORCED
    world.clock.advance(5.0)
    runs = f"It runs on north: attempt 1, which started at {at(0)} (5 s ago)."
    lease = f"Its latest heartbeat was 5 s ago: its lease ends at {at(30)} (in 25 s), unless the worker renews it."
    no_heartbeat = "The worker north has no valid heartbeat: if it is dead, a sweep recovers the job after that."
    requested = "Its forced cancellation was requested."
    assert_present(world, job, runs, lease, no_heartbeat, requested)
    world.clock.advance(LEASE + 55.0)
    ran = f"It ran on north: attempt 1, which started at {at(0)} (1 min 30 s ago)."
    ran += f" Its lease expired at {at(30)} (1 min ago)."
    nobody = "No worker of this ledger is alive, so no sweep recovers it: start a worker."
    assert_present(world, job, ran, nobody, requested, stuck=Stuck.LEASE_EXPIRED)
    start_worker(world)
    somebody = "A sweep of a live worker recovers it. Alive: north."
    assert_present(world, job, ran, somebody, requested, stuck=Stuck.LEASE_EXPIRED)
    other = run(world, 2)
    assert not any("The worker north" in each for each in explain(world.ledger, other.id).sentences)
    world.clock.advance(1.0)
    start_worker(world, registration=replace(REGISTERED, started_at=world.clock.now))
    assert any("north has started again since then" in each for each in explain(world.ledger, other.id).sentences)


def test_a_recovered_job_is_due_since_its_recovery(world: World) -> None:
    """A job that was queued again is due since then, however long ago it was submitted, and is not stuck till late."""
    start_worker(world)
    job = run(world)
    world.clock.advance(LATE)
    world.sweep()
    since = f"It has been due since {at(LATE)} (0 s ago) and waits for a worker."
    assert since in explain(world.ledger, job.id).sentences
    assert found(world) == []
    world.clock.advance(LATE)
    assert found(world) == [(job.id, Stuck.NOT_CLAIMED)]


# --- ended ----------------------------------------------------------------------------------------------------------


def test_a_completed_job_is_kept(world: World) -> None:
    """A completed job says until when it is kept and answers duplicates, and afterwards that both are over."""
    job = world.ledger.complete(run(world), "1", keep=Retention(identity_for=60.0))
    assert job.wake_at is not None
    kept = format_timestamp(job.wake_at)
    assert_present(
        world,
        job,
        f"It completed at {at(0)} (0 s ago).",
        f"It is kept at least until {kept} (in 1 d 3 h).",
        f"It answers duplicates until {at(60)} (in 1 min).",
    )
    world.clock.advance(job.wake_at - START + 3600.0)
    assert_present(
        world,
        job,
        f"It completed at {at(0)} (1 d 4 h ago).",
        f"Its retention ended at {kept} (1 h ago): a sweep purges it.",
        f"Its uniqueness window ended at {at(60)} (1 d 3 h ago): the next submission or sweep releases its identity.",
    )
    world.sweep()
    with pytest.raises(JobPurgedError, match=rf"completed at {re.escape(at(0))} and was purged at 2027-01-16"):
        explain(world.ledger, job.id)


def test_a_window_may_end_beyond_the_calendar(world: World) -> None:
    """A job whose uniqueness window ends after the year 9999 is explained, and its deletion refused, as any other."""
    job = world.ledger.complete(run(world), "1", keep=Retention(identity_for=1e12))
    assert any("answers duplicates until 9999-12-30T" in each for each in explain(world.ledger, job.id).sentences)
    with pytest.raises(UniquenessWindowError, match="9999-12-30T"):
        world.ledger.delete(job.id)


def test_a_canvas_that_waits_is_named(world: World) -> None:
    """An ended job says that its canvas waits, what was tried and when next; after three leases it is stuck."""
    job = world.ledger.complete(run(world, canvas=True), "1")
    waits = "Its canvas (links, chain or chord) is still to be notified of its end."
    unless = "Unless a worker does it first, a sweep does so at"
    assert_present(world, job, f"It completed at {at(0)} (0 s ago).", waits, f"{unless} {at(30)} (in 30 s).")
    world.clock.advance(LATE)
    world.sweep()
    note_canvas_error(world.ledger, world.read(job.id), "OperationalError: {no} backend.")
    assert_present(
        world,
        job,
        f"It completed at {at(0)} (1 min 31 s ago).",
        f"{waits} The last error: OperationalError: {{no}} backend.",
        "Sweeps have sent its end to Celery for that once.",
        f"{unless} {at(LATE + 30)} (in 30 s).",
        stuck=Stuck.CANVAS_PENDING,
    )


def test_an_end_has_its_reason(world: World) -> None:
    """A dead letter or a canceled job says when and why it ended."""
    failed = world.ledger.fail(run(world), '{"type": "E"}', "ValueError: {no} %s.")
    canceled = world.ledger.cancel(submit(world, 2).id, reason="by the shop")
    ended = f"at {at(0)} (0 s ago)"
    why = f"It failed {ended}: ValueError: {{no}} %s. It is a dead letter."
    assert why in explain(world.ledger, failed.id).sentences
    assert f"It was canceled {ended}: by the shop." in explain(world.ledger, canceled.id).sentences


# --- the list of stuck jobs -----------------------------------------------------------------------------------------


def found(world: World, query: Query | None = None) -> list[tuple[str, Stuck]]:
    """Return the ids of the stuck jobs, with the reasons."""
    return [(job.id, reason) for job, reason in list_stuck(world.ledger, query or Query())]


@every_store
def test_stuck_jobs_are_listed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list has the jobs that make no progress, newest first, each with its reason, behind any page of others."""
    start_worker(world)
    monkeypatch.setattr(stuck_module, "PAGE_SIZE", 2)
    canvas = world.ledger.complete(run(world, 1, canvas=True), "1")
    world.ledger.cancel(submit(world, 2).id)
    lapsed = run(world, 3)
    world.clock.advance(1.0)
    old = submit(world, 4)
    world.clock.advance(1.0)
    unheard = submit(world, 5, route="slow")
    submit(world, 6, delay=3600.0, route="slow")
    world.clock.advance(LATE)
    for number in range(7, 12):
        submit(world, number)
    expected = [
        (unheard.id, Stuck.QUEUE_NOT_CONSUMED), (old.id, Stuck.NOT_CLAIMED),
        *sorted([(canvas.id, Stuck.CANVAS_PENDING), (lapsed.id, Stuck.LEASE_EXPIRED)], reverse=True),
    ]  # fmt: skip
    assert found(world) == expected
    assert found(world, Query(limit=2, offset=1)) == expected[1:3]
    assert found(world, Query(states=frozenset({State.RUNNING}))) == [(lapsed.id, Stuck.LEASE_EXPIRED)]
    assert found(world, Query(task="another")) == []


def test_settled_jobs_are_never_stuck(world: World) -> None:
    """An ended job without a canvas is never stuck."""
    for state in State:
        if state.final:
            world.reach(state, state)
    world.clock.advance(1e6)
    assert found(world) == []


@for_each(
    "worker, expected",
    [
        (REGISTERED, None),
        (Registration(tasks=(TASK,), queues=("slow",)), Stuck.QUEUE_NOT_CONSUMED),
        (Registration(tasks=(TASK,)), None),
        (Registration(tasks=("other",), queues=("celery",)), Stuck.TASK_UNKNOWN),
        (Registration(tasks=tuple(map(str, range(REGISTERED_TASKS_LIMIT))), queues=("celery",)), None),
        (Registration(), None),
        (replace(REGISTERED, silent_since=START), Stuck.BROKER_SILENT),
    ],
)
def test_only_what_workers_have_registered_counts(world: World, worker: Registration, expected: Stuck | None) -> None:
    """A worker cannot run a job only if it has registered its tasks or queues, and the job's is not among them."""
    job = submit(world)
    info = WorkerInfo("north", START, tasks=worker.tasks, queues=worker.queues, silent_since=worker.silent_since)
    assert find_stuck(job, Snapshot(job.created_at, (info,)), job.created_at) is expected
    assert find_stuck(job, Snapshot(job.created_at), job.created_at) is Stuck.NO_WORKER
    unrouted = replace(job, route="")
    assert find_stuck(unrouted, Snapshot(job.created_at, (info,)), job.created_at) in {None, expected}
