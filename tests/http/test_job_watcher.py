"""Waiting for changes of jobs: one poller reads each watched job once per interval."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from onejob.api.job_watcher import JobWatcher
from onejob.errors import StoreUnavailableError
from onejob.ledger.ledger import Ledger
from onejob.stores import open_store
from tests.fundamentals.shop import claimed, order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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


async def _wait_during(watcher: JobWatcher, job: Job, waiters: int, act: Any) -> set[str]:
    """Let many wait for a job, call `act` after some intervals, and return the states that they got."""
    ready = asyncio.Semaphore(0)
    waiting = [asyncio.create_task(_state(watcher, job, ready)) for _ in range(waiters)]
    for _ in waiting:
        await ready.acquire()
    await asyncio.sleep(5 * INTERVAL)
    await asyncio.to_thread(act)
    return set(await asyncio.gather(*waiting))


def test_many_waiters_share_one_read(ledger: Ledger, reads: list[list[str]]) -> None:
    """A thousand waiters for one job are all notified of its change, and cost one read per interval."""
    job = ledger.submit(order(1)).job

    async def scenario() -> float:
        watcher, started = JobWatcher(ledger, INTERVAL), asyncio.get_running_loop().time()
        assert await _wait_during(watcher, job, 1000, lambda: claimed(ledger, job.id)) == {"running"}
        return asyncio.get_running_loop().time() - started

    reads.clear()
    elapsed = asyncio.run(scenario())
    assert 2 <= len(reads) <= elapsed / INTERVAL + 1


def test_all_watched_jobs_are_read_together(ledger: Ledger, reads: list[list[str]]) -> None:
    """All watched jobs are read by one call per interval."""
    jobs = [ledger.submit(order(number)).job for number in range(20)]

    async def scenario() -> set[str]:
        watcher, ready = JobWatcher(ledger, INTERVAL), asyncio.Semaphore(0)
        waiting = [asyncio.create_task(_state(watcher, job, ready)) for job in jobs]
        for _ in waiting:
            await ready.acquire()
        for job in jobs:
            await asyncio.to_thread(claimed, ledger, job.id)
        return set(await asyncio.gather(*waiting))

    assert asyncio.run(scenario()) == {"running"}
    assert {job_id for job_ids in reads for job_id in job_ids} == {job.id for job in jobs}
    assert sorted(reads[0]) == sorted(job.id for job in jobs)


def test_polling_stops_without_waiters(ledger: Ledger, reads: list[list[str]]) -> None:
    """When the last waiter has left, polling stops; it starts again with the next."""
    job = ledger.submit(order(1)).job

    async def scenario() -> tuple[int, int]:
        watcher = JobWatcher(ledger, INTERVAL)
        async with watcher.watch(job):
            await asyncio.sleep(3 * INTERVAL)
        assert watcher.watches == {}
        await asyncio.sleep(2 * INTERVAL)
        reads.clear()
        await asyncio.sleep(3 * INTERVAL)
        idle = len(reads)
        assert await _wait_during(watcher, job, 1, lambda: claimed(ledger, job.id)) == {"running"}
        return idle, len(reads)

    idle, later = asyncio.run(scenario())
    assert idle == 0
    assert later > 0


def test_waiters_are_notified_of_a_deletion(ledger: Ledger) -> None:
    """The waiters for a deleted job are notified that it no longer exists."""
    job = ledger.submit(order(1)).job
    ledger.cancel(job.id)
    gone = asyncio.run(
        _wait_during(
            JobWatcher(ledger, INTERVAL),
            ledger.get(job.id),
            2,
            lambda: ledger.store.delete([job.id], sources=frozenset({ledger.get(job.id).state})),
        )
    )
    assert gone == {"gone"}


def test_polling_continues_after_an_error(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """After failed reads the waiters are still notified of the next change."""
    job, get_many, failures = ledger.submit(order(1)).job, ledger.store.get_many, [1, 2, 3]

    def fails_thrice(job_ids: Sequence[str]) -> dict[str, Job]:
        if failures:
            failures.pop()
            raise StoreUnavailableError("simulated")
        return get_many(job_ids)

    monkeypatch.setattr(ledger.store, "get_many", fails_thrice)
    assert asyncio.run(_wait_during(JobWatcher(ledger, INTERVAL), job, 2, lambda: ledger.submit(order(1)))) == {
        "queued"
    }
    assert failures == []
