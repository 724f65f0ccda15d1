"""The backend of `django.tasks`: what is enqueued, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.django.project import Project, on_both, sqlite

HEAD = """
from django.db import connections, transaction
from django.utils import timezone
from onejob.django.framework import TaskResultDoesNotExist, task_backends
from shop import tasks
backend = task_backends["default"]
def exists(result):
    try:
        return backend.get_result(result.id).id == result.id
    except TaskResultDoesNotExist:
        return False
"""
ROLLBACKS = """
found = {}
try:
    with transaction.atomic():
        lost = tasks.count.enqueue(1)
        found["inside"] = [exists(lost), backend.get_result(lost.id) == lost, lost.enqueued_at is not None]
        raise KeyError
except KeyError:
    found["rolled back"] = exists(lost)
with transaction.atomic():
    kept = tasks.count.enqueue(2)
    try:
        with transaction.atomic():
            inner = tasks.count.enqueue(3)
            raise KeyError
    except KeyError:
        found["savepoint"] = [exists(inner), exists(kept)]
found["committed"] = [exists(kept), exists(inner)]
found["alone"] = exists(tasks.count.enqueue(4))
import onejob.django.conf
from onejob.jobs.query import Query
found["jobs"] = len(onejob.django.conf.app_state().ledger.find(Query(limit=100)))
transaction.set_autocommit(False)
by_hand = tasks.greet.submit("ann", session=connections["default"])
transaction.commit()
transaction.set_autocommit(True)
found["by hand"] = by_hand.job.state
print(json.dumps(found))
"""
RESULTS = """
import asyncio
found = {}
result = tasks.count.enqueue(1, two=(2, b"x"))
found["new"] = [str(result.status), result.args, result.kwargs, result.attempts, result.worker_ids, result.errors]
found["equal"] = [tasks.count.get_result(result.id) == result]
for changed in (
    tasks.count.using(run_after=timezone.now() + timezone.timedelta(hours=1)),
    tasks.count.using(priority=-7, queue_name="slow"),
):
    later = changed.enqueue()
    found["equal"].append(backend.get_result(later.id) == later)
    found["equal"].append(later.task == changed)
async def same():
    result = await tasks.count_async.aenqueue()
    await result.arefresh()
    return result == await tasks.count_async.aget_result(result.id)
found["equal"].append(asyncio.run(same()))
def error(call):
    try:
        call()
    except Exception as error:
        return [kind.__name__ for kind in type(error).__mro__][:-2]
found["errors"] = [
    error(lambda: tasks.count.enqueue(timezone.now())),
    error(lambda: tasks.invoice.enqueue()),
    error(lambda: tasks.count.get_result("123")),
    error(lambda: tasks.count_async.get_result(result.id)),
    error(lambda: tasks.count.using(queue_name="none").enqueue()),
    error(lambda: result.return_value),
]
first, second, other = (tasks.invoice.enqueue(*args) for args in ((1,), (1,), (2,)))
found["unique"] = [first.id == second.id, first.id == other.id]
found["not unique"] = tasks.count.enqueue().id == tasks.count.enqueue().id
from onejob.django.conf import app_state
found["priorities"] = []
for priority in (-100, 0, 100):
    job = app_state().ledger.get(tasks.count.using(priority=priority).enqueue().id)
    found["priorities"].append([job.priority_rank, job.queue, job.task])
signals = []
from onejob.django.framework import signals as of_django
of_django.task_enqueued.connect(lambda sender, task_result, **_: signals.append(task_result.id), weak=False)
found["signal"] = [tasks.count.enqueue().id] == signals
print(json.dumps(found))
"""
ELSEWHERE = """
found = {}
with transaction.atomic():
    result, strict = tasks.count.enqueue(1), [tasks.strict.enqueue(1) for _ in range(2)]
    found["before"] = [exists(result), result.enqueued_at]
found["duplicates"] = [exists(each) for each in strict]
result.refresh()
found["after"] = [exists(result), result.enqueued_at is not None]
try:
    with transaction.atomic():
        lost = tasks.count.enqueue(2)
        raise KeyError
