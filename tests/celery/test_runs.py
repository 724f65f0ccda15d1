"""How a job ends, whatever its body does: one table for every pool and every store."""

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import pytest
from celery import states
from celery.exceptions import Reject, SoftTimeLimitExceeded, TaskRevokedError, TimeLimitExceeded, WorkerLostError
from celery.result import AsyncResult as CeleryResult

from onejob import Outcome, PermanentError, State
from onejob.celery.messages.payload import has_canvas, loads
from onejob.errors import InvalidPayloadError, JobFailedError, StoreRefusedError
from tests.cases import further
from tests.celery.harness import DELIVERS, PATIENCE, Cluster, await_, is_running, on_every_store
from tests.celery.odd_errors import BASES, ERRORS
from tests.celery.task_classes import CLASSES as OWN_CLASSES
from tests.quiet import KILLED, provokes

ACKS = ("play", "play_acks_late")
"""Tasks whose messages are acknowledged before and after the run."""
CELERYS = {State.COMPLETED: states.SUCCESS, State.FAILED: states.FAILURE}
LOST = (WorkerLostError, JobFailedError)
REPEATING = ("play", "play_acks_late", "play_retry_on_loss")
"""Tasks that Celery itself would repeat after a crash in different ways: never, by the broker, by a retry."""


VALUES: tuple[Any, ...] = ("x", 0, False, "", [], {}, 0.0)


class Case(NamedTuple):
    """What a body does in each of its runs, and how its job ends: with a value, or an exception of a class."""

    acts: list[str]
    value: Any
    runs: int = 1
    retries: int = 0
    crashes: int = 0
    task: str = "play"
    data: Any = None
    says: str = ""

    @property
    def state(self) -> State:
        if self.value is TaskRevokedError:
            return State.CANCELED
        return State.FAILED if isinstance(self.value, type | tuple) else State.COMPLETED

    def fits(self, value: object) -> bool:
        """Return whether this is the value, or such an exception."""
        if self.state is State.COMPLETED:
            return (value, type(value)) == (self.value, type(self.value))
        return isinstance(value, self.value)


ENDS: dict[str, Case] = {
    **{f"returns {value!r}": Case(["return"], value, data=value) for value in VALUES},
    "spoils its arguments": Case(["mutate"], {"a": 1, "spoiled": True}, data={"a": 1}),
    "returns what would be another type": Case(["typed"], InvalidPayloadError, says="'__type__'"),
    "returns no JSON": Case(["unstorable"], InvalidPayloadError, says="the result"),
    "raises": Case(["raise:no luck"], ValueError, says="no luck"),
    "ends with what no store can hold": Case(["refused"], StoreRefusedError),
    "ends with no Exception": Case(["cancelled"], RuntimeError, says="CancelledError"),
    "retries": Case(["retry:0.2", "retry", "return:x"], "x", 3, 2),
    "retries without raising": Case(["retry_on", "return:second"], "second", 2, 1),
    "retries until it cannot": Case(["retry_caught"], ValueError, 2, 1, says="the cause of"),
    "is retried": Case(["raise", "return:x"], "x", 2, 1, task="play_autoretry"),
    "is retried until it cannot be": Case(["raise:always"], ValueError, 3, 2, task="play_autoretry", says="always"),
    "is retried after another error": Case(["raise", "return:x"], "x", 2, 1, task="play_retry_most"),
    "fails for good": Case(["permanent:no use"], PermanentError, task="play_retry_all", says="no use"),
    "keeps what cannot be stored": Case(
        ["unstorable_step"], InvalidPayloadError, task="play_retry_all", says="the value"
    ),
    "fails for good by its class": Case(["lookup:no use"], LookupError, task="play_retry_most", says="no use"),
    "retries what fails for good": Case(["retry_caught:lookup"], LookupError, task="play_retry_most"),
    "fails before its body": Case(["return"], ValueError, task="play_before_start", data="raise:early", says="early"),
    "retries before its body": Case(["return"], "retry", 2, 1, task="play_before_start", data="retry"),
    **{f"ignores as {name}": Case(["ignore"], TaskRevokedError, task=name, says="Ignore") for name in ACKS},
    **{
        f"rejects as {name}": Case(["reject"], (Reject, JobFailedError), task=name, says="as the test requested")
        for name in ACKS
    },
    **{f"requeues as {name}": Case(["requeue", "redelivered"], value=True, runs=2, task=name) for name in ACKS},
}
CLASSES: dict[str, Case] = {
    **{
        f"{act} as {name}": Case(acts, value, runs, runs - 1, task=name)
        for name in OWN_CLASSES
        for act, acts, value, runs in (
            ("is in its context", ["depth"], [2 if name == "play_twice" else 1, True], 1),
            ("retries", ["retry", "return:x"], "x", 2),
            ("raises", ["raise:no luck"], ValueError, 1),
        )
    },
    "is retried with a class of its own": Case(["raise", "return:x"], "x", 2, 1, task="play_own_auto"),
}
"""Bodies in a context, by classes that call this or that."""
ODD: dict[str, Case] = {
    **{f"{name} as {task}": Case([f"odd:{name}"], Exception, task=task) for name in ERRORS for task in ACKS},
    **{f"{name} at last": Case([f"odd:{name}"], Exception, 3, 2, task="play_retry_all") for name in ERRORS},
    **{f"{name} in a retry": Case([f"retry_odd:{name}", "return:x"], "x", 2, 1) for name in ERRORS},
    **{name: Case([f"odd:{name}"], RuntimeError, says="no Exception") for name in BASES},
    **{
        name: Case(["return"], name, task="play_hooked", data=name) for name in ("on_success", "reject", "after_return")
    },
}
"""Bodies that raise what a worker could take for its own end, or cannot send."""
CRASHES: dict[str, Case] = {
    **{f"unharmed {number}": Case(["return:x"], "x") for number in range(8)},
    "leaves by an interrupt": Case(["base", "return:x"], "x", 2, crashes=1),
    "leaves its process": Case(["exit", "return:x"], "x", 2, crashes=1),
    "is killed": Case(["kill", "return:x"], "x", 2, crashes=1),
    **{f"is killed twice as {name}": Case(["kill", "kill", "return:x"], "x", 3, 0, 2, name) for name in REPEATING},
    **{f"is poison as {name}": Case(["kill"], LOST, 3, 0, 3, name, says="which is the limit") for name in REPEATING},
}


