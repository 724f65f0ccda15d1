"""The statistics of a ledger: its activity by time, what deduplication has saved, its queues, and all metrics."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from onejob.jobs.backlog import Backlog
from onejob.jobs.costs import SAVED
from onejob.jobs.durations import DAY
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.metric_buckets import Bucket, Period
from onejob.jobs.model import JobRow, Outcome
from onejob.jobs.query import Query
from onejob.jobs.timestamps import to_datetime
from onejob.jobs.workers import WorkerInfo
from onejob.ledger.limits import count_waiting
from onejob.ledger.reader import JobReader
from onejob.ledger.timeline import SpanKind, build_timeline
from onejob.observability.events import EVENT_NAMES
from onejob.observability.metrics import BOUNDS, BUCKETS, OTHER, SUM, Key, end_of, key_of
from onejob.stores.protocol import GroupBy

LENGTHS: Mapping[Period, float] = {Period.MINUTE: 3600.0, Period.HOUR: 7 * DAY}
"""The seconds that the API and the command line show of each period: the last hour by minute, the last week by hour."""
FAILED_ENDS = frozenset(
    end_of(EVENT_NAMES[transition]) for transition in (Transition.FAIL, Transition.CRASH, Transition.DEAD_LETTER)
)
"""The ends of runs that are counted as failed. A run that is retried later is not: a task may retry to wait."""
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
"""The quantiles that are shown, by name."""
SAMPLE = 100
"""The number of completed jobs of a task from which its mean run time is computed."""
SEARCHED = 10_000
"""The number of newest jobs, of all tasks, among which the sample is found: a task may have duplicates but no jobs."""
LOOKED_AT = 1000
"""The number of waiting jobs of each task that are read: the jobs that a sweep handles next."""
QUEUE_SERIES = {
    "queue_due": "due", "queue_running": "running", "queue_oldest_due_seconds": "oldest_due", "queue_slots": "slots",
}  # fmt: skip
"""The series of each queue, and the field of `QueueLoad` that each shows."""


# --- activity ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Durations:
    """Observed durations in seconds, as the histogram of a metric keeps them."""

    counts: Counter[str] = field(default_factory=Counter)
    """The number of durations in each bucket of the histogram, by its upper bound."""
    seconds: float = 0.0
    """The sum of the durations."""

    @property
    def count(self) -> int:
        """The number of observations."""
        return self.counts.total()

    @property
    def mean(self) -> float | None:
        """The mean duration; None without observations."""
        return self.seconds / self.count if self.count else None

    def quantile(self, q: float) -> float | None:
        """Return about the smallest duration that the share `q` (0 to 1) does not exceed; None without observations.

        The quantile is interpolated linearly inside its bucket; above the last finite bound it is that bound, as
        Prometheus documents for `histogram_quantile`:
        https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile
        """
        if not self.count:
            return None
        counts = [self.counts[bound] for bound in BOUNDS]
        cumulative = list(itertools.accumulate(counts))
        index = bisect_left(cumulative, max(q * self.count, 1e-9))  # not an empty first bucket for 0
        if index >= len(BUCKETS):
            return BUCKETS[-1]
        lower = BUCKETS[index - 1] if index else 0.0
        below = cumulative[index] - counts[index]
        return lower + (BUCKETS[index] - lower) * (q * self.count - below) / counts[index]

    def add(self, bound: str, amount: float) -> None:
        """Add observations with an upper bound; with `SUM` seconds to their sum."""
        if bound == SUM:
            self.seconds += amount
        else:
            self.counts[bound] += round(amount)

    def merge(self, other: Durations) -> None:
        """Add the observations of another histogram."""
        self.counts.update(other.counts)
        self.seconds += other.seconds


@dataclass(slots=True)
class Stats:
    """The statistics of one task or of several, in one slot or in all slots."""

    submissions: Counter[Outcome] = field(default_factory=Counter)
    """Submissions by outcome."""
    runs: Counter[str] = field(default_factory=Counter)
    """Runs by end, as the label of `runs_total` has it: `completed`, `failed`, `retrying`, ..."""
    lease_expiries: int = 0
    """Runs that were lost because their lease expired."""
    run_times: Durations = field(default_factory=Durations)
    """The seconds that runs took, whatever their end."""
    wait_times: Durations = field(default_factory=Durations)
    """The seconds between the time when jobs were due and their first run."""
    known_seconds_saved: float | None = None
    """`seconds_saved` of the tasks whose mean run time is known; None if there are no such tasks with duplicates."""

    @property
    def duplicates_prevented(self) -> int:
        """The number of runs that deduplication has saved."""
        return sum(self.submissions[outcome] for outcome in SAVED)

    @property
    def seconds_saved(self) -> float | None:
        """The seconds that these runs would have taken, at the `mean_run` of each task; None without any known mean."""
        return self.known_seconds_saved if self.duplicates_prevented else 0.0

    @property
    def failed(self) -> int:
        """How many runs ended in one of `FAILED_ENDS`."""
        return sum(self.runs[end] for end in FAILED_ENDS)

    @property
    def failed_share(self) -> float | None:
        """The share of the runs that ended in one of `FAILED_ENDS`; None without runs."""
        ended = self.runs.total()
        return self.failed / ended if ended else None

    def add(self, series: str, label: str, amount: float) -> None:
        """Add to a series of metrics, whose last label is `label`; unknown labels are ignored."""
        match series:
            case "submissions_total" if label in {*Outcome}:
                self.submissions[Outcome(label)] += round(amount)
            case "runs_total":
                self.runs[label] += round(amount)
            case "lease_expiries_total":
                self.lease_expiries += round(amount)
            case "run_seconds":
                self.run_times.add(label, amount)
            case "wait_seconds":
                self.wait_times.add(label, amount)

    def merge(self, other: Stats) -> None:
        """Add the stats of another task or slot."""
        self.submissions.update(other.submissions)
        self.runs.update(other.runs)
        self.lease_expiries += other.lease_expiries
        self.run_times.merge(other.run_times)
        self.wait_times.merge(other.wait_times)
        if other.known_seconds_saved is not None:
            self.known_seconds_saved = (self.known_seconds_saved or 0.0) + other.known_seconds_saved


@dataclass(frozen=True, slots=True)
class Slot:
    """The stats of one bucket of time, by task; empty without activity."""

    begin: float
    tasks: dict[str, Stats]
    redriven: int = 0
    """Dead letters that were redriven, of all tasks."""

    def totals(self) -> Stats:
        """Return the stats of all tasks together."""
        return _sum_of(self.tasks.values())


@dataclass(frozen=True, slots=True)
class Activity:
    """The activity from `begin` to `end` (seconds since the epoch), in slots of the same length, oldest first."""

    period: Period
    begin: float
    end: float
    slots: list[Slot]

    @property
    def redriven(self) -> int:
        """Dead letters that were redriven."""
        return sum(slot.redriven for slot in self.slots)

    def totals(self) -> Stats:
        """Return the stats of all tasks and slots together."""
        return _sum_of(stats for slot in self.slots for stats in slot.tasks.values())

    def by_task(self) -> dict[str, Stats]:
        """Return the stats of all slots together, by task in the order of their names."""
        found: defaultdict[str, Stats] = defaultdict(Stats)
        for slot in self.slots:
            for task, stats in slot.tasks.items():
                found[task].merge(stats)
        return dict(sorted(found.items()))


MeanOf = Callable[[str], float | None]
"""A function that returns the mean run time of a task in seconds, as `mean_run` does."""


def read_activity(
    ledger: JobReader, period: Period, *, length: float, now: float | None = None, mean_of: MeanOf | None = None
) -> Activity:
    """Return the activity of the last `length` seconds, with the current slot, in one read of the series.

    `mean_of`: None for `mean_run`, which reads the newest jobs of each task that has duplicates. `length` is rounded up
    to whole slots, at most those that are kept. `now` is by default the time on the store's clock, which takes another
    read. A reader that is limited to some tasks gets only their stats; a reader that is limited otherwise must not read
    stats, which its caller checks.
    """
    now = ledger.read_clock() if now is None else now
    end = (now // period.seconds + 1) * period.seconds
    begin = end - max(math.ceil(min(length, period.kept_for) / period.seconds), 1) * period.seconds
    buckets = ledger.store.series(period, since=begin)
    return summarize(period, begin, end, buckets, mean_of=mean_of or means_of(ledger), tasks=ledger.visibility.tasks)


def summarize(
    period: Period, begin: float, end: float, buckets: Iterable[Bucket], *, mean_of: MeanOf,
    tasks: frozenset[str] | None = None,
) -> Activity:  # fmt: skip
    """Return the activity that the buckets from `begin` to `end` contain; `tasks`: only of these tasks."""
    amounts = {bucket.start: bucket.amounts for bucket in buckets}
    starts = [begin + index * period.seconds for index in range(round((end - begin) / period.seconds))]
    parse = cache(key_of)  # a name is in most of the buckets
    slots = [_slot_of(start, amounts.get(start, {}), tasks, parse) for start in starts]
    activity = Activity(period, begin, end, slots)
    means = {task: mean_of(task) for task, stats in activity.by_task().items() if stats.duplicates_prevented}
    for slot in slots:
        for task, stats in slot.tasks.items():
            mean = means.get(task)
            if mean is not None and stats.duplicates_prevented:
                stats.known_seconds_saved = stats.duplicates_prevented * mean
    return activity


def _slot_of(
    start: float, amounts: Mapping[str, float], tasks: frozenset[str] | None, parse: Callable[[str], Key | None]
) -> Slot:
    found: defaultdict[str, Stats] = defaultdict(Stats)
    redriven = 0.0
    for name, amount in amounts.items():
        match parse(name):
            case ("redriven_total",) if tasks is None:
                redriven += amount
            case (series, task, *labels) if tasks is None or task in tasks:
                found[task].add(series, labels[-1] if labels else "", amount)
    return Slot(start, dict(found), round(redriven))


def _sum_of(stats: Iterable[Stats]) -> Stats:
    total = Stats()
    for each in stats:
        total.merge(each)
    return total


def activity_to_dict(activity: Activity) -> dict[str, Any]:
    """Return an activity as JSON values, and times as `datetime`; without outcomes and ends that did not occur."""
    return {
        "period": activity.period,
        "begin": to_datetime(activity.begin),
        "end": to_datetime(activity.end),
        "totals": {"redriven": activity.redriven, **_stats_to_dict(activity.totals())},
        "tasks": [{"task": task, **_stats_to_dict(stats)} for task, stats in activity.by_task().items()],
        "slots": [
            {"begin": to_datetime(slot.begin), "redriven": slot.redriven, **_stats_to_dict(slot.totals())}
            for slot in activity.slots
        ],
    }


def _stats_to_dict(stats: Stats) -> dict[str, Any]:
    return {
        "submissions": dict(stats.submissions),
        "duplicates_prevented": stats.duplicates_prevented,
        "seconds_saved": stats.seconds_saved,
        "runs": dict(stats.runs),
        "failed_share": stats.failed_share,
        "lease_expiries": stats.lease_expiries,
        "run_seconds": _durations_to_dict(stats.run_times),
        "wait_seconds": _durations_to_dict(stats.wait_times),
    }


def _durations_to_dict(durations: Durations) -> dict[str, Any]:
    quantiles = {name: durations.quantile(q) for name, q in QUANTILES.items()}
    return {"count": durations.count, "sum": durations.seconds, **quantiles}


# --- what deduplication has saved -------------------------------------------------------------------------------------


@dataclass(slots=True)
class DuplicateSummary:
    """The duplicates of a group by outcome, and the runs and seconds that they have saved."""

    name: str
    counts: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    runs: int = 0
    """The number of runs that deduplication has saved."""
    seconds: float | None = None
    """The seconds that these runs would have taken, at the `mean_run` of each task; None without any known mean."""
    tasks: dict[str, int] = field(default_factory=dict)
    """The duplicates of the group by task, without redelivered messages."""
    redelivered: int = 0
    """The number of repeated messages for a job that was running or had ended. They save nothing."""


def summarize_duplicates(
    ledger: JobReader, by: GroupBy, *, limit: int = 20, mean_of: MeanOf | None = None
) -> list[DuplicateSummary]:
    """Return the `limit` groups with the most duplicates, largest first. `mean_of`: None for `mean_run`."""
    summaries: dict[str, DuplicateSummary] = {}
    mean_of = mean_of or means_of(ledger)
    for group in ledger.duplicate_counts(by, limit=limit):
        summary = summaries.setdefault(group.name, DuplicateSummary(group.name))
        if group.outcome is None:
            summary.redelivered += group.count
            continue
        summary.counts[group.outcome] += group.count
        summary.tasks[group.task] = summary.tasks.get(group.task, 0) + group.count
        if group.outcome not in SAVED:
            continue
        summary.runs += group.count
        seconds = mean_of(group.task)
        if seconds is not None:
            summary.seconds = (summary.seconds or 0.0) + group.count * seconds
    return list(summaries.values())


def means_of(ledger: JobReader) -> MeanOf:
    """Return `mean_run` for one ledger, which reads the jobs of each task once."""
    return cache(partial(mean_run, ledger))


def mean_run(ledger: JobReader, task: str) -> float | None:
    """Return the mean seconds that a task's newest completed jobs have run, in all attempts; None if there are none."""
    query = Query(task=task, states=frozenset({State.COMPLETED}), limit=SAMPLE, light=True)
    jobs = ledger.find(replace(query, since=ledger.edge(query, skip=SEARCHED)))
    seconds = [_seconds_of_runs(ledger, job, job.run_seconds) for job in jobs if job.run_seconds is not None]
    return sum(seconds) / len(seconds) if seconds else None


