"""Waiting for jobs: one reader for all who wait, which reads each job once per interval, as long as somebody waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from onejob.api.job_watcher import Watcher
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
    """Return a ledger in a file."""
    ledger = Ledger(open_store(f"sqlite:///{tmp_path / 'ledger.db'}"))
    yield ledger
    ledger.close()


@pytest.fixture
def reads(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the ids of the jobs that are read at once, as they are read."""
    seen: list[list[str]] = []
    get_many = ledger.store.get_many

    def counted(job_ids: Sequence[str]) -> dict[str, Job]:
        seen.append(list(job_ids))
        return get_many(job_ids)

    monkeypatch.setattr(ledger.store, "get_many", counted)
    return seen


async def _state(watcher: Watcher, job: Job, ready: asyncio.Semaphore) -> str:
    """Wait for a change, and return the state that the job came to."""
    async with watcher.watching(job) as watch:
        ready.release()
        assert await watch.change(PATIENCE)
        return str(watch.job.state if watch.job else "gone")


async def _on_canvas_dispatched(watcher: Watcher, job: Job, waiters: int, act: Any) -> set[str]:
    """Have many wait for a job, let something happen to it after some intervals, and return what they were told."""
    ready = asyncio.Semaphore(0)
    waiting = [asyncio.create_task(_state(watcher, job, ready)) for _ in range(waiters)]
    for _ in waiting:
        await ready.acquire()
    await asyncio.sleep(5 * INTERVAL)
    await asyncio.to_thread(act)
    return set(await asyncio.gather(*waiting))


def test_a_thousand_cost_what_one_costs(ledger: Ledger, reads: list[list[str]]) -> None:
    """A thousand who wait for one job are all told of its change, and cost one read for each interval."""
    job = ledger.submit(order(1)).job

    async def scenario() -> float:
        watcher, begun = Watcher(ledger, INTERVAL), asyncio.get_running_loop().time()
        assert await _on_canvas_dispatched(watcher, job, 1000, lambda: claimed(ledger, job.id)) == {"running"}
        return asyncio.get_running_loop().time() - begun

    reads.clear()
    elapsed = asyncio.run(scenario())
    assert 5 <= len(reads) <= elapsed / INTERVAL + 1


def test_many_jobs_are_read_at_once(ledger: Ledger, reads: list[list[str]]) -> None:
    """However many jobs are waited for, one read for each interval tells of all."""
    jobs = [ledger.submit(order(number)).job for number in range(20)]

    async def scenario() -> set[str]:
        watcher, ready = Watcher(ledger, INTERVAL), asyncio.Semaphore(0)
        waiting = [asyncio.create_task(_state(watcher, job, ready)) for job in jobs]
        for _ in waiting:
            await ready.acquire()
        for job in jobs:
            await asyncio.to_thread(claimed, ledger, job.id)
        return set(await asyncio.gather(*waiting))

    assert asyncio.run(scenario()) == {"running"}
    assert {job_id for job_ids in reads for job_id in job_ids} == {job.id for job in jobs}
    assert sorted(reads[0]) == sorted(job.id for job in jobs)


def test_nobody_waits_and_nothing_is_read(ledger: Ledger, reads: list[list[str]]) -> None:
    """When the last one has gone, the reading ends; it begins again with the next."""
    job = ledger.submit(order(1)).job

    async def scenario() -> tuple[int, int]:
        watcher = Watcher(ledger, INTERVAL)
        async with watcher.watching(job):
            await asyncio.sleep(3 * INTERVAL)
        assert watcher.watches == {}
        await asyncio.sleep(2 * INTERVAL)
        reads.clear()
        await asyncio.sleep(3 * INTERVAL)
        idle = len(reads)
        assert await _on_canvas_dispatched(watcher, job, 1, lambda: claimed(ledger, job.id)) == {"running"}
        return idle, len(reads)

    idle, later = asyncio.run(scenario())
    assert idle == 0
    assert later > 0


def test_a_job_that_is_purged_is_told(ledger: Ledger) -> None:
    """Who waits for a job that is removed learns that it is gone."""
    job = ledger.submit(order(1)).job
    ledger.cancel(job.id)
    gone = asyncio.run(
        _on_canvas_dispatched(
            Watcher(ledger, INTERVAL),
            ledger.get(job.id),
            2,
            lambda: ledger.store.delete([job.id], sources=frozenset({ledger.get(job.id).state})),
        )
    )
    assert gone == {"gone"}


def test_a_store_that_fails_is_asked_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that fails keeps nobody from being told later."""
    job, get_many, failures = ledger.submit(order(1)).job, ledger.store.get_many, [1, 2, 3]

    def fails_thrice(job_ids: Sequence[str]) -> dict[str, Job]:
        if failures:
            failures.pop()
            raise StoreUnavailableError("as the test asked")
        return get_many(job_ids)

    monkeypatch.setattr(ledger.store, "get_many", fails_thrice)
    assert asyncio.run(_on_canvas_dispatched(Watcher(ledger, INTERVAL), job, 2, lambda: ledger.submit(order(1)))) == {
        "queued"
    }
    assert failures == []