except KeyError:
    found["rolled back"] = exists(lost)
print(json.dumps(found))
"""
FOREIGN = """
try:
    tasks.count.using(backend="jobs").enqueue()
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


@on_both
def test_a_rolled_back_enqueue_leaves_nothing(project: Project) -> None:
    """A job is a part of any transaction on the ledger's database: of `atomic()`, a savepoint, or one begun by hand."""
    assert project.script(HEAD + ROLLBACKS) == {
        "inside": [True, True, True], "rolled back": False, "savepoint": [False, True], "committed": [True, False],
        "alone": True, "jobs": 2, "by hand": "queued",
    }  # fmt: skip


def test_results_are_as_django_documents_them(project: Project) -> None:
    """A result that is looked up equals the one of the enqueue; what cannot run is refused with Django's exceptions."""
    found = project.script(HEAD + RESULTS)
    assert found["new"] == ["READY", [1], {"two": [2, "x"]}, 0, [], []]
    assert found["equal"] == [True] * 6
    types, arguments, missing, mismatch, queue, unfinished = found["errors"]
    assert (types, unfinished) == (["TypeError", "Exception"], ["ValueError", "Exception"])
    assert "TypeError" in arguments
    assert [kinds[0] for kinds in (missing, mismatch)] == ["TaskResultDoesNotExist", "TaskResultMismatch"]
    assert queue[0].startswith("InvalidTask")
    assert found["unique"] == [True, False]
    assert found["not unique"] is False
    assert found["signal"] is True
    ranks = [rank for rank, *_ in found["priorities"]]
    assert ranks == sorted(set(ranks))
    assert [names for _, *names in found["priorities"]] == [["celery", "shop.tasks.count"]] * 3


def test_a_task_of_another_backend_is_refused(tmp_path: Path, broker_url: str) -> None:
    """A task that is defined with another kind of backend is refused, since no worker would know it."""
    of_django = {"BACKEND": "onejob.django.framework.ImmediateBackend", "QUEUES": []}
    backends = {"default": of_django, "jobs": {"BACKEND": "onejob.django.TaskBackend"}}
    databases = {"default": sqlite(tmp_path / "shop.db")}
    project = Project({"DATABASES": databases, "CELERY_BROKER_URL": broker_url, "TASKS": backends})
    found = project.script(HEAD + FOREIGN)
    assert found[0].startswith("InvalidTask")
    assert "define it with @task(backend='jobs')" in found[1]


def test_a_job_outlives_its_queue_in_the_settings(tmp_path: Path, broker_url: str) -> None:
    """A job for a queue that `QUEUES` does not have any more is found, and runs, as a job of the task as defined."""

    def project(*queues: str) -> Project:
        backend = {"BACKEND": "onejob.django.TaskBackend", "QUEUES": ["default", "slow", *queues]}
        databases = {"default": sqlite(tmp_path / "shop.db")}
        return Project({"DATABASES": databases, "CELERY_BROKER_URL": broker_url, "TASKS": {"default": backend}})

    project("old").manage("migrate", "-v", "0")
    job_id = project("old").script(HEAD + "print(json.dumps(tasks.count.using(queue_name='old').enqueue(1).id))")
    assert project().script(HEAD + f"print(json.dumps(backend.get_result({job_id!r}).task.queue_name))") == "default"


def test_a_ledger_elsewhere_waits_for_the_commit(tmp_path: Path, broker_url: str) -> None:
    """With the ledger in Redis, an enqueue in a transaction happens after its commit, and not after a rollback."""
    databases: dict[str, Any] = {"default": sqlite(tmp_path / "shop.db")}
    project = Project({"DATABASES": databases, "CELERY_BROKER_URL": broker_url, "CELERY_ONEJOB_STORE": broker_url})
    found = project.script(HEAD + ELSEWHERE)
    assert found == {
        "before": [False, None], "duplicates": [True, True], "after": [True, True], "rolled back": False,
    }  # fmt: skip
