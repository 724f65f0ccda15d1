"""Submitting and awaiting in coroutines: the event loop goes on, calls are batched, and nothing is lost."""

import asyncio
import gc
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from weakref import ref

import pytest
from celery import Celery
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult, GroupResult

import onejob
from onejob import Outcome, State
from onejob.celery.app_state import app_state_of
from onejob.celery.results.async_reads import reader_of
from onejob.concurrency.batching import MAX_BATCHES, Batcher
from onejob.jobs.query import Query
from onejob.jobs.workers import Registration
from onejob.stores.carrier import Pending
from onejob.stores.protocol import BATCH_LIMIT
from tests.cases import for_each
from tests.fundamentals.shop import claimed
from tests.services import start_redis
from tests.stores.support import not_none
from tests.submissions import row_of

PATIENCE = 40.0
pytestmark = pytest.mark.anyio
TICKS = 20
"""How many turns the event loop must make while the store does not answer."""


@pytest.fixture
def anyio_backend() -> str:
    """Run the tests that are coroutines by asyncio."""
    return "asyncio"


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Any]:
    app: Any = Celery("async", broker="memory://", set_as_current=False)
    app.conf.onejob_store = f"sqlite:///{tmp_path / 'ledger.db'}"

    @onejob.task(app, name="invoice", unique_on=["order_id"], shared=False)
    def invoice(order_id: int, note: str = "") -> str:
        return f"{order_id}{note}"

    @onejob.task(app, name="strict", on_duplicate="raise", shared=False)
    def strict(order_id: int) -> int:
        return order_id

    app.finalize()
    yield app
    app_state_of(app).ledger.close()


def end(app: Any, job_id: str, result: str = '"done"') -> None:
    """Run a job, as a worker would, and complete it."""
    ledger = app_state_of(app).ledger
    ledger.complete(claimed(ledger, job_id), result)


async def until_ticked(pending: asyncio.Task[Any]) -> None:
    """Wait until the event loop has made some turns of a millisecond while a call waits for its store."""
    for _ in range(TICKS):
        await asyncio.sleep(0.001)
        assert not pending.done()


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)


