"""The metric series: their names, labels and meanings."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

Key: TypeAlias = tuple[str, ...]
"""The name of a series, its label values, and for a histogram the bucket's bound or `SUM`."""
BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Upper bounds of the histogram buckets, in seconds; `+Inf` is the last bucket."""
BOUNDS = (*(f"{bound:g}" for bound in BUCKETS), "+Inf")
SUM = "sum"
OTHER = "other"
"""The label of all tasks that the app does not define; it bounds the number of label values."""
WEBHOOK_TASK = "onejob.webhook"
"""The task name of all webhooks, which have a series of their own."""
STORE_ERROR: Key = ("store_errors_total",)


class Kind(StrEnum):
    """The Prometheus type of a series."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Series:
    """One series of metrics."""

    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    by_time: bool = False
    """Whether the ledger also keeps the amounts of each minute and each hour."""


_C, _H, _G = Kind.COUNTER, Kind.HISTOGRAM, Kind.GAUGE
SERIES: Mapping[str, Series] = {
    "submissions_total": Series(_C, ("task", "outcome"), "Answers to submissions.", by_time=True),
    "claims_total": Series(_C, ("task",), "Runs that have started."),
    "claims_refused_total": Series(_C, ("task",), "Messages for jobs that could not be claimed."),
    "runs_total": Series(_C, ("task", "end"), "Runs that have ended, by end.", by_time=True),
    "cost_total": Series(_C, ("task", "unit"), "What runs have cost, by unit."),
    "saved_cost_total": Series(_C, ("task", "unit"), "What duplicates have saved: the cost of the job that answered."),
    "lease_expiries_total": Series(_C, ("task",), "Runs that were lost because their lease expired.", by_time=True),
    "heartbeats_late_total": Series(_C, (), "Heartbeats that were more than half an interval late."),
    "worker_silences_total": Series(_C, (), "Times that a worker heard nothing from its broker while jobs waited."),
    "loop_held_total": Series(_C, (), "Times that code held the event loop of a worker for more than a second."),
    "loop_held_seconds_total": Series(_C, (), "Seconds of these times."),
    "taken_from_ledger_total": Series(_C, (), "Jobs that workers took from the ledger, since their broker was silent."),
    "sweeps_total": Series(_C, (), "Sweeps of all workers."),
    "published_total": Series(_C, (), "Messages published by sweeps."),
    "publish_failures_total": Series(_C, (), "Messages that a sweep could not send."),
    "webhook_attempts_total": Series(_C, ("end",), "Attempts to deliver webhooks, by end."),
    "store_errors_total": Series(_C, (), "Counts that a process could not write, as its store failed or was away."),
    "changes_total": Series(_C, ("event",), "Changes of jobs outside of runs, such as cancellations and expiries."),
    "redriven_total": Series(_C, (), "Dead letters that were redriven.", by_time=True),
    "purged_total": Series(_C, (), "Jobs that were purged after their retention."),
    "run_seconds": Series(_H, ("task",), "Duration of runs, whatever their end.", by_time=True),
    "wait_seconds": Series(_H, ("task",), "Time from when a job was due to its first run.", by_time=True),
    "jobs": Series(_G, ("state",), "Jobs in the ledger."),
    "dead_letters": Series(_G, (), "Failed jobs in the ledger."),
    "oldest_due_seconds": Series(_G, ("task",), "How long the oldest job has been due that waits for a run."),
    "queue_due": Series(_G, ("queue",), "Jobs of a queue that wait for a run, and are due."),
    "queue_running": Series(_G, ("queue",), "Jobs of a queue that run."),
    "queue_oldest_due_seconds": Series(_G, ("queue",), "How long the oldest due job of a queue has been due."),
    "queue_slots": Series(_G, ("queue",), "How many jobs the workers of a queue run at a time."),
    "limit_waiting": Series(_G, ("limit",), "Jobs that wait for room on a key of a limit."),
    "workers": Series(_G, (), "Worker nodes with a recent heartbeat."),
}
"""All series by name, without `PREFIX`. Gauges are read from the store at scrape time, not counted."""
PREFIX = "onejob_"


def total_name(key: Key) -> str:
    """Return the name of a key's total in the store."""
    return json.dumps(key)


def key_of(name: str) -> Key | None:
    """Return the key of a total; None if this version has no such series."""
    key = tuple(json.loads(name))
    series = SERIES.get(key[0])
    return key if series is not None and len(key) == len(series.labels) + (2 if series.kind is _H else 1) else None


def end_of(event_name: str) -> str:
    """Return the value of the label `end` for a run that ends with an event."""
    return event_name.removeprefix("job_")
