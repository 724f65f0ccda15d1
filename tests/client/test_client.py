"""The client itself: what it takes, when it opens and closes a ledger, in threads, forks and coroutines."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from celery import Celery

import onejob
from onejob.celery.app_state import app_state_of
from onejob.client.client import Schedules
from onejob.errors import ConfigurationError
from onejob.jobs.lifecycle import State
from onejob.ledger.ledger import Ledger
from tests.cases import for_each
from tests.conftest import every_store
from tests.operation_cases import failed, queued
from tests.stores.support import StoreAddress

NO_TWIN = {"find_all"}
"""The method whose coroutine is a generator of its own."""


def twins(kind: type) -> Iterator[tuple[Any, Any]]:
    """Yield each public method with its coroutine."""
    for name, method in vars(kind).items():
        is_coroutine = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
        if inspect.isfunction(method) and not name.startswith("_") and not is_coroutine:
            yield method, getattr(kind, f"a{name}")


def test_each_method_has_a_coroutine() -> None:
    """Beside each method there is one with an `a` before its name, which takes the same and is awaited."""
    pairs = [*twins(onejob.Client), *twins(Schedules)]
    assert len(pairs) == 32
    for method, twin in pairs:
        assert inspect.iscoroutinefunction(twin) or method.__name__ in NO_TWIN
        ours, theirs = inspect.signature(method), inspect.signature(twin)
        assert ours.parameters == theirs.parameters
        assert twin.__name__ == f"a{method.__name__}"


@every_store
def test_coroutines_do_what_the_methods_do(client: onejob.Client, ledger: Ledger) -> None:
    """In a coroutine jobs are found, read and operated on, by the same actor, while the event loop goes on."""
    jobs = [queued(ledger).id for _ in range(60)][::-1]
    dead = failed(ledger)

    async def operate() -> None:
        async with client:
            assert [job.id async for job in client.afind_all(state="queued")] == jobs
            assert (await client.acount(state="queued")).total == 60
            assert (await client.afind(limit=1)).jobs == [await client.aget(dead.id)]
            assert (await client.aredrive(dead.id)).state is State.QUEUED
            assert (await client.abulk("cancel", everything=True)).next is None
            assert (await client.awhy(dead.id)).job.state is State.CANCELED
            first, second = await asyncio.gather(client.aget(jobs[0]), client.aget(jobs[1]))
            assert [first.id, second.id] == jobs[:2]

    asyncio.run(operate())
    assert {entry.actor for entry in ledger.audit(limit=9)} == {"ann"}


@for_each("given, options, kind, text", [
    ("mysql://localhost/db", {}, ConfigurationError, "no store supports mysql://"),
    ("ledger.db", {}, ConfigurationError, "no store supports a URL without ://"),
    ("sqlite:///x.db", {"namespace": "two words"}, ConfigurationError, "must be a plain name"),
    (7, {}, TypeError, "takes a Celery app, or the URL of a ledger as a text, not a int"),
    (None, {}, TypeError, "not a NoneType"),
    (Celery("x", set_as_current=False), {"namespace": "mine"}, ConfigurationError, "setting onejob_namespace: leave"),
])  # fmt: skip
def test_a_client_of_nothing_is_refused(given: Any, options: Any, kind: type[Exception], text: str) -> None:
    """What is neither an app nor the URL of a ledger, and a namespace beside an app, is refused with what to write."""
    with pytest.raises(kind, match=text):
        onejob.Client(given, **options)


def test_a_misspelled_file_is_not_created(tmp_path: Path) -> None:
    """The file of a ledger that does not exist is named, and only `migrate` creates it."""
    path = tmp_path / "lgder.db"
    with onejob.Client(f"sqlite:///{path}") as client:
        with pytest.raises(ConfigurationError, match=rf"there is no ledger at {path}: .* Client.migrate"):
            client.find()
        assert not path.exists()
        assert client.migrate()
        assert client.find().jobs == []


@every_store
def test_a_ledger_is_migrated_once(fresh_address: StoreAddress) -> None:
    """`migrate` makes a ledger in an empty store; repeating it changes nothing."""
    with onejob.Client(fresh_address.url, namespace=fresh_address.namespace) as client:
        client.migrate()
        assert client.migrate() == []
        assert client.count().total == 0


def test_a_client_of_an_app_migrates_its_ledger(tmp_path: Path) -> None:
    """The ledger of an app is migrated where its settings say."""
    app = Celery("shop", broker="onejob://", set_as_current=False)
    app.conf.onejob_store = f"sqlite:///{tmp_path / 'ledger.db'}"
    assert onejob.Client(app).migrate()
    assert onejob.Client(app).migrate() == []
    app_state_of(app).close()


def test_a_client_closes_what_it_has_opened(client: onejob.Client, app: Celery, ledger: Ledger) -> None:
    """The end of a `with` block closes the ledger of a URL, which the next use opens again, and none of an app."""
    job = queued(ledger)
    with client:
        opened = client._ledger
        assert client._ledger is opened
    assert client.get(job.id).id == job.id
    assert client._ledger is not opened
    with onejob.Client(app) as of_app:
        assert of_app.get(job.id).id == job.id
    assert app_state_of(app).ledger is ledger
    assert ledger.get(job.id) == job


def test_threads_share_one_ledger(client: onejob.Client, ledger: Ledger) -> None:
    """Threads that use a client for the first time at once open one ledger, and each finds the job."""
    job, barrier = queued(ledger), Barrier(8)

    def use(_: int) -> tuple[str, int]:
        barrier.wait(30)
        return client.get(job.id).id, id(client._ledger)

    with ThreadPoolExecutor(8) as threads:
        found = {*threads.map(use, range(8))}
    assert found == {(job.id, id(client._ledger))}


@every_store
def test_a_client_works_after_a_fork(client: onejob.Client, ledger: Ledger) -> None:
    """A child of `fork` uses the client of its parent, which goes on with it, too."""
    job = queued(ledger)
    client.get(job.id)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, pickle.dumps(client.run_now(job.id).state))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert pickle.loads(os.read(reader, 1000)) is State.QUEUED  # noqa: S301 - our own bytes
    os.close(reader)
    os.close(writer)
    assert "made due in Python by ann" in client.why(job.id).history[-1].detail
