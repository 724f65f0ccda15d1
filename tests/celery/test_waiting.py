"""Waiting for the ends of jobs: a signal wakes who waits, on every store, and no wait hangs without one."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from celery import Celery, group

import onejob
from onejob.celery.app_state import app_state_of
from onejob.celery.results import async_reads
from onejob.ledger.ledger import Ledger
from onejob.stores.listener import Listener
from onejob.stores.protocol import BACKSTOP, Store
from tests.celery.harness import Cluster, await_
from tests.fundamentals.shop import claimed
from tests.services import eventually
from tests.stores.support import StoreAddress
from tests.stores.test_signals import listening

PATIENCE = 40.0
NEVER = 3600.0
WAITS = 200


@pytest.fixture
def app(store_address: StoreAddress) -> Iterator[Any]:
    app: Any = Celery("waits", broker="memory://", set_as_current=False)
    app.conf.update(onejob_store=store_address.url, onejob_namespace=store_address.namespace)

    @onejob.task(app, name="invoice", shared=False)
    def invoice(order_id: int) -> int:
        return order_id

    app.finalize()
    yield app
    app_state_of(app).close()


@pytest.fixture
def worker(store_factory: Callable[[], Store]) -> Ledger:
    """Return the ledger as another process has it."""
    return Ledger(store_factory())


@pytest.fixture
def awaited(app: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the ids of the jobs that were read to wait for them."""
    store, ids = app_state_of(app).ledger.store, list[str]()
    get_awaited = store.get_awaited

    def noted(job_ids: Any) -> Any:
        found = get_awaited(job_ids)
        ids.extend(job_ids)
        return found

    monkeypatch.setattr(store, "get_awaited", noted)
    return ids


def never_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let those who wait look only after a signal."""
    monkeypatch.setattr(Listener, "interval", NEVER)
    monkeypatch.setattr(async_reads, "REREAD_INTERVAL", NEVER)


def complete(ledger: Ledger, job_id: str) -> None:
    ledger.complete(claimed(ledger, job_id), '"done"')


def fail(ledger: Ledger, job_id: str) -> None:
    error = '{"type": "LookupError", "message": "", "traceback": ""}'
    ledger.fail(claimed(ledger, job_id), error, "LookupError")


ENDS: dict[str, Callable[[Ledger, str], object]] = {"SUCCESS": complete, "FAILURE": fail, "REVOKED": Ledger.cancel}


def test_an_end_wakes_who_waits(app: Any, worker: Ledger, awaited: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads and coroutines that wait for a job get its end by a signal, however it ends, and whoever submitted it."""
    never_look(monkeypatch)
    invoice = app.tasks["invoice"]
    for number, (state, end) in enumerate(ENDS.items()):
        awaited.clear()
        submitted = invoice.delay(number)
        found = invoice.AsyncResult(submitted.id)
        with ThreadPoolExecutor(3) as threads:
            calls = [threads.submit(each.get, PATIENCE, propagate=False, interval=NEVER) for each in (submitted, found)]
            calls.append(threads.submit(lambda: asyncio.run(submitted.aget(PATIENCE, propagate=False))))  # noqa: B023
            eventually(lambda: len(awaited) >= 3)
            end(worker, submitted.id)
            values = {str(call.result(PATIENCE)) for call in calls}
        assert (len(values), submitted.state) == (1, state)


