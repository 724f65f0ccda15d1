"""What a caller sees of a job: its result, its states, its progress and its steps."""

import pickle
from typing import Any

import pytest
from celery import chord, group, states
from celery.exceptions import TaskRevokedError, TimeoutError  # noqa: A004 - what `get` raises

from onejob import State
from onejob.celery.app_state import app_state_of
from onejob.errors import JobFailedError, JobNotFoundError, JobPurgedError
from onejob.jobs.lifecycle import Transition
from onejob.jobs.query import Query
from tests.celery.harness import PATIENCE, Cluster, await_, on_every_store
from tests.quiet import provokes


def test_states_are_celerys(shared: Cluster) -> None:
    """In each state a job shows the corresponding Celery state, and `ready` agrees with it; a wait is limited."""
    looks: list[int] = []
    values: dict[str, Any] = {}
    result = shared.play.apply_async(("life", ["hold:first>retry", "hold:second"]), countdown=3600)
    assert result.state == states.PENDING
    assert not result.ready()
    assert result.info is None
    shared.ledger.run_now(result.id)
    shared.await_mark("life")
    assert result.state == states.STARTED
    assert not result.ready()
    with pytest.raises(TimeoutError, match=r"running|STARTED"):
        result.get(timeout=0.1, on_interval=lambda: looks.append(1))
    with pytest.raises(TimeoutError):
        result.get(timeout=0)
    shared.open("first")
    shared.await_mark("life", times=2)
    shared.open("second")
    assert result.get(PATIENCE, callback=values.__setitem__) == "life"
    assert looks
    assert values == {result.id: "life"}
    assert result.state == states.SUCCESS
    assert result.status == states.SUCCESS
    assert result.ready()
    assert result.info == "life"
    assert result.date_done is not None
    waiting = shared.play.delay("life", ["retry_for:gone"])
    shared.await_state(waiting, State.RETRYING)
    assert waiting.state == states.RETRY
    assert not waiting.ready()
    assert type(waiting.info) is LookupError
    assert waiting.info.args == ("gone",)
    assert "gone" in waiting.traceback
    waiting.revoke()
    assert waiting.state == states.REVOKED
    assert waiting.ready()
    assert not waiting.successful()
    assert isinstance(waiting.info, TaskRevokedError)


@provokes(logs=["StrangeError", "Never call result.get() within a task!"], because="a class of its own, and a wait")
def test_a_failure_is_raised_as_itself(shared: Cluster) -> None:
    """A failure is raised as its class with its arguments, or as `JobFailedError` if this process has no such class."""
    result = shared.play.delay("lookup", ["lookup:where?"])
    with pytest.raises(LookupError) as raised:
        result.get(PATIENCE)
    assert raised.value.args == ("where?",)
    assert isinstance(result.get(propagate=False), LookupError)
    assert result.failed()
    assert result.state == states.FAILURE
    assert result.job.error.type == "LookupError"
    assert "act_raise" in str(result.traceback)
    strange = shared.strange.delay("strange")
    with pytest.raises(JobFailedError, match=r"StrangeError: how strange") as unknown:
        strange.get(PATIENCE)
    assert (unknown.value.job_id, unknown.value.message) == (strange.id, "how strange")
    with pytest.raises(RuntimeError, match=r"Never call result\.get"):  # as in Celery, before it blocks for ever
        shared.waits.delay("blocked", "unknown").get(PATIENCE)


def test_a_purged_job_is_not_awaited(shared: Cluster) -> None:
    """The result of a purged job has its final state, and `get` raises `JobPurgedError` with state and times."""
    names = {states.SUCCESS: "completed", states.FAILURE: "failed"}
    results = {states.SUCCESS: shared.echo.delay("kept"), states.FAILURE: shared.play.delay("purged", ["raise"])}
    for result in results.values():
        result.get(PATIENCE, propagate=False)
    shared.await_rest()
    ids = {result.id for result in results.values()}
    assert set(shared.ledger.purge([*ids])) == ids
    for state, result in results.items():
        await_(lambda: shared.app.backend.get_state(result.id) == state)  # noqa: B023 - a worker writes it last
        shared.app.backend.forget(result.id)
        later = shared.play.AsyncResult(result.id)
        assert later.ready()
        assert later.state == state
        with pytest.raises(JobPurgedError, match=f"{names[state]} at ") as caught:
            later.get()
        assert caught.value.purged_at > caught.value.finished_at


def test_an_unknown_id_is_pending(cluster: Cluster) -> None:
    """A result of an id that no job has is pending, as in Celery; its job raises, and the wait for it is limited."""
    unknown = cluster.play.AsyncResult("unknown")
    assert unknown.state == states.PENDING
    assert not unknown.exists()
    assert not unknown.ready()
    with pytest.raises(JobNotFoundError):
        _ = unknown.job
    with pytest.raises(TimeoutError, match=r"not ended after 0\.1 s: it was PENDING"):
        unknown.get(0.1)


