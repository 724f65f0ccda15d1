"""Limits with real workers: no more jobs of a key run than permitted, none is lost or starved, whoever dies."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from celery import chord, group

import onejob
from onejob import State
from onejob.errors import ConfigurationError
from onejob.jobs.lifecycle import Transition
from tests.cases import further
from tests.celery.harness import PATIENCE, Cluster, await_
from tests.quiet import provokes

KINDS = ["sqlite-onejob", *further("sqlite", "postgresql", "redis", "postgresql-onejob")]
LEASE = 3
PACE = 0.05
"""The seconds between two starts of `play_rated`."""


@pytest.fixture(params=KINDS)
def limited_cluster(request: pytest.FixtureRequest, new_cluster: Callable[..., Cluster]) -> Cluster:
    """Return a cluster on a kind of store, with the ledger as its broker where the name says so."""
    kind, _, broker = request.param.partition("-")
    return new_cluster(kind, **({"broker_url": "onejob://"} if broker else {}))


def submit(cluster: Cluster, *keys: str, acts: tuple[str, ...] = ("return",), task: str = "play_limited") -> list[Any]:
    """Submit a job for each key, and return the results."""
    return [cluster.app.tasks[task].delay(key, [*acts]) for key in keys]


def runs(cluster: Cluster, *keys: str) -> list[int]:
    """Return how often the body with each key was started."""
    return [cluster.runs(key) for key in keys]


def holders(cluster: Cluster, key: str) -> int:
    """Return how many jobs have a slot of a key."""
    return len(cluster.ledger.store.limit_use(key).holders)


@pytest.mark.parametrize("pool", ["prefork", *further("threads")])
def test_as_many_jobs_of_a_key_run_as_its_limit_permits(limited_cluster: Cluster, pool: str) -> None:
    """The oldest jobs of a key run, the others wait in the ledger, and jobs of other keys do not wait for them."""
    cluster = limited_cluster
    cluster.worker("--pool", pool, "-c", "4")
    keys = [f"a-{number}" for number in range(5)]
    results = submit(cluster, *keys, acts=("hold:gate>return",))
    others = submit(cluster, "b-0")
    assert others[0].get(PATIENCE) == "b-0"
    for key in keys[:2]:
        cluster.await_mark(key)
    assert runs(cluster, *keys[2:]) == [0, 0, 0]
    client = onejob.Client(cluster.app)
    assert client.limit("group=a").waiting == 3
    why = client.why(results[4].id).sentences
    assert any("It waits for group=a: 2 of 2 run" in each and "2 before it" in each for each in why), why
    cluster.open("gate")
    assert [each.get(PATIENCE) for each in results] == keys
    assert runs(cluster, *keys) == [1] * 5
    starts = [cluster.job(each).started_at or 0.0 for each in results]
    assert max(starts[:2]) < min(starts[2:])
    assert holders(cluster, "group=a") == 0


@provokes(Transition.CRASH, because="a worker is killed")
def test_the_slot_of_a_killed_worker_is_free_when_its_lease_ends(limited_cluster: Cluster) -> None:
    """Jobs that wait for the slots of a worker that was killed run, and so do the lost ones, at most two at once."""
    cluster = limited_cluster
    cluster.use_lease(LEASE)
    killed = cluster.worker("-c", "2")
    lost = submit(cluster, "a-0", "a-1", acts=("hold:lost", "return"))
    for key in ("a-0", "a-1"):
        cluster.await_mark(key)
    waiting = submit(cluster, "a-2", "a-3", "a-4")
    killed.sigkill()
    cluster.worker("-c", "2")
    cluster.open("lost")
    assert [each.get(PATIENCE) for each in (*lost, *waiting)] == [f"a-{number}" for number in range(5)]
    await_(lambda: holders(cluster, "group=a") == 0)
    assert all(cluster.job(each).state is State.COMPLETED for each in (*lost, *waiting))


@provokes(Transition.CRASH, logs=["is no longer", "lost"], because="a worker is frozen for longer than its lease")
def test_a_frozen_worker_keeps_no_slot_and_frees_none(limited_cluster: Cluster) -> None:
    """When the lease of a frozen worker has ended, another job has its slot, which the late end does not free."""
    cluster = limited_cluster
    cluster.use_lease(LEASE)
    frozen = cluster.worker("-c", "2")
    submit(cluster, "a-0", "a-1", acts=("hold:late>return",))
    for key in ("a-0", "a-1"):
        cluster.await_mark(key)
    frozen.freeze()
    cluster.worker("-c", "4")
    submit(cluster, "a-2", "a-3", acts=("hold:gate>return",))
    await_(lambda: sum(runs(cluster, "a-0", "a-1", "a-2", "a-3")) >= 4)
    now = cluster.ledger.read_clock()
    assert sum((job.lease_until or 0.0) > now for job in cluster.jobs(states=frozenset({State.RUNNING}))) <= 2
    last = submit(cluster, "a-4")
    cluster.open("late")
    frozen.thaw()
    cluster.open("gate")
    assert last[0].get(PATIENCE) == "a-4"
    await_(lambda: not cluster.live())
    assert holders(cluster, "group=a") == 0


def test_a_rate_lets_jobs_start_one_after_the_other(limited_cluster: Cluster) -> None:
    """Between two starts of a key there is the time that its rate gives to each, and all of them start."""
    cluster = limited_cluster
    cluster.worker("-c", "4")
    keys = [f"a-{number}" for number in range(6)]
    results = submit(cluster, *keys, task="play_rated")
    assert [each.get(PATIENCE) for each in results] == keys
    history = [cluster.ledger.history(each.id) for each in results]
    assert all(entries[-1].event == Transition.COMPLETE for entries in history)
    starts = sorted(cluster.job(each).started_at or 0.0 for each in results)
    assert starts[-1] - starts[0] >= PACE * (len(keys) - 1) - PACE  # the first one may be claimed late
    assert len([*pairwise(starts)]) == len(keys) - 1


def test_a_job_with_two_limits_runs_when_both_have_room(limited_cluster: Cluster) -> None:
    """A job takes the slots of all its limits or none: others run meanwhile, and at the end all have run."""
    cluster = limited_cluster
    cluster.worker("-c", "6")
    keys = [f"{group}-{number}" for group in "abc" for number in range(3)]
    results = submit(cluster, *keys, acts=("hold:gate>return",), task="play_limited_twice")
    await_(lambda: sum(runs(cluster, *keys)) == 3)
    assert holders(cluster, "all") == 3
    cluster.open("gate")
    assert sorted(each.get(PATIENCE) for each in results) == sorted(keys)
    assert (holders(cluster, "all"), holders(cluster, "group=a")) == (0, 0)


def test_a_canvas_of_limited_jobs_ends(limited_cluster: Cluster) -> None:
    """The members of a chord that have to wait for each other end, and so does the chord."""
    cluster = limited_cluster
    cluster.worker("-c", "3")
    task: Any = cluster.play_limited
    header = group(task.si(f"a-{number}", ["return"]) for number in range(5))
    result = chord(header)(cluster.play_limited.si("a-end", ["return"]))
    assert result.get(PATIENCE) == "a-end"
    assert runs(cluster, *(f"a-{number}" for number in range(5))) == [1] * 5


def test_a_follower_needs_no_room(limited_cluster: Cluster) -> None:
    """The members of a group that are equal to another one end with that one, and neither wait nor have a slot."""
    cluster = limited_cluster
    cluster.worker("-c", "2")
    result: Any = group(cluster.play_limited.si("a-0", ["hold:gate>return"]) for _ in range(4)).apply_async()
    cluster.await_mark("a-0")
    cluster.await_mark(submit(cluster, "a-1")[0].get(PATIENCE))
    cluster.open("gate")
    assert result.get(PATIENCE) == ["a-0"] * 4
    assert cluster.runs("a-0") == 1
    histories = [[each.event for each in cluster.ledger.history(child.id)] for child in result.children]
    assert [history.count(Transition.PARK) for history in histories] == [0] * 4


def test_a_replaced_job_has_the_limits_of_the_task_that_replaces_it(limited_cluster: Cluster) -> None:
    """A job takes the slots of the task that it goes on as, and gives those of its first task back."""
    cluster = limited_cluster
    cluster.worker("-c", "4")
    keys = [f"a-{number}" for number in range(4)]
    results = [
        cluster.play.delay(f"whole {key}", ["replace:play_limited"], [key, ["hold:gate>return"]]) for key in keys
    ]
    await_(lambda: sum(runs(cluster, *keys)) == 2)
    await_(lambda: onejob.Client(cluster.app).limit("group=a").waiting == 2)
    assert holders(cluster, "group=a") == 2
    cluster.open("gate")
    assert [each.get(PATIENCE) for each in results] == keys
    replaced = cluster.play_limited.delay("b-0", ["replace:play"], ["free", ["hold:free>return"]])
    cluster.await_mark("free")
    assert holders(cluster, "group=b") == 0
    cluster.open("free")
    assert replaced.get(PATIENCE) == "free"


def test_a_retry_gives_its_slot_back_and_takes_one_anew(limited_cluster: Cluster) -> None:
    """While a job waits for its retry, others have its slot; then it runs again."""
    cluster = limited_cluster
    cluster.worker("-c", "2")
    retried = submit(cluster, "a-0", acts=("retry:0", "return"))
    others = submit(cluster, "a-1", "a-2", "a-3")
    assert [each.get(PATIENCE) for each in (*retried, *others)] == ["a-0", "a-1", "a-2", "a-3"]
    assert cluster.runs("a-0") == 2
    assert holders(cluster, "group=a") == 0


def test_an_exception_is_obeyed_without_a_deploy(limited_cluster: Cluster) -> None:
    """0 stops a key, a larger number lets more run, and without the exception the definition is valid again."""
    cluster = limited_cluster
    cluster.worker("-c", "4")
    client = onejob.Client(cluster.app)
    cluster.play_limited.delay("b-0", ["return"]).get(PATIENCE)  # a worker has defined the limit
    client.set_limit("group=a", "0")
    stopped = submit(cluster, "a-0", "a-1", "a-2", acts=("hold:gate>return",))
    assert submit(cluster, "b-1")[0].get(PATIENCE) == "b-1"
    assert runs(cluster, "a-0", "a-1", "a-2") == [0, 0, 0]
    client.set_limit("group=a", "3")
    for key in ("a-0", "a-1", "a-2"):
        cluster.await_mark(key)
    client.clear_limit("group=a")
    cluster.open("gate")
    assert [each.get(PATIENCE) for each in stopped] == ["a-0", "a-1", "a-2"]


def test_duplicates_of_a_waiting_job_attach(limited_cluster: Cluster) -> None:
    """A job that waits for room holds its identity: equal submissions get its result, and it runs once."""
    cluster = limited_cluster
    cluster.worker("-c", "3")
    submit(cluster, "a-0", "a-1", acts=("hold:gate>return",))
    first, second = submit(cluster, "a-2", "a-2")
    assert (second.id, cluster.job(first).parked_on) == (first.id, "limit:group=a")
    cluster.open("gate")
    assert second.get(PATIENCE) == "a-2"
    assert cluster.runs("a-2") == 1


def test_tasks_share_a_limit_of_one_value_only(limited_cluster: Cluster) -> None:
    """A second task with the name of a limit and another value is refused when it is defined."""
    app = limited_cluster.another_app()

    def other(key: str) -> str:
        return key

    app.task(base=onejob.Task, name="other", limits=[onejob.Limit("key", name="group", running=9)])(other)
    with pytest.raises(ConfigurationError, match="tasks share a limit by its name"):
        app.tasks["other"].delay("key")