def test_an_end_before_the_wait_is_seen(app: Any, worker: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that ends between the first look at it and the subscription, or before both, is not waited for."""
    never_look(monkeypatch)
    invoice, store = app.tasks["invoice"], app_state_of(app).ledger.store
    ids = [invoice.delay(number).id for number in range(2)]
    get_many = store.get_many

    def end_after(job_ids: Any) -> Any:
        found = get_many(job_ids)
        monkeypatch.setattr(store, "get_many", get_many)
        complete(worker, ids[0])
        return found

    monkeypatch.setattr(store, "get_many", end_after)
    assert invoice.AsyncResult(ids[0]).get(PATIENCE, interval=NEVER) == "done"
    complete(worker, ids[1])
    assert invoice.AsyncResult(ids[1]).get(0) == "done"


def test_without_signals_a_wait_ends(
    app: Any, worker: Ledger, awaited: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no signal arrives, those who wait look for themselves."""
    assert Listener.interval == BACKSTOP == 1.0
    monkeypatch.setattr(Listener, "interval", 0.1)
    monkeypatch.setattr(Listener, "_wake", lambda *_: None)
    result = app.tasks["invoice"].delay(1)
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(result.get, PATIENCE), threads.submit(lambda: asyncio.run(result.aget(PATIENCE)))]
        eventually(lambda: len(awaited) >= 2)
        complete(worker, result.id)
        assert [call.result(PATIENCE) for call in calls] == ["done"] * 2


def test_many_waits_cost_one_connection(
    app: Any, worker: Ledger, store_address: StoreAddress, awaited: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waits of a process share one connection; the first reads of their jobs, and those after the ends, are few."""
    never_look(monkeypatch)
    results = app.tasks["invoice"].submit_many([(number,) for number in range(WAITS)])

    async def scenario() -> list[Any]:
        waits = [asyncio.create_task(result.aget(PATIENCE)) for result in results * 5]
        await asyncio.to_thread(eventually, lambda: len(awaited) >= WAITS)
        if store_address.kind != "sqlite":
            await asyncio.to_thread(eventually, lambda: len(listening(store_address)) == 1)
        for result in results:
            await asyncio.to_thread(complete, worker, result.id)
        return await asyncio.gather(*waits)

    assert asyncio.run(scenario()) == ["done"] * 5 * WAITS


@pytest.mark.parametrize("cluster", ["postgresql", "redis"], indirect=True)
def test_a_follower_is_woken(cluster: Cluster) -> None:
    """The end of a job wakes the sweepers, so that its followers end at once, and not at the next sweep."""
    cluster.config["test_sweep"] = NEVER
    cluster.worker()
    first = cluster.begin("member", ["hold:all"])
    started: Any = group([cluster.play.s("member", ["return"])]).delay()
    (follower,) = started.results
    await_(lambda: cluster.job(follower).follows_id == first.id)
    cluster.open("all")
    assert [result.get(PATIENCE) for result in (first, follower)] == ["member"] * 2


@pytest.mark.parametrize("fresh_address", ["postgresql"], indirect=True)
def test_a_locked_job_is_awaited_all_the_same(app: Any, worker: Ledger, store_address: StoreAddress) -> None:
    """While the transaction of a user has locked a job, a wait for it reads it, and ends after its end."""
    result = app.tasks["invoice"].delay(1)
    query = f'select from "{store_address.namespace}".jobs where id = %s for update'
    with ThreadPoolExecutor(1) as threads:
        with psycopg.connect(store_address.url) as connection:
            connection.execute(query.encode(), [result.id])
            assert app_state_of(app).ledger.store.get_awaited([result.id, "unknown"]).keys() == {result.id}
            call = threads.submit(result.get, PATIENCE)
        complete(worker, result.id)
        assert call.result(PATIENCE) == "done"


@pytest.mark.parametrize("task", ["play", "play_run_again"])
def test_a_run_does_not_wait_for_its_own_end(shared: Cluster, task: str) -> None:
    """Waiting in a run for an equal call, which the running job answers or precedes, is an error at once."""
    key = f"waits for itself as {task}"
    result = shared.app.tasks[task].delay(key, [f"wait_for:{task}"], [key, ["return"]])
    assert f"job {result.id} would wait for its own end" in result.get(PATIENCE)
    shared.await_rest()
    other = shared.play.delay(f"another {key}", ["wait_for:echo"], ["other"])
    assert other.get(PATIENCE) == "other"
