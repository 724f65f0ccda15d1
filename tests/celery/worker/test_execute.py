"""What one message makes of its job: no sweep runs here, so that nothing heals what a message has not done."""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import celery
import pytest
from celery import signals
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from kombu.transport import memory

import onejob
from onejob import State
from onejob.celery.app_state import app_state_of
from onejob.celery.messages.payload import MARK, REPLACED, loads
from onejob.celery.run import Run, claim_of, current_run, draining
from onejob.celery.worker import run_end
from onejob.celery.worker.execute import Refusal
from onejob.celery.worker.heartbeat import Heartbeat, recover_lost
from onejob.errors import (
    JobCanceled,
    JobInterrupted,
    JobReleased,
    LeaseLost,
    StaleTokenError,
    StoreRefusedError,
    StoreUnavailableError,
    TaskIdReusedError,
)
from onejob.jobs.handover import BrokerMessage, Handover, pushed
from onejob.jobs.lifecycle import FINAL
from onejob.jobs.model import JobRow
from onejob.jobs.workers import Registration
from onejob.ledger.ledger import NextRun
from onejob.testing import Jobs, isolated
from tests.cases import for_each
from tests.stores.support import accepted, not_none

CLAIMED = ["submit", "claim"]


@dataclass
class Order:
    """What a task returns."""

    number: int


class Shop:
    """An app, its tasks, and what its bodies do and have seen."""

    def __init__(self, app: Any, jobs: Jobs) -> None:
        self.app, self.jobs, self.ledger = app, jobs, jobs.ledger
        self.act: Callable[[Any], Any] = lambda _: "done"
        self.seen: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return self.app.tasks[name]

    def run(self, act: Callable[[Any], Any], task: str = "play", *, once: bool = False, **options: Any) -> JobRow:
        """Submit a job whose body does this; handle its messages, or the first one; return it."""
        self.act = act
        result = self.app.tasks[task].apply_async(("key",), **options)
        self.jobs.run_next_message() if once else self.deliver()
        return self.ledger.get(result.id)

    def deliver(self) -> int:
        """Handle the messages until none is left, each once, without a sweep; return how many there were."""
        handled = 0
        while self.jobs.run_next_message():
            handled += 1
        return handled

    def messages(self) -> list[Any]:
        return [each for queue in memory.Channel.queues.values() for each in queue.queue]

    def events(self, job_id: str) -> list[str]:
        return [entry.event for entry in self.ledger.history(job_id)]

    def claim(self, job_id: str, nonce: str = "of-another-worker") -> JobRow:
        """Claim a job as another worker does."""
        return accepted(self.ledger.claim(job_id, nonce=nonce, node="elsewhere"))

    def meanwhile(self, operation: str, action: Callable[[], object]) -> None:
        """Have something happen just after the next call of an operation of the ledger."""
        original, left = getattr(self.ledger, operation), [action]

        def call(*args: Any, **values: Any) -> Any:
            answer = original(*args, **values)
            if left:
                left.pop()()
            return answer

        setattr(self.ledger, operation, call)

    def lose_messages(self) -> None:
        for queue in memory.Channel.queues.values():
            queue.queue.clear()


@pytest.fixture
def shop() -> Iterator[Shop]:
    """Return an app on a ledger and a broker of its own."""
    app = celery.Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    shops: list[Shop] = []
    define: Any = app.task

    def body(task: Any, key: str, data: Any = None) -> Any:
        shops[0].seen.append((key, data))
        return shops[0].act(task)

    define(body, base=onejob.Task, name="play", bind=True, unique_on=["key"], shared=False)
    define(body, base=onejob.Task, name="brief", bind=True, unique_on=["key"], unique_until="started", shared=False)
    define(body, base=onejob.Task, name="kept", bind=True, unique_on=["key"], unique_for=60, shared=False)
    define(body, base=onejob.Task, name="again", bind=True, unique_on=["key"], on_duplicate="run_again", shared=False)

    def echo(value: Any) -> Any:
        shops[0].seen.append(("echo", value))
        return value

    define(echo, base=onejob.Task, name="echo", shared=False)

    def typed(key: str) -> Order:
        return body(None, key)  # type: ignore[no-any-return]

    define(typed, base=onejob.Task, name="typed", typed=True, shared=False)
    with isolated(app, lease=30) as jobs:
        shops.append(Shop(app, jobs))
        yield shops[0]


def raised(error: BaseException) -> Callable[[Any], Any]:
    def act(_: Any) -> None:
        raise error

    return act


def retry_in(seconds: Any) -> Exception:
    """Return Celery's signal of a retry after some seconds."""
    return Retry(when=seconds)


def retry_at_a_date(_: Any) -> Any:
    raise retry_in(datetime.now(UTC) + timedelta(days=1000))


def send_again(task: Any) -> Any:
    return task.apply_async(("key",), task_id=task.request.id)


def send_again_as_retried_true(task: Any) -> Any:
    return task.apply_async(("key",), task_id=task.request.id, retries=True)


def send_another(task: Any) -> Any:
    return task.app.tasks["echo"].apply_async((1,), task_id=task.request.id)


def cancel_and_retry(task: Any) -> Any:
    app_state_of(task.app).ledger.cancel(task.request.id)
    return task.retry(countdown=0)