def _seconds_of_runs(ledger: JobReader, job: JobRow, last: float) -> float:
    """Return the seconds of all runs of an ended job; `last`: the seconds of its last run, often the only run."""
    if job.attempt <= 1:
        return last
    spans = build_timeline(job, ledger.history(job.id), job.finished_at or 0.0)
    return max(last, sum(each.end - each.begin for each in spans if each.kind is SpanKind.RUNNING and each.end))


# --- the load of each queue, as an autoscaler needs it ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLoad:
    """The jobs of a queue, and the workers that consume it."""

    queue: str
    due: int
    """The number of jobs that wait for a run and may run now; at most `LOOKED_AT` of each task."""
    running: int
    oldest_due: float
    """The seconds for which the oldest due job has been due; 0 without due jobs."""
    slots: int
    """How many jobs its workers run at a time, also those of their other queues."""
    workers: int
    """How many live workers consume it."""


def read_queues(ledger: JobReader) -> list[QueueLoad]:
    """Return the load of each queue that has workers, or jobs that wait or run, by name.

    It counts jobs of any task that was submitted, or that a live worker knows, in four reads whose cost does not grow
    with the ledger. Jobs whose queue is not resolved are left out.
    """
    workers = ledger.workers()
    backlog = ledger.backlog(tasks=known_tasks(ledger.store.totals(), workers), limit=LOOKED_AT)
    return loads_of(backlog, workers, ledger.read_clock())


