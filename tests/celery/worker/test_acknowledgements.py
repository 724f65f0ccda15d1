"""The messages of a worker: which are acknowledged together, and when one is known to be gone."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import celery
import pytest
from celery.app.task import Context
from celery.worker import state as worker_state
from kombu.transport import memory

import onejob
from onejob.celery.slots import members_of
from onejob.celery.worker.acknowledgements import (
    ACK_DELAY,
    ANY_RANK,
    LOOKS_PER_HEARTBEAT,
    MAX_ACKS,
    QUEUE_LIMIT,
    BatchedAcks,
    QueueProgress,
    QueueWatch,
)
from onejob.jobs.model import JobRow
from onejob.jobs.transitions import new_job
from onejob.jobs.workers import RESERVED_LIMIT, Registration
from onejob.testing import Jobs, isolated
from tests.cases import for_each
from tests.intervals import set_intervals
from tests.stores.support import ManualClock, submission

MARGIN = 18.0


def published(at: float, *, route: str = "celery", rank: int = 0) -> JobRow:
    """Return a job whose message was published at a time."""
    return replace(
        new_job(submission(route=route, priority_rank=rank), now=0.0, wake_after=30.0, is_sent=True), published_at=at
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(0.0)


@pytest.fixture
def progress(clock: ManualClock) -> QueueProgress:
    """Return what a worker knows that has seen nothing yet."""
    return QueueProgress(MARGIN, clock)


class Watch:
    """The watch of a worker that consumes the queue `celery`, and the app that it works for."""

    def __init__(self, app: Any, jobs: Jobs, clock: ManualClock) -> None:
        self.app, self.jobs, self.ledger, self.clock = app, jobs, jobs.ledger, clock
        self.consumer = SimpleNamespace(task_buckets={})
        self.it = QueueWatch(SimpleNamespace(app=app, consumer=self.consumer), lambda: ["celery"], clock)

    def sent(self, *, received: bool = True, **options: Any) -> JobRow:
        """Submit a job, whose message this worker or another one has received."""
        job_id = self.app.tasks["play"].apply_async((next(keys),), **options).id
        if received:
            for queue in memory.Channel.queues.values():
                queue.queue.clear()
        return self.ledger.get(job_id)

    def look(self) -> None:
        """Look at the queues when it is time to."""
        self.clock.advance(HEARTBEAT / LOOKS_PER_HEARTBEAT)
        self.it.look()

    def gone_in(self, job: JobRow) -> float | None:
        """Return what is known of a message once the margin is over."""
        self.clock.advance(MARGIN)
        return self.it.gone_in(job)


HEARTBEAT = MARGIN / 1.5
keys = count()


@pytest.fixture
def watch(clock: ManualClock) -> Iterator[Watch]:
    """Return the watch of a worker."""
    app: Any = celery.Celery("shop", broker="memory://", set_as_current=False)
    app.task(play, base=onejob.Task, name="play", shared=False)
    with isolated(app, lease=60) as jobs:
        set_intervals(app, heartbeat=HEARTBEAT)
        yield Watch(app, jobs, clock)


def play(key: int) -> None:
    """Do nothing."""


def test_a_message_in_an_empty_queue_is_gone_after_the_margin(watch: Watch) -> None:
    """What was sent before a queue was seen empty is gone when the margin is over; one in the queue may be there."""
    lost = watch.sent()
    watch.look()
    assert watch.it.gone_in(lost) == MARGIN
    waiting = watch.sent(received=False)
    watch.look()
    assert [watch.gone_in(job) for job in (lost, waiting)] == [0.0, None]


def test_queues_are_looked_at_three_times_per_heartbeat(watch: Watch) -> None:
    """A watch looks at once, and then three times per heartbeat, however often it is called."""
    assert (LOOKS_PER_HEARTBEAT, QUEUE_LIMIT) == (3, 100)
    early = watch.sent()
    watch.it.look()
    assert watch.it.gone_in(early) == MARGIN
    watch.look()
    lost = watch.sent()
    watch.clock.advance(HEARTBEAT / LOOKS_PER_HEARTBEAT - 0.5)
    watch.it.look()
    assert watch.it.gone_in(lost) is None
    watch.clock.advance(0.5)
    watch.it.look()
    assert watch.it.gone_in(lost) == MARGIN


def test_the_queues_of_seen_jobs_are_looked_at(watch: Watch) -> None:
    """A queue that the worker does not consume is looked at once a job of it was seen, up to a limit of queues."""
    lost = watch.sent(queue="other")
    assert watch.it.gone_in(lost) is None
    watch.look()
    assert watch.gone_in(lost) == 0.0
    for number in range(QUEUE_LIMIT):
        watch.it.gone_in(replace(lost, route=f"queue-{number}"))
    watch.look()
    first, last = (replace(lost, route=f"queue-{number}") for number in (QUEUE_LIMIT - 2, QUEUE_LIMIT - 1))
    assert [watch.it.gone_in(first), watch.it.gone_in(last)] == [MARGIN, None]


def test_a_broker_that_reports_no_lengths_shows_nothing(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    """When the transport fails, no message is known to be gone, and the worker goes on."""
    lost = watch.sent()
    watch.jobs.app_state.publisher.queue_lengths = None  # type: ignore[method-assign,assignment] # no transport
    with caplog.at_level("INFO"):
        watch.look()
    assert watch.gone_in(lost) is None
    assert "does not report the lengths" in caplog.text


def test_a_received_message_shows_the_earlier_ones(watch: Watch) -> None:
    """A message that was received shows that those published before it was due, with a margin, left their queue."""
    allowance = watch.jobs.app_state.settings.publish_timeout
    early = watch.sent(received=False)
    watch.jobs.travel(100)
    late, delayed = watch.sent(received=False), watch.sent(received=False, countdown=-50)
    received = watch.jobs.app_state.received
    received.update({("", "celery", 0): late.id, ("", "celery", 1): early.id, ("", "celery", 2): "purged"})
    watch.look()
    assert not received
    due = max(late.created_at, late.run_at) - allowance
    known = [replace(early, published_at=at) for at in (due, due + 0.01)]
    assert [watch.it.gone_in(job) for job in known] == [MARGIN, None]
    received[("", "celery", 0)] = early.id
    watch.look()
    assert watch.gone_in(known[0]) == 0.0
    assert watch.it.gone_in(replace(early, published_at=None)) == 0.0
    assert delayed.run_at <= delayed.created_at
    later = watch.sent(received=False, countdown=50)
    until = later.run_at - watch.jobs.app_state.settings.publish_timeout
    watch.jobs.app_state.received["", "celery", 0] = later.id
    watch.look()
    assert [watch.it.gone_in(replace(later, published_at=at)) for at in (until, until + 0.01)] == [MARGIN, None]


def test_a_message_that_a_worker_holds_is_not_gone(watch: Watch) -> None:
    """A message in this worker, also behind a rate limit, or registered by another one, is not gone."""
    mine, limited, theirs, lost = (watch.sent() for _ in range(4))
    watch.look()
    watch.ledger.heartbeat("idle@host", lasts=1e6, registration=Registration())
    watch.ledger.heartbeat("other@host", lasts=1e6, registration=Registration(reserved=(theirs.id,)))
    reserved = Context(id=mine.id)
    bucket = SimpleNamespace(contents=[(Context(id=limited.id), 1)])
    watch.consumer.task_buckets = {"none": None, "play": bucket}
    worker_state.reserved_requests.add(reserved)
    try:
        assert watch.it.reserved() == tuple(sorted([mine.id, limited.id]))
        assert [watch.gone_in(job) for job in (mine, limited, theirs, lost)] == [None, None, None, 0.0]
    finally:
        worker_state.reserved_requests.discard(reserved)
    watch.consumer.task_buckets = {"play": SimpleNamespace(contents=[(Context(id=n), 1) for n in range(2000)])}
    assert len(watch.it.reserved()) == RESERVED_LIMIT
    del watch.consumer.task_buckets
    watch.ledger.heartbeat("other@host", lasts=1e6, registration=Registration(reserved=(lost.id,)))
    assert [watch.it.gone_in(job) for job in (mine, theirs, lost)] == [0.0, None, 0.0]
    watch.look()
    assert [watch.it.gone_in(job) for job in (mine, theirs, lost)] == [0.0, 0.0, None]


def test_the_messages_of_a_dead_worker_are_lost(watch: Watch) -> None:
    """What a worker held is sent again by a sweep when it has died, or when its node starts anew."""
    first, second, third = (watch.sent() for _ in range(3))
    watch.ledger.heartbeat("dead@host", lasts=1, registration=Registration(reserved=(first.id,)))
    watch.ledger.heartbeat("north@host", lasts=1e6, registration=Registration(reserved=(second.id,)))
    watch.ledger.heartbeat("south@host", lasts=1e6, registration=Registration(reserved=(third.id,)))
    watch.jobs.travel(2)
    watch.look()
    watch.it.take_over("north@host")
    assert [watch.ledger.get(job.id).published_at is None for job in (first, second, third)] == [True, True, False]


def test_an_empty_queue_has_passed_what_was_published_before(progress: QueueProgress, clock: ManualClock) -> None:
    """What was published until a queue was empty has left it, whatever its priority, and counts after the margin."""
    assert progress.passed_in(published(1.0)) is None
    clock.advance(2.0)
    progress.observe({("celery", ANY_RANK): 100.0})
    asked = [published(at, rank=rank) for at, rank in ((100.0, 0), (99.0, -9), (99.0, -1000))]
    assert [progress.passed_in(job) for job in asked] == [MARGIN] * 3
    assert progress.passed_in(published(100.5)) is None
    assert progress.passed_in(published(1.0, route="other")) is None
    clock.advance(MARGIN - 1.0)
    assert progress.passed_in(published(100.0)) == 1.0
    clock.advance(1.0)
    assert progress.passed_in(published(100.0)) == 0.0
    assert progress._settled
    assert progress.passed_in(published(100.5)) is None


def test_a_received_message_has_passed_the_more_urgent_ones(progress: QueueProgress, clock: ManualClock) -> None:
    """A message passes the earlier ones of its priority and of higher ones; a returned one sets nothing back."""
    progress.observe({("celery", 3): 100.0})
    clock.advance(MARGIN)
    assert [progress.passed_in(published(99.0, rank=rank)) for rank in (2, 3, 4)] == [None, 0.0, 0.0]
    progress.observe({("celery", 0): 100.0})
    progress.observe({("celery", 0): 50.0})
    clock.advance(MARGIN)
    assert progress.passed_in(published(99.0)) == 0.0


def test_what_nobody_asks_for_costs_no_memory(progress: QueueProgress, clock: ManualClock) -> None:
    """A worker whose jobs never wait long keeps the observations of its queues for the margin only."""
    for at in range(100):
        clock.advance(MARGIN / 4)
        progress.observe({("celery", ANY_RANK): float(at)})
    assert len(progress._latest) <= 4
    assert progress.passed_in(published(90.0)) == 0.0


def test_a_worker_that_holds_too_many_may_hold_any() -> None:
    """A worker has the messages that it registers; with as many as it can register, any of its queues."""
    few = Registration(reserved=("job-1",), queues=("celery",))
    many = Registration(reserved=tuple(f"job-{n}" for n in range(2, RESERVED_LIMIT + 2)), queues=("celery",))
    job, elsewhere = published(1.0), published(1.0, route="other")
    assert few.has_message_of(job)
    assert not few.has_message_of(replace(job, id="job-2"))
    assert many.has_message_of(job)
    assert not many.has_message_of(elsewhere)


def test_a_set_that_grows_meanwhile_is_read_whole() -> None:
    """The members of what another thread changes during the iteration are read again."""
    growing = deque([1])
    added = iter([2])

    class Growing:
        def __iter__(self) -> Iterator[int]:
            for member in growing:
                growing.extend([new for new in [next(added, None)] if new is not None])
                yield member

    assert members_of(Growing()) == [1, 2]


# --- acknowledgements to an AMQP broker -------------------------------------------------------------------------------


class Channel:
    """What is written to a channel with the messages 1, 2, ...: 4 and 91 are no jobs', 30 cannot be acknowledged."""

    def __init__(self, prefetch: int, processes: int, *, held: int = 0, replies: frozenset[int] = frozenset()) -> None:
        self.no_ack_consumers = {"replies"}
        self.replies = replies
        self.written: list[Any] = []
        self.timers: list[Any] = []
        pool, qos = SimpleNamespace(num_processes=processes), SimpleNamespace(value=prefetch + held)
        hub = SimpleNamespace(call_later=self.call_later)
        consumer = SimpleNamespace(
            pool=pool, qos=qos, hub=hub, connection_errors=(ConnectionError,), initial_prefetch_count=prefetch
        )
        BatchedAcks(consumer, lambda message: message.delivery_tag not in {4, 91} | replies, self)

    def call_later(self, seconds: float, function: Any) -> Any:
        assert seconds == ACK_DELAY
        self.timers.append(function)
        return SimpleNamespace(cancel=lambda: self.timers.remove(function))

    def message_to_python(self, tag: int) -> Any:
        return SimpleNamespace(
            delivery_tag=tag, delivery_info={"consumer_tag": "replies" if tag in self.replies else "jobs"}
        )

    def basic_ack(self, tag: int, *, multiple: bool = False) -> None:
        if tag == 30:
            raise ConnectionError("lost")
        self.written.append((tag, multiple))

    def basic_reject(self, tag: int, *, requeue: bool) -> None:
        self.written.append((tag, "rejected"))

    def basic_cancel(self, consumer_tag: str) -> None:
        self.written.append(consumer_tag)


