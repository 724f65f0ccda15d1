"""What a job can do in an `async def` body, and in the tasks of its event loop, in every pool."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from onejob.jobs.costs import JobCosts
from onejob.jobs.lifecycle import State, Transition
from tests.cases import further
from tests.celery.coroutine_app import Line
from tests.celery.harness import PATIENCE, Cluster
from tests.quiet import provokes
from tests.services import RedisServer


@dataclass
class CoroutineCluster(Cluster):
    """A cluster whose tasks are coroutines."""

    module: str = "tests.celery.coroutine_app"
    pool: str = ""

    def run(self, key: str, how: str | None = None, task: str = "coroutine") -> Any:
        """Return the result of a body, which is named like its key unless `how` says otherwise."""
        return self.app.tasks[task].delay(key, how or key).get(PATIENCE)


POOLS = [
    ("onejob", "broker"),
    ("threads", "sqlite"),
    *further(("onejob", "sqlite"), ("solo", "redis"), ("prefork", "sqlite")),
]


@pytest.fixture(scope="module", params=POOLS, ids="-".join)
def cluster(
    request: pytest.FixtureRequest, broker: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CoroutineCluster]:
    """Return a cluster with a worker; each test has keys of its own there."""
    pool, kind = request.param
    cluster = CoroutineCluster(tmp_path_factory.mktemp("coroutines"), broker, kind, pool=pool)
    cluster.worker("--pool", pool, "-c", "4")
    cluster.app.set_current()
    yield cluster
    cluster.close()


def test_every_task_of_a_body_knows_its_job(cluster: CoroutineCluster) -> None:
    """`current_job` is the same job in the body, in tasks that it creates, in theirs, and in threads of them."""
    found = cluster.run("knows_its_job")
    assert len(found) == 6
    assert {*found} == {cluster.jobs(task="coroutine")[0].id}


def test_bodies_run_at_once_and_keep_apart(cluster: CoroutineCluster) -> None:
    """Bodies that wait for each other all run in one worker, and each knows its own job."""
    count = {"onejob": 4, "threads": 4}.get(cluster.pool, 1)
    results = [cluster.coroutine.delay(f"{count}-{number}", "meets_others") for number in range(count)]
    assert [each.get(PATIENCE) for each in results] == [each.id for each in results]


@provokes(Transition.RETRY, because="the first attempt fails")
def test_steps_at_once_are_kept(cluster: CoroutineCluster) -> None:
    """Steps of distinct names are computed at once, and a later attempt computes none of them again."""
    assert cluster.run("steps", task="retrying") == ["one 1", "two 1", 3, "steps"]
    assert [len(cluster.marks("steps", f"step {name}")) for name in ("one", "two")] == [1, 1]


def test_one_name_is_one_step(cluster: CoroutineCluster) -> None:
    """A step whose name another coroutine computes is refused; after its end its value is the answer."""
    first, again, refusal = cluster.run("same_step_at_once")
    assert (first, again) == ("same_step_at_once", "same_step_at_once")
    assert "step 'same' is being computed by another coroutine" in refusal


def test_costs_at_once_add_up(cluster: CoroutineCluster) -> None:
    """Costs that many coroutines of a body report at once are all kept."""
    cluster.run("spends")
    costs = JobCosts.of(cluster.jobs(task="coroutine")[0].costs)
    assert costs.attempts == {1: {"tokens": 60, "usd": Decimal("0.06")}}


def test_progress_tells_a_canceled_body(cluster: CoroutineCluster) -> None:
    """A body sees that its job was canceled, and its next progress ends it."""
    result = cluster.coroutine.delay("reports", "reports")
    cluster.await_mark("reports")
    assert cluster.job(result).progress == '{"done": 1, "total": 4, "stage": "begun"}'
    cluster.ledger.cancel(result.id)
    assert cluster.await_state(result, State.CANCELED).attempt == 1


def test_submissions_of_a_body_have_its_run(cluster: CoroutineCluster) -> None:
    """Jobs that the tasks of a body submit have its job as parent and root, and the submitter of their context."""
    result = cluster.coroutine.delay("submits", "submits")
    submitted = [cluster.coroutine.AsyncResult(each) for each in result.get(PATIENCE)]
    assert [each.get(PATIENCE) for each in submitted] == [[result.id, result.id]] * 6
    assert [each.job.submitter for each in submitted] == ["user:0", "user:1", "user:2", "", "", ""]
    assert {each.id for each in result.children or ()} == {each.id for each in submitted}


def test_a_function_that_returns_its_coroutine_is_awaited(cluster: CoroutineCluster) -> None:
    """A body with a decorator that is a plain function has the result of its coroutine, in each pool."""
    assert cluster.run("returns", task="decorated") == "returns"


@provokes(Transition.RETRY, because="the first attempt fails")
def test_an_exception_of_a_coroutine_is_retried(cluster: CoroutineCluster) -> None:
    """`autoretry_for` retries what a coroutine raises when it is awaited."""
    assert cluster.run("fails_first", task="retrying") == "second fails_first"


@pytest.mark.parametrize("cluster", [("onejob", "broker")], indirect=True, ids="-".join)
def test_a_coroutine_of_celery_is_retried(cluster: CoroutineCluster) -> None:
    """In the pool onejob, `autoretry_for` also retries a coroutine that is a task of Celery's own class."""
    assert cluster.plain.delay("plain").get(PATIENCE) == "plain"
    assert cluster.runs("plain") == 2


def test_models_are_arguments_and_results_of_coroutines(cluster: CoroutineCluster) -> None:
    """A coroutine takes and returns models, as a function does."""
    result = cluster.order.delay("book", [Line("a", 2), Line("b")])
    assert result.get(PATIENCE) == Line("book", 3)
    assert asyncio.run(result.aget(PATIENCE)) == Line("book", 3)


def test_a_direct_call_returns_the_coroutine(cluster: CoroutineCluster) -> None:
    """A task that is called as a function returns the coroutine of its body."""
    calls: list[Callable[..., Any]] = [cluster.coroutine, cluster.retrying]
    assert [asyncio.run(call("here", "returns")) for call in calls] == ["here", "here"]