def loads_of(backlog: Iterable[Backlog], workers: Sequence[WorkerInfo], now: float) -> list[QueueLoad]:
    """Return the load of each queue of a backlog, or of workers, by name."""
    groups: dict[str, list[Backlog]] = {queue: [] for worker in workers for queue in worker.queues}
    for group in backlog:
        groups.setdefault(group.queue, []).append(group)
    loads = []
    for queue, found in sorted(groups.items()):
        consumers = [worker for worker in workers if queue in worker.queues]
        load = QueueLoad(
            queue=queue, due=sum(each.due for each in found),
            running=sum(each.count for each in found if each.state is State.RUNNING),
            oldest_due=max((now - each.oldest_run_at for each in found if each.due), default=0.0),
            slots=sum(worker.concurrency for worker in consumers), workers=len(consumers),
        )  # fmt: skip
        loads.append(load)
    return [load for load in loads if load.queue]


def known_tasks(totals: Mapping[str, float], workers: Iterable[WorkerInfo]) -> frozenset[str]:
    """Return the names of the tasks whose submissions the totals count, and of the tasks of live workers."""
    keys = [key for key in map(key_of, totals) if key is not None]
    counted = {key[1] for key in keys if key[0] == "submissions_total"} - {OTHER}
    return frozenset(counted.union(*(worker.tasks for worker in workers)))