@for_each("prefetch, acked, written", [
    (8, [1, 2, 3], [(3, True)]),
    (8, [2, 3, 1], [(3, True)]),
    (8, [1, 2, 3, 5, 6], [(3, True)]),
    (8, [1, 5, 2], [(2, True), (5, False)]),
    (8, [3, 5, 6], [(3, False), (5, False), (6, False)]),
    (8, [1, 5, 6, 2, 3, 4, 7], [(1, True), (5, False), (6, False), (4, False), (7, True)]),
    (8, [1, 2, 4, 3, 5, 6], [(4, False), (3, True)]),
    (8, [4, 1, 2, 3, 5, 6, 7], [(4, False), (3, True), (7, True)]),
    (8, [1, "timer"], [(1, True)]),
    (8, [1, "timer", 2, 3, 5], [(1, True), (3, True), (5, False)]),
    (8, [30, "timer", 1, 2, 3], [(3, True)]),
    (8, [1, "stop", 2, 3, 5], [(1, True), "stop", (3, True), (5, False)]),
    (8, [1, "shutdown", 2, 3], [(2, True), (3, True)]),
    (8, [1, -2, 3, 5], [(2, "rejected"), (3, True), (5, False)]),
    (8, [91, 1], [(91, False)]),
    (3, [1, 2], [(1, True), (2, True)]),
    (2, [1, 2], [(1, True), (2, True)]),
    (0, [*range(5, MAX_ACKS + 5)], [(tag, False) for tag in range(5, MAX_ACKS + 5)]),
    (1000, [*range(5, MAX_ACKS + 5)], [(tag, False) for tag in range(5, MAX_ACKS + 5)]),
])  # fmt: skip
def test_jobs_messages_are_acknowledged_together(
    monkeypatch: pytest.MonkeyPatch, prefetch: int, acked: Any, written: list[Any]
) -> None:
    """Acknowledgements of jobs share a frame if all before it are settled, and no process waits for a message by that.

    A worker that stops, and a timer, leave none behind; messages of other tasks are acknowledged at once.
    """
    monkeypatch.setattr(worker_state, "should_stop", None)
    channel = Channel(prefetch, processes=2)
    for tag in [*range(1, 40), 91]:
        channel.message_to_python(tag)
    for each in acked:
        if each == "timer":
            (fire,) = channel.timers
            fire()
        elif each == "stop":
            channel.basic_cancel("stop")
        elif each == "shutdown":
            monkeypatch.setattr(worker_state, "should_stop", 0)
        elif each < 0:
            channel.basic_reject(-each, requeue=False)
        else:
            channel.basic_ack(each)
    assert channel.written == written
    assert len(channel.timers) <= 1


def test_what_is_no_job_holds_up_no_acknowledgement() -> None:
    """Replies of other workers need none, and messages that Celery holds for later leave no room for others."""
    channel = Channel(8, processes=2, held=40, replies=frozenset({1, 2}))
    for tag in range(1, 9):
        channel.message_to_python(tag)
    for tag in (3, 4, 5, 6, 7):
        channel.basic_ack(tag)
    assert channel.written == [(4, False), (6, True)]


def test_a_message_that_waits_for_long_costs_no_memory() -> None:
    """While one message is not acknowledged for hours, nothing is kept of those that came after it and were."""
    channel = Channel(8, processes=2)
    for tag in range(4, 1000):
        if tag != 30:
            channel.message_to_python(tag)
            if tag > 4:
                channel.basic_ack(tag)
    kept = vars(channel.basic_ack.__self__).values()  # type: ignore[attr-defined] # the acknowledging object's method
    assert sum(len(each) for each in kept if isinstance(each, set | dict)) <= MAX_ACKS
