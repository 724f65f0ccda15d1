"""The result backend `onejob://`: Celery's own `AsyncResult` finds jobs in the ledger, and other tasks beside."""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import celery
import pytest
import redis
from celery import chain, chord, group, states
from celery.app.task import Context
from celery.exceptions import ChordError, TaskRevokedError, TimeoutError  # noqa: A004 - what `get` raises
from celery.result import AsyncResult, GroupResult, allow_join_result

import onejob
from onejob.celery.app_state import app_state_of
from onejob.celery.results.result_backend import LedgerBackend
from onejob.errors import ConfigurationError, JobFailedError, JobPurgedError
from onejob.jobs.lifecycle import State, Transition
from onejob.ledger.ledger import Ledger
from onejob.stores.protocol import Store
from onejob.testing import isolated
from tests.celery.harness import DELIVERS, LEASE, PATIENCE, Cluster, on_every_store
from tests.celery.test_waiting import ENDS, complete, never_look
from tests.quiet import KILLED, provokes
from tests.services import RedisServer, eventually
from tests.stores.support import StoreAddress

URL = "onejob://"
LOOK = """
import json, sys
from celery import Celery
from celery.result import AsyncResult

ids, conf = json.loads(sys.argv[1])
app = Celery(**conf.pop("app"))
app.conf.update(conf)
found = {}
for name, task_id in ids.items():
    result = AsyncResult(task_id, app=app)
    found[name] = [result.state, repr(result.result), result.ready(), result.successful(), result.failed()]
print(json.dumps(found))
"""
"""A program that imports Celery alone, has no task, and looks at results."""


@dataclass
class Invoice:
    """What a task returns."""

    number: int


# --- without workers --------------------------------------------------------------------------------------------------


@pytest.fixture
def app(store_address: StoreAddress) -> Iterator[Any]:
    """Return an app with onejob tasks and the result backend."""
    app: Any = celery.Celery("shop", broker="memory://", backend=URL, set_as_current=False)
    app.conf.update(onejob_store=store_address.url, onejob_namespace=store_address.namespace)

    @onejob.task(app, name="invoice", shared=False)
    def invoice(order_id: int) -> int:
        return order_id

    app.finalize()
    yield app
    app_state_of(app).close()


@pytest.fixture
def worker(store_factory: Callable[[], Store]) -> Ledger:
    """Return the ledger as another process has it."""
    return Ledger(store_factory())