# --- the values of all metrics at one time ----------------------------------------------------------------------------


def read_metrics(ledger: JobReader) -> dict[str, dict[Key, float]]:
    """Return the values by series, and by key; a series without values may be missing. Reads the store."""
    totals = ledger.store.totals()
    values: defaultdict[str, dict[Key, float]] = defaultdict(dict)
    for name, total in sorted(totals.items()):
        if (key := key_of(name)) is not None:
            values[key[0]][key] = total
    jobs, workers = ledger.counts(Query()), ledger.store.workers()
    values["jobs"] = {("jobs", state.value): float(count) for state, count in jobs.items()}
    values["dead_letters"] = {("dead_letters",): float(jobs[State.FAILED])}
    values["workers"] = {("workers",): float(len(workers))}
    tasks = known_tasks(totals, workers)
    backlog, now = ledger.store.backlog(tasks=tasks, limit=LOOKED_AT), ledger.read_clock()
    ages = dict.fromkeys(sorted(tasks), 0.0)
    for group in backlog:
        if group.due:
            ages[group.task] = max(ages.get(group.task, 0.0), now - group.oldest_run_at)
    values["oldest_due_seconds"] = {("oldest_due_seconds", task): age for task, age in ages.items()}
    loads = loads_of(backlog, workers, now)
    for name, field_name in QUEUE_SERIES.items():
        values[name] = {(name, load.queue): float(getattr(load, field_name)) for load in loads}
    values["limit_waiting"] = {("limit_waiting", name): float(count) for name, count in count_waiting(ledger).items()}
    return values


def accumulate(buckets: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return cumulative buckets, as Prometheus requires, from separate ones."""
    counts = (buckets.get(bound, 0.0) for bound in BOUNDS)
    return list(zip(BOUNDS, itertools.accumulate(counts), strict=True))
