"""What is counted: which facts make which series grow."""

from __future__ import annotations

from typing import Any

import pytest

from onejob.observability.events import EVENTS, JobEvent
from onejob.observability.metrics import BOUNDS, SERIES, Kind, counted

RUN: dict[str, Any] = {"attempt": 1, "token": 1, "node": "n"}
FACTS: list[tuple[str, dict[str, Any], dict[tuple[str, ...], float]]] = [
    ("job_submitted", {"outcome": "attached"}, {("submissions_total", "t", "attached"): 1}),
    ("job_claimed", RUN, {("claims_total", "t"): 1}),
    (
        "job_claimed",
        RUN | {"wait_seconds": 0.5},
        {("claims_total", "t"): 1, ("wait_seconds", "t", "0.5"): 1, ("wait_seconds", "t", "sum"): 0.5},
    ),
    ("job_claimed", RUN | {"follows_id": "l"}, {}),
    ("claim_refused", {"state": "running"}, {("claims_refused_total", "t"): 1}),
    ("job_completed", RUN | {"run_seconds": 2.0, "follows_id": "l"}, {}),
    ("job_canceled", {}, {}),
    ("job_expired", {}, {}),
    ("job_published", {"times": 1}, {}),
    ("job_redriven", {}, {("redriven_total",): 1}),
    ("jobs_purged", {"count": 7}, {("purged_total",): 7}),
    ("sweep", {"published": 3, "purged": 7}, {("sweeps_total",): 1, ("published_total",): 3}),
    ("heartbeat_late", {"seconds": 16.0}, {("heartbeats_late_total",): 1}),
    (
        "job_crashed",
        RUN | {"run_seconds": 40.0, "lapsed": True},
        {
            ("runs_total", "t", "crashed"): 1, ("lease_expiries_total", "t"): 1, ("run_seconds", "t", "60"): 1,
            ("run_seconds", "t", "sum"): 40,
        },
    ),
]  # fmt: skip
ENDS = ("completed", "failed", "retrying", "released", "canceled", "crashed", "dead_lettered")


@pytest.mark.parametrize("end", ENDS)
def test_each_end_of_a_run_is_counted(end: str) -> None:
    """However a run ends, it is counted by its end, and by how long it took."""
    event = JobEvent(f"job_{end}", "job-1", "the task itself", RUN | {"run_seconds": 1e9, "lapsed": False})
    seconds: list[tuple[tuple[str, ...], float]] = [
        (("run_seconds", "t", "+Inf"), 1.0),
        (("run_seconds", "t", "sum"), 1e9),
    ]
    assert event.event in EVENTS
    assert counted(event, "t") == [(("runs_total", "t", end), 1.0), *seconds]


@pytest.mark.parametrize(("event", "fields", "grown"), FACTS)
def test_what_a_fact_counts(event: str, fields: dict[str, Any], grown: dict[tuple[str, ...], float]) -> None:
    """Each fact makes its series grow, and no other; one about a follower counts no run."""
    assert event in EVENTS
    assert dict(counted(JobEvent(event, "job-1", "the task itself", fields), "t")) == grown


def test_every_series_that_is_counted_is_described() -> None:
    """What is counted is a counter or a histogram of the table, with as many labels; and each of those is counted."""
    keys = {key for _, _, grown in FACTS for key in grown}
    extra = {Kind.COUNTER: 1, Kind.HISTOGRAM: 2}
    assert [key for key in keys if len(key) != len(SERIES[key[0]].labels) + extra[SERIES[key[0]].kind]] == []
    assert {key[0] for key in keys} == {name for name, series in SERIES.items() if series.kind is not Kind.GAUGE}


@pytest.mark.parametrize(
    ("seconds", "bound"), [(0.0, "0.01"), (0.01, "0.01"), (0.011, "0.05"), (3600.0, "3600"), (3601.0, "+Inf")]
)
def test_a_bucket_takes_what_is_not_longer(seconds: float, bound: str) -> None:
    """What is observed is counted in the smallest bucket whose bound it does not exceed."""
    keys = [key for key, _ in counted(JobEvent("job_completed", fields=RUN | {"run_seconds": seconds}), "t")]
    assert ("run_seconds", "t", bound) in keys
    assert bound in BOUNDS