def test_an_end_wakes_celerys_own_result(app: Any, worker: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """`get` of a result that was built from an id gets the end of the job by a signal, however that ends."""
    never_look(monkeypatch)
    kinds = {"SUCCESS": str, "FAILURE": JobFailedError, "REVOKED": TaskRevokedError}
    store, reads = app_state_of(app).ledger.store, list[object]()
    read = store.get_awaited

    def noted(ids: Any) -> Any:
        reads.append(ids)
        return read(ids)

    monkeypatch.setattr(store, "get_awaited", noted)
    for number, (state, end) in enumerate(ENDS.items()):
        result: Any = AsyncResult(app.tasks["invoice"].delay(number).id, app=app)
        reads.clear()
        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(result.get, PATIENCE, propagate=False)
            eventually(lambda: reads)
            end(worker, result.id)
            value = call.result(PATIENCE)
        assert (result.state, type(value)) == (state, kinds[state])


def test_a_wait_has_a_limit(app: Any) -> None:
    """`get` raises Celery's `TimeoutError` for a job that has not ended, and for an unknown id; 0 only looks."""
    live = app.tasks["invoice"].delay(1)
    for task_id in (live.id, "unknown"):
        result: Any = AsyncResult(task_id, app=app)
        for timeout in (0, 0.1):
            with pytest.raises(TimeoutError, match=rf"{task_id} is PENDING after {timeout}"):
                result.get(timeout=timeout)
        assert result.state == states.PENDING
        assert result.result is None
        assert not result.ready()


def test_a_purged_job_is_pending_and_not_awaited(app: Any, worker: Ledger) -> None:
    """A job that was purged is pending, as an expired result is in Celery; `get` raises `JobPurgedError` at once."""
    job_id = app.tasks["invoice"].delay(1).id
    complete(worker, job_id)
    worker.purge([job_id])
    result: Any = AsyncResult(job_id, app=app)
    assert result.state == states.PENDING
    assert not result.ready()
    with pytest.raises(JobPurgedError):
        result.get()


def test_callbacks_of_then(app: Any, worker: Ledger) -> None:
    """`then` calls a function for a job that has ended, and for one that is awaited."""
    ended, live = (app.tasks["invoice"].delay(number).id for number in range(2))
    complete(worker, ended)
    called: list[str] = []
    results: list[Any] = [AsyncResult(job_id, app=app) for job_id in (ended, live)]
    for result in results:
        result.then(lambda each: called.append(each.id))
        assert called == [ended]
    complete(worker, live)
    assert (results[1].get(PATIENCE), called) == ("done", [ended, live])


def test_other_tasks_and_groups_are_kept(app: Any) -> None:
    """What a plain task stores is found by its id, until it is forgotten; a group is saved, restored and deleted."""
    backend = app.backend
    backend.store_result("plain", {"a": 1}, states.SUCCESS)
    backend.store_result("failed", KeyError("b"), states.FAILURE, traceback="Traceback")
    found: dict[str, Any] = {name: AsyncResult(name, app=app) for name in ("plain", "failed")}
    assert found["plain"].get() == {"a": 1}
    assert found["plain"].date_done is not None
    with pytest.raises(KeyError, match="b"):
        found["failed"].get()
    assert (found["failed"].state, found["failed"].traceback) == (states.FAILURE, "Traceback")
    job = app.tasks["invoice"].delay(1)
    saved = GroupResult("group", [app.AsyncResult("plain"), job], app=app)
    saved.save()
    backend._cache.clear()
    restored: Any = GroupResult.restore("group", app=app)
    assert [each.id for each in restored] == ["plain", job.id]
    assert not restored.ready()
    assert restored.completed_count() == 1
    assert dict(backend.get_many({"plain", job.id}, max_iterations=1)).keys() == {"plain"}
    saved.delete()
    found["plain"].forget()
    backend._cache.clear()
    assert GroupResult.restore("group", app=app) is None
    assert AsyncResult("plain", app=app).state == states.PENDING


def test_a_group_is_joined_natively_and_one_by_one(app: Any, worker: Ledger) -> None:
    """The results of a group come in order, those of jobs and of other tasks, whichever way they are joined."""
    job = app.tasks["invoice"].delay(1)
    members = [
        app.AsyncResult("plain"),
        app.AsyncResult(job.id),
        GroupResult("in", [app.AsyncResult("inner")], app=app),
    ]
    found: Any = GroupResult("group", members, app=app)
    for join in (found.join, GroupResult("flat", members[:2], app=app).join_native):
        with pytest.raises(TimeoutError):
            join(timeout=0.1)
    with ThreadPoolExecutor(1) as threads:
        waits = [threads.submit(join, PATIENCE) for join in (found.join, found.join_native)]
        app.backend.store_result("plain", "a", states.SUCCESS)
        app.backend.store_result("inner", "c", states.SUCCESS)
        complete(worker, job.id)
        assert [wait.result(PATIENCE) for wait in waits] == [["a", "done", ["c"]]] * 2


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml"])
def test_every_serializer(app: Any, serializer: str) -> None:
    """Results of plain tasks are stored as `result_serializer` writes them, text or bytes; they expire."""
    app.conf.update(result_serializer=serializer, result_accept_content=[serializer], result_expires=None)
    backend = LedgerBackend(app)
    backend.store_result("plain", [1, "ž\0😀"], states.SUCCESS)
    assert backend.get_task_meta("plain", cache=False)["result"] == [1, "ž\0😀"]


def test_results_expire(app: Any, store: Store, clock: Any) -> None:
    """A stored result is gone after `result_expires`, by the store's clock."""
    store.put_result("a", "1", keep_for=10.0)
    clock.advance(9.0)
    assert store.results(["a", "b"]) == {"a": "1"}
    clock.advance(2.0)
    assert store.results(["a"]) == {}


def test_backends_without_readable_results_are_refused() -> None:
    """A backend whose results no other process can read is refused after `onejob+`, with what to use instead."""
    for url in ("onejob+rpc://", "onejob+disabled://", "onejob+onejob+rpc://"):
        with pytest.raises(ConfigurationError, match="onejob:// alone"):
            _ = celery.Celery("refused", broker="memory://", backend=url, set_as_current=False).backend


def test_the_other_backend_may_be_the_store() -> None:
    """Without `onejob_store` the ledger is in the Redis that `onejob+` names, as it is in a result backend alone."""
    app = celery.Celery("default", broker="memory://", backend="onejob+redis://localhost/7", set_as_current=False)
    assert app_state_of(app).settings.store == "redis://localhost/7"
    assert app.backend.as_uri() == "onejob+redis://localhost/7"
    app = celery.Celery("secret", backend="onejob+redis://:secret@localhost/7", set_as_current=False)
    assert "secret" not in app.backend.as_uri()


def test_results_pickle(app: Any) -> None:
    """A result that was pickled reads the same backend of the current app."""
    app.set_current()
    for backend in (app.backend, celery.Celery("other", backend="onejob+redis://localhost/7").backend):
        app.set_current()
        again: Any = pickle.loads(pickle.dumps(AsyncResult("id", backend=backend, app=app)))  # noqa: S301 - ours
        assert (again.id, type(again.backend)) == ("id", type(backend))


def test_a_result_that_does_not_fit_its_task_any_more(app: Any, worker: Ledger) -> None:
    """A typed result that the code can no longer build raises `InvalidPayloadError`; without the task it is JSON."""

    @onejob.task(app, name="typed", shared=False)
    def typed() -> Invoice:
        return Invoice(1)

    job_id = app.tasks["typed"].delay().id
    complete(worker, job_id)
    with pytest.raises(onejob.errors.InvalidPayloadError):
        AsyncResult(job_id, app=app).get(0)
    reader = celery.Celery("reader", backend=URL, set_as_current=False, changes={
        name: app.conf[name] for name in ("onejob_store", "onejob_namespace")
    })  # fmt: skip
    assert AsyncResult(job_id, app=reader).get(0) == "done"
    app_state_of(reader).close()


def test_an_isolated_app_keeps_its_kind_of_backend(app: Any, store: Store) -> None:
    """In a test that isolates the app, Celery's own result finds the jobs of the test, and nothing is left outside."""
    before = app.backend
    with isolated(app) as jobs:
        job_id = app.tasks["invoice"].delay(7).id
        jobs.run_all()
        app.backend.store_result("plain", 1, states.SUCCESS)
        assert AsyncResult(job_id, app=app).get(0) == 7
    assert (app.backend, store.results(["celery-task-meta-plain"]), store.get_many([job_id])) == (before, {}, {})


# --- with workers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(request: pytest.FixtureRequest, new_cluster: Callable[..., Cluster]) -> Cluster:
    """Return a cluster with the result backend, and a worker."""
    cluster = new_cluster(getattr(request, "param", "sqlite"), result_backend=URL)
    cluster.worker("-c", "4")
    return cluster


def found(cluster: Cluster, task_id: Any) -> Any:
    """Return what an app without a task finds."""
    reader = celery.Celery("reader", set_as_current=False, changes={
        name: cluster.config.get(name) for name in ("onejob_store", "onejob_namespace", "result_backend", "broker_url")
        if cluster.config.get(name)
    })  # fmt: skip
    cluster.at_close.callback(app_state_of(reader).close)
    return AsyncResult(getattr(task_id, "id", task_id), app=reader)


@provokes(because="jobs fail, retry and are canceled")
@on_every_store("cluster")
def test_another_process_without_tasks_finds_every_state(cluster: Cluster) -> None:
    """A process that imports Celery alone finds the states of jobs, of a follower and of one that was replaced."""
    play = cluster.play
    held = cluster.begin("running", ["hold"])
    custom = cluster.begin("custom", ["update_state"])
    results = {
        "PENDING": play.apply_async(("queued", ["return"]), countdown=3600),
        "STARTED": held,
        "RETRY": play.delay("retrying", ["retry_for:gone"]),
        "SUCCESS": play.delay("completed", ["return:value"]),
        "FAILURE": play.delay("failed", ["lookup:where"]),
        "REVOKED": play.apply_async(("canceled", ["return"]), countdown=3600),
        "replaced": play.delay("replaced", ["replace:plain"], ["by plain"]),
    }
    results["REVOKED"].revoke()
    cluster.await_state(results["RETRY"], State.RETRYING)
    for name in ("SUCCESS", "FAILURE", "replaced"):
        results[name].get(PATIENCE, propagate=False)
    members: Any = group([play.s("running", ["hold"])]).delay()
    (follower,) = members.results
    ids = {name: each.id for name, each in results.items()} | {"unknown": "no-such-id", "follower": follower.id}
    conf = {name: cluster.config[name] for name in ("onejob_store", "onejob_namespace") if name in cluster.config}
    given = json.dumps([ids, conf | {"app": {"main": "status", "backend": URL}}])
    done = subprocess.run([sys.executable, "-c", LOOK, given], capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    assert {name: seen[name][0] for name in states.ALL_STATES & seen.keys()} == {
        name: name for name in results if name != "replaced"
    }
    assert seen["SUCCESS"][1:] == ["'value'", True, True, False]
    assert seen["FAILURE"][1:] == ["LookupError('where')", True, False, True]
    assert "TaskRevokedError" in seen["REVOKED"][1]
    assert seen["replaced"][:2] == ["SUCCESS", "['by plain']"]
    assert {seen[name][0] for name in ("unknown", "follower")} == {"PENDING"}
    cluster.open("running")
    cluster.open("custom")
    assert found(cluster, follower).get(PATIENCE) == "running"
    results["RETRY"].revoke()
    results["PENDING"].revoke()
    custom.get(PATIENCE)


@provokes(because="a job fails")
def test_a_run_writes_its_end_once(cluster: Cluster) -> None:
    """The ends of jobs are not stored a second time; what `result_extended` adds is there all the same."""
    cluster.app.conf.result_extended = True
    results = [
        cluster.play.delay("good", ["return"]),
        cluster.play.delay("bad", ["raise"]),
        cluster.play_no_result.delay("s", ["return"]),
    ]
    for each in results:
        each.get(PATIENCE, propagate=False)
    cluster.await_rest()
    names = [cluster.app.backend.get_key_for_task(each.id).decode() for each in results]
    assert cluster.ledger.store.results(names) == {}
    seen: Any = AsyncResult(results[0].id, app=cluster.app)
    assert (seen.name, seen.args, seen.kwargs, seen.queue) == ("play", ["good", ["return"]], {}, "celery")
    assert seen.retries == 0
    assert "w1" in seen.worker
    assert seen.date_done is not None
    cluster.app.conf.result_extended = False
    assert AsyncResult(results[0].id, app=cluster.app).args is None
    bad: Any = found(cluster, results[1])
    assert bad.failed()
    assert "act_raise" in bad.traceback
    with pytest.raises(ValueError, match="bad"):
        bad.get()
    assert isinstance(bad.get(propagate=False), ValueError)


def test_children_are_found(cluster: Cluster) -> None:
    """What a run has submitted are the children of its result; `collect` walks them."""
    parent = cluster.play.delay("parent", ["submit:echo"], ["child"])
    child_id = parent.get(PATIENCE)
    cluster.await_rest()
    seen: Any = found(cluster, parent)
    assert [child.id for child in seen.children] == [child_id]
    with allow_join_result():
        assert [value for _, value in seen.collect()] == [child_id, "child"]


@on_every_store("cluster")
def test_chords_of_jobs_and_other_tasks(cluster: Cluster) -> None:
    """A chord with members and a body of both kinds calls its body once, with the results in Celery's order."""
    nested = group([cluster.play.si("x", ["return"]), cluster.plain.si("y")])
    header = [
        cluster.play.s("b", ["return"]), cluster.plain.s("c"), nested,
        cluster.plain.si("ignored").set(ignore_result=True),
        chain(cluster.play.si("d", ["return"]), cluster.note.s("end")),
    ]  # fmt: skip
    expected = ["b", ["c"], ["y"], "x", ["ignored"], ["end", "d"]]  # in Celery's order, whatever the backend is
    for body in (cluster.gather.s("gathered"), cluster.note.s("noted")):
        result: Any = chord(header)(body)
        value = found(cluster, result).get(PATIENCE)
        assert (value if body.task == "gather" else value[1]) == expected
    cluster.await_rest()
    assert len(cluster.marks("gathered", "gather")) == cluster.runs("noted") == 1


@provokes(Transition.NOTIFY_CANVAS, logs=["ChordError("], because="members fail, or end without a worker")
def test_a_chord_whose_member_does_not_succeed(cluster: Cluster) -> None:
    """A member that fails, expires, is canceled or terminated, or a chain that breaks, ends a chord: no body runs.

    The result of the body is a `ChordError` in every process.
    """
    calm = cluster.play.s("calm", ["return"])
    members = {
        "fails": cluster.play.s("fails", ["raise"]),
        "plain": cluster.app.signature("fails_plainly"),
        "breaks": chain(
            cluster.play.si("breaks", ["raise"]), cluster.play.si("never 1", ["return"]), cluster.plain.si("never 2")
        ),
        "expires": cluster.play.s("expires", ["return"]).set(countdown=3600, expires=0.3),
        "revoked": cluster.play.s("revoked", ["return"]).set(countdown=3600),
        "terminated": cluster.play.s("terminated", ["hold:never"]),
    }
    result: Any = None
    for name, member in members.items():
        result = chord([member, calm.clone()], cluster.gather.s(f"{name} body"))()
        if name == "revoked":
            result.parent.results[0].revoke()
        if name == "terminated":
            cluster.await_mark(name)
            cluster.app.control.terminate(result.parent.results[0].id)
        with pytest.raises(ChordError):
            found(cluster, result).get(timeout=PATIENCE)
        assert cluster.marks(f"{name} body", "gather") == []
    assert found(cluster, result.parent.results[1].id).get(PATIENCE) == "calm"
    cluster.await_rest()


@provokes(because="the head of a chain fails")
def test_the_rest_of_a_broken_chain_fails(cluster: Cluster) -> None:
    """A job that is never submitted, since one before it in its chain failed, fails as Celery stores it."""
    broken = chain(cluster.play.si("head", ["lookup:lost"]), cluster.play.s(["return"]), cluster.plain.s()).delay()
    for result in (broken, broken.parent):
        with pytest.raises(LookupError, match="lost"):
            found(cluster, result).get(PATIENCE)
        assert found(cluster, result).state == states.FAILURE


@provokes(
    Transition.CRASH, Transition.NOTIFY_CANVAS, logs=[KILLED], because="a child dies between an end and its canvas"
)
def test_a_chord_survives_a_killed_worker(new_cluster: Callable[..., Cluster]) -> None:
    """A worker that dies after the end of a chord's last member, before the body is called, loses nothing."""
    cluster = new_cluster(result_backend=URL)
    cluster.use_lease(LEASE)
    cluster.worker("-c", "2", hook="die-before-dispatch")
    for body in (cluster.gather.s("gathered"), cluster.note.s("noted")):
        result: Any = chord([cluster.play.s("last", ["return"])] * 2, body)()
        assert "last" in str(result.get(timeout=PATIENCE))
    cluster.await_rest()
    assert (len(cluster.marks("gathered", "gather")), cluster.runs("noted")) == (1, 1)


def test_a_member_that_is_reported_twice_calls_no_body(cluster: Cluster) -> None:
    """The end of one member, however often it is reported, is no end of another; nor does a later report call again."""
    result: Any = chord(
        [cluster.play.s("first", ["return"]), cluster.play.s("second", ["hold"])], cluster.gather.s("once")
    )()
    first = result.parent.results[0]
    cluster.await_state(first, State.COMPLETED)
    request = Context(
        {"id": first.id, "group": result.parent.id, "chord": cluster.gather.s("once").set(task_id=result.id)}
    )
    for _ in range(3):
        cluster.app.backend.on_chord_part_return(request, states.SUCCESS, "first")
    assert cluster.marks("once", "gather") == []
    cluster.open("second")
    assert result.get(timeout=PATIENCE) == ["first", "second"]
    cluster.await_rest()
    cluster.app.backend.on_chord_part_return(Context(vars(request), id="another"), states.SUCCESS, "first")
    assert cluster.queued_messages() == 0
    assert len(cluster.marks("once", "gather")) == 1


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_alone_with_the_ledger(new_cluster: Callable[..., Cluster], pool: str) -> None:
    """With the ledger as the broker and the result backend, chords, groups and plain tasks need no server."""
    cluster = new_cluster(result_backend=URL, **DELIVERS)
    cluster.worker("-P", pool, "-c", "2")
    assert cluster.plain.delay("a").get(timeout=PATIENCE) == ["a"]
    mixed = [cluster.play.s("b", ["return"]), cluster.plain.s("c")]
    assert group(mixed).delay().get(timeout=PATIENCE) == ["b", ["c"]]
    assert chord(mixed, cluster.note.s("end"))().get(timeout=PATIENCE) == ["end", ["b", ["c"]]]


@provokes(because="jobs fail")
def test_another_backend_for_other_tasks(new_cluster: Callable[..., Cluster], broker: RedisServer) -> None:
    """With `onejob+redis://` Redis has the results of plain tasks, and nothing of jobs, which are in the ledger."""
    other = broker.database()
    cluster = new_cluster(result_backend=f"onejob+{other}")
    cluster.worker("-c", "2")
    job, plain = cluster.play.delay("job", ["return"]), cluster.plain.delay("plain")
    failed = cluster.play.delay("bad", ["raise"])
    assert found(cluster, job).get(PATIENCE) == "job"
    assert found(cluster, plain).get(PATIENCE) == ["plain"]
    with pytest.raises(ValueError, match="bad"):
        found(cluster, failed).get(PATIENCE)
    mixed = [cluster.play.s("b", ["return"]), cluster.plain.s("c")]
    assert group(mixed).delay().get(timeout=PATIENCE) == ["b", ["c"]]
    assert chord(mixed, cluster.note.s("end"))().get(timeout=PATIENCE) == ["end", ["b", ["c"]]]
    tail = chain(cluster.play.si("slow", ["hold"]), cluster.note.s("tail")).delay()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(found(cluster, tail).get, PATIENCE)
        cluster.await_mark("slow")
        cluster.open("slow")
        assert waiting.result(PATIENCE) == ["tail", "slow"]
    cluster.await_rest()
    with redis.Redis.from_url(other) as client:
        stored = {bytes(key).decode()[-36:] for key in client.scan_iter(match="celery-task-meta-*")}
    assert plain.id in stored
    assert not stored & {job.id, failed.id, tail.id}