REUSED = (
    "TaskIdReusedError: the id 'ID' belongs to a job of play, and cannot be that of a job of echo: an id is used for "
    "one job. Leave task_id out, or choose another one"
)
NO_RETRIES = (
    "InvalidArgumentsError: retries=True is no number of retries: leave it out; max_retries is an option of the task"
)
NO_DELAY = "InvalidArgumentsError: countdown='soon' is no time: write a number of seconds"
UNSTORABLE = (
    "InvalidPayloadError: the result cannot be stored as JSON: Object of type object is not JSON serializable. "
    "Dataclasses and pydantic models can be stored with typed=True, the default of @onejob.task"
)
ENDS: list[tuple[Callable[[Any], Any], State, str, str, int, int]] = [
    (lambda _: 7, State.COMPLETED, "complete", "", 0, 0),
    (raised(LookupError("no luck")), State.FAILED, "fail", "LookupError: no luck", 0, 0),
    (raised(StoreRefusedError("too long")), State.FAILED, "fail", "StoreRefusedError: too long", 0, 0),
    (lambda _: object(), State.FAILED, "fail", UNSTORABLE, 0, 0),
    (raised(Reject("bad", requeue=False)), State.FAILED, "fail", "the task rejected its message", 0, 0),
    (raised(Ignore()), State.CANCELED, "abandon", "the task raised Ignore", 0, 0),
    (raised(JobCanceled("x")), State.CANCELED, "abandon", "canceled on request", 0, 0),
    (raised(StoreUnavailableError("away")), State.QUEUED, "release", "its run could not reach the store: away", 0, 0),
    (raised(Reject("later", requeue=True)), State.RETRYING, "retry", "runs again in 1 s after Reject: ('later', True)",
     0, 0),
    (raised(Reject(KeyError("a"))), State.FAILED, "fail", "KeyError: 'a'", 0, 0),
    (raised(Reject(StoreUnavailableError("away"))), State.QUEUED, "release", "its run could not reach the store: away",
     0, 0),
    (raised(JobReleased("x")), State.QUEUED, "release", "its worker is shutting down", 0, 0),
    (raised(retry_in(5)), State.RETRYING, "retry", "runs again in 5 s", 0, 1),
    (raised(retry_in(datetime(2026, 1, 1, tzinfo=UTC))), State.RETRYING, "retry", "runs again at once", 1, 1),
    (retry_at_a_date, State.RETRYING, "retry", "runs again in 8.64e+07 s", 0, 1),
    (raised(retry_in("soon")), State.FAILED, "fail", NO_DELAY, 0, 0),
    (raised(retry_in(0.5)), State.RETRYING, "retry", "runs again in 0.5 s", 0, 1),
    (raised(Retry()), State.RETRYING, "retry", "runs again at once", 1, 1),
    (lambda task: task.retry(countdown=0), State.RETRYING, "retry", "runs again at once", 1, 1),
    (lambda task: task.retry(countdown=0.5), State.RETRYING, "retry", "runs again in 0.5 s", 0, 1),
    (lambda task: task.retry(exc=LookupError("x"), countdown=5), State.RETRYING, "retry",
     "runs again in 5 s after LookupError: x", 0, 1),
    (send_again, State.RETRYING, "retry", "runs again at once", 1, 0),
    (send_again_as_retried_true, State.FAILED, "fail", NO_RETRIES, 0, 0),
    (send_another, State.FAILED, "fail", REUSED, 0, 0),
    (cancel_and_retry, State.CANCELED, "cancel", "canceled on request", 0, 1),
    (raised(LeaseLost("x")), State.RUNNING, "claim", "attempt 1 on test@localhost", 0, 0),
    (raised(JobInterrupted("x")), State.RUNNING, "claim", "attempt 1 on test@localhost", 0, 0),
    (raised(StaleTokenError("x", 1, "running")), State.RUNNING, "claim", "attempt 1 on test@localhost", 0, 0),
    (raised(KeyboardInterrupt()), State.RUNNING, "claim", "attempt 1 on test@localhost", 0, 0),
]  # fmt: skip
"""What a body does; then the job's state, the last event and its reason, the messages, and the retries of the job."""


@pytest.mark.parametrize(("error", "leases"), [(StoreUnavailableError("away"), 1), (JobReleased("x"), 0)])
def test_a_run_that_could_not_reach_the_store_rests(shop: Shop, error: Exception, leases: int) -> None:
    """A job whose run could not reach the store runs again a lease later, and one that its worker released at once."""
    shop.act = raised(error)
    result = shop.play.delay("key")
    shop.jobs.run_next_message()
    job, released = shop.ledger.get(result.id), shop.ledger.history(result.id)[-1]
    assert job.state is State.QUEUED
    assert not_none(job.wake_at) - released.at == pytest.approx(leases * job.lease, abs=0.01)


@pytest.mark.parametrize(("act", "state", "event", "reason", "messages", "retries"), ENDS)
def test_a_run_ends_as_its_body(  # noqa: PLR0917 - a table
    shop: Shop, act: Any, state: State, event: str, reason: str, messages: int, retries: int
) -> None:
    """A run ends in one transition, and sends one message if the job is due at once, and none otherwise."""
    shop.act = act
    result = shop.play.delay("key")
    with suppress(KeyboardInterrupt):
        shop.jobs.run_next_message()
    job = shop.ledger.get(result.id)
    last = shop.ledger.history(result.id)[-1]
    assert (job.state, job.retries, last.event, len(shop.messages())) == (state, retries, event, messages)
    assert (last.detail or job.reason).replace(job.id, "ID") == (reason or job.reason)
    assert shop.events(result.id)[:2] == CLAIMED
    assert [message["headers"]["retries"] for message in shop.messages()] == [retries] * messages


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_an_interrupt_outside_of_a_worker_ends_no_run(shop: Shop, handler: Any) -> None:
    """An interrupt goes through a run to its test, also in a process that a shell has started in the background."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            shop.run(raised(KeyboardInterrupt()), once=True)
    finally:
        signal.signal(signal.SIGINT, before)


# --- the way to a run -----------------------------------------------------------------------------------------------


def test_a_retried_run_is_told_its_retries_and_is_no_redelivery(shop: Shop) -> None:
    """A run has the retries of its job, and `redelivered` only if an earlier run has ended without one."""
    told: list[tuple[int, bool]] = []

    def act(task: Any) -> Any:
        assert "routing_key" in task.request.delivery_info
        told.append((task.request.retries, bool(task.request.delivery_info.get("redelivered"))))
        return shop.ledger.release(current_run().job, "again") if len(told) == 2 else task.retry(countdown=0)

    job = shop.run(act)
    shop.jobs.deliver_again(shop.ledger.get(job.id))
    assert told == [(0, False), (1, False), (1, True)]


@pytest.mark.parametrize("lowered", [0, 1])
def test_a_retry_that_counts_as_none_is_no_redelivery(shop: Shop, lowered: int) -> None:
    """`redelivered` is what the ledger knows, also if a body changes its own `request.retries`, as throttles do."""
    told: list[bool] = []

    def act(task: Any) -> Any:
        told.append(bool(task.request.delivery_info.get("redelivered")))
        if len(told) == 3:  # as if the worker died
            shop.ledger.crash(current_run().job, "its worker died", "{}")
            return None
        if len(told) > 3:
            return "done"
        task.request.retries -= lowered
        return task.retry(countdown=0)

    job = shop.run(act)
    shop.jobs.deliver_again(shop.ledger.get(job.id))
    assert (told, shop.ledger.get(job.id).state) == ([False, False, False, True], State.COMPLETED)


@pytest.mark.parametrize("way", ["requeue", "redrive"])
def test_a_message_that_was_given_back_is_redelivered_and_a_redriven_one_is_not(shop: Shop, way: str) -> None:
    """`Reject(requeue=True)` gives the message back, as to Celery; a redriven job begins anew."""
    told: list[bool] = []

    def act(task: Any) -> Any:
        told.append(bool(task.request.delivery_info.get("redelivered")))
        if len(told) == 1:
            raise Reject("later", requeue=True) if way == "requeue" else onejob.PermanentError("no")
        return "done"

    job = shop.run(act)
    if way == "redrive":
        shop.ledger.redrive(job.id)
    shop.jobs.travel(60)
    shop.jobs.run_all()
    assert told == [False, way == "requeue"]


def test_a_run_has_the_retries_of_its_job(shop: Shop, trace: Any) -> None:
    """A run's `retries` are those of its job, whatever its message says."""
    shop.act = lambda task: shop.seen.append(task.request.retries)
    trace(shop.play.delay("key").id, retries=7)
    assert shop.seen == [("key", None), 0]