def assert_ends(cluster: Cluster, cases: Mapping[str, Case]) -> None:
    """Assert that jobs that run at once end as the table says, also for Celery, and that equal jobs may follow."""
    results = {key: getattr(cluster, case.task).delay(key, case.acts, case.data) for key, case in cases.items()}
    for key, case in cases.items():
        value, job = results[key].get(PATIENCE, propagate=False), cluster.job(results[key])
        assert case.fits(value), (key, value)
        found = (job.state, cluster.runs(key), job.attempt, job.crashes, job.retries)
        assert found == (case.state, case.runs, case.runs, case.crashes, case.retries), (key, found, job)
        assert {mark["job"] for mark in cluster.marks(key)} == {job.id}, key
        assert case.says in f"{job.reason} {value}", (key, job.reason, value)
        assert "its lease expired" not in str(cluster.ledger.history(job.id)), key
        if case.state in CELERYS and case.runs == 1:  # Celery itself may store the end of an earlier run last
            theirs: Any = CeleryResult(job.id, app=cluster.app)
            assert await_(partial(in_state, theirs, CELERYS[case.state])), key
    again = {key: getattr(cluster, case.task).delay(key, ["return:again"]) for key, case in cases.items()}
    assert {result.outcome for result in again.values()} == {Outcome.ADMITTED}
    assert {result.get(PATIENCE) for result in again.values()} == {"again"}


def in_state(result: Any, state: str) -> bool:
    """Return whether Celery's result backend has a state of a job."""
    return bool(result.state == state)


@on_every_store("shared")
def test_a_job_ends_as_its_body_does(shared: Cluster) -> None:
    """Values, errors, retries and Celery's control exceptions are ends of the one job, whose identity is free then."""
    assert_ends(shared, ENDS)


@pytest.mark.parametrize("pool", ["prefork", *further("threads", "solo")])
def test_a_class_with_a_call_of_its_own_runs_its_jobs_once(cluster: Cluster, pool: str) -> None:
    """All of a class's `__call__` is in the run, whether it calls `run` or `super`, and whichever base stands first."""
    cluster.worker("--pool", pool, "-c", "4")
    assert_ends(cluster, CLASSES)
    cluster.assert_quiet()


