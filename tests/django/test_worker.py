"""Django's tasks in a real Celery worker."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cases import for_each
from tests.django.project import Project
from tests.quiet import provokes
from tests.services import eventually

pytestmark = provokes(
    logs=["path=shop.tasks.", "raised unexpected"], because="some tasks of the fixture fail, whichever test comes first"
)
RUN = """
import asyncio, time
from django.db import transaction
from shop import tasks
from shop.models import Order
with transaction.atomic():
    order = Order.objects.create(customer="ann")
    results = {"customer_of": tasks.customer_of.enqueue(order.pk)}
results |= {
    "count": tasks.count.enqueue(1, two=2),
    "count_async": tasks.count_async.enqueue(),
    "context_of": tasks.context_of.using(priority=10).enqueue(7),
    "fail": tasks.fail.enqueue("no"),
    "leave": tasks.leave.enqueue(),
    "odd": tasks.odd.enqueue(),
    "third_time": tasks.third_time.enqueue(),
}
deadline = time.monotonic() + 60
found = {}
for name, result in results.items():
    while not result.is_finished and time.monotonic() < deadline:
        time.sleep(0.05)
        result.refresh()
    errors = [[error.exception_class_path, error.traceback, error.exception_class.__name__] for error in result.errors]
    times = result.enqueued_at <= result.started_at <= result.last_attempted_at <= result.finished_at
    value = result.return_value if str(result.status) == "SUCCESSFUL" else None
    found[name] = {
        "id": result.id, "status": str(result.status), "value": value, "errors": errors, "times": times,
        "attempts": result.attempts, "workers": result.worker_ids,
    }
print(json.dumps(found))
"""


def _has_line(log: Path, line: str) -> bool:
    return line in log.read_text(errors="replace")


@pytest.fixture(scope="module")
def runs(project: Project, worker: Path) -> dict[str, Any]:
    assert worker.exists()
    found: dict[str, Any] = project.script(RUN)
    return found


def test_a_worker_runs_tasks(runs: dict[str, Any], project: Project) -> None:
    """A worker runs functions and coroutines; their results have the values, the worker, the times and the names."""
    for name, value in {"customer_of": "ann", "count": [1, 1], "count_async": [0, 0]}.items():
        run = runs[name]
        assert (run["status"], run["value"], run["errors"]) == ("SUCCESSFUL", value, []), name
        assert run["attempts"] == 1, name
        assert run["workers"] == ["w@test"], name
        assert run["times"] is True, name
    assert "shop.tasks.count " in project.onejob("jobs", "list")


def test_a_task_has_its_context_and_its_retries(runs: dict[str, Any]) -> None:
    """The context tells the attempt, from 1, and the result that runs; a retry is an attempt of the same result."""
    run, retried = runs["context_of"], runs["third_time"]
    assert run["value"] == [1, run["id"], "RUNNING", 7, ["w@test"]]
    assert (retried["status"], retried["value"], retried["attempts"]) == ("SUCCESSFUL", 3, 3)
    assert retried["workers"] == ["w@test"] * 3
    assert retried["times"] is True


@for_each("name, error, last_line", [
    ("fail", "LookupError", "LookupError: no"), ("leave", "SystemExit", "SystemExit: no more"),
    ("odd", "TypeError", "TypeError: Unsupported type: <class 'object'>"),
])  # fmt: skip
def test_a_failed_task_has_its_error(runs: dict[str, Any], name: str, error: str, last_line: str) -> None:
    """What a task raises, or a value that JSON cannot express, is the error of its result: class and traceback."""
    run = runs[name]
    assert (run["status"], len(run["errors"])) == ("FAILED", 1)
    path, traceback, shown = run["errors"][0]
    assert (path, shown) == (f"builtins.{error}", error)
    assert traceback.startswith("Traceback")
    assert traceback.endswith(f"{last_line}\n")


def test_the_worker_sends_the_signals(runs: dict[str, Any], worker: Path) -> None:
    """Django's receivers of the start and the end of a task, such as its log, are called in the worker."""
    for name, status in {"count": "SUCCESSFUL", "fail": "FAILED", "third_time": "SUCCESSFUL"}.items():
        line = f"Task id={runs[name]['id']} path=shop.tasks.{name} state="
        eventually(partial(_has_line, worker, line + status), 20)
        assert line + "RUNNING" in worker.read_text(errors="replace")
