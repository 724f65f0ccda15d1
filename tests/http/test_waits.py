"""Event streams and long polls: how many a caller may have, that they end with the API key, and what they read."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from onejob.api import create_app
from onejob.api.api_keys import KeyFile, Role
from onejob.api.job_reads import JobWatcher
from onejob.api.routes import jobs
from onejob.celery.app_state import app_state_of
from onejob.errors import StoreUnavailableError
from onejob.jobs.lifecycle import FINAL
from onejob.ledger.ledger import Ledger
from onejob.stores import open_store
from tests.fundamentals.shop import claimed, order
from tests.http.conftest import problem
from tests.http.serving import PATIENCE, serving
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from celery import Celery

    from onejob.jobs.model import Job

WAITS = 3


class Callers:
    """A server with API keys, two of these, and a job."""

    def __init__(self, app: Celery, path: Path, stack: ExitStack) -> None:
        self.app = app
        self.keys = KeyFile(path)
        texts = [self.keys.add(name, Role.OPERATE) for name in ("first", "second")]
        web = create_app(app, path, waits_per_caller=WAITS)
        self.server = stack.enter_context(serving(web))
        self.clients = [stack.enter_context(_client(self.server.url, text)) for text in texts]
        self.job_id = app.tasks["shop.invoice"].delay(1).id
        self.events = f"/jobs/{self.job_id}/events"


def _client(url: str, text: str) -> httpx2.Client:
    headers = {"authorization": f"Bearer {text}"}
    return httpx2.Client(base_url=url, headers=headers, timeout=PATIENCE)


@pytest.fixture
def callers(celery_app: Celery, tmp_path: Path) -> Iterator[Callers]:
    """Return the server."""
    with ExitStack() as stack:
        yield Callers(celery_app, tmp_path / "keys.json", stack)


@contextmanager
def stream(client: httpx2.Client, path: str) -> Iterator[Iterator[str]]:
    """Open a stream, and return its lines after the first event."""
    with client.stream("GET", path) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        assert next(lines) == "event: state"
        yield lines


def test_waits_are_limited_per_key(callers: Callers) -> None:
    """Above the limit an event stream or a long poll of the same key gets a 429 with Retry-After, until one ends."""
    first, second = callers.clients
    wait = {"prefer": "wait=1"}
    with ExitStack() as stack:
        for _ in range(WAITS):
            stack.enter_context(stream(first, callers.events))
        for response in (first.get(callers.events), first.get(f"/jobs/{callers.job_id}", headers=wait)):
            problem(response, 429, "too-many-waits")
            assert int(response.headers["retry-after"]) > 0
        assert first.get(f"/jobs/{callers.job_id}").status_code == 200
        with stream(second, callers.events):
            pass
    eventually(lambda: first.get(f"/jobs/{callers.job_id}", headers=wait).status_code == 200)


def test_a_revoked_key_ends_its_streams(callers: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The streams of a key end at the first keepalive after its revocation, those of other keys go on."""
    monkeypatch.setattr(jobs, "KEEPALIVE_INTERVAL", 0.1)
    first, second = callers.clients
    with stream(first, callers.events) as revoked, stream(second, callers.events) as valid:
        callers.keys.revoke("first")
        assert "event: state" not in list(revoked)
        assert ": ping" in (next(valid) for _ in range(100))
    problem(first.get(callers.events), 401, "unauthorized")


def test_a_revoked_key_gets_no_event(callers: Callers) -> None:
    """A change of the job after the revocation is not sent, also before the next keepalive."""
    (first, _), ledger = callers.clients, app_state_of(callers.app).ledger
    with stream(first, callers.events) as lines:
        callers.keys.revoke("first")
        ledger.cancel(callers.job_id)
        assert not [line for line in lines if "canceled" in line]


