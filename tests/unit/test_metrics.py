"""Metrics: which job events increment which series."""

from __future__ import annotations

from typing import Any

import pytest

from onejob.observability.events import EVENTS, JobEvent
from onejob.observability.metrics import BOUNDS, SERIES, STORE_ERROR, WEBHOOK_TASK, Kind, count_event

RUN: dict[str, Any] = {"attempt": 1, "token": 1, "node": "n"}
INCREMENTS: list[tuple[str, dict[str, Any], dict[tuple[str, ...], float]]] = [
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
    (
        "sweep",
        {"published": 3, "failed": 2},
        {("sweeps_total",): 1, ("published_total",): 3, ("publish_failures_total",): 2},
    ),
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
    """However a run ends, it is counted by its end, and its duration is observed."""
    event = JobEvent(f"job_{end}", "job-1", "the task itself", RUN | {"run_seconds": 1e9, "lapsed": False})
    seconds: list[tuple[tuple[str, ...], float]] = [
        (("run_seconds", "t", "+Inf"), 1.0),
        (("run_seconds", "t", "sum"), 1e9),
    ]
    assert event.name in EVENTS
    assert count_event(event, "t") == [(("runs_total", "t", end), 1.0), *seconds]


@pytest.mark.parametrize(("name", "fields", "increments"), INCREMENTS)
def test_each_event_increments_its_series(
    name: str, fields: dict[str, Any], increments: dict[tuple[str, ...], float]
) -> None:
    """Each event increments its series and no other; an event of a follower counts no run."""
    assert name in EVENTS
    assert dict(count_event(JobEvent(name, "job-1", "the task itself", fields), "t")) == increments


def test_every_counted_series_is_declared() -> None:
    """All counters and histograms of `SERIES`, and no others, are counted, with their number of labels."""
    keys = {key for _, _, increments in INCREMENTS for key in increments}
    extra = {Kind.COUNTER: 1, Kind.HISTOGRAM: 2}
    assert [key for key in keys if len(key) != len(SERIES[key[0]].labels) + extra[SERIES[key[0]].kind]] == []
    elsewhere = {STORE_ERROR[0], "webhook_attempts_total"}
    assert {key[0] for key in keys} | elsewhere == {
        name for name, series in SERIES.items() if series.kind is not Kind.GAUGE
    }


def test_each_attempt_of_a_webhook_is_counted_by_its_end() -> None:
    """An attempt to deliver a webhook counts as such, and as no run."""
    fields = RUN | {"run_seconds": 1.0, "follows_id": "the job"}
    event = JobEvent("job_retrying", "webhook-1", WEBHOOK_TASK, fields)
    assert count_event(event, "other") == [(("webhook_attempts_total", "retrying"), 1.0)]
    claim = JobEvent("job_claimed", "webhook-1", WEBHOOK_TASK, RUN | {"follows_id": "the job"})
    assert count_event(claim, "other") == []


@pytest.mark.parametrize(
    ("seconds", "bound"), [(0.0, "0.01"), (0.01, "0.01"), (0.011, "0.05"), (3600.0, "3600"), (3601.0, "+Inf")]
)
def test_a_bucket_includes_its_bound(seconds: float, bound: str) -> None:
    """A value is counted in the smallest bucket whose bound it does not exceed."""
    keys = [key for key, _ in count_event(JobEvent("job_completed", fields=RUN | {"run_seconds": seconds}), "t")]
    assert ("run_seconds", "t", bound) in keys
    assert bound in BOUNDS