def test_the_ledger_and_the_result_backend_have_their_own(shared: Cluster) -> None:
    """An id without a job is read in the backend; what is ignored or forgotten there is in the ledger all the same."""
    sent = shared.app.send_task("plain", ("elsewhere",))
    assert sent.get(timeout=PATIENCE) == ["elsewhere"]
    assert shared.play.AsyncResult(sent.id).get(PATIENCE) == ["elsewhere"]
    silent = shared.play_no_result.delay("silent", ["return"])
    assert silent.get(PATIENCE) == "silent"
    assert shared.app.backend.get_task_meta(silent.id)["status"] == states.PENDING
    result = shared.play.delay("forget", ["return"])
    assert result.get(PATIENCE) == "forget"
    result.forget()
    found = shared.play.AsyncResult(result.id)
    assert found.get(PATIENCE) == "forget"
    assert found.outcome is None
    assert found.exists()


def test_a_body_may_return_the_result_of_a_job(shared: Cluster) -> None:
    """The jobs that a run has submitted are the children of its result, and a body may return the result of one."""
    result = shared.play.delay("parent", ["return_result:echo"], ["child"])
    ((child_id, parent), members) = result.get(PATIENCE)
    (child,) = await_(lambda: result.children)
    assert (child.id, child.get(timeout=PATIENCE), parent, members) == (child_id, "child", None, None)


def test_results_need_no_result_backend(cluster: Cluster) -> None:
    """Without a result backend `app.AsyncResult` reads the ledger, and is Celery's own with one; a chord needs one."""
    app = cluster.another_app(result_backend=None)
    play = app.tasks["play"]
    header, body = [play.si(f"member-{number}", ["return"]) for number in range(2)], play.si("body", ["return"])
    for canvas in (chord(header, body), group(header) | body):
        with pytest.raises(NotImplementedError, match="requires a result backend to be configured"):
            canvas.apply_async()
    assert app_state_of(app).ledger.find(Query()) == []
    result = play.apply_async(("ledger", ["return"]), countdown=3600)
    found: Any = app.AsyncResult(result.id)
    assert (found.state, found.job.id, app.AsyncResult("unknown").state) == ("PENDING", result.id, "PENDING")
    result.revoke()
    assert (found.state, type(pickle.loads(pickle.dumps(found)))) == ("REVOKED", type(found))  # noqa: S301 - our own
    assert not isinstance(cluster.app.AsyncResult("any"), type(cluster.play.AsyncResult("any")))


# --- steps and progress -----------------------------------------------------------------------------------------------


STEPS = ("one", "two", "three")


@on_every_store("shared")
def test_steps_outlive_a_run(shared: Cluster) -> None:
    """A step of a name is computed once per job, whether its run goes on, is killed or is retried; not per identity."""
    for end in ("kill", "retry"):
        values = (result := shared.run_steps.delay(end, [*STEPS, "one"], {"three": end})).get(PATIENCE)
        assert [len(shared.marks(end, f"step {name}")) for name in STEPS] == [1, 1, 1]
        taken = [shared.marks(end, f"step {name}")[0]["pid"] for name in (*STEPS, "one")]
        assert values == [f"{name} by {pid}" for name, pid in zip((*STEPS, "one"), taken, strict=True)]
        assert (shared.runs(end), shared.job(result).attempt) == (2, 2)
        shared.run_steps.delay(end, ["one"]).get(PATIENCE)
        assert len(shared.marks(end, "step one")) == 2


@provokes(Transition.RETRY, because="a step fails once")
def test_a_step_that_fails_is_not_kept(shared: Cluster) -> None:
    """A step whose function raises is computed again in the next attempt."""
    assert shared.fail_first.delay("fails").get(PATIENCE) == "second try"
    assert len(shared.marks("fails", "try")) == 2


@pytest.mark.parametrize("backend", [False, True], ids=["no backend", "backend"])
def test_progress_is_seen_while_the_job_runs(cluster: Cluster, *, backend: bool) -> None:
    """Progress, and a state of one's own, are visible at once, and no part of the result; a standard state is none."""
    if not backend:
        cluster.config["result_backend"] = None
        cluster.app.conf.update(result_backend=None)
    cluster.worker("-c", "3")
    half, own, standard = (
        cluster.play.delay(act, [act], {"at": 1}) for act in ("progress", "update_state", "update_standard")
    )
    cluster.await_mark("progress", "half")
    seen = cluster.play.AsyncResult(half.id)
    assert (seen.state, seen.info) == ("STARTED", {"done": 1, "total": 2, "stage": "half"})
    cluster.await_mark("update_state", "updated")
    assert own.state == "INDEXING"
    assert own.info == {"at": 1}
    assert not own.ready()
    assert own.job.progress == {"state": "INDEXING", "meta": {"at": 1}}
    if backend:
        assert (cluster.app.AsyncResult(own.id).state, cluster.app.AsyncResult(own.id).info) == ("INDEXING", {"at": 1})
    cluster.await_mark("update_standard", "updated")
    assert (standard.state, standard.job.progress) == ("STARTED", None)
    for result, key in ((half, "progress"), (own, "update_state"), (standard, "update_standard")):
        cluster.open(key)
        assert (result.get(PATIENCE), result.state, result.info, result.job.result) == (key, "SUCCESS", key, key)
    cluster.assert_quiet()
