"""Waiting for changes of jobs: one poller reads each watched job once per interval."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from onejob.api.job_watcher import JobWatcher
from onejob.errors import StoreUnavailableError
from onejob.jobs.lifecycle import FINAL
from onejob.ledger.ledger import Ledger
from onejob.stores import open_store
from tests.fundamentals.shop import claimed, order
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from onejob.jobs.model import Job

INTERVAL = 0.05
PATIENCE = 20.0


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


def test_waiters_are_notified_of_a_deletion(ledger: Ledger) -> None:
    """The waiters for a deleted job are notified that it no longer exists."""
    job = ledger.cancel(ledger.submit(order(1)).job.id)
    gone = _wait_during(JobWatcher(ledger, INTERVAL), [job] * 2, lambda: ledger.store.delete([job.id], sources=FINAL))
    assert asyncio.run(gone) == {"gone"}


def test_polling_continues_after_an_error(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """After failed reads the waiters are still notified of the next change."""
    job, get_many, failures = ledger.submit(order(1)).job, ledger.store.get_many, [1, 2, 3]

    def fails_thrice(job_ids: Sequence[str]) -> dict[str, Job]:
        if failures:
            failures.pop()
            raise StoreUnavailableError("simulated")
        return get_many(job_ids)

    def submit_later() -> None:
        eventually(lambda: not failures)
        ledger.submit(order(1))

    monkeypatch.setattr(ledger.store, "get_many", fails_thrice)
    assert asyncio.run(_wait_during(JobWatcher(ledger, INTERVAL), [job] * 2, submit_later)) == {"queued"}
