"""Metrics: which events increment which series; the meter counts in the process, and never fails a job."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from onejob.config import Settings, build_ledger
from onejob.errors import StoreUnavailableError
from onejob.jobs.costs import CostsBy
from onejob.jobs.metric_buckets import Period
from onejob.ledger.costs import read_costs
from onejob.ledger.ledger import Ledger
from onejob.observability import meter as meter_module
from onejob.observability.events import EVENTS, JobEvent, cost_event
from onejob.observability.meter import IDLE_INTERVALS, UNIT_LABELS, Meter, count_event, write_all
from onejob.observability.metrics import SERIES, STORE_ERROR, WEBHOOK_TASK, Kind
from onejob.stores.protocol import Store
from tests.cases import for_each
from tests.services import eventually
from tests.stores.processes import in_child
from tests.stores.support import run, submission

RUN: dict[str, Any] = {"attempt": 1, "token": 1, "node": "n"}
INCREMENTS: list[tuple[str, dict[str, Any], dict[tuple[str, ...], float]]] = [
    ("job_submitted", {"outcome": "attached"}, {("submissions_total", "t", "attached"): 1}),
    ("job_claimed", RUN, {("claims_total", "t"): 1}),
    ("job_claimed", RUN | {"wait_seconds": 0.5},
     {("claims_total", "t"): 1, ("wait_seconds", "t", "0.5"): 1, ("wait_seconds", "t", "sum"): 0.5}),
    ("job_claimed", RUN | {"follows_id": "l"}, {}),
    ("claim_refused", {"state": "running"}, {("claims_refused_total", "t"): 1}),
    ("job_completed", RUN | {"run_seconds": 2.0, "follows_id": "l"}, {("changes_total", "completed"): 1}),
    ("job_canceled", {}, {("changes_total", "canceled"): 1}),
    ("job_canceled", {"follows_id": "l"}, {("changes_total", "canceled"): 1}),
    ("job_cancel_requested", {}, {("changes_total", "cancel_requested"): 1}),
    ("job_expired", {}, {("changes_total", "expired"): 1}),
    ("job_run_now", {}, {("changes_total", "run_now"): 1}),
    ("job_unpublishable", {}, {("changes_total", "unpublishable"): 1}),
    ("job_deleted", {}, {("changes_total", "deleted"): 1}),
    ("job_published", {"times": 1}, {}),
    ("job_redriven", {}, {("redriven_total",): 1}),
    ("jobs_purged", {"count": 7}, {("purged_total",): 7}),
    ("sweep", {"published": 3, "purged": 7}, {("sweeps_total",): 1, ("published_total",): 3}),
    ("sweep", {"published": 3, "failed": 2},
     {("sweeps_total",): 1, ("published_total",): 3, ("publish_failures_total",): 2}),
    ("heartbeat_late", {"seconds": 16.0}, {("heartbeats_late_total",): 1}),
    ("loop_held", {"seconds": 2.5}, {("loop_held_total",): 1, ("loop_held_seconds_total",): 2.5}),
    ("worker_silent", {"seconds": 16.0, "taken": 2},
     {("worker_silences_total",): 1, ("taken_from_ledger_total",): 2}),
    ("job_crashed", RUN | {"run_seconds": 40.0, "lapsed": True},
     {("runs_total", "t", "crashed"): 1, ("lease_expiries_total", "t"): 1, ("run_seconds", "t", "60"): 1,
      ("run_seconds", "t", "sum"): 40}),
]  # fmt: skip
ENDS = [
    (f"job_{end}", RUN | {"run_seconds": 1e9, "lapsed": False},
     {("runs_total", "t", end): 1, ("run_seconds", "t", "+Inf"): 1, ("run_seconds", "t", "sum"): 1e9})
    for end in ("completed", "failed", "retrying", "released", "canceled", "crashed", "dead_lettered")
]  # fmt: skip


@for_each("name, fields, increments", [*INCREMENTS, *ENDS])
def test_each_event_increments_its_series(
    name: str, fields: dict[str, Any], increments: dict[tuple[str, ...], float]
) -> None:
    """Each event increments its series and no other; each end of a run is counted, that of a follower as no run."""
    assert name in EVENTS
    assert dict(count_event(JobEvent(name, "job-1", "the task itself", fields), "t")) == increments


def test_every_counted_series_is_declared() -> None:
    """All counters and histograms of `SERIES`, and no others, are counted, with their number of labels."""
    keys = {key for _, _, increments in INCREMENTS for key in increments}
    extra = {Kind.COUNTER: 1, Kind.HISTOGRAM: 2}
    assert [key for key in keys if len(key) != len(SERIES[key[0]].labels) + extra[SERIES[key[0]].kind]] == []
    elsewhere = {STORE_ERROR[0], "webhook_attempts_total", "cost_total", "saved_cost_total"}
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


@for_each("seconds, bound", [(0.0, "0.01"), (0.01, "0.01"), (0.011, "0.05"), (3600.0, "3600"), (3601.0, "+Inf")])
def test_a_bucket_includes_its_bound(seconds: float, bound: str) -> None:
    """A value is counted in the smallest bucket whose bound it does not exceed."""
    keys = [key for key, _ in count_event(JobEvent("job_completed", fields=RUN | {"run_seconds": seconds}), "t")]
    assert ("run_seconds", "t", bound) in keys


CLAIMED = JobEvent("job_claimed", "job-1", "known", {})
CLAIMS, OTHERS = '["claims_total", "known"]', '["claims_total", "other"]'
NEVER = 1e6
"""An interval that no test waits for."""


def meter(store: Store, interval: float = NEVER) -> Meter:
    return Meter(store, interval, lambda task: task == "known")


@pytest.fixture
def threads() -> Callable[[], list[threading.Thread]]:
    """Return a function that finds threads that write counts, except those of ledgers of other tests."""
    before = threading.enumerate()
    return lambda: [each for each in threading.enumerate() if each.name == "onejob-metrics" and each not in before]


def test_counts_are_written_at_close(store: Store, threads: Callable[[], object]) -> None:
    """What is counted stays in the process until it is written; unknown tasks share a label; some series have times."""
    counter = meter(store)
    counter.count(CLAIMED)
    counter.count(JobEvent("job_submitted", "job-1", "known", {"outcome": "attached"}))
    for number in range(10):
        counter.count(JobEvent("job_claimed", "job-1", f"made up {number}", {}))
    assert store.totals() == {}
    counter.close()
    submissions = {'["submissions_total", "known", "attached"]': 1.0}
    assert store.totals() == submissions | {CLAIMS: 1.0, OTHERS: 10.0}
    for period in Period:
        assert [bucket.amounts for bucket in store.series(period, since=0.0)] == [submissions]
    assert threads() == []


def test_costs_are_counted_by_task_and_unit(ledger: Ledger) -> None:
    """Costs and what they save are counted, without corrections; units beyond a limit share a label."""
    counter = meter(ledger.store)
    ledger.emit = counter.count
    job = run(ledger.store, task="known", identity="same")
    ledger.submit(submission("before", identity="same"))
    for amount in ("0.5", "-0.25"):
        job = ledger.add_cost(job, {"usd": Decimal(amount)})
    ledger.submit(submission("after", identity="same"))
    for number in range(UNIT_LABELS + 5):
        counter.count(cost_event(job, {f"unit{number}": Decimal(1)}, 0))
    counter.close()
    totals = ledger.store.totals()
    assert totals['["cost_total", "known", "usd"]'] == 0.5
    assert totals['["saved_cost_total", "known", "usd"]'] == 0.5 + 0.25
    assert totals['["cost_total", "known", "other"]'] == 6.0
    assert [each.saved for each in read_costs(ledger, CostsBy.TASK)] == [Decimal("0.5")]


def test_counts_are_written_every_interval(store: Store, threads: Callable[[], object]) -> None:
    """After an interval the amounts are in the store, and so are those that are counted afterwards; no thread stays."""
    counter = meter(store, 0.01)
    for written in (1.0, 2.0):
        counter.count(CLAIMED)
        eventually(lambda written=written: store.totals() == {CLAIMS: written}, 30)  # type: ignore[misc]
    assert eventually(lambda: not threads(), 30)


def test_idle_sweeps_are_written_rarely(store: Store, threads: Callable[[], list[threading.Timer]]) -> None:
    """The count of a sweep that did nothing waits for several intervals, and is written with the next count."""
    counter = meter(store)
    counter.count(JobEvent("sweep", fields={"published": 0, "seen": 0}))
    assert [timer.interval for timer in threads()] == [IDLE_INTERVALS * NEVER]
    counter.count(CLAIMED)
    counter.count(JobEvent("sweep", fields={"published": 0, "seen": 0}))
    assert eventually(lambda: [timer.interval for timer in threads()] == [NEVER])
    counter.close()
    assert store.totals() == {CLAIMS: 1.0, '["sweeps_total"]': 2.0, '["published_total"]': 0.0}


def test_many_threads_count(store: Store) -> None:
    """What several threads count at once is all counted, while it is written again and again."""
    counter = meter(store, 0.001)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(counter.count, [CLAIMED] * 8000))
    counter.close()
    assert store.totals() == {CLAIMS: 8000.0}


def test_an_unavailable_store_loses_only_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts that cannot be written are lost without an error, also if nothing can be logged; later ones count them."""
    monkeypatch.setattr(meter_module.logger, "debug", Mock(side_effect=OSError("no room for a log")))
    store = Mock()
    store.increment.side_effect = [StoreUnavailableError("away"), StoreUnavailableError("away"), None]
    counter = Meter(store, NEVER, lambda _: True)
    for _ in range(2):
        counter.count(CLAIMED)
        counter.write()
    counter.count(CLAIMED)
    counter.close()
    assert store.increment.call_args.args == ({CLAIMS: 1.0, '["store_errors_total"]': 2.0},)


