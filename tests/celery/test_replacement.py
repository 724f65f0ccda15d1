"""What becomes of a job that `Task.replace` replaced by a canvas: when a part fails, is redriven, or equals the job."""

from typing import Any

import pytest

from onejob import State
from onejob.client.operation import Operation
from onejob.client.operator import Operator
from onejob.errors import IdentityHeldError, NoDeadLetterError
from onejob.jobs.lifecycle import Transition
from onejob.ledger.explain import explain
from tests.celery.harness import PATIENCE, Cluster, await_, on_every_store
from tests.quiet import provokes

ORDERS = {"the job": "J", "the part": "P", "the job first": "JP", "the part first": "PJ"}
"""In which order a replaced job (J) and the failed part of its chain (P) are redriven."""
ENDS: dict[str, Any] = {"a job": ["play", "{}", ["return:whole"]], "a task of Celery's": ["plain", "{}"]}


def redrive(cluster: Cluster, job_id: str) -> None:
    """Redrive a dead letter; one that waits again is none any more."""
    operator = Operator(app=cluster.app, ledger=cluster.ledger, origin="by a test")
    try:
        operator.operate(Operation.REDRIVE, cluster.job(job_id))
    except NoDeadLetterError:
        assert cluster.job(job_id).state is not State.FAILED


def replaced(cluster: Cluster, key: str, canvas: Any) -> Any:
    """Submit a job that is replaced by a canvas."""
    return cluster.play.delay(key, ["replace_by"], canvas)


@on_every_store("shared")
def test_a_replaced_job_and_its_part_are_redriven_in_any_order(shared: Cluster) -> None:
    """Redriving a job that a chain replaced, or the part that failed, has the rest of the chain run, and no more."""
    cases = [(f"{order}, before {end}", order, end) for order in ORDERS for end in ENDS]
    results: dict[str, Any] = {}
    for name, _, end in cases:
        last = [part.format(f"end of {name}") if isinstance(part, str) else part for part in ENDS[end]]
        part = ["play", f"part of {name}", ["permanent", "return:paid"]]
        results[name] = replaced(shared, name, {"chain": [["echo", f"begin {name}"], part, last]})
    for name, order, _ in cases:
        job = shared.await_state(results[name], State.FAILED)
        part_id = shared.marks(f"part of {name}")[0]["job"]
        assert part_id in job.reason
        for each in ORDERS[order]:
            redrive(shared, job.id if each == "J" else part_id)
    for name, _, end in cases:
        whole = "whole" if end == "a job" else [f"end of {name}"]
        assert shared.await_state(results[name], State.COMPLETED).attempt > 1
        assert results[name].get(PATIENCE) == whole, name
        marks = shared.marks(f"end of {name}", None)
        assert (shared.runs(name), shared.runs(f"part of {name}")) == (1, 2), name
        assert len([mark for mark in marks if mark["event"] in ("run", "plain")]) == 1, name
    shared.await_rest()
    for name, _, _ in cases:
        shared.assert_free(name)


def test_a_replaced_job_whose_identity_is_held_is_not_redriven(shared: Cluster) -> None:
    """While an equal job is live, redriving a replaced one is refused before the part that failed is redriven."""
    part = ["play", "held part", ["permanent", "return"]]
    result = replaced(shared, "held", {"chain": [part, ["echo", "end of held"]]})
    shared.await_state(result, State.FAILED)
    live = shared.begin("held", ["hold:held"])
    with pytest.raises(IdentityHeldError):
        redrive(shared, result.id)
    assert shared.job(shared.marks("held part")[0]["job"]).state is State.FAILED
    shared.open("held")
    assert live.get(PATIENCE) == "held"
    redrive(shared, result.id)
    shared.await_state(result, State.COMPLETED)
    assert (result.get(PATIENCE), shared.runs("held part")) == ("end of held", 2)


@on_every_store("shared")
@provokes(Transition.NOTIFY_CANVAS, because="a task of Celery's is called again")
def test_the_last_task_of_a_replacement_is_called_again(shared: Cluster) -> None:
    """Redriving a job whose chain ended in a task of Celery's that failed calls that again, and no part before it."""
    result = replaced(shared, "last fails", {"chain": [["play", "paid", ["return"]], ["fails_once", "end"]]})
    shared.await_state(result, State.FAILED)
    redrive(shared, result.id)
    shared.await_state(result, State.COMPLETED)
    assert result.get(PATIENCE) == "end"
    assert [shared.runs(key) for key in ("last fails", "paid", "end")] == [1, 1, 2]


def test_a_task_behind_a_chord_goes_on_as_the_replaced_job(shared: Cluster) -> None:
    """A job that is replaced by a chord with a task behind it ends as that task, which has its id."""
    members = [["echo", "one"], ["echo", "two"], ["echo", "body"]]
    result = replaced(shared, "chord and more", {"chain": [{"chord": members}, ["echo", "behind"]]})
    assert result.get(PATIENCE) == "behind"
    assert shared.await_state(result, State.COMPLETED).task == "play"


