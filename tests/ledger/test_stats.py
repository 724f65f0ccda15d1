"""The activity: statistics by minute or by hour, computed from the buckets of metrics."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onejob.jobs.durations import DAY
from onejob.jobs.metric_buckets import Bucket, Period
from onejob.jobs.model import Outcome
from onejob.ledger.reader import JobReader, Visibility
from onejob.ledger.stats import FAILED_ENDS, Activity, Durations, activity_to_dict, read_activity, summarize
from onejob.observability.events import JobEvent
from onejob.observability.meter import count_event
from onejob.observability.metrics import BOUNDS, total_name
from onejob.stores.sqlite import SQLiteStore
from tests.cases import for_each

BEGIN = 1_800_000_000.0
RUN: dict[str, Any] = {"attempt": 1, "token": 1, "node": "n"}


def amounts_of(*events: tuple[str, str, dict[str, Any]]) -> dict[str, float]:
    """Return the amounts of events (name, task, fields), as the meter counts them."""
    found: dict[str, float] = {}
    for name, task, fields in events:
        for key, amount in count_event(JobEvent(name, "job-1", task, fields), task):
            found[total_name(key)] = found.get(total_name(key), 0.0) + amount
    return found


def submitted(task: str, outcome: str) -> tuple[str, str, dict[str, Any]]:
    return "job_submitted", task, {"outcome": outcome}


def ended(task: str, end: str, seconds: float) -> tuple[str, str, dict[str, Any]]:
    return f"job_{end}", task, RUN | {"run_seconds": seconds}


MEANS = {"a": 2.0}
"""The mean run times of the tasks whose completed jobs are kept."""


def activity_of(*minutes: dict[str, float]) -> Activity:
    """Return the activity of some minutes; an empty one has no bucket."""
    buckets = [Bucket(BEGIN + 60.0 * number, amounts) for number, amounts in enumerate(minutes) if amounts]
    return summarize(Period.MINUTE, BEGIN, BEGIN + 60.0 * len(minutes), buckets, mean_of=MEANS.get)


# --- quantiles ------------------------------------------------------------------------------------------------------


def durations(**counts: int) -> Durations:
    """Return observations by bucket, named by the index of its bound."""
    found = Durations()
    for index, count in counts.items():
        found.add(BOUNDS[int(index.removeprefix("b"))], count)
    return found


@for_each("counts, q, seconds", [
    ({"b5": 4}, 0.5, 3.0),  # from 1 to 5 s
    ({"b5": 4}, 1.0, 5.0),
    ({"b5": 4}, 0.0, 1.0),
    ({"b0": 10}, 0.5, 0.005),  # the lowest bucket begins at 0
    ({"b0": 5, "b3": 5}, 0.5, 0.01),
    ({"b0": 5, "b3": 5}, 0.75, 0.3),  # half-way from 0.1 to 0.5 s
    ({"b4": 1, "b12": 9}, 0.99, 3600.0),  # above the last finite bound
    ({"b12": 1}, 0.0, 3600.0),
])  # fmt: skip
def test_a_quantile_is_interpolated_inside_its_bucket(counts: dict[str, int], q: float, seconds: float) -> None:
    """A quantile is interpolated linearly inside its bucket, and above the last finite bound it is that bound."""
    assert durations(**counts).quantile(q) == pytest.approx(seconds)


# --- statistics -----------------------------------------------------------------------------------------------------


def test_statistics_are_by_task_and_in_total() -> None:
    """Submissions by outcome, runs by end, their times and lost leases are counted for each task, and added up."""
    first = amounts_of(
        submitted("a", "admitted"), submitted("a", "attached"), submitted("b", "admitted"),
        ended("a", "completed", 2.0),
        ("job_claimed", "a", RUN | {"wait_seconds": 0.3}),
    )  # fmt: skip
    lapsed = ("job_crashed", "b", RUN | {"run_seconds": 40.0, "lapsed": True})
    activity = activity_of(first, amounts_of(ended("a", "failed", 4.0), lapsed, ("job_redriven", "a", {})))
    by_task = activity.by_task()
    assert list(by_task) == ["a", "b"]
    assert by_task["a"].submissions == {Outcome.ADMITTED: 1, Outcome.ATTACHED: 1}
    assert (by_task["a"].runs, by_task["b"].runs) == ({"completed": 1, "failed": 1}, {"crashed": 1})
    assert (by_task["a"].run_times.seconds, by_task["a"].run_times.mean, by_task["a"].wait_times.count) == (6.0, 3.0, 1)
    assert by_task["a"].wait_times.quantile(1.0) == 0.5
    assert (by_task["a"].failed_share, by_task["b"].failed_share, by_task["b"].lease_expiries) == (0.5, 1.0, 1)
    total = activity.totals()
    assert (total.submissions[Outcome.ADMITTED], total.runs.total(), total.run_times.seconds) == (2, 3, 46.0)
    assert (total.failed_share, activity.redriven, activity.slots[1].redriven) == (2 / 3, 1, 1)
    assert activity.slots[1].totals().runs == {"failed": 1, "crashed": 1}


def test_a_run_that_is_retried_has_not_failed() -> None:
    """Failed, crashed and dead-lettered runs are failed ones; a run that is retried, released or canceled is not."""
    assert {"failed", "crashed", "dead_lettered"} == FAILED_ENDS
    others = (ended("t", end, 1.0) for end in ("completed", "retrying", "released", "replaced", "canceled"))
    assert activity_of(amounts_of(*others)).totals().failed_share == 0.0
    assert activity_of({}).totals().failed_share is None


def test_prevented_duplicates_save_the_mean_run_time_of_their_task() -> None:
    """Attached, replayed and replaced submissions save a run each, of the mean length of the task's completed jobs."""
    prevented = [submitted("a", outcome) for outcome in ("attached", "replayed", "replaced", "rejected", "queued_next")]
    activity = activity_of(
        amounts_of(*prevented, submitted("b", "attached")),
        amounts_of(ended("a", "completed", 2.0), ended("a", "failed", 4.0), submitted("a", "attached")),
    )
    by_task = activity.by_task()
    assert (by_task["a"].duplicates_prevented, by_task["a"].seconds_saved) == (4, 8.0)
    assert (by_task["b"].duplicates_prevented, by_task["b"].seconds_saved) == (1, None)
    assert [slot.totals().seconds_saved for slot in activity.slots] == [6.0, 2.0]
    assert (activity.totals().duplicates_prevented, activity.totals().seconds_saved) == (5, 8.0)
    assert activity_of({}).totals().seconds_saved == 0.0


