"""Tasks with a rate limit in real workers: what waits for the limit is not lost, not leased, and not run twice."""

from typing import Any

import pytest

from onejob import State
from onejob.jobs.lifecycle import Transition
from tests.cases import further
from tests.celery.harness import DELIVERS, LEASE, PATIENCE, Cluster, await_
from tests.quiet import provokes

WINDOW = {"worker_prefetch_multiplier": 10}


@pytest.fixture(params=["redis", *further("ledger", "rabbitmq")])
def limiting(request: pytest.FixtureRequest) -> Cluster:
    """Return a cluster without a worker, of each broker."""
    found: Any = request.getfixturevalue("rabbit" if request.param == "rabbitmq" else "new_cluster")
    cluster: Cluster = (
        found if request.param == "rabbitmq" else found(**(DELIVERS if request.param == "ledger" else {}))
    )
    return cluster


def limit(cluster: Cluster, task: str, rate: Any) -> None:
    """Change the limit of a task in the worker that is alive."""
    (answer,) = cluster.app.control.rate_limit(task, rate, reply=True)
    assert "ok" in next(iter(answer.values())), answer


def begin_waiting(cluster: Cluster, *args: str, keys: str = "abcd") -> list[Any]:
    """Start a worker with a limit that lets the first job run; return the results when the others wait in it."""
    worker = cluster.worker(*(args or ("-c", "1")), **WINDOW)
    limit(cluster, "play", "1/h")
    results = [cluster.play.delay(key, [f"return:{key}"]) for key in keys]
    assert results[0].get(PATIENCE) == keys[0]
    worker.await_text("] received", times=len(keys))
    return results


@pytest.mark.parametrize("pool", ["prefork", *further("threads", "solo")])
def test_what_waits_runs_when_its_limit_is_removed(limiting: Cluster, pool: str) -> None:
    """Jobs that wait for the limit of their task hold no lease, and run, in order, when the limit is removed."""
    results = begin_waiting(limiting, "-c", "1", "-P", pool)
    assert [limiting.job(result).state for result in results[1:]] == [State.QUEUED] * 3
    assert [limiting.job(result).attempt for result in results] == [1, 0, 0, 0]
    limit(limiting, "play", 0)
    assert [result.get(PATIENCE) for result in results] == [*"abcd"]
    begun = [limiting.marks(key)[0]["at"] for key in "abcd"]
    assert begun == sorted(begun)
    assert [limiting.runs(key) for key in "abcd"] == [1] * 4


def test_what_waits_runs_at_a_new_limit(limiting: Cluster) -> None:
    """A limit that is raised while jobs wait holds for them at once."""
    results = begin_waiting(limiting)
    limit(limiting, "play", "50/s")
    assert [result.get(PATIENCE) for result in results] == [*"abcd"]


def test_other_tasks_do_not_wait(limiting: Cluster) -> None:
    """While jobs wait for a limit, the jobs of other tasks run, with and without limits of their own."""
    begin_waiting(limiting)
    limit(limiting, "play_acks_late", "20/s")
    others = [limiting.play_acks_late.delay(f"late-{number}", ["return:late"]) for number in range(4)]
    others += [limiting.play_autoretry.delay(f"auto-{number}", ["return:late"]) for number in range(2)]
    assert [result.get(PATIENCE) for result in others] == ["late"] * 6
    assert limiting.runs("b") == 0


def test_retries_and_countdowns_wait_for_the_limit(limiting: Cluster) -> None:
    """Jobs of a limited task are retried, and run at their times, each as often as without the limit."""
    limiting.worker("-c", "2", **WINDOW)
    limit(limiting, "play", "50/s")
    results = [limiting.play.delay(f"again-{number}", ["retry", "return:again"]) for number in range(3)]
    results += [limiting.play.apply_async((f"later-{n}", ["return:later"]), countdown=0.2) for n in range(3)]
    assert [result.get(PATIENCE) for result in results] == ["again"] * 3 + ["later"] * 3
    assert [limiting.runs(f"again-{number}") for number in range(3)] == [2] * 3
    assert [limiting.runs(f"later-{number}") for number in range(3)] == [1] * 3


@pytest.mark.parametrize("way", ["cancel", "revoke"])
def test_a_canceled_job_that_waits_does_not_run(limiting: Cluster, way: str) -> None:
    """A job that is canceled or revoked while it waits is canceled at once, and the others run."""
    results = begin_waiting(limiting)
    if way == "cancel":
        limiting.ledger.cancel(results[1].id)
    else:
        limiting.app.control.revoke(results[1].id)
    limiting.await_state(results[1], State.CANCELED)
    limit(limiting, "play", None)
    assert [result.get(PATIENCE) for result in results[2:]] == [*"cd"]
    assert limiting.runs("b") == 0


@provokes(Transition.PUBLISH, because="on Redis no broker keeps what a worker had received")
def test_what_waits_in_a_worker_that_stops_runs_in_another(limiting: Cluster) -> None:
    """A worker that stops returns what waits for a limit, and another worker runs it, once."""
    results = begin_waiting(limiting)
    limiting.workers[0].stop()
    limiting.worker("-c", "1")
    assert [result.get(PATIENCE) for result in results] == [*"abcd"]
    assert [limiting.runs(key) for key in "abcd"] == [1] * 4


@provokes(Transition.PUBLISH, because="a worker is killed")
def test_what_waits_in_a_worker_that_is_killed_runs_in_another(limiting: Cluster) -> None:
    """What waits for a limit in a worker that is killed runs in another worker, once."""
    limiting.use_lease(LEASE)
    results = begin_waiting(limiting)
    limiting.workers[0].sigkill()
    limiting.worker("-c", "1")
    await_(lambda: all(result.ready() for result in results))
    assert [limiting.runs(key) for key in "abcd"] == [1] * 4


def test_the_limit_of_a_plain_task_keeps_no_job(limiting: Cluster) -> None:
    """Tasks of Celery's own class in the worker have limits that change in the same way, and keep no job waiting."""
    limiting.worker("-c", "1", **WINDOW)
    limit(limiting, "plain", "1/h")
    plain = [limiting.plain.delay(number) for number in range(3)]
    assert plain[0].get(PATIENCE) == [0]
    assert limiting.play.delay("job", ["return:job"]).get(PATIENCE) == "job"
    limit(limiting, "plain", 0)
    assert [result.get(PATIENCE) for result in plain] == [[0], [1], [2]]
