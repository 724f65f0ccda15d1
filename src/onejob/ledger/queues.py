"""The load of each queue: its jobs that are due or run, and the slots of its workers, as an autoscaler needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State
from onejob.observability.metrics import OTHER, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from onejob.jobs.records import Backlog, WorkerInfo
    from onejob.ledger.reader import JobReader

LOOKED_AT = 1000
"""How many waiting jobs of each task are looked at: those that a sweep handles next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLoad:
    """The jobs of a queue, and the workers that consume it."""

    queue: str
    due: int
    """How many jobs wait for a run, and may run by now; of each task at most `LOOKED_AT`."""
    running: int
    oldest_due: float
    """For how many seconds the oldest of the due jobs has been due; 0 without one."""
    slots: int
    """How many jobs its workers run at a time, also those of their other queues."""
    workers: int
    """How many live workers consume it."""


def read_queues(ledger: JobReader) -> list[QueueLoad]:
    """Return the load of each queue that has workers, or jobs that wait or run, by name.

    Of the jobs of any task that was submitted, or that a live worker knows. It takes four reads, whose cost does not
    grow with the ledger. Jobs whose queue is not resolved are left out.
    """
    workers = ledger.workers()
    backlog = ledger.backlog(tasks=known_tasks(ledger.store.totals(), workers), limit=LOOKED_AT)
    return loads_of(backlog, workers, ledger.read_clock())


def loads_of(backlog: Iterable[Backlog], workers: Sequence[WorkerInfo], now: float) -> list[QueueLoad]:
    """Return the load of each queue of a backlog, or of workers, by name."""
    groups: dict[str, list[Backlog]] = {queue: [] for worker in workers for queue in worker.queues}
    for group in backlog:
        groups.setdefault(group.queue, []).append(group)
    return [_load_of(queue, found, workers, now) for queue, found in sorted(groups.items()) if queue]


def _load_of(queue: str, groups: Sequence[Backlog], workers: Sequence[WorkerInfo], now: float) -> QueueLoad:
    consumers = [worker for worker in workers if queue in worker.queues]
    return QueueLoad(
        queue=queue,
        due=sum(each.due for each in groups),
        running=sum(each.count for each in groups if each.state is State.RUNNING),
        oldest_due=max((now - each.oldest_run_at for each in groups if each.due), default=0.0),
        slots=sum(worker.concurrency for worker in consumers),
        workers=len(consumers),
    )


def known_tasks(totals: Mapping[str, float], workers: Iterable[WorkerInfo]) -> frozenset[str]:
    """Return the names of the tasks whose submissions are counted in the totals, and of those of live workers."""
    keys = [key for key in map(key_of, totals) if key is not None]
    counted = {key[1] for key in keys if key[0] == "submissions_total"} - {OTHER}
    return frozenset(counted.union(*(worker.tasks for worker in workers)))