def test_what_this_version_does_not_know_is_left_out() -> None:
    """A series, an outcome or a bound of another version does not affect the other statistics."""
    unknown = [
        ["from_the_future", "t"], ["submissions_total", "t", "forgotten"], ["runs_total", "t"], ["claims_total", "t"],
    ]  # fmt: skip
    amounts = {json.dumps(key): 1.0 for key in unknown} | amounts_of(submitted("t", "admitted"))
    total = activity_of(amounts).totals()
    assert (total.submissions, total.runs) == ({Outcome.ADMITTED: 1}, {})


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    """Return a store whose clock stands in the middle of a minute."""
    store = SQLiteStore(tmp_path / "ledger.db", clock=lambda: BEGIN + 90.0)
    yield store
    store.close()


@for_each("period, length, slots", [
    (Period.MINUTE, 3600.0, 60), (Period.MINUTE, 3601.0, 61), (Period.MINUTE, 1e9, 120), (Period.MINUTE, 0.0, 1),
    (Period.HOUR, 7 * DAY, 168), (Period.HOUR, 1e9, 192),
])  # fmt: skip
def test_an_activity_ends_with_the_current_slot(store: SQLiteStore, period: Period, length: float, slots: int) -> None:
    """An activity has as many slots as its length, at most those that are kept; the last one contains the present."""
    activity = read_activity(JobReader(store), period, length=length)
    assert len(activity.slots) == slots
    assert activity.slots[-1].begin <= BEGIN + 90.0 < activity.end == activity.slots[-1].begin + period.seconds
    assert activity.begin == activity.slots[0].begin == activity.end - slots * period.seconds


def test_an_activity_is_of_the_tasks_of_its_reader(store: SQLiteStore) -> None:
    """With a given time an activity is read from it: of the tasks that the reader sees, and without what is of none."""
    amounts = amounts_of(submitted("a", "admitted"), submitted("b", "attached"), ("job_redriven", "a", {}))
    store.increment(amounts, recent=amounts)
    limited = JobReader(store, Visibility(tasks=frozenset({"a", "c"})))
    found = read_activity(limited, Period.HOUR, length=DAY, now=BEGIN + 90.0)
    assert (list(found.by_task()), found.redriven) == (["a"], 0)


def test_an_activity_is_json() -> None:
    """The public form of an activity has totals, statistics by task and by slot, and names only what occurred."""
    found = activity_to_dict(activity_of(amounts_of(submitted("a", "attached"), ended("a", "completed", 2.0)), {}))
    assert (found["begin"].timestamp(), found["end"].timestamp()) == (BEGIN, BEGIN + 120)
    (task,) = found["tasks"]
    assert {name: task[name] for name in ("task", "submissions", "duplicates_prevented", "seconds_saved", "runs")} == {
        "task": "a", "submissions": {"attached": 1}, "duplicates_prevented": 1, "seconds_saved": 2.0,
        "runs": {"completed": 1},
    }  # fmt: skip
    assert task["run_seconds"] == {"count": 1, "sum": 2.0, "p50": 3.0, "p95": 4.8, "p99": 4.96}
    assert found["totals"] == {name: value for name, value in task.items() if name != "task"} | {"redriven": 0}
    assert [slot["begin"].timestamp() for slot in found["slots"]] == [BEGIN, BEGIN + 60]
    nothing = {"count": 0, "sum": 0.0, "p50": None, "p95": None, "p99": None}
    assert (found["slots"][1]["wait_seconds"], found["slots"][1]["failed_share"]) == (nothing, None)