@pytest.mark.parametrize(("ends", "answer"), [("job", (200, "completed")), ("key", (401, None))])
def test_a_wait_ends_early(callers: Callers, monkeypatch: pytest.MonkeyPatch, ends: str, answer: Any) -> None:
    """A long poll ends with the end of its job, and with a 401 when its key is revoked, not after its whole time."""
    monkeypatch.setattr(jobs, "MAX_WAIT", 3600.0)
    ledger = app_state_of(callers.app).ledger
    with ThreadPoolExecutor(1) as pool:
        headers = {"prefer": "wait=3600"}
        waiting = pool.submit(callers.clients[0].get, f"/jobs/{callers.job_id}", headers=headers)
        eventually(lambda: callers.server.server.server_state.tasks)
        if ends == "key":
            callers.keys.revoke("first")
        else:
            ledger.complete(claimed(ledger, callers.job_id), '"done"')
        response = waiting.result(PATIENCE)
    assert (response.status_code, response.json().get("state")) == answer
    assert response.status_code == 401 or response.headers["preference-applied"] == "wait=3600"


# --- one poller for all waiters -------------------------------------------------------------------------------------


INTERVAL = 0.05


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Return an SQLite ledger."""
    ledger = Ledger(open_store(f"sqlite:///{tmp_path / 'ledger.db'}"))
    yield ledger
    ledger.close()


@pytest.fixture
def reads(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the ids of the jobs of each read, as they are read."""
    seen: list[list[str]] = []
    get_many = ledger.store.get_many

    def counted(job_ids: Sequence[str]) -> dict[str, Job]:
        seen.append(list(job_ids))
        return get_many(job_ids)

    monkeypatch.setattr(ledger.store, "get_many", counted)
    return seen


async def _state(watcher: JobWatcher, job: Job, ready: asyncio.Semaphore) -> str:
    """Wait for a change, and return the new state of the job."""
    async with watcher.watch(job) as watch:
        ready.release()
        assert await watch.wait_for_change(PATIENCE)
        return str(watch.job.state if watch.job else "gone")


async def _wait_during(watcher: JobWatcher, jobs: Sequence[Job], act: Callable[[], object]) -> set[str]:
    """Let one wait for each of some jobs, call `act` meanwhile, and return the states that they got."""
    ready = asyncio.Semaphore(0)
    waiting = [asyncio.create_task(_state(watcher, job, ready)) for job in jobs]
    for _ in waiting:
        await ready.acquire()
    await asyncio.to_thread(act)
    return set(await asyncio.gather(*waiting))


def test_many_waiters_share_one_read(ledger: Ledger, reads: list[list[str]]) -> None:
    """A thousand waiters for twenty jobs are all notified of their changes, and cost one read per interval."""
    jobs = [ledger.submit(order(number)).job for number in range(20)]

    def claim_all() -> None:
        eventually(lambda: len(reads) >= 3)
        for job in jobs:
            claimed(ledger, job.id)

    states = asyncio.run(_wait_during(JobWatcher(ledger, INTERVAL), jobs * 50, claim_all))
    assert states == {"running"}
    assert sorted(reads[0]) == sorted(job.id for job in jobs)
    assert len(reads) < 1000


def test_polling_stops_without_waiters(ledger: Ledger, reads: list[list[str]]) -> None:
    """When the last waiter has left, polling stops; it starts again with the next."""
    job = ledger.submit(order(1)).job

    async def scenario() -> None:
        watcher = JobWatcher(ledger, INTERVAL)
        async with watcher.watch(job):
            await asyncio.to_thread(eventually, lambda: reads)
        assert watcher.watches == {}
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})  # the poller ends
        reads.clear()
        assert await _wait_during(watcher, [job], lambda: claimed(ledger, job.id)) == {"running"}
        assert reads

    asyncio.run(scenario())


def test_polling_continues_after_an_error(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """After failed reads the waiters are still notified of the next change, also that the job is deleted."""
    job, get_many, failures = ledger.submit(order(1)).job, ledger.store.get_many, [1, 2, 3]

    def fails_thrice(job_ids: Sequence[str]) -> dict[str, Job]:
        if failures:
            failures.pop()
            raise StoreUnavailableError("simulated")
        return get_many(job_ids)

    def delete_later() -> None:
        eventually(lambda: not failures)
        ledger.cancel(job.id)
        ledger.store.delete([job.id], sources=FINAL)

    monkeypatch.setattr(ledger.store, "get_many", fails_thrice)
    assert asyncio.run(_wait_during(JobWatcher(ledger, INTERVAL), [job] * 2, delete_later)) <= {"canceled", "gone"}