def test_a_retry_is_one_to_celery(shop: Shop) -> None:
    """After `self.retry` Celery sends `task_retry`; error, route, payload and parents are those of the retry."""
    retried: list[Any] = []
    receiver = lambda reason=None, **_: retried.append(reason)  # noqa: E731 - a receiver without arguments of its own
    signals.task_retry.connect(receiver, weak=False, dispatch_uid="test")

    def act(task: Any) -> Any:
        try:
            raise LookupError("cause")
        except LookupError as error:
            raise task.retry(exc=error, args=("key", "newer"), countdown=60, queue="slow") from None

    shop.act = act
    try:
        result = shop.play.apply_async(("key",), root_id="root", parent_id="parent")
        before = loads(shop.ledger.get(result.id).options)
        shop.deliver()
    finally:
        signals.task_retry.disconnect(dispatch_uid="test")
    job = shop.ledger.get(result.id)
    assert [str(reason.exc) for reason in retried] == ["cause"]
    assert (job.queue, loads(job.error or "{}")["type"], loads(job.payload)["args"]) == (
        "slow", "LookupError", ["key", "newer"],
    )  # fmt: skip
    kept = loads(job.options)
    assert [kept.get(name) for name in ("root_id", "parent_id")] == [before.get("root_id"), before.get("parent_id")]
    assert shop.events(result.id) == [*CLAIMED, "retry"]


@pytest.mark.parametrize("message", ["due", "later"])
def test_a_retry_without_a_raise_ends_the_run(shop: Shop, message: str) -> None:
    """After `retry(throw=False)` any error, and any signal of Celery, changes nothing more."""

    def act(task: Any) -> Any:
        task.retry(countdown=60, throw=False)
        raise Reject("late", requeue=True) if message == "later" else Ignore

    job = shop.run(act)
    assert shop.events(job.id) == [*CLAIMED, "retry"]
    assert shop.ledger.history(job.id)[-1].detail == "runs again in 60 s"


