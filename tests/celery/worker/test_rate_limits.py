"""When a worker runs the requests of tasks with rate limits, by the consumer and the timer of a worker of Celery."""

import math
from collections.abc import Iterator
from itertools import count
from typing import Any

import celery._state
import pytest
from celery import Celery
from celery.app.trace import reset_worker_optimizations
from celery.worker import state

from onejob.celery.worker.rate_limits import LATENESS, LONGEST_WAIT, RateLimits
from tests.stores.support import START, ManualClock

_state: Any = celery._state  # the published types know a part only
MANY = tuple(map(str, range(20)))
"""More tasks than timers that an event loop fires without a pause."""


def body() -> None:
    """Do nothing: no test runs it."""


class Request:
    """What waits: all that Celery's bookkeeping needs is its id."""

    numbers = count()

    def __init__(self, name: str) -> None:
        self.id = f"{name}-{next(self.numbers)}"
        self.name = name


class Limited:
    """A worker whose tasks have limits, and whose timer the test fires."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.app = Celery("limited", broker="redis://localhost:1/0", set_as_current=False)
        for name in ("a", "b", *MANY):
            self.app.task(name=name, rate_limit="1/s", shared=False, lazy=False)(body)
        worker: Any = self.app.WorkController(app=self.app, pool="solo", hostname="limited")
        self.consumer = worker.consumer
        self.ran: list[Request] = []
        self.consumer.on_task_request = self.ran.append
        RateLimits(self.consumer, clock=lambda: clock.now - START).install()

    def add(self, name: str, times: int = 1) -> list[Request]:
        """Do what Celery's strategy does with messages of a task."""
        requests = [Request(name) for _ in range(times)]
        for request in requests:
            bucket = self.consumer.task_buckets[name]
            if bucket:
                self.consumer._limit_task(request, bucket, 1)
            else:
                self.consumer.on_task_request(request)
        return requests

    def change(self, name: str, limit: Any) -> None:
        """Do what the command `rate_limit` of remote control does."""
        self.app.tasks[name].rate_limit = limit
        self.consumer.reset_rate_limits()

    def timers(self) -> list[Any]:
        """Return what the timer will call."""
        return [each.entry for each in self.consumer.timer.queue if not each.entry.canceled]

    def advance(self, seconds: float) -> None:
        """Let time pass, and the timer fire as often as it is set to."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.advance(min(LONGEST_WAIT, end - self.clock.now))
            entries = self.timers()
            self.consumer.timer.clear()
            for entry in entries:
                entry()


@pytest.fixture
def limited(clock: ManualClock) -> Iterator[Limited]:
    """Return a worker whose tasks may run once a second."""
    requests, default, current = dict(state.requests), _state.default_app, _state._tls.current_app
    found = Limited(clock)
    yield found
    state.requests.clear()
    state.requests.update(requests)
    reset_worker_optimizations(found.app)  # this process is no worker
    _state._set_task_join_will_block(blocks=False)
    _state.default_app, _state._tls.current_app = default, current


def test_one_timer_serves_all_that_waits(limited: Limited) -> None:
    """However many requests of however many tasks wait, a worker has one timer for them."""
    for name in MANY:
        limited.add(name, 30)
    for seconds in range(1, 6):
        assert len(limited.timers()) == 1
        assert len(limited.ran) == len(MANY) * seconds
        limited.advance(1.0)


@pytest.mark.parametrize("limit", ["2/s", "120/m", "7200/h", 2])
def test_a_task_runs_as_often_as_its_limit_says(limited: Limited, limit: Any) -> None:
    """Requests run in the order in which they came, the first one at once, the others at the intervals of the limit."""
    limited.change("a", limit)
    added = limited.add("a", 10)
    assert limited.ran == added[:1]
    for ran in range(1, 10):
        limited.advance(0.45)
        assert limited.ran == added[:ran]
        limited.advance(0.05)
        assert limited.ran == added[: ran + 1]
    assert limited.ran == added
    limited.advance(LONGEST_WAIT)
    assert limited.timers() == []


@pytest.mark.parametrize("limit", [6, 50, 100])
def test_a_late_timer_makes_no_rate_lower(limited: Limited, limit: int) -> None:
    """Timers that fire a little late change neither the rate, nor by more than one run what runs in any second."""
    limited.change("a", limit)
    limited.add("a", 30 * limit)
    starts: list[float] = []
    while (passed := limited.clock.now - START) < 10.0:
        limited.advance(min(LATENESS / 2, 0.4 / limit))
        starts += [passed] * (len(limited.ran) - len(starts))
    assert 10 * limit - 1 <= len(starts) <= 10 * limit + 2
    assert all(late - early > 0.95 for early, late in zip(starts, starts[limit + 1 :], strict=False))


def test_tasks_wait_for_their_own_limits(limited: Limited) -> None:
    """A task that has not used its limit up runs at once, however many requests of another task wait."""
    first = limited.add("a", 5)[:1]
    assert limited.ran == first
    assert limited.ran == first + limited.add("b")


@pytest.mark.parametrize("limit", ["2/s", "1/m"])
def test_what_waits_waits_for_a_new_limit(limited: Limited, limit: str) -> None:
    """A limit that is changed while requests wait holds for them, counted from the latest run."""
    limited.change("a", "1/h")
    added = limited.add("a", 3)
    limited.change("a", limit)
    interval = {"2/s": 0.5, "1/m": 60.0}[limit]
    limited.advance(interval - 0.1)
    assert limited.ran == added[:1]
    limited.advance(0.2)
    assert limited.ran == added[:2]
    limited.advance(interval)
    assert limited.ran == added


@pytest.mark.parametrize("limit", [None, 0, "0", "0/s", ""])
def test_what_waits_runs_when_a_limit_is_removed(limited: Limited, limit: Any) -> None:
    """Without its limit a task runs at once what waits, and what comes later; a limit may come back."""
    limited.change("a", "1/h")
    added = limited.add("a", 3)
    limited.change("a", limit)
    assert limited.consumer.task_buckets["a"] is None
    limited.advance(0.001)
    assert limited.ran == added
    added += limited.add("a")
    assert limited.ran == added
    limited.change("a", "1/h")
    limited.add("a")
    assert limited.ran == added


def test_a_time_of_waiting_ends_for_the_limit_of_then(limited: Limited) -> None:
    """A message with an ETA that was received before its task lost its limit runs at its time, without waiting."""
    limited.change("a", "1/h")
    bucket, (first, late) = limited.consumer.task_buckets["a"], (Request("a"), Request("a"))
    limited.consumer._limit_task(first, bucket, 1)
    limited.change("a", None)
    limited.consumer.qos = type("QoS", (), {"decrement_eventually": lambda _: None})()
    limited.consumer._limit_post_eta(late, bucket, 1)
    assert limited.ran == [first, late]


def test_what_a_lost_connection_has_brought_does_not_run(limited: Limited) -> None:
    """When its connection is lost, a worker forgets what waits, which the broker delivers again."""
    first = limited.add("a", 3)[:1]
    limited.consumer.on_close()
    limited.advance(5.0)
    assert limited.ran == first
    assert limited.timers() == []


def test_an_outdated_timer_does_nothing(limited: Limited) -> None:
    """A timer that fires although an earlier one was set in its place sets no further one."""
    limited.change("b", "1000/s")
    limited.add("a", 2)
    (outdated,) = limited.timers()
    limited.add("b", 3)
    (current,) = limited.timers()
    assert outdated.canceled
    ran = [*limited.ran]
    outdated()
    assert (limited.ran, limited.timers()) == (ran, [current])


def test_an_error_of_the_pool_stops_no_limit(limited: Limited) -> None:
    """What follows a request that could not be handed to the pool waits for its time, and runs."""
    limited.add("a", 3)

    def refuse(_: Request) -> None:
        limited.consumer.on_task_request = limited.ran.append
        raise OSError("refused")

    limited.consumer.on_task_request = refuse
    with pytest.raises(OSError, match="refused"):  # the event loop logs it
        limited.advance(1.0)
    limited.advance(math.ceil(LONGEST_WAIT))
    assert len(limited.ran) == 2