@on_every_store("shared")
@provokes(logs=["ChordError"], because="a member fails")
def test_a_job_whose_chord_failed_runs_again(shared: Cluster) -> None:
    """A chord that has failed cannot go on: redriving the job that it replaced runs the body again."""
    members = [["play", "good", ["return:good"]], ["fails_once", "bad"]]
    result = replaced(shared, "chord", {"group": members})
    shared.await_state(result, State.FAILED)
    redrive(shared, result.id)
    shared.await_state(result, State.COMPLETED)
    assert result.get(PATIENCE) == ["good", "bad"]
    assert shared.runs("chord") == 2


def test_what_a_replaced_job_waits_for_is_explained(shared: Cluster) -> None:
    """`why` names the job of a replacement that runs, then the task that has the id, and a part that has failed."""
    part = ["play", "explained part", ["hold:explained>permanent", "return"]]
    result = replaced(shared, "explained", {"chain": [part, ["hold", "explained end"]]})
    (mark,) = shared.await_mark("explained part")
    await_(lambda: "replace" in shared.events(result))
    assert f"the chain that replaced it: task play, job {mark['job']}, is running." in why(shared, result)
    shared.open("explained")
    shared.await_state(result, State.FAILED)
    assert "has that job run again, and then the rest" in why(shared, result)
    redrive(shared, result.id)
    shared.await_mark("explained end")
    await_(lambda: "the task that has its id now, the last one" in why(shared, result))
    shared.open("explained end")
    assert result.get(PATIENCE) == "explained end"


def why(cluster: Cluster, result: Any) -> str:
    """Return what explains a job, as text."""
    return "\n".join(explain(cluster.ledger, result.id).sentences)


SHAPES: dict[str, Any] = {
    "the first of a chain": {"chain": ["EQUAL", "END"]},
    "a later one of a chain": {"chain": [["echo", "before"], "EQUAL", "END"]},
    "two of a chain": {"chain": ["EQUAL", "EQUAL", "END"]},
    "the member of a group": {"group": ["EQUAL", ["echo", "beside"]]},
    "the member of a group in a chain": {"chain": [["echo", "before"], {"group": ["EQUAL", ["echo", "b"]]}, "END"]},
    "a chain in a group": {"group": [{"chain": ["EQUAL", ["echo", "behind"]]}, ["echo", "beside"]]},
}
"""Canvases with a part that equals the job that they replace."""


def shape(key: str, data: Any) -> Any:
    """Return a canvas with the calls of one job."""
    if isinstance(data, dict):
        return {kind: [shape(key, member) for member in members] for kind, members in data.items()}
    calls = {"EQUAL": ["play", key, ["hold:equal>return"]], "END": ["play", f"end of {key}", ["return:whole"]]}
    return calls[data] if isinstance(data, str) else data


@on_every_store("cluster")
def test_a_part_that_equals_the_replaced_job_runs(cluster: Cluster) -> None:
    """A part of what replaces a job that equals the job runs as a part of it: the job does not wait for itself."""
    cluster.worker("--pool", "threads", "-c", "20")
    results = {name: replaced(cluster, name, shape(name, SHAPES[name])) for name in SHAPES}
    for name, result in results.items():
        cluster.await_mark(name, times=2)  # the job, and the part that equals it
        assert cluster.play.delay(name, ["return"]).id == result.id, name
    cluster.open("equal")
    for name, result in results.items():
        expected = "whole" if "END" in str(SHAPES[name]) else None
        value = result.get(PATIENCE)
        assert value == expected or expected is None, name
        cluster.await_state(result, State.COMPLETED)
        assert cluster.runs(name) == 1 + str(SHAPES[name]).count("EQUAL"), name
    cluster.await_rest()
    for name in results:
        cluster.assert_free(name)


@on_every_store("cluster")
@provokes(logs=["OneJobError"], because="two jobs wait for each other")
def test_jobs_that_wait_for_each_other_fail(cluster: Cluster) -> None:
    """Two jobs that replace themselves by calls that are equal to the other fail, with the circle as the error."""
    cluster.worker("-c", "4")
    names = ("left", "right")
    results = [
        cluster.play.delay(own, ["hold:both>replace_by"], {"chain": [["play", other, ["return"]], ["echo", own]]})
        for own, other in (names, names[::-1])
    ]
    for name in names:
        cluster.await_mark(name)
    cluster.open("both")
    jobs = [cluster.await_state(result, State.FAILED) for result in results]
    assert any("it waits for itself, through the jobs" in job.reason for job in jobs)
    cluster.await_rest()
    for name in names:
        cluster.assert_free(name)