@contextmanager
def locked(app: Any) -> Iterator[None]:
    """Lock the SQLite ledger by another connection, as another process would."""
    with closing(sqlite3.connect(app.conf.onejob_store.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


async def test_a_store_that_is_away_blocks_no_loop(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """While Redis answers nothing, submissions and reads wait and the loop turns; then they end as usual."""
    server = start_redis(tmp_path)
    request.addfinalizer(server.stop)
    app: Any = Celery("paused", broker=server.url, set_as_current=False)
    request.addfinalizer(app_state_of(app).publisher.close)
    request.addfinalizer(lambda: app_state_of(app).close())

    @onejob.task(app, name="invoice", shared=False)
    def invoice(order_id: int) -> int:
        return order_id

    async def while_paused(call: Callable[[], Any]) -> Any:
        os.kill(server.pid, signal.SIGSTOP)
        pending = asyncio.create_task(call())
        try:
            await until_ticked(pending)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        return await asyncio.wait_for(pending, PATIENCE)

    first = await invoice.asubmit(1)
    answers = [
        await while_paused(lambda: invoice.asubmit(2)),
        await while_paused(lambda: invoice.aapply_async((3,), countdown=60)),
        await while_paused(lambda: invoice.aapply_async((4,), task_id="of-its-own")),
        *await while_paused(lambda: invoice.asubmit_many([(5,), (6,)])),
    ]
    assert [each.outcome for each in answers] == [Outcome.ADMITTED] * 5
    assert (await while_paused(first.ajob)).state is State.QUEUED


async def test_concurrent_submissions_are_batched(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many coroutines that submit at once take few calls of the store, and equal ones get one job."""
    invoice, store = app.tasks["invoice"], app_state_of(app).ledger.store
    submit_many = Mock(wraps=store.submit_many)
    monkeypatch.setattr(store, "submit_many", submit_many)
    results = await asyncio.gather(*(invoice.asubmit(number % 10) for number in range(200)))
    assert len({each.id for each in results}) == 10
    assert [each.outcome for each in results].count(Outcome.ADMITTED) == 10
    assert submit_many.call_count < 20


async def test_a_result_is_awaited(app: Any) -> None:
    """`aget` returns the value once the job has ended, to many waiters, and once more without another read."""
    invoice = app.tasks["invoice"]
    result = await invoice.asubmit(1)
    waits = [asyncio.create_task(result.aget(PATIENCE)) for _ in range(50)]
    same = [asyncio.create_task(invoice.AsyncResult(result.id).aget()) for _ in range(50)]
    await until(lambda: reader_of(app).watcher.watches)
    await asyncio.to_thread(end, app, result.id)
    values: list[str] = await asyncio.gather(*waits, *same)
    assert await result.aget(0) == "done"
    assert values == ["done"] * 100


async def test_the_exceptions_are_those_of_the_synchronous_calls(app: Any) -> None:
    """Wrong arguments, duplicates, reused keys, cancellations and timeouts raise what the other calls raise."""
    invoice, strict, ledger = app.tasks["invoice"], app.tasks["strict"], app_state_of(app).ledger
    await strict.asubmit(1)
    await invoice.aapply_async((1,), idempotency_key="k")
    waiting, unknown = await invoice.asubmit(3), invoice.AsyncResult("unknown")
    wrong: list[tuple[type[Exception], str | None, Any]] = [
        (onejob.errors.InvalidArgumentsError, None, invoice.asubmit),
        (onejob.errors.InvalidArgumentsError, "option of a task", lambda: invoice.aapply_async((1,), unique_for=5)),
        (onejob.errors.InvalidArgumentsError, "item 1", lambda: invoice.asubmit_many([(1,), ()])),
        (onejob.DuplicateJobError, None, lambda: strict.asubmit(1)),
        (onejob.DuplicateJobError, None, lambda: invoice.aapply_async((1,), on_duplicate="raise")),
        (onejob.errors.KeyReuseMismatchError, None, lambda: invoice.aapply_async((2,), idempotency_key="k")),
        (CeleryTimeoutError, r"not ended after 0.05 s: it was PENDING", lambda: waiting.aget(0.05)),
        (CeleryTimeoutError, None, lambda: unknown.aget(0.05)),
        (onejob.errors.JobNotFoundError, None, unknown.ajob),
    ]
    for error, text, call in wrong:
        with pytest.raises(error, match=text):
            await call()
    ledger.cancel(waiting.id)
    with pytest.raises(Exception, match="cancel"):
        await waiting.aget(PATIENCE)
    assert isinstance(await waiting.aget(propagate=False), Exception)


async def test_a_timeout_says_why_the_job_is_stuck(app: Any, tmp_path: Path) -> None:
    """A timeout names the ledger, by its whole path, without a live worker; with one, why it cannot run the job."""
    waiting, ledger = await app.tasks["invoice"].asubmit(1), app_state_of(app).ledger
    waits: list[Any] = [lambda: waiting.aget(0.01), lambda: asyncio.to_thread(waiting.get, 0.01)]
    for wait in waits:
        with pytest.raises(CeleryTimeoutError, match=f"No live worker has this ledger: sqlite:///{tmp_path}/ledger.db"):
            await wait()
    ledger.heartbeat("w@host", lasts=60, registration=Registration(tasks=("invoice",), queues=("other",)))
    for wait in waits:
        with pytest.raises(CeleryTimeoutError, match="stuck: no live worker that has its task consumes its queue"):
            await wait()
    claimed(ledger, waiting.id)
    for wait in waits:
        with pytest.raises(CeleryTimeoutError, match=r"it was \w+ when it was last read$"):
            await wait()


async def test_the_submitter_is_that_of_the_coroutine(app: Any) -> None:
    """Each of the coroutines that submit at once has its own submitter, in a batch and alone."""
    invoice = app.tasks["invoice"]

    async def submit_as(name: str, **options: Any) -> str:
        with onejob.submitter(name, own_jobs=True):
            result = await invoice.aapply_async((1,), **options)
        return str((await result.ajob()).submitter)

    together = [submit_as(f"user:{number}") for number in range(20)]
    found = await asyncio.gather(*together, submit_as("alone", task_id="of-its-own"))
    assert found == [f"user:{number}" for number in range(20)] + ["alone"]


def test_an_option_that_is_none_overrides_the_tasks_own(app: Any) -> None:
    """An option of a coroutine's call that is None replaces that of the task, as in `apply_async`."""

    @onejob.task(app, name="brief", expires=60, shared=False)
    def brief(number: int) -> None: ...

    asyncio.run(brief.aapply_async((1,), expires=None))
    brief.apply_async((2,), expires=None)
    brief.delay(3)
    found = app_state_of(app).ledger.find(Query())
    assert sorted(job.expires_at is None for job in found) == [False, True, True]


def test_a_canceled_coroutine_loses_no_submission(app: Any) -> None:
    """A submission whose coroutine is canceled is carried out, and neither a task nor a watched job is left over."""
    invoice, ledger = app.tasks["invoice"], app_state_of(app).ledger

    async def scenario() -> None:
        first = await invoice.asubmit(1)
        with locked(app):
            calls = [invoice.asubmit(2), invoice.aapply_async((3,), task_id="three"), invoice.asubmit_many([(4,)])]
            tasks = [asyncio.create_task(call) for call in calls]
            await until_ticked(tasks[0])
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(each) for each in ended] == [asyncio.CancelledError] * 3
        wait = asyncio.create_task(first.aget())
        await until(lambda: reader_of(app).watcher.watches)
        wait.cancel()
        await asyncio.gather(wait, return_exceptions=True)
        assert reader_of(app).watcher.watches == {}
        await until(lambda: len(ledger.find(Query(limit=100))) == 4)
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    asyncio.run(scenario())


def test_every_event_loop_has_its_own_state(app: Any) -> None:
    """One app is used by one event loop after the other; a task class's own `apply_async` is called in each."""
    outcomes = [asyncio.run(app.tasks["invoice"].asubmit(1)).outcome for _ in range(3)]
    assert outcomes == [Outcome.ADMITTED, Outcome.ATTACHED, Outcome.ATTACHED]

    class Stamped(onejob.Task):
        def apply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
            return super().apply_async(args, {**(kwargs or {}), "stamp": "s"}, **options)

    @onejob.task(app, base=Stamped, name="stamped", shared=False)
    def stamped(number: int, stamp: str = "") -> str:
        return stamp

    assert '"stamp": "s"' in row_of(asyncio.run(app.tasks["stamped"].asubmit(1))).payload


def test_a_closed_event_loop_is_not_kept(app: Any) -> None:
    """Nothing keeps an event loop in which a result was awaited, nor its threads, once it is closed."""
    loops = list[Any]()

    async def scenario() -> None:
        loops.append(ref(asyncio.get_running_loop()))
        result = await app.tasks["invoice"].asubmit(1)
        with pytest.raises(CeleryTimeoutError):
            await result.aget(timeout=0.05)

    for _ in range(3):
        asyncio.run(scenario())
    gc.collect()
    assert [loop() for loop in loops] == [None, None, None]


async def test_a_wait_for_a_chain_has_one_deadline(app: Any) -> None:
    """The results before one in a chain, and in a group before it, share the timeout of `aget` with it."""
    play = app.tasks["invoice"]
    given = list[float | None]()

    class Earlier(AsyncResult[None]):
        async def aget(self, timeout: float | None = None, **_: Any) -> None:  # noqa: ASYNC109 - as that of onejob
            given.append(timeout)
            await asyncio.sleep(0.02)

    last = await play.asubmit(1)
    last.parent = GroupResult("group", [Earlier("one", app=app), Earlier("two", app=app)], app=app)
    end(app, last.id)
    await last.aget(timeout=PATIENCE)
    first, second = map(not_none, given)
    assert second < first <= PATIENCE


# --- batches ----------------------------------------------------------------------------------------------------------


@for_each("count", [100, 2 * BATCH_LIMIT + 7])
def test_concurrent_items_are_batched(count: int) -> None:
    """Items that arrive while batches are in progress form few, limited batches; each gets its own result or error."""
    seven, opened, batches = ValueError("seven"), threading.Event(), list[Sequence[int]]()

    def double(numbers: Sequence[int]) -> list[int | Exception]:
        batches.append(numbers)
        assert opened.wait(30)
        return [seven if number == 7 else 2 * number for number in numbers]

    async def scenario() -> list[int | BaseException]:
        batcher = Batcher(double)
        tasks = [asyncio.create_task(batcher.process(0))]
        await until(lambda: batches)
        tasks += [asyncio.create_task(batcher.process(number)) for number in range(1, count)]
        await until(lambda: len(batches) > 1)  # while the first one is still in progress
        opened.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert asyncio.run(scenario()) == [2 * number if number != 7 else seven for number in range(count)]
    assert sorted(number for each in batches for number in each) == list(range(count))
    assert len(batches) <= MAX_BATCHES + 1 + count // BATCH_LIMIT
    assert max(map(len, batches)) <= BATCH_LIMIT


async def test_a_failed_batch_fails_each_item() -> None:
    """An exception of the whole batch is raised for each of its items, and the next batch is processed."""

    def fails(numbers: Sequence[int]) -> list[int]:
        if 0 in numbers:
            raise ConnectionError("away")
        return list(numbers)

    batcher = Batcher(fails)
    with pytest.raises(ConnectionError, match="away"):
        await batcher.process(0)
    assert await batcher.process(1) == 1


async def test_a_result_that_no_future_takes_is_an_error() -> None:
    """StopIteration, which a future of some versions of Python refuses, is the error of its own item only."""

    def answer(numbers: Sequence[int]) -> list[int | Pending[int] | Exception]:
        special: dict[int, Any] = {1: StopIteration("none"), 2: Pending(partial(next, iter(())))}
        return [special.get(number, number) for number in numbers]

    batcher = Batcher(answer)
    answers = await asyncio.gather(*map(batcher.process, range(4)), return_exceptions=True)
    assert [type(each) for each in answers] == [int, RuntimeError, RuntimeError, int]


async def test_a_failing_argument_function_is_its_callers_error(app: Any) -> None:
    """A task's `unique_on` that raises StopIteration fails the call, and no other one."""

    @onejob.task(app, name="first_of", shared=False, unique_on=lambda items: next(each for each in items if each))
    def first_of(items: list[int]) -> None: ...

    calls = [first_of.asubmit([number]) for number in range(4)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(each, Exception) for each in answers] == [True, False, False, False]


async def test_a_deferred_result_delays_no_other() -> None:
    """The other items of the batch and later batches do not wait for a deferred result."""
    opened = threading.Event()

    def slow() -> int:
        assert opened.wait(30)
        return -1

    def work(numbers: Sequence[int]) -> list[int | Pending[int] | Exception]:
        return [Pending(slow) if number == 0 else number for number in numbers]

    batcher = Batcher(work)
    waits = [asyncio.create_task(batcher.process(0)) for _ in range(MAX_BATCHES + 1)]
    others = [await batcher.process(number) for number in range(1, 50)]
    opened.set()
    assert (others, sum(await asyncio.gather(*waits))) == (list(range(1, 50)), -MAX_BATCHES - 1)


async def test_no_item_is_left_behind() -> None:
    """However the arrival of items and the end of batches interleave, each item is processed."""
    batcher: Batcher[int, int] = Batcher(list)
    count = 0
    for _ in range(200):
        count += len(await asyncio.gather(*(batcher.process(number) for number in range(MAX_BATCHES + 1))))
    assert count == 200 * (MAX_BATCHES + 1)
