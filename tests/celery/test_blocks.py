"""Pauses and strikes with real workers: no run starts against one, and nothing is lost by it."""

from collections.abc import Callable
from itertools import count

import pytest

import onejob
from onejob import State
from tests.cases import further
from tests.celery.harness import PATIENCE, Cluster, await_

KINDS = ["sqlite-onejob", *further("sqlite", "postgresql", "redis", "postgresql-onejob")]


@pytest.fixture(params=KINDS)
def paused_cluster(request: pytest.FixtureRequest, new_cluster: Callable[..., Cluster]) -> Cluster:
    """Return a cluster on a kind of store, with the ledger as its broker where the name says so."""
    kind, _, broker = request.param.partition("-")
    return new_cluster(kind, **({"broker_url": "onejob://"} if broker else {}))


def client_of(cluster: Cluster) -> onejob.Client:
    """Return a client of the ledger of a cluster."""
    return onejob.Client(cluster.app)


@pytest.mark.parametrize("pool", ["prefork", *further("threads")])
def test_no_run_starts_while_its_task_is_paused(paused_cluster: Cluster, pool: str) -> None:
    """Jobs of a paused task wait, other tasks run, and after the end of the pause each job runs once."""
    cluster, client = paused_cluster, client_of(paused_cluster)
    pause = client.pause(task="play", note="maintenance")
    cluster.worker("--pool", pool, "-c", "2")
    waiting = [cluster.play.delay(f"paused-{number}", ["return"]) for number in range(5)]
    assert cluster.play_long_lease.delay("free", ["return"]).get(PATIENCE) == "free"
    await_(lambda: client.count(pause=pause.id).total == 5)
    assert [cluster.runs(f"paused-{number}") for number in range(5)] == [0] * 5
    assert client.get(waiting[0].id).reason == f"paused by {pause.id} (maintenance)"
    client.resume(pause.id)
    assert [each.get(PATIENCE) for each in waiting] == [f"paused-{number}" for number in range(5)]
    assert [cluster.job(each).attempt for each in waiting] == [1] * 5
    assert [cluster.runs(f"paused-{number}") for number in range(5)] == [1] * 5


def test_a_pause_of_an_argument_holds_its_jobs_alone(paused_cluster: Cluster) -> None:
    """`where` reads positional and keyword arguments as `unique_on` does; jobs with other values run."""
    cluster, client = paused_cluster, client_of(paused_cluster)
    pause = client.pause(where={"key": "customer-42"})
    cluster.worker("-c", "2")
    held = cluster.play.delay("customer-42", ["return"])
    named = cluster.play_long_lease.delay(key="customer-42", acts=["return"])
    assert cluster.play.delay("customer-7", ["return"]).get(PATIENCE) == "customer-7"
    await_(lambda: client.count(pause=pause.id).total == 2)
    assert cluster.runs("customer-42") == 0
    client.resume(pause.id)
    assert (held.get(PATIENCE), named.get(PATIENCE)) == ("customer-42", "customer-42")


def test_a_pause_loses_no_part_of_a_canvas(paused_cluster: Cluster) -> None:
    """A job that was replaced by a canvas of other tasks ends after the pause of its own task as it does without."""
    cluster, client = paused_cluster, client_of(paused_cluster)
    cluster.worker("-c", "2")
    parts = {"chain": [["play_long_lease", "part", ["hold:gate>return"]], ["play_long_lease", "end", ["return"]]]}
    result = cluster.play.delay("whole", ["replace_by"], parts)
    cluster.await_mark("part")
    pause = client.pause(task="play")
    numbers = count()
    await_(lambda: cluster.play.delay(f"{next(numbers)}", ["return"]) and client.count(pause=pause.id).total)
    cluster.open("gate")
    await_(lambda: cluster.job(result).parked_on or cluster.job(result).state is State.COMPLETED)
    client.resume(pause.id)
    assert result.get(PATIENCE) == "end"
    assert cluster.runs("end") == 1


def test_a_struck_job_fails_without_a_run(paused_cluster: Cluster) -> None:
    """A struck job becomes a dead letter, and its caller hears why; after the strike a redrive runs it."""
    cluster, client = paused_cluster, client_of(paused_cluster)
    strike = client.strike("play", where={"key": "bad"}, note="poison")
    cluster.worker("-c", "2")
    result = cluster.play.delay("bad", ["return"])
    with pytest.raises(Exception, match=f"struck by {strike.id}"):
        result.get(PATIENCE)
    assert (cluster.runs("bad"), cluster.job(result).attempt, cluster.job(result).state) == (0, 0, State.FAILED)
    client.lift(strike.id)
    client.redrive(result.id)
    await_(lambda: cluster.job(result).state is State.COMPLETED)
    assert cluster.runs("bad") == 1
