"""The laws of the checks of workers and of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from celery import Celery

import onejob
from onejob.doctor import workers
from onejob.health.finding import Installation, Level
from onejob.jobs.workers import Registration, WorkerInfo
from onejob.ledger.stuck import Snapshot
from onejob.observability.metrics import total_name
from tests.cases import for_each
from tests.doctor.support import installed, names
from tests.fundamentals.shop import claimed, order
from tests.services import eventually

SEEN = {"tasks": ("invoice", "mail"), "queues": ("celery",)}


def worker(name: str = "celery@one", seen_at: float = 100.0, **more: tuple[str, ...]) -> WorkerInfo:
    return WorkerInfo(name, seen_at, **{**SEEN, **more})  # type: ignore[arg-type]


OLD, NEW = ("celery 5.5.0", "python 3.12.1"), ("celery 5.6.0", "python 3.12.1")


@for_each("now, alive, expected, words", [
    (100.0, (), "no-worker", "no worker is alive"), (100.0, (worker(),), "", ""), (119.0, (worker(),), "", ""),
    (121.0, (worker(),), "worker-late", "celery@one was 21 s ago"),
    (100.0, (worker(versions=OLD), worker("celery@two", versions=NEW), worker("celery@three")), "worker-versions",
     "celery: 5.5.0 (celery@one), 5.6.0 (celery@two)"),
    (100.0, (replace(worker(), silent_since=70.0),), "worker-silent",
     "celery@one has heard nothing from its broker for 30 s"),
])  # fmt: skip
def test_workers_that_are_absent_late_or_different_are_found(
    now: float, alive: tuple[WorkerInfo, ...], expected: str, words: str
) -> None:
    """No live worker, one whose heartbeat is two thirds of a lease old, and each package of two versions is found."""
    found = [*workers.check_workers(Snapshot(now, alive), 20.0)]
    assert [finding.check for finding in found] == [expected] * bool(expected)
    assert all(words in finding.problem for finding in found)


@for_each("others, app_zone, expected", [
    (("Europe/Berlin 11 2026f",), "", set()), (("Europe/Berlin ff 2025b",), "", {"zone-rules"}), ((), "", set()),
    (("Asia/Gaza 11 2026f",), "", set()), (("Europe/Berlin 11 2026f",), "Europe/Berlin", {"zone-rules"}),
])  # fmt: skip
def test_hosts_with_other_time_zone_rules_are_found(
    installation: Installation, others: tuple[str, ...], app_zone: str, expected: set[str]
) -> None:
    """Rules of a zone that differ among live workers, or from those of this host, whose windows they are, are found."""
    for name, zones in (("celery@one", ("Europe/Berlin 11 2026f",)), ("celery@two", others)):
        mine = Registration(tasks=("shop.daily",), queues=("celery",), zones=zones)
        installation.ledger.heartbeat(name, lasts=600.0, registration=mine)
    app = Celery(set_as_current=False)
    app.conf.onejob_store = "sqlite:///unused.db"
    window = f"day@{app_zone}" if app_zone else 60

    def daily() -> None: ...

    app.task(base=onejob.Task, shared=False, name="shop.daily", unique_for=window)(daily)
    found = [*workers.examine(replace(installation, app=app))]
    assert names(found) == expected
    assert all("celery@one" in each.problem for each in found if each.check)


@for_each("queues, expected", [
    ({"invoice": "celery", "mail": ""}, set()), ({"invoice": "slow"}, {"queue-without-worker"}),
    ({"invoice": "celery", "refund": "celery"}, {"task-without-worker"}),
    ({"refund": "celery"}, {"task-without-worker", "other-services"}), ({}, set()),
])  # fmt: skip
def test_tasks_and_queues_without_a_worker_are_found(queues: dict[str, str], expected: set[str]) -> None:
    """Each task of the app needs a live worker that has it, and one of these that consumes its queue."""
    assert names(workers.check_tasks([worker()], queues)) == expected
    assert names(workers.check_tasks([], queues)) == set()


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    with installed(f"sqlite:///{tmp_path / 'ledger.db'}") as installation:
        yield installation


def test_jobs_that_nobody_claims_are_found(installation: Installation) -> None:
    """A job that was due three leases ago, and that no worker has claimed, is found."""
    ledger = installation.ledger
    mine = Registration(tasks=(order(1).task,), queues=("celery",))
    ledger.heartbeat("celery@one", lasts=600.0, registration=mine)
    ledger.submit(replace(order(1), lease=0.001))
    eventually(lambda: names(workers.examine(installation)) == {"jobs-late"})
    (found,) = [finding for finding in workers.examine(installation) if finding.check]
    assert found.problem == "1 job: no worker has claimed it"


def test_the_oldest_jobs_of_unknown_tasks_are_found(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of a task that nobody has are found behind any number of newer ones, of which the newest are looked at."""
    monkeypatch.setattr(workers, "SCAN_LIMIT", 2)
    ledger = installation.ledger
    mine, other = (Registration(tasks=(task,), queues=("celery",)) for task in (order(1).task, "renamed"))
    ledger.heartbeat("celery@one", lasts=60.0, registration=mine)
    ledger.submit(replace(order(1), id="old", identity="old", task="renamed"))
    ledger.store.increment({total_name(("submissions_total", "renamed", "admitted")): 1.0})
    for number in range(1, 4):
        ledger.submit(order(number))
    (found,) = [each for each in workers.examine(installation) if each.check]
    assert (found.check, found.problem) == ("jobs-of-unknown-tasks", "1 job of renamed")
    ledger.heartbeat("celery@one", lasts=60.0, registration=other)
    assert "2 jobs of the newest 2: no live" in " ".join(each.problem for each in workers.examine(installation))


def test_stuck_jobs_and_dead_letters_are_found(installation: Installation) -> None:
    """Jobs that no live worker can run are errors; jobs of tasks that nobody has, and dead letters, are found, too."""
    ledger = installation.ledger
    ledger.submit(order(1))
    assert names(workers.examine(installation)) == {"no-worker", "jobs-stuck"}
    mine = Registration(tasks=(order(1).task,), queues=("celery",))
    ledger.heartbeat("celery@one", lasts=60.0, registration=Registration(tasks=("other",), queues=("celery",)))
    assert names(workers.examine(installation)) == {"jobs-stuck", "jobs-of-unknown-tasks"}
    ledger.heartbeat("celery@two", lasts=60.0, registration=mine)
    findings = [*workers.examine(installation)]
    assert [finding.level for finding in findings] == [Level.OK]
    failed = ledger.submit(order(2)).job
    ledger.fail(claimed(ledger, failed.id), "{}", "no")
    assert names(workers.examine(installation)) == {"dead-letters"}
