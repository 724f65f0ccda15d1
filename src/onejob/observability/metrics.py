"""What is counted: the series of metrics, and by how much each of them grows with a fact."""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from onejob.jobs.lifecycle import Transition
from onejob.observability import events

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onejob.observability.events import JobEvent, Value

Key: TypeAlias = tuple[str, ...]
"""What is counted: the name of a series, the values of its labels, and of a histogram its bucket or its sum."""
BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""The upper bounds of the buckets, in seconds; what takes longer is in one more."""
BOUNDS = (*(f"{bound:g}" for bound in BUCKETS), "+Inf")
SUM = "sum"
OTHER = "other"
"""Stands for all tasks that an app does not know, so that nobody can make labels without end."""


class Kind(StrEnum):
    """What a series is to those who read it."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Series:
    """One series of metrics."""

    kind: Kind
    labels: tuple[str, ...]
    meaning: str


_C, _H, _G = Kind.COUNTER, Kind.HISTOGRAM, Kind.GAUGE
SERIES: Mapping[str, Series] = {
    "submissions_total": Series(_C, ("task", "outcome"), "Answers to submissions."),
    "claims_total": Series(_C, ("task",), "Runs that have begun."),
    "claims_refused_total": Series(_C, ("task",), "Messages that came for a job which could not, or need not, run."),
    "runs_total": Series(_C, ("task", "end"), "Runs that have ended, by how."),
    "lease_expiries_total": Series(_C, ("task",), "Runs that were lost because their lease ran out."),
    "heartbeats_late_total": Series(_C, (), "Heartbeats of nodes that came more than half an interval late."),
    "sweeps_total": Series(_C, (), "Sweeps of all workers."),
    "published_total": Series(_C, (), "Messages that sweeps have sent."),
    "redriven_total": Series(_C, (), "Dead letters that were sent again."),
    "purged_total": Series(_C, (), "Jobs that were removed when their retention was over."),
    "run_seconds": Series(_H, ("task",), "How long runs took, whatever their end."),
    "wait_seconds": Series(_H, ("task",), "How long jobs that were due waited for their first run."),
    "jobs": Series(_G, ("state",), "Jobs that are in the ledger."),
    "dead_letters": Series(_G, (), "Failed jobs that are in the ledger."),
    "workers": Series(_G, (), "Worker nodes that have given a sign of life lately."),
}
"""Every series by its name, without the prefix of the project. Gauges are read when somebody asks, not counted."""
PREFIX = "onejob_"


def name_of(key: Key) -> str:
    """Return the name under which a store keeps the total of a key."""
    return json.dumps(key)


def key_of(name: str) -> Key | None:
    """Return the key of a total's name; None for one that this version does not know."""
    key = tuple(json.loads(name))
    series = SERIES.get(key[0])
    return key if series is not None and len(key) == len(series.labels) + (2 if series.kind is _H else 1) else None


_CLAIMED, _REDRIVEN = events.NAMES[Transition.CLAIM], events.NAMES[Transition.REDRIVE]


def counted(event: JobEvent, task: str) -> list[tuple[Key, float]]:
    """Return what grows with a fact, and by how much. `task`: as which task it counts."""
    fields = event.fields
    match event.event:
        case events.SUBMITTED:
            return [(("submissions_total", task, str(fields["outcome"])), 1.0)]
        case events.CLAIM_REFUSED:
            return [(("claims_refused_total", task), 1.0)]
        case events.SWEEP:
            return [(("sweeps_total",), 1.0), (("published_total",), float(fields["published"]))]
        case events.PURGED:
            return [(("purged_total",), float(fields["count"]))]
        case events.HEARTBEAT_LATE:
            return [(("heartbeats_late_total",), 1.0)]
    return _of_a_run(event.event, task, fields)


def _of_a_run(event: str, task: str, fields: Mapping[str, Value]) -> list[tuple[Key, float]]:
    if event == _REDRIVEN:
        return [(("redriven_total",), 1.0)]
    if "follows_id" in fields:  # it shares the end of another job, whose run counts
        return []
    if event == _CLAIMED:
        waited = _observed("wait_seconds", task, float(fields["wait_seconds"])) if "wait_seconds" in fields else []
        return [(("claims_total", task), 1.0), *waited]
    if "run_seconds" not in fields:
        return []
    lapsed: list[tuple[Key, float]] = [(("lease_expiries_total", task), 1.0)] if fields.get("lapsed") else []
    ended = (("runs_total", task, event.removeprefix("job_")), 1.0)
    return [ended, *lapsed, *_observed("run_seconds", task, float(fields["run_seconds"]))]


def _observed(series: str, task: str, seconds: float) -> list[tuple[Key, float]]:
    bound = BOUNDS[bisect_left(BUCKETS, seconds)]
    return [((series, task, bound), 1.0), ((series, task, SUM), seconds)]
