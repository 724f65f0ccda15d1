"""Counts job events in this process, and periodically adds the counts to the metrics in the store."""

import atexit
import logging
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Protocol
from weakref import WeakSet

from onejob.jobs.costs import CostKey, by_key, exact_sum
from onejob.jobs.lifecycle import Transition
from onejob.observability import events
from onejob.observability.events import CostOfEvent, JobEvent, Value
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
from onejob.stores.protocol import Costs, Metrics

logger = logging.getLogger("onejob")
FLUSH_SECONDS = 2.0
"""Limit for the last write at the exit of a process or the close of a ledger."""
IDLE_INTERVALS = 5
"""The number of intervals after which counts of idle sweeps are written: an idle worker counts nothing else."""
_CLAIMED, _REDRIVEN = events.EVENT_NAMES[Transition.CLAIM], events.EVENT_NAMES[Transition.REDRIVE]
_OUTSIDE_RUNS = (
    Transition.CANCEL, Transition.EXPIRE, Transition.REQUEST_CANCEL, Transition.RUN_NOW, Transition.UNPUBLISHABLE,
    Transition.STRIKE,
)  # fmt: skip
_CHANGES = frozenset({events.DELETED, *(events.EVENT_NAMES[each] for each in _OUTSIDE_RUNS)})
"""The events, except those of runs, that change a list of jobs."""


def count_event(event: JobEvent, task: str) -> list[tuple[Key, float]]:
    """Return the increments of an event, under the label `task`."""
    fields = event.fields
    totals: dict[str, Value]
    match event.name:
        case events.SUBMITTED:
            return [(("submissions_total", task, str(fields["outcome"])), 1.0)]
        case events.CLAIM_REFUSED:
            return [(("claims_refused_total", task), 1.0)]
        case events.COST_ADDED:
            return []
        case events.SWEEP:
            totals = {"sweeps_total": 1, "published_total": fields["published"]}
            if failed := fields.get("failed"):
                totals["publish_failures_total"] = failed
        case events.PURGED:
            totals = {"purged_total": fields["count"]}
        case events.HEARTBEAT_LATE:
            totals = {"heartbeats_late_total": 1}
        case events.LOOP_HELD:
            totals = {"loop_held_total": 1, "loop_held_seconds_total": fields["seconds"]}
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


def saved_by(event: JobEvent) -> dict[CostKey, Decimal]:
    """Return the amounts that an event adds to the sums of saved costs, unless the sums have them already."""
    costs = event.costs
    return {} if costs is None or costs.is_stored else by_key(costs.job, costs.saved)


def _observe(series: str, task: str, seconds: float) -> list[tuple[Key, float]]:
    bound = BOUNDS[bisect_left(BUCKETS, seconds)]
    return [((series, task, bound), 1.0), ((series, task, SUM), seconds)]


UNIT_LABELS = 32
"""How many units of costs have a label of their own in the counts of a process."""
METRICS_INTERVAL = 2.0
"""Seconds after which a process adds its counts to the totals in the store."""


class MeteredStore(Metrics, Costs, Protocol):
    """The part of a store to which a meter writes."""


class Meter:
    """Counts events, and adds the counts to the store every `interval` seconds; counts of idle sweeps less often.

    `is_known` decides whether a task gets a label of its own. Counting makes no round trip and raises no error; counts
    that cannot be written are lost. The timer's thread exists only while there are counts to write. A forked child
    starts with no counts.
    """

    def __init__(self, store: MeteredStore, interval: float, is_known: Callable[[str], bool]) -> None:
        self._store = store
        self._interval = interval
        self._is_known = is_known
        self._known: set[str] = set()
        self._units: set[str] = set()
        self.reset()
        _meters.add(self)

    def reset(self) -> None:
        """Discard all state, as a forked child must: the amounts, the lock and the timer belong to the parent."""
        # Reentrant, because a signal handler that counts may interrupt `count`.
        self._lock = threading.RLock()
        self._amounts: dict[Key, float] = {}
        self._saved: dict[CostKey, Decimal] = {}
        self._timer: threading.Timer | None = None

    def count(self, event: JobEvent) -> None:
        """Count an event."""
        task = event.task
        if task not in self._known:
            if self._is_known(task):
                self._known.add(task)
            else:
                task = OTHER
        increments, saved = count_event(event, task), saved_by(event)
        if event.costs is not None:
            increments = increments + self._count_costs(event.costs, task)
        is_idle = event.name == events.SWEEP and not any(event.fields.values())
        interval = self._interval * (IDLE_INTERVALS if is_idle else 1)
        with self._lock:
            for key, amount in increments:
                self._amounts[key] = self._amounts.get(key, 0.0) + amount
            for cost_key, cost in saved.items():
                self._saved[cost_key] = exact_sum(self._saved.get(cost_key, Decimal(0)), cost)
            if self._amounts and (self._timer is None or interval < self._timer.interval):
                self._start(interval)

    def _count_costs(self, costs: CostOfEvent, task: str) -> list[tuple[Key, float]]:
        """Return the increments of the costs of an event; further units than `UNIT_LABELS` share a label.

        Counters only grow, so that negative amounts, which correct earlier ones, are left out.
        """
        found: list[tuple[Key, float]] = []
        for series, amounts in (("cost_total", costs.spent), ("saved_cost_total", costs.saved)):
            for unit, amount in amounts.items():
                if len(self._units) < UNIT_LABELS:
                    self._units.add(unit)
                found.append(((series, task, unit if unit in self._units else OTHER), max(float(amount), 0.0)))
        return found

    def write(self) -> None:
        """Add the counts to the store now."""
        with self._lock:
            amounts, self._amounts = self._amounts, {}
            saved, self._saved = self._saved, {}
        if not amounts:
            return
        try:
            if saved:
                self._store.add_saved(saved)
            self._store.increment(_by_name(amounts), recent=_by_name(amounts, by_time=True))
        except Exception as error:  # noqa: BLE001 - metrics must not fail a job
            with suppress(Exception):  # of a logging handler
                logger.debug("metrics could not be written, and these counts are lost: %s", error)
            with self._lock:  # these counts are written with the next
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
    """Return amounts by the names of their totals; `by_time`: only amounts of series that are kept by time."""
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