def test_a_hanging_store_blocks_nothing(threads: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """While a write hangs, counting continues, and closing waits for a limited time."""
    monkeypatch.setattr(meter_module, "FLUSH_SECONDS", 0.1)
    called, resume, returned = threading.Event(), threading.Event(), threading.Event()

    def increment(*_: object, **__: object) -> None:
        called.set()
        resume.wait(10)
        returned.set()

    counter = Meter(Mock(increment=increment), 0.01, lambda _: True)
    counter.count(CLAIMED)
    assert called.wait(60)
    counter.count(CLAIMED)
    counter.close()
    assert not returned.is_set()
    resume.set()
    eventually(lambda: not threads(), 30)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_starts_with_no_counts(store: Store) -> None:
    """What the parent has counted before a fork is written by the parent alone, and the child counts for itself."""
    counter = meter(store)
    counter.count(CLAIMED)

    def count_and_write() -> None:
        counter.count(CLAIMED)
        write_all()

    assert in_child(count_and_write) == 0
    assert store.totals() == {CLAIMS: 1.0}
    counter.close()
    assert store.totals() == {CLAIMS: 2.0}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_lock_held_during_a_fork_does_not_block_the_child(store: Store) -> None:
    """A forked child can count, even if another thread of the parent held the lock."""
    counter = meter(store)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with counter._lock:
            held.set()
            release.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    assert in_child(partial(counter.count, CLAIMED)) == 0
    release.set()
    holder.join()


PROGRAM = """
import sys
from onejob.config import Settings, build_ledger
from tests.stores.processes import in_child
from tests.stores.support import submission
ledger = build_ledger(Settings(store=sys.argv[1]), lambda task: True, metrics_interval=1000.0)
ledger.submit(submission())
"""


def test_the_exit_of_a_process_writes_its_counts(tmp_path: Path, store: Store) -> None:
    """The exit of the interpreter writes all counts, even if the ledger was not closed."""
    command = [sys.executable, "-c", PROGRAM, f"sqlite:///{tmp_path / 'ledger.db'}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert store.totals() == {'["submissions_total", "app.add", "admitted"]': 1.0}


def test_the_interval_turns_counting_off(tmp_path: Path) -> None:
    """A ledger counts unless the interval of its counts is 0."""
    for interval, totals in ((0.0, {}), (NEVER, {json.dumps(["submissions_total", "other", "attached"]): 1.0})):
        ledger = build_ledger(Settings(store=f"sqlite:///{tmp_path / 'l.db'}"), metrics_interval=interval)
        ledger.submit(submission(f"job-{interval}", identity="same"))
        ledger.close()
        assert ledger.store.totals() == totals
        ledger.close()
