"""Stuck jobs are found among all others, with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import State
from onejob.jobs.records import REGISTERED_TASKS_LIMIT, Query, Registration, WorkerInfo
from onejob.ledger import stuck
from onejob.ledger.stuck import STUCK_LEASES, Snapshot, Stuck, find_stuck, list_stuck
from tests.contract.support import LEASE, START, steps_to, sweep
from tests.fundamentals.shop import claimed, order

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store
    from tests.contract.support import ManualClock

TASK = "shop.invoice"
LATE = STUCK_LEASES * LEASE + 1.0


def start_worker(ledger: Ledger) -> None:
    """Send a heartbeat that lasts for ever."""
    ledger.heartbeat("north", lasts=1e9, registration=Registration(tasks=(TASK,), queues=("celery",)))


def found(ledger: Ledger, query: Query | None = None) -> list[tuple[str, Stuck]]:
    """Return the ids of the stuck jobs, with the reasons."""
    return [(job.id, reason) for job, reason in list_stuck(ledger, query or Query())]


def test_stuck_jobs_are_listed(ledger: Ledger, clock: ManualClock) -> None:
    """The list has the jobs that make no progress, newest first, each with its reason, and no others."""
    start_worker(ledger)
    canvas = claimed(ledger, ledger.submit(order(1, canvas=True)).job.id)
    ledger.complete(canvas, "1")
    ledger.cancel(ledger.submit(order(2)).job.id)
    lapsed = claimed(ledger, ledger.submit(order(3)).job.id)
    clock.advance(1.0)
    old = ledger.submit(order(4, route="celery")).job
    clock.advance(1.0)
    unheard = ledger.submit(order(5, route="slow")).job
    ledger.submit(order(6, delay=3600.0, route="slow"))
    clock.advance(LATE)
    ledger.submit(order(7, route="celery"))
    expected = [
        (unheard.id, Stuck.QUEUE_NOT_CONSUMED), (old.id, Stuck.NOT_CLAIMED),
        *sorted([(canvas.id, Stuck.CANVAS_PENDING), (lapsed.id, Stuck.LEASE_EXPIRED)], reverse=True),
    ]  # fmt: skip
    assert found(ledger) == expected
    assert found(ledger, Query(limit=2, offset=1)) == expected[1:3]
    assert found(ledger, Query(states=frozenset({State.RUNNING}))) == [(lapsed.id, Stuck.LEASE_EXPIRED)]
    assert found(ledger, Query(task="another")) == []


def test_a_job_that_was_queued_again_is_not_stuck(ledger: Ledger, clock: ManualClock) -> None:
    """A job that was recovered a moment ago is not stuck, however long ago it was submitted."""
    start_worker(ledger)
    claimed(ledger, ledger.submit(order(1, route="celery")).job.id)
    clock.advance(LATE)
    sweep(ledger, lambda _: None)
    assert found(ledger) == []
    clock.advance(LATE)
    assert [reason for _, reason in found(ledger)] == [Stuck.NOT_CLAIMED]


def test_the_search_reads_page_by_page(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    """A stuck job is found behind more unsettled jobs than one page has, also of the same time."""
    start_worker(ledger)
    monkeypatch.setattr(stuck, "PAGE_SIZE", 2)
    jobs = [ledger.submit(order(number, route="slow")).job for number in range(3)]
    clock.advance(1.0)
    for number in range(3, 8):
        ledger.submit(order(number, route="celery"))
    assert {job_id for job_id, _ in found(ledger)} == {job.id for job in jobs}


def test_settled_jobs_are_never_stuck(store: Store, ledger: Ledger, clock: ManualClock) -> None:
    """An ended job without a canvas is never stuck."""
    for number, state in enumerate(state for state in State if state.final):
        steps_to(store, f"job-{number}", state)
    clock.advance(1e6)
    assert found(ledger) == []


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        (Registration(tasks=(TASK,), queues=("celery",)), None),
        (Registration(tasks=(TASK,), queues=("slow",)), Stuck.QUEUE_NOT_CONSUMED),
        (Registration(tasks=(TASK,)), None),
        (Registration(tasks=("other",), queues=("celery",)), Stuck.TASK_UNKNOWN),
        (Registration(tasks=tuple(map(str, range(REGISTERED_TASKS_LIMIT))), queues=("celery",)), None),
        (Registration(), None),
    ],
)
def test_only_what_workers_have_registered_counts(ledger: Ledger, worker: Registration, expected: Stuck | None) -> None:
    """A worker cannot run a job only if it has registered its tasks or queues, and the job's is not among them."""
    job: Job = ledger.submit(order(1, route="celery")).job
    info = WorkerInfo("north", START, **{name: getattr(worker, name) for name in ("tasks", "queues")})
    assert find_stuck(job, Snapshot(job.created_at, (info,)), job.created_at) is expected
    assert find_stuck(job, Snapshot(job.created_at), job.created_at) is Stuck.NO_WORKER
    unrouted = replace(job, route="")
    assert find_stuck(unrouted, Snapshot(job.created_at, (info,)), job.created_at) in {None, Stuck.TASK_UNKNOWN}