@provokes(
    logs=["a hook of play_hooked failed", "in on_success"], because="hooks raise what Celery lets through, from 5.7 on"
)
@pytest.mark.parametrize("pool", ["prefork", *further("threads", "solo")])
@pytest.mark.parametrize("settings", [{}, *further(DELIVERS)], ids=["redis", "onejob"])
def test_no_exception_of_a_body_ends_its_worker(new_cluster: Callable[..., Cluster], settings: Any, pool: str) -> None:
    """A worker outlives what a body raises, at the first attempt, at the last one, in a retry and in a hook."""
    cluster = new_cluster(**settings)
    worker = cluster.worker("--pool", pool, "-c", "2")
    assert_ends(cluster, ODD)
    assert worker.alive


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_jobs_end_alike_in_every_pool(cluster: Cluster, pool: str) -> None:
    """In pools without processes a job ends as under prefork; what would end a process is an error of the body."""
    cluster.worker("--pool", pool, "-c", "4")
    assert_ends(
        cluster, ENDS | {f"leaves by {act}": Case([act], RuntimeError, says="raised") for act in ("base", "exit")}
    )
    cluster.assert_quiet()


@on_every_store("shared")
def test_a_crash_costs_one_run(shared: Cluster) -> None:
    """A job whose child dies runs again at once, by the ledger alone; the third crash is its last; others go on."""
    assert_ends(shared, CRASHES)


@provokes(logs=["Hard time limit", KILLED, "SoftTimeLimitExceeded()"], because="the runs are too long")
def test_a_time_limit_fails_the_job(shared: Cluster) -> None:
    """Beyond a time limit a job has failed after one run; a hard one ends the run before the identity is free."""
    soft, hard = (
        shared.play_soft_limit.delay("soft", ["hold:never"]),
        shared.play_time_limit.delay("hard", ["hold:never"]),
    )
    mark = shared.await_mark("hard")[0]
    shared.await_state(hard, State.FAILED)
    await_(lambda: not is_running(mark["pid"]))
    with pytest.raises(TimeLimitExceeded):
        hard.get(PATIENCE)
    with pytest.raises(SoftTimeLimitExceeded):
        soft.get(PATIENCE)
    for key, result in {"hard": hard, "soft": soft}.items():
        shared.assert_ran(result, State.FAILED, key, 1)


@provokes(logs=["JSONDecodeError"], because="its payload is no JSON")
def test_an_error_before_the_body_ends_the_job(cluster: Cluster) -> None:
    """A job whose run cannot start, as its payload cannot be read, has failed in the ledger as in Celery, at once."""
    result = cluster.play.delay("unread", ["return"])
    with closing(sqlite3.connect(cluster.directory / "ledger.db")) as database, database:
        database.execute("update jobs set payload = '{' where id = ?", [result.id])
    cluster.worker()
    job = cluster.await_state(result, State.FAILED)
    assert (job.attempt, cluster.runs("unread")) == (1, 0)
    with pytest.raises(Exception, match="Expecting property name"):
        CeleryResult(result.id, app=cluster.app).get(PATIENCE)


def test_a_retry_keeps_the_identity_of_the_submission(shared: Cluster) -> None:
    """A job whose retry has other arguments, or that has changed its arguments in place, is the job it was."""
    cases = {"other": (["retry_other:hold"], None), "spoils": (["mutate_and_retry", "hold>return"], {"a": 1})}
    for key, (acts, data) in cases.items():
        result = shared.play.delay(key, acts, data)
        shared.await_mark(key, times=2)
        assert shared.play.delay(key, ["return"], data).id == result.id
        shared.open(key)
        assert result.get(PATIENCE) == key if data is None else result.get(PATIENCE)["a"] == 1
        shared.assert_ran(result, State.COMPLETED, key, 2)


@on_every_store("shared")
def test_a_dead_letter_runs_again(shared: Cluster) -> None:
    """A redriven dead letter is published by the sweeper and runs under its old id, and its canvas gets the new end."""
    result = (shared.play.s("again", ["raise:once", "return:second"]) | shared.echo.s()).apply_async()
    dead = shared.await_state(result.parent, State.FAILED)
    await_(lambda: not shared.job(result.parent).canvas_pending)
    shared.ledger.redrive(dead.id, canvas=has_canvas(loads(dead.options)))
    assert shared.await_state(result.parent, State.COMPLETED).id == dead.id
    assert shared.await_state(result, State.COMPLETED).result == '"second"'
    assert shared.runs("again") == 2