@pytest.mark.parametrize(("ends", "killed"), [("retry", []), ("crash", ["killed"])])
def test_the_child_of_a_retried_run_is_not_killed(
    shop: Shop, ends: str, killed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job that runs again, the heartbeat kills the child of a lost run, and not that of a run that was retried."""
    job = shop.claim(shop.play.delay("key").id)
    if ends == "retry":
        shop.ledger.retry(job, NextRun.again(job, delay=0.0, retries=1), error=None, reason="x")
    else:
        shop.ledger.crash(job, "its worker process died", "{}")
    shop.claim(job.id, "of-the-next-run")
    seen, interrupted = list[str](), list[type[BaseException]]()
    child: Any = SimpleNamespace(
        id=job.id, claim=job.claim, seen_by_heartbeat=True, kill_child=lambda: seen.append("killed"),
        interrupt=lambda error: interrupted.append(type(error)),
    )  # fmt: skip
    monkeypatch.setattr("onejob.celery.worker.heartbeat.active_requests", lambda: [child])
    assert Heartbeat(shop.app, "north", Registration).renew()
    assert (seen, interrupted) == (killed, [LeaseLost] * len(killed))


def test_the_recovery_of_a_lost_child_delays_no_lease(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat renews leases and no more: another thread waits for a result backend or a broker."""
    job, recovered = shop.claim(shop.play.delay("key").id), list[str]()
    child: Any = SimpleNamespace(
        id=job.id, claim=job.claim, seen_by_heartbeat=True, worker_pid=7,
        is_child_dead=lambda: True, handle_lost_child=recovered.append,
    )  # fmt: skip
    monkeypatch.setattr("onejob.celery.worker.heartbeat.active_requests", lambda: [child])
    heartbeat = Heartbeat(shop.app, "north", Registration)
    heartbeat.tick()
    assert recovered == []
    recover_lost()
    assert recovered == ["its worker process 7 died"]


def test_a_retry_of_an_overtaken_run_is_refused(shop: Shop) -> None:
    """A retry by a run that has lost its job raises `LeaseLost`, and changes nothing."""
    seen: list[type[BaseException]] = []

    def act(task: Any) -> Any:
        shop.ledger.release(current_run().job, "overtaken")
        try:
            task.retry(countdown=0)
        except LeaseLost as error:
            seen.append(type(error))
            raise

    job = shop.run(act)
    assert (seen, shop.events(job.id), shop.messages()) == ([LeaseLost], [*CLAIMED, "release"], [])


@pytest.mark.parametrize("sends", [0, 60])
def test_a_job_goes_on_as_its_replacement(shop: Shop, sends: int) -> None:
    """A job that is replaced by a task goes on as it, under its id, by one message if that is due."""
    job = shop.run(lambda task: task.replace(task.app.tasks["echo"].s(7).set(countdown=sends)), once=True)
    assert (shop.events(job.id), len(shop.messages())) == ([*CLAIMED, "replace"], int(not sends))
    shop.deliver()
    assert ("echo", 7) in shop.seen or sends
    assert shop.events(job.id)[2:] == (["replace", "claim", "complete"] if not sends else ["replace"])
    for name in ("play", "echo"):
        assert shop.app.tasks[name].apply_async((7,), task_id=job.id).id == job.id
    with pytest.raises(TaskIdReusedError):
        shop.brief.apply_async((7,), task_id=job.id)


@for_each("name, value", [
    ("webhook_url", "https://shop.example/"), ("tags", ["late"]), ("idempotency_key", "a"), ("session", 1),
])  # fmt: skip
def test_a_job_goes_on_with_the_options_of_its_submission(shop: Shop, name: str, value: object) -> None:
    """A retry, or a replacement, also by a chain, with an option that belongs to a submission fails, and names it."""
    for act in (
        lambda task: task.replace(shop.echo.s(7) | shop.echo.s().set(**{name: value})),
        lambda task: task.replace(task.app.tasks["echo"].s(7).set(**{name: value})),
        lambda task: task.retry(countdown=0, **{name: value}),
    ):
        job = shop.run(act)
        assert job.state == State.FAILED
        assert f"{name}={value!r} is not used" in job.reason


def test_a_job_goes_on_as_the_end_of_a_chain(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """A job that is replaced by a chain waits for its end, which goes on under its id, and has that result."""
    echo = shop.echo
    job = shop.run(lambda task: task.replace(echo.s("first") | echo.s()))
    assert (job.state, loads(job.result or "null")) == (State.COMPLETED, "first")
    assert shop.seen == [("key", None), ("echo", "first"), ("echo", "first")]
    assert shop.events(job.id)[2:] == ["replace", "claim", "replace", "claim", "complete"]
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_a_run_of_a_stopping_worker_starts_no_body(shop: Shop) -> None:
    """A message that a stopping worker receives starts no body: its job is due at once, for another worker."""
    result = shop.play.delay("key")
    draining.set()
    try:
        shop.deliver()
    finally:
        draining.clear()
    job = shop.ledger.get(result.id)
    assert (shop.seen, shop.events(job.id), job.reason) == ([], [*CLAIMED, "release"], "its worker is shutting down")
    assert (job.wake_at or 0) <= shop.jobs.clock()


@pytest.mark.parametrize(
    ("task", "second", "held"), [("play", "play", True), ("brief", "brief", False), ("play", "brief", True)]
)
def test_a_run_holds_its_identity_as_its_task_says(shop: Shop, task: str, second: str, held: bool) -> None:
    """Only with `unique_until="started"` the identity is free in a run, also in a second one, and in a replacement."""
    holds: list[bool] = []

    def act(task: Any) -> Any:
        holds.append(shop.ledger.get(task.request.id).holds_identity)
        again = task.app.tasks[second].s("key")
        return None if len(holds) > 1 else task.retry(countdown=0) if task.name == second else task.replace(again)

    job = shop.run(act, task)
    assert holds == [held, held]
    assert shop.events(job.id).count("release_identity") == int(not held)


@for_each("progress", [
    ("a", 5), (-1, 5), (9, 5), (0, -1), (True, 5), (1, True), (float("nan"), 5), (1, float("nan")), (1, float("inf")),
    (None,), (1, "2"), (1, 2, None), (1, 2, "s" * 501),
])  # fmt: skip
def test_what_is_no_progress_is_refused(shop: Shop, progress: tuple[Any, ...]) -> None:
    """A progress with other numbers than 0 <= done <= total, or with a stage that is no short text, is not stored."""

    def act(_task: Any) -> None:
        for good in ((0, 0), (0.5,), (1, 2.5), (2, 2, "s" * 500)):
            onejob.current_job().progress(*good)
        with pytest.raises(onejob.errors.InvalidArgumentsError, match="progress"):
            onejob.current_job().progress(*progress)

    shop.act = act
    result = shop.app.tasks["play"].delay(str(progress))
    shop.deliver()
    job = shop.ledger.get(result.id)
    assert (job.state, json.loads(job.progress or "")["total"]) == (State.COMPLETED, 2)


def test_a_canceled_run_stops(shop: Shop, trace: Any) -> None:
    """A run whose job is canceled ends at its next report, and Celery's result backend knows."""

    def act(task: Any) -> None:
        shop.ledger.cancel(task.request.id)
        onejob.current_job().progress(1)

    job = shop.run(act, link=shop.echo.s())
    assert job.state == State.CANCELED
    assert not job.canvas_pending
    assert job.reason == "canceled on request"
    assert shop.app.backend.get_state(job.id) == "REVOKED"
    _, info, *_ = trace(shop.play.delay("other").id)
    assert info.state == "IGNORED"
    assert str(info.retval) != ""
    assert info.retval.__cause__ is None


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


@pytest.mark.parametrize("task", ["play", "retried"])
def test_an_exception_without_a_text_ends_its_run(shop: Shop, task: str) -> None:
    """A run whose exception has a `__str__` that raises fails, or is retried, as with any other."""
    act: Any = raised(UnspeakableError()) if task == "play" else partial(_retry_once, UnspeakableError())
    job = shop.run(act)
    assert job.attempt == (1 if task == "play" else 2)
    assert (job.state, job.reason) == (State.FAILED, "UnspeakableError: <its str() raises LookupError>")


def _retry_once(error: Exception, task: Any) -> None:
    raise task.retry(exc=error, max_retries=1, countdown=0)


class Session:
    """A session of the user that commits nothing."""

    rollbacks = 0

    def rollback(self) -> None:
        self.rollbacks += 1


@pytest.mark.parametrize("error", [None, LookupError("x")])
def test_a_transaction_that_a_body_leaves_open_is_rolled_back(shop: Shop, error: Exception | None) -> None:
    """A job whose transaction was not committed fails with its body's error, and the transaction is rolled back."""
    session = Session()

    def act(_: Any) -> str:
        current_run().sessions.append(session)
        if error:
            raise error
        return "done"

    job = shop.run(act)
    uncommitted = "OneJobError: the body called complete_in, but its transaction was not committed"
    assert (job.state, job.reason) == (State.FAILED, "LookupError: x" if error else uncommitted)
    assert session.rollbacks == 1


@pytest.mark.parametrize(("operation", "state"), [("complete", State.COMPLETED), ("fail", State.FAILED)])
def test_a_soft_time_limit_after_the_body_changes_no_end(shop: Shop, operation: str, state: State) -> None:
    """A soft time limit that passes while the end of a run is recorded changes nothing about that end."""
    shop.meanwhile(operation, partial(raised(SoftTimeLimitExceeded()), None))
    job = shop.run(raised(LookupError("x")) if operation == "fail" else lambda _: "done")
    assert (job.state, job.reason) == (state, "LookupError: x" if operation == "fail" else "completed")
    assert shop.events(job.id) == ["submit", "claim", operation]


def test_a_run_completes_with_the_models_of_its_task(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a `typed` task stores the model that its transaction completes with."""
    stored: list[str] = []
    transaction = SimpleNamespace(autocommits=False)
    completes = SimpleNamespace(complete=lambda _, text, **__: stored.append(text))
    monkeypatch.setattr(sys.modules[Run.__module__], "transaction_of", lambda _: transaction)
    monkeypatch.setattr(shop.ledger, "in_transaction", lambda _: completes)

    def act(_: Any) -> Order:
        onejob.current_job().complete_in(Session(), Order(7))
        return Order(8)

    shop.act = act
    shop.typed.delay("key")
    shop.jobs.run_next_message()
    assert [loads(text) for text in stored] == [{"number": 7}]


@pytest.mark.parametrize("is_due", [True, False])
@pytest.mark.parametrize("ends", ["retry", "raise", "ignore"])
def test_a_due_job_is_stored_with_its_message(
    shop: Shop, trace: Any, monkeypatch: pytest.MonkeyPatch, ends: str, is_due: bool
) -> None:
    """A change after which a job is due gives the store its message, and the publication what the store has pushed."""
    stored: list[Any] = []
    published: list[Any] = []
    apply, delay = shop.ledger.store.apply, 0 if is_due else 0.5

    def apply_seen(change: Any) -> Any:
        stored.append(change.handover and change.handover.message)
        return apply(change)

    monkeypatch.setattr(shop.ledger.store, "apply", apply_seen)
    publisher = app_state_of(shop.app).publisher

    def by_store(job: JobRow) -> Handover | None:
        return None if stored else pushed(BrokerMessage(job.id, str(job.retries)))

    monkeypatch.setattr(publisher.handover, "by_store", by_store)
    monkeypatch.setattr(publisher, "try_publish", published.append)
    shop.act = (lambda task: task.retry(countdown=delay)) if ends == "retry" else raised(retry_in(delay))
    job = shop.play.delay("key").job
    trace(job.id, *(["echo"] if ends == "ignore" else []))
    messages: list[Any] = [(job.id, str(int(ends != "ignore")))] if is_due or ends == "ignore" else []
    assert stored[-1:] == (messages or [None])
    assert published == []


# --- messages whose jobs are not in the ledger ----------------------------------------------------------------------


def test_a_message_becomes_a_job(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """A message of `send_task` is admitted and run at once, by this one message, and without an error."""
    sent = shop.app.send_task("play", ("key",), {"data": 7}, countdown=-1, expires=3600)
    assert shop.deliver() == 1
    assert shop.seen == [("key", 7)]
    assert shop.events(sent.id) == [*CLAIMED, "complete"]
    (entry, *_) = shop.ledger.history(sent.id)
    job = shop.ledger.get(sent.id)
    assert (entry.detail, job.attempt, shop.app.backend.get_result(sent.id)) == ("message", 1, "done")
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_a_message_that_is_a_duplicate_ends_at_once(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """A message with the arguments of a live job becomes a follower, and claims and runs nothing."""
    first = shop.play.delay("key")
    shop.lose_messages()
    shop.claim(first.id)
    sent = shop.app.send_task("play", ("key",))
    with caplog.at_level(logging.INFO):
        assert shop.deliver() == 1
    assert (shop.events(sent.id), shop.seen) == (["follow"], [])
    assert shop.ledger.get(sent.id).follows_id == first.id
    assert shop.ledger.get(first.id).duplicate_count == 1


def test_a_message_brings_its_canvas_and_no_expiry(shop: Shop, trace: Any) -> None:
    """A message that becomes a job brings its links; its expiry was checked by Celery, and is not that of the job."""
    shop.app.send_task("play", ("key",), task_id="linked", link=shop.echo.s(), expires=3600)
    shop.deliver()
    job = shop.ledger.get("linked")
    assert job.state == State.COMPLETED
    assert job.expires_at is None
    assert ("echo", "done") in shop.seen
    assert shop.events("linked") == [*CLAIMED, "complete", "canvas_notified"]
    shop.claim(shop.play.apply_async(("again",), task_id="live").id)
    _, info, *_ = trace("duplicate", args=("again",))
    assert (info.state, str(info.retval)) == ("IGNORED", "duplicate of job live (running), which it follows")


def test_a_message_reschedules_a_later_job(shop: Shop) -> None:
    """A message with the arguments of a job that is due later makes that one due now, by a message of its own."""
    first = shop.play.apply_async(("key",), countdown=3600, expires=7200)
    sent = shop.app.send_task("play", ("key",), expires=9000)
    shop.jobs.run_next_message(sent.id)
    assert [message["headers"]["id"] for message in shop.messages()] == [first.id]
    assert shop.ledger.get(first.id).expires_at is None
    shop.jobs.run_next_message(first.id)
    assert shop.ledger.get(first.id).state is State.COMPLETED


def test_a_message_reschedules_the_job_that_is_queued_next(shop: Shop) -> None:
    """A message makes the job that is queued next due now, which is sent when the run before it has ended."""
    task = shop.again
    shop.claim(task.delay("key").id)
    shop.lose_messages()
    queued = task.apply_async(("key",), countdown=3600)
    before = shop.ledger.get(queued.id)
    shop.jobs.run_next_message(shop.app.send_task("again", ("key",)).id)
    job = shop.ledger.get(queued.id)
    assert job.queued_next
    assert job.run_at < before.run_at
    assert shop.messages() == []


def test_a_message_of_a_follower_takes_over_the_end(shop: Shop) -> None:
    """The message of a follower of an ended job ends it with that job's result, without a run of its body."""
    first = shop.play.delay("key")
    follower = shop.play.apply_async(("key",), task_id="follower")
    shop.deliver()
    shop.jobs.deliver_again(shop.ledger.get(follower.id))
    job = shop.ledger.get("follower")
    assert (job.state, job.result, shop.seen) == (State.COMPLETED, shop.ledger.get(first.id).result, [("key", None)])


# --- messages that start no run -------------------------------------------------------------------------------------


def test_a_redelivery_is_recorded(shop: Shop) -> None:
    """A message that the broker delivers again, to an ended or running job, is a duplicate from the same call."""
    result = shop.play.delay("key")
    with shop.jobs.duplicate_delivery():
        shop.deliver()
    (duplicate,) = shop.ledger.duplicates(result.id)
    assert duplicate.source == "redelivery"
    assert duplicate.outcome == "rejected"
    assert not duplicate.arguments_differ
    assert (duplicate.answered_by, duplicate.submitter, duplicate.host) == (result.id, "", "test@localhost")
    assert (duplicate.submission_nonce, duplicate.fingerprint) == ("", shop.ledger.get(result.id).fingerprint)
    assert (shop.events(result.id), shop.seen) == ([*CLAIMED, "complete"], [("key", None)])


def test_a_message_that_is_answered_by_an_ended_job_takes_over_its_end(shop: Shop) -> None:
    """A message whose arguments an ended job answers has that end at once, and notifies its own canvas."""
    shop.kept.delay("key")
    shop.deliver()
    sent = shop.app.send_task("kept", ("key",), link=shop.echo.s())
    shop.deliver()
    assert not shop.ledger.get(sent.id).canvas_pending
    assert shop.seen == [("key", None), ("echo", "done")]


@pytest.mark.parametrize("is_due", [True, False])
def test_a_message_of_another_task_is_ignored(shop: Shop, caplog: pytest.LogCaptureFixture, is_due: bool) -> None:
    """A message with the id of another task's job runs nothing: that job, if it was due, is sent once, as itself."""
    result = shop.play.apply_async(("key",), countdown=0 if is_due else 3600)
    shop.lose_messages()
    shop.app.send_task("echo", (1,), task_id=result.id)
    shop.jobs.run_next_message()
    assert shop.events(result.id) == ([*CLAIMED, "release"] if is_due else ["submit"])
    assert ("this message of echo is ignored" in caplog.text) is is_due
    assert [each["headers"]["task"] for each in shop.messages()] == ["play"] * is_due
    assert ("echo", 1) not in shop.seen


@pytest.mark.parametrize("dead", [True, False, "ended"])
def test_a_run_whose_process_died_at_its_start_crashes_at_once(shop: Shop, trace: Any, dead: bool | str) -> None:
    """A message that its pool passes on counts the death of the first process, and runs without waiting for a lease."""
    ledger, nonce = shop.ledger, "12345678-message"
    job = shop.play.delay("key").job
    claimed = shop.claim(job.id, claim_of(nonce if dead else "another-message", 4_000_000))
    if dead == "ended":
        ledger.complete(claimed, "1")
    outcome = trace(job.id, onejob_claim=nonce, **{MARK: job.id})
    history = ledger.history(job.id)
    if dead is not True:
        assert isinstance(outcome[0], Refusal)
        assert shop.seen == []
        return
    assert [entry.event for entry in history] == [*CLAIMED, "crash", "claim", "complete"]
    crash = history[2]
    assert (crash.detail, ledger.get(job.id).crashes) == ("its worker process died right after its start", 1)
    assert (ledger.get(job.id).claim, ledger.get(job.id).node) == (claim_of(nonce, os.getpid()), "north")


def test_a_process_that_died_too_often_fails_the_job(shop: Shop, trace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose process died at its start as often as may be is a dead letter, whose error says so."""
    monkeypatch.setattr(shop.ledger, "settings", replace(shop.ledger.settings, crash_limit=1))
    job = shop.claim(shop.play.delay("key").id, claim_of("12345678-message", 4_000_000))
    trace(job.id, onejob_claim="12345678-message")
    found = shop.ledger.get(job.id)
    assert (found.state, shop.seen) == (State.FAILED, [])
    assert "its worker process died right after its start" in str(found.error)


@pytest.fixture
def trace(shop: Shop) -> Callable[..., tuple[Any, ...]]:
    """Return a way to trace a message as a child does; its answer is what the parent gets."""
    for name in ("play", "echo"):
        task = shop.app.tasks[name]
        task.__trace__ = build_tracer(name, task, app=shop.app)

    def traced(job_id: str, name: str = "play", args: tuple[Any, ...] = ("key",), **request: Any) -> tuple[Any, ...]:
        found: dict[str, Any] = {"id": job_id, "hostname": "north", "args": args, "kwargs": {}, "delivery_info": {}}
        answer: tuple[Any, ...] = shop.app.tasks[name].__trace__(job_id, args, {}, found | request)
        return answer

    return traced


@pytest.mark.parametrize("given", [{}, {"delivery_info": None}, {"delivery_info": {"redelivered": True}}])
def test_a_refused_message_is_ignored(shop: Shop, trace: Any, given: dict[str, Any]) -> None:
    """The parent of a message that starts no run gets Celery's `Ignore` with the reason, and no traceback."""
    task, ledger = shop.play, shop.ledger
    running = task.apply_async(("running",), link=shop.echo.s()).job
    ended, gone = (task.delay(key).job for key in ("ended", "gone"))
    assert [message["headers"][MARK] for message in shop.messages()] == [running.id, ended.id, gone.id]
    shop.claim(running.id)
    ledger.complete(shop.claim(ended.id), "1")
    ledger.cancel(gone.id)
    ledger.store.delete([gone.id], sources=FINAL)
    reasons = {
        running.id: "not claimed: it is running (started), attempt 1",
        ended.id: "not claimed: it is completed (completed), attempt 1",
        gone.id: "its message was dropped: the job was purged, or is in another ledger, which shares the queue",
    }
    for job_id, reason in reasons.items():
        refusal, *rest = trace(job_id, **{MARK: job_id}, **given)
        assert (type(refusal), type(refusal.exception), refusal.traceback) == (Refusal, Ignore, "")
        assert (str(refusal.exception).replace(f"({ledger.get(running.id).reason})", "(started)").replace(
            f"({ledger.get(ended.id).reason})", "(completed)"), rest) == (reason, [True, 0.0, None])  # fmt: skip
    assert (shop.seen, ledger.get_or_none(gone.id)) == ([], None)
    assert [len([*ledger.duplicates(job.id)]) for job in (running, ended)] == [
        int(bool(given.get("delivery_info")))
    ] * 2
    with shop.jobs.store_unavailable():
        refusal, *rest = trace(running.id)
    assert isinstance(refusal.exception, Ignore)
    assert str(refusal.exception) != ""
    assert rest == [True, 0.0, None]


def test_a_claim_that_no_run_takes_fails_its_job_at_once(
    shop: Shop, trace: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A `__call__` that was put in place after the binding, and calls no other, is no dead worker: the job says so."""
    monkeypatch.setattr(type(shop.play), "__call__", lambda task, *args: task.run(*args))
    job = shop.play.delay("key").job
    trace(job.id)
    failed = shop.ledger.get(job.id)
    assert (failed.state, failed.crashes, failed.attempt, shop.seen) == (State.FAILED, 0, 1, [("key", None)])
    assert "Celery called no `__call__` of onejob.Task" in failed.reason
    assert failed.reason in caplog.text
    with pytest.raises(onejob.OneJobError, match="was not run as a job"):
        shop.play.AsyncResult(job.id).get(timeout=10)


def test_messages_of_another_ledger_are_a_warning(shop: Shop, trace: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The first dropped message of a job that was not purged is a warning that names the ledger; the others are not."""
    caplog.set_level(logging.INFO)
    purged = shop.play.delay("purged").job
    shop.ledger.cancel(purged.id)
    shop.ledger.store.delete([purged.id], sources=FINAL, tombstone_for=60.0)
    for job_id in (purged.id, "first", "second"):
        trace(job_id, **{MARK: job_id})
    dropped = [each for each in caplog.records if "dropped" in each.getMessage()]
    logged = [(each.levelname, each.getMessage().split()[1].strip(":")) for each in dropped]
    assert logged == [("INFO", purged.id), ("INFO", "first"), ("WARNING", "first"), ("INFO", "second")]
    (warning,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert f"({app_state_of(shop.app).settings.address})" in warning


def test_a_claim_names_its_process_and_node(shop: Shop, trace: Any) -> None:
    """A claim has the nonce of the message, or one of its own, and the name of the node."""
    claims: list[str] = []

    def act(task: Any) -> None:
        claims.append(shop.ledger.get(task.request.id).claim)

    shop.act = act
    for number, nonce in enumerate(["12345678-rest", None, None]):
        job = shop.play.delay(str(number)).job
        trace(job.id, **({"onejob_claim": nonce} if nonce else {}))
        assert shop.ledger.get(job.id).node == "north"
    assert claims[0] == claim_of("12345678-rest", os.getpid())
    assert len({*claims}) == 3


@pytest.mark.parametrize(("happens", "name", "ignored"), [
    ("submitted", "play", ""), ("submitted", "echo", "belongs to a job of play"),
    ("claimed", "play", "not claimed: it is running"), ("purged", "play", ""),
])  # fmt: skip
def test_a_message_whose_job_appears_meanwhile(shop: Shop, trace: Any, happens: str, name: str, ignored: str) -> None:
    """A message whose job another has submitted since its claim runs that job, unless it runs or is of another task."""

    def happen() -> None:
        if happens != "purged":
            shop.play.apply_async(("key",), task_id="new-job")
        if happens == "claimed":
            shop.claim("new-job")

    shop.meanwhile("claim", happen)
    _, info, *_ = trace("new-job", name)
    assert (info and info.state, ignored in str(info and info.retval)) == ("IGNORED" if ignored else None, True) or (
        info is None and not ignored
    )
    assert shop.seen == ([] if ignored else [("key", None)])


@pytest.mark.parametrize(("error", "state", "text"), [
    (StoreUnavailableError("away"), "IGNORED", "its run could not reach the store: away"),
    (StoreRefusedError("too long"), "FAILURE", "too long"),
    (Reject("later", requeue=True), "IGNORED", "('later', True)"),
    (JobCanceled("x"), "IGNORED", "canceled on request"),
])  # fmt: skip
def test_celery_records_failures_only(shop: Shop, trace: Any, error: Exception, state: str, text: str) -> None:
    """Celery records a refused write as a failure; a run that goes on elsewhere, or not at all, it ignores."""
    shop.act = raised(error)
    _, info, *_ = trace(shop.play.delay("key").id)
    assert (info.state, str(info.retval)) == (state, text)


def test_a_message_whose_job_is_purged_before_its_claim(shop: Shop, trace: Any) -> None:
    """A message whose new job is canceled and purged before its claim runs nothing, and says why."""

    def purge() -> None:
        shop.ledger.cancel("new-job")
        shop.ledger.store.delete(["new-job"], sources=FINAL)

    shop.meanwhile("submit", purge)
    _, info, *_ = trace("new-job")
    assert shop.seen == []
    assert info.state == "IGNORED"
    assert "the job was purged" in str(info.retval)


def test_a_redelivery_that_is_not_recorded_is_refused(shop: Shop, trace: Any) -> None:
    """Duplicates are statistics: a store that cannot keep one changes nothing for the message."""
    job = shop.play.delay("key").job
    shop.claim(job.id)
    shop.ledger.record = raised(StoreUnavailableError("away"))  # type: ignore[method-assign,assignment] # an outage
    refusal, *_ = trace(job.id, delivery_info={"redelivered": True})
    assert isinstance(refusal, Refusal)


# --- messages of a replacement --------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 1])
def test_the_message_of_a_replacement_waits_for_the_run_that_sent_it(shop: Shop, trace: Any, depth: int) -> None:
    """Only a message of what replaces a running job waits for the end of that run, and then claims the job."""
    job = shop.claim(shop.play.delay("key").id)
    shop.meanwhile("claim", lambda: shop.ledger.release(job, "replaced"))
    answer, *_ = trace(job.id, replaced_task_nesting=depth)
    assert isinstance(answer, Refusal) == (not depth)
    assert shop.seen == [("key", None)] * depth


def test_a_message_replaces_only_a_job_that_waits(shop: Shop, trace: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The message of a replacement changes no job that was not replaced, nor does a message that replaces nothing."""
    echo = shop.echo
    shop.act = lambda task: task.replace(echo.s("first") | echo.s())
    alone, replaced = (shop.play.delay(key).job for key in ("alone", "replaced"))
    trace(replaced.id)
    _, info, *_ = trace(replaced.id)
    assert (info.state, shop.events(replaced.id)[2:]) == ("IGNORED", ["replace", "claim", "release"])
    assert "ignored" not in caplog.text
    _, info, *_ = trace(alone.id, "echo", (1,), replaced_task_nesting=1)
    assert (info.state, str(info.retval)) == (
        "IGNORED", f"this message of echo is ignored: job {alone.id} is a job of play"
    )  # fmt: skip
    assert (shop.events(alone.id), shop.seen) == ([*CLAIMED, "release"], [("replaced", None)])


def test_a_replaced_job_goes_on_by_the_message_of_another_sender(shop: Shop, trace: Any) -> None:
    """A job that waits for what replaces it goes on as the task of the message with its id, and is sent once."""
    echo = shop.echo
    shop.act = lambda task: task.replace(echo.s("first") | echo.s())
    job = shop.play.delay("key").job
    trace(job.id)
    shop.lose_messages()
    _, info, *_ = trace(job.id, "echo", (5,), replaced_task_nesting=1)
    assert (info.state, str(info.retval)) == ("IGNORED", f"job {job.id} goes on as echo")
    assert shop.events(job.id)[2:] == ["replace", "claim", "replace"]
    assert [each["headers"]["task"] for each in shop.messages()] == ["echo"]
    shop.deliver()
    assert (shop.seen[-1], shop.ledger.get(job.id).state) == (("echo", 5), State.COMPLETED)


def test_an_older_message_of_a_replaced_job_delays_nothing(shop: Shop, trace: Any) -> None:
    """A message that was sent before its job went on as another task is ignored, and the job is sent again at once."""
    echo = shop.echo
    shop.act = lambda task: task.replace(echo.s("first") | echo.s())
    job = shop.play.delay("key").job
    trace(job.id)
    trace(job.id, "echo", (5,), replaced_task_nesting=1)
    shop.lose_messages()
    _, info, *_ = trace(job.id)
    assert str(info.retval) == f"this message of play is ignored: job {job.id} is a job of echo"
    assert [each["headers"]["task"] for each in shop.messages()] == ["echo"]
    shop.deliver()
    assert (shop.seen[-1], shop.ledger.get(job.id).state) == (("echo", 5), State.COMPLETED)


LOST: list[tuple[Callable[[Any], Any], str]] = [
    (lambda _: 7, "complete"),
    (raised(LookupError("x")), "fail"),
    (raised(Reject("x", requeue=False)), "fail"),
    (raised(Reject("x", requeue=True)), "retry"),
    (raised(Ignore()), "abandon"),
    (raised(JobCanceled("x")), "abandon"),
    (raised(retry_in(60)), "retry"),
    (lambda task: task.retry(countdown=60), "retry"),
    (lambda task: task.replace(task.app.tasks["echo"].s(7).set(countdown=60)), "replace"),
]


@pytest.mark.parametrize(("act", "event"), LOST)
def test_an_end_whose_answer_is_lost_is_one(
    shop: Shop, trace: Any, monkeypatch: pytest.MonkeyPatch, act: Any, event: str
) -> None:
    """A store whose answer to an end is lost receives the same request again: the run ends once, as usual."""
    monkeypatch.setattr(run_end, "PAUSE", 0.01)
    end, lost, shop.act = shop.ledger.store.apply, ["of the first job"], act

    def apply(change: Any) -> Any:
        answer = end(change)
        if change.event == event and not lost:
            lost.append(event)
            raise StoreUnavailableError("away")
        return answer

    def outcome(key: str) -> tuple[str, list[str]]:
        job = shop.play.delay(key).job
        _, info, *_ = trace(job.id, args=(key,))
        told = info and f"{info.state} {info.retval}".replace(job.id, "")
        return told, shop.events(job.id)

    shop.ledger.store.apply = apply  # type: ignore[method-assign] # a lost answer
    expected = outcome("first")
    lost.clear()
    assert (outcome("second"), lost) == (expected, [event])
    assert expected[1] == [*CLAIMED, event]


@pytest.mark.parametrize("operation", ["submit", "claim"])
def test_a_ledger_that_fails_before_the_body_starts_nothing(
    shop: Shop, trace: Any, caplog: pytest.LogCaptureFixture, operation: str
) -> None:
    """When the ledger fails after the claim of a message, its body does not run, and Celery records nothing."""
    calls: list[str] = []
    original = getattr(shop.ledger, operation)

    def fail(*args: Any, **values: Any) -> Any:
        calls.append(operation)
        if operation == "claim" and len(calls) == 1:
            return original(*args, **values)
        raise StoreUnavailableError("away")

    setattr(shop.ledger, operation, fail)
    _, info, *_ = trace("new-job")
    assert (shop.seen, info.state, type(info.retval), str(info.retval)) == ([], "IGNORED", Ignore, "away")
    assert "job new-job: the ledger failed, the job recovers when its lease expires: away" in caplog.text


@pytest.mark.parametrize(
    ("ends", "state"), [("complete", "SUCCESS"), ("fail", "FAILURE"), ("abandon", "REVOKED"), ("replaced", "PENDING")]
)
def test_the_message_of_an_ended_job_notifies_its_canvas(shop: Shop, trace: Any, ends: str, state: str) -> None:
    """A message of a job whose canvas was not notified yet has Celery do so, once, and runs no body."""
    task, echo = shop.play, shop.echo
    job = task.apply_async(("key",), link=echo.s(), link_error=echo.si("failed")).job
    claimed = shop.claim(job.id)
    end: dict[str, Callable[[], JobRow]] = {
        "complete": lambda: shop.ledger.complete(claimed, "7"),
        "abandon": lambda: shop.ledger.abandon(claimed, "x"),
        "replaced": lambda: shop.ledger.abandon(claimed, REPLACED),  # whose replacement notifies the canvas
        "fail": lambda: shop.ledger.fail(claimed, '{"type": "ValueError", "message": "x"}', "x"),
    }
    end[ends]()
    shop.jobs.run_next_message()
    assert shop.seen == []
    assert not shop.ledger.get(job.id).canvas_pending
    assert shop.app.backend.get_state(job.id) == state
    assert shop.events(job.id)[2:] == ["abandon" if ends == "replaced" else ends, "canvas_notified"]
    refusal, *_ = trace(job.id)
    assert isinstance(refusal, Refusal)
    assert [message["headers"]["task"] for message in shop.messages()] == ["echo"] * (ends in {"complete", "fail"})
