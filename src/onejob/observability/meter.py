"""How much job events add to the metrics: counted in this process, and periodically added to those in the store."""

import atexit
import logging
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from weakref import WeakSet

from onejob.jobs.lifecycle import Transition
from onejob.observability import events
from onejob.observability.events import JobEvent, Value
from onejob.observability.metrics import (
    BOUNDS,
    BUCKETS,
    OTHER,
    SERIES,
    STORE_ERROR,
    SUM,
    WEBHOOK_TASK,
    Key,
    end_of,
    total_name,
)
from onejob.stores.protocol import Metrics

logger = logging.getLogger("onejob")
FLUSH_SECONDS = 2.0
"""Limit for the last write at the exit of a process or the close of a ledger."""
IDLE_INTERVALS = 5
"""After how many intervals the count of a sweep is written that did nothing: an idle worker counts nothing else."""
_CLAIMED, _REDRIVEN = events.EVENT_NAMES[Transition.CLAIM], events.EVENT_NAMES[Transition.REDRIVE]
_OUTSIDE_RUNS = (
    Transition.CANCEL, Transition.EXPIRE, Transition.REQUEST_CANCEL, Transition.RUN_NOW, Transition.UNPUBLISHABLE,
)  # fmt: skip
_CHANGES = frozenset({events.DELETED, *(events.EVENT_NAMES[each] for each in _OUTSIDE_RUNS)})
"""The events that change what a list of jobs shows, and are no run."""


def count_event(event: JobEvent, task: str) -> list[tuple[Key, float]]:
    """Return the increments of an event, under the label `task`."""
    fields = event.fields
    totals: dict[str, Value]
    match event.name:
        case events.SUBMITTED:
            return [(("submissions_total", task, str(fields["outcome"])), 1.0)]
        case events.CLAIM_REFUSED:
            return [(("claims_refused_total", task), 1.0)]
        case events.SWEEP:
            totals = {"sweeps_total": 1, "published_total": fields["published"]}
            if failed := fields.get("failed"):
                totals["publish_failures_total"] = failed
        case events.PURGED:
            totals = {"purged_total": fields["count"]}
        case events.HEARTBEAT_LATE:
            totals = {"heartbeats_late_total": 1}
        case events.WORKER_SILENT:
            totals = {"worker_silences_total": 1, "taken_from_ledger_total": fields["taken"]}
        case _:
            return _count_run(event, task)
    return [((name,), float(amount)) for name, amount in totals.items()]


def _count_run(event: JobEvent, task: str) -> list[tuple[Key, float]]:
    name, fields = event.name, event.fields
    if name == _REDRIVEN:
        return [(("redriven_total",), 1.0)]
    if event.task == WEBHOOK_TASK and "run_seconds" in fields:
        return [(("webhook_attempts_total", end_of(name)), 1.0)]
    is_run, is_follower = "run_seconds" in fields, "follows_id" in fields
    if (is_run and is_follower) or (name in _CHANGES and not is_run):
        return [(("changes_total", end_of(name)), 1.0)]
    if name == _CLAIMED and not is_follower:
        wait = _observe("wait_seconds", task, float(fields["wait_seconds"])) if "wait_seconds" in fields else []
        return [(("claims_total", task), 1.0), *wait]
    if is_follower or not is_run:  # the run of the followed job is counted
        return []
    expiry: list[tuple[Key, float]] = [(("lease_expiries_total", task), 1.0)] if fields.get("lapsed") else []
    end = (("runs_total", task, end_of(name)), 1.0)
    return [end, *expiry, *_observe("run_seconds", task, float(fields["run_seconds"]))]


def _observe(series: str, task: str, seconds: float) -> list[tuple[Key, float]]:
    bound = BOUNDS[bisect_left(BUCKETS, seconds)]
    return [((series, task, bound), 1.0), ((series, task, SUM), seconds)]


class Meter:
    """Counts events, and adds the counts to those in the store every `interval` seconds, of idle sweeps less often.

    `is_known` decides whether a task gets a label of its own. Counting makes no round trip and raises no error; counts
    that cannot be written are lost. The timer's thread exists only while there are counts to write. A forked child
    starts with no counts.
    """

    def __init__(self, store: Metrics, interval: float, is_known: Callable[[str], bool]) -> None:
        self._store = store
        self._interval = interval
        self._is_known = is_known
        self._known: set[str] = set()
        self.reset()
        _meters.add(self)

    def reset(self) -> None:
        """Discard all state, as a forked child must: the amounts, the lock and the timer belong to the parent."""
        # Reentrant, because a signal handler that counts may interrupt `count`.
        self._lock = threading.RLock()
        self._amounts: dict[Key, float] = {}
        self._timer: threading.Timer | None = None

    def count(self, event: JobEvent) -> None:
        """Count an event."""
        task = event.task
        if task not in self._known:
            if self._is_known(task):
                self._known.add(task)
            else:
                task = OTHER
        increments = count_event(event, task)
        is_idle = event.name == events.SWEEP and not any(event.fields.values())
        interval = self._interval * (IDLE_INTERVALS if is_idle else 1)
        with self._lock:
            for key, amount in increments:
                self._amounts[key] = self._amounts.get(key, 0.0) + amount
            if self._amounts and (self._timer is None or interval < self._timer.interval):
                self._start(interval)

    def write(self) -> None:
        """Add what was counted, now."""
        with self._lock:
            amounts, self._amounts = self._amounts, {}
        if not amounts:
            return
        try:
            self._store.increment(_by_name(amounts), recent=_by_name(amounts, by_time=True))
        except Exception as error:  # noqa: BLE001 - metrics must not fail a job
            with suppress(Exception):  # of a logging handler
                logger.debug("metrics could not be written, and these counts are lost: %s", error)
            with self._lock:  # written with the next counts
                self._amounts[STORE_ERROR] = self._amounts.get(STORE_ERROR, 0.0) + amounts.get(STORE_ERROR, 0.0) + 1.0

    def close(self) -> None:
        """Write the counts and stop the timer, within `FLUSH_SECONDS`."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            write_all([self])
            timer.join(FLUSH_SECONDS)

    def _tick(self) -> None:
        self.write()
        with self._lock:
            if self._timer is threading.current_thread():
                self._timer = None
                if self._amounts.keys() - {STORE_ERROR}:
                    self._start(self._interval)

    def _start(self, interval: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        timer = threading.Timer(interval, self._tick)
        timer.name, timer.daemon = "onejob-metrics", True
        try:
            timer.start()
        except RuntimeError:  # the interpreter is shutting down: the exit handler writes
            return
        self._timer = timer


def _by_name(amounts: Mapping[Key, float], *, by_time: bool = False) -> dict[str, float]:
    """Return amounts by the names of their totals; `by_time`: only those of series that are kept by time."""
    return {total_name(key): amount for key, amount in amounts.items() if SERIES[key[0]].by_time or not by_time}


def write_all(meters: Iterable[Meter] | None = None) -> None:
    """Write the counts of some or all meters of this process; wait `FLUSH_SECONDS` at most."""
    to_write = list(_meters if meters is None else meters)
    writer = threading.Thread(target=_write_each, args=(to_write,), name="onejob-metrics", daemon=True)
    try:
        writer.start()
    except RuntimeError:  # the interpreter is shutting down
        _write_each(to_write)
    else:
        writer.join(FLUSH_SECONDS)


def _write_each(meters: Iterable[Meter]) -> None:
    for meter in meters:
        meter.write()


def _after_fork_in_child() -> None:
    for meter in list(_meters):
        meter.reset()


_meters: WeakSet[Meter] = WeakSet()
os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(write_all)
