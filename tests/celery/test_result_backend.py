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
from onejob.celery.result_backend import LedgerBackend
from onejob.errors import ConfigurationError, JobFailedError, JobPurgedError
from onejob.jobs.lifecycle import State, Transition
from onejob.ledger.ledger import Ledger
from onejob.stores.protocol import Store
from onejob.testing import isolated
from tests.celery.harness import DELIVERS, LEASE, PATIENCE, House, on_every_store
from tests.celery.test_waiting import ENDS, complete, never_look
from tests.contract.support import StoreAddress
from tests.quiet import KILLED, provokes
from tests.services import RedisServer, eventually

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
        assert (result.state, result.result, result.ready()) == (states.PENDING, None, False)


def test_a_purged_job_is_pending_and_not_awaited(app: Any, worker: Ledger) -> None:
    """A job that was purged is pending, as an expired result is in Celery; `get` raises `JobPurgedError` at once."""
    job_id = app.tasks["invoice"].delay(1).id
    complete(worker, job_id)
    worker.purge([job_id])
    result: Any = AsyncResult(job_id, app=app)
    assert (result.state, result.ready()) == (states.PENDING, False)
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
    assert (found["plain"].get(), found["plain"].date_done is not None) == ({"a": 1}, True)
    with pytest.raises(KeyError, match="b"):
        found["failed"].get()
    assert (found["failed"].state, found["failed"].traceback) == (states.FAILURE, "Traceback")
    job = app.tasks["invoice"].delay(1)
    saved = GroupResult("group", [app.AsyncResult("plain"), job], app=app)
    saved.save()
    backend._cache.clear()
    restored: Any = GroupResult.restore("group", app=app)
    assert [each.id for each in restored] == ["plain", job.id]
    assert (restored.ready(), restored.completed_count()) == (False, 1)
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
    with pytest.raises(onejob.InvalidPayloadError):
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
def house(request: pytest.FixtureRequest, new_house: Callable[..., House]) -> House:
    """Return a house with the result backend, and a worker."""
    house = new_house(getattr(request, "param", "sqlite"), result_backend=URL)
    house.worker("-c", "4")
    return house


def found(house: House, task_id: Any) -> Any:
    """Return what an app without a task finds."""
    reader = celery.Celery("reader", set_as_current=False, changes={
        name: house.config.get(name) for name in ("onejob_store", "onejob_namespace", "result_backend", "broker_url")
        if house.config.get(name)
    })  # fmt: skip
    house.at_close.callback(app_state_of(reader).close)
    return AsyncResult(getattr(task_id, "id", task_id), app=reader)


@provokes(because="jobs fail, retry and are canceled")
@on_every_store("house")
def test_another_process_without_tasks_finds_every_state(house: House) -> None:
    """A process that imports Celery alone finds the states of jobs, of a follower and of one that was replaced."""
    play = house.play
    held = house.begin("running", ["hold"])
    custom = house.begin("custom", ["update_state"])
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
    house.await_state(results["RETRY"], State.RETRYING)
    for name in ("SUCCESS", "FAILURE", "replaced"):
        results[name].get(PATIENCE, propagate=False)
    members: Any = group([play.s("running", ["hold"])]).delay()
    (follower,) = members.results
    ids = {name: each.id for name, each in results.items()} | {"unknown": "no-such-id", "follower": follower.id}
    conf = {name: house.config[name] for name in ("onejob_store", "onejob_namespace") if name in house.config}
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
    house.open("running")
    house.open("custom")
    assert found(house, follower).get(PATIENCE) == "running"
    results["RETRY"].revoke()
    results["PENDING"].revoke()
    custom.get(PATIENCE)


@provokes(because="a job fails")
def test_a_run_writes_its_end_once(house: House) -> None:
    """The ends of jobs are not stored a second time; what `result_extended` adds is there all the same."""
    house.app.conf.result_extended = True
    results = [
        house.play.delay("good", ["return"]),
        house.play.delay("bad", ["raise"]),
        house.play_silent.delay("s", ["return"]),
    ]
    for each in results:
        each.get(PATIENCE, propagate=False)
    house.await_rest()
    names = [house.app.backend.get_key_for_task(each.id).decode() for each in results]
    assert house.ledger.store.results(names) == {}
    seen: Any = AsyncResult(results[0].id, app=house.app)
    assert (seen.name, seen.args, seen.kwargs, seen.queue) == ("play", ["good", ["return"]], {}, "celery")
    assert (seen.retries, "w1" in seen.worker, seen.date_done is not None) == (0, True, True)
    house.app.conf.result_extended = False
    assert AsyncResult(results[0].id, app=house.app).args is None
    bad: Any = found(house, results[1])
    assert (bad.failed(), "act_raise" in bad.traceback) == (True, True)
    with pytest.raises(ValueError, match="bad"):
        bad.get()
    assert isinstance(bad.get(propagate=False), ValueError)


def test_children_are_found(house: House) -> None:
    """What a run has submitted are the children of its result; `collect` walks them."""
    parent = house.play.delay("parent", ["submit:echo"], ["child"])
    child_id = parent.get(PATIENCE)
    house.await_rest()
    seen: Any = found(house, parent)
    assert [child.id for child in seen.children] == [child_id]
    with allow_join_result():
        assert [value for _, value in seen.collect()] == [child_id, "child"]


@on_every_store("house")
def test_chords_of_jobs_and_other_tasks(house: House) -> None:
    """A chord with members and a body of both kinds calls its body once, with the results in Celery's order."""
    nested = group([house.play.si("x", ["return"]), house.plain.si("y")])
    header = [
        house.play.s("b", ["return"]), house.plain.s("c"), nested, house.plain.si("ignored").set(ignore_result=True),
        chain(house.play.si("d", ["return"]), house.note.s("end")),
    ]  # fmt: skip
    expected = ["b", ["c"], ["y"], "x", ["ignored"], ["end", "d"]]  # in Celery's order, whatever the backend is
    for body in (house.gather.s("gathered"), house.note.s("noted")):
        result: Any = chord(header)(body)
        value = found(house, result).get(PATIENCE)
        assert (value if body.task == "gather" else value[1]) == expected
    house.await_rest()
    assert len(house.marks("gathered", "gather")) == house.runs("noted") == 1


@provokes(Transition.NOTIFY_CANVAS, logs=["ChordError("], because="members fail, or end without a worker")
def test_a_chord_whose_member_does_not_succeed(house: House) -> None:
    """A member that fails, expires, is canceled or terminated, or a chain that breaks, ends a chord: no body runs.

    The result of the body is a `ChordError` in every process.
    """
    calm = house.play.s("calm", ["return"])
    members = {
        "fails": house.play.s("fails", ["raise"]),
        "plain": house.app.signature("fails_plainly"),
        "breaks": chain(
            house.play.si("breaks", ["raise"]), house.play.si("never 1", ["return"]), house.plain.si("never 2")
        ),
        "expires": house.play.s("expires", ["return"]).set(countdown=3600, expires=0.3),
        "revoked": house.play.s("revoked", ["return"]).set(countdown=3600),
        "terminated": house.play.s("terminated", ["hold:never"]),
    }
    result: Any = None
    for name, member in members.items():
        result = chord([member, calm.clone()], house.gather.s(f"{name} body"))()
        if name == "revoked":
            result.parent.results[0].revoke()
        if name == "terminated":
            house.await_mark(name)
            house.app.control.terminate(result.parent.results[0].id)
        with pytest.raises(ChordError):
            found(house, result).get(timeout=PATIENCE)
        assert house.marks(f"{name} body", "gather") == []
    assert found(house, result.parent.results[1].id).get(PATIENCE) == "calm"
    house.await_rest()


@provokes(because="the head of a chain fails")
def test_the_rest_of_a_broken_chain_fails(house: House) -> None:
    """A job that is never submitted, since one before it in its chain failed, fails as Celery stores it."""
    broken = chain(house.play.si("head", ["lookup:lost"]), house.play.s(["return"]), house.plain.s()).delay()
    for result in (broken, broken.parent):
        with pytest.raises(LookupError, match="lost"):
            found(house, result).get(PATIENCE)
        assert found(house, result).state == states.FAILURE


@provokes(
    Transition.CRASH, Transition.NOTIFY_CANVAS, logs=[KILLED], because="a child dies between an end and its canvas"
)
def test_a_chord_survives_a_killed_worker(new_house: Callable[..., House]) -> None:
    """A worker that dies after the end of a chord's last member, before the body is called, loses nothing."""
    house = new_house(result_backend=URL)
    house.use_lease(LEASE)
    house.worker("-c", "2", hook="die-before-dispatch")
    for body in (house.gather.s("gathered"), house.note.s("noted")):
        result: Any = chord([house.play.s("last", ["return"])] * 2, body)()
        assert "last" in str(result.get(timeout=PATIENCE))
    house.await_rest()
    assert (len(house.marks("gathered", "gather")), house.runs("noted")) == (1, 1)


def test_a_member_that_is_reported_twice_calls_no_body(house: House) -> None:
    """The end of one member, however often it is reported, is no end of another; nor does a later report call again."""
    result: Any = chord([house.play.s("first", ["return"]), house.play.s("second", ["hold"])], house.gather.s("once"))()
    first = result.parent.results[0]
    house.await_state(first, State.COMPLETED)
    request = Context(
        {"id": first.id, "group": result.parent.id, "chord": house.gather.s("once").set(task_id=result.id)}
    )
    for _ in range(3):
        house.app.backend.on_chord_part_return(request, states.SUCCESS, "first")
    assert house.marks("once", "gather") == []
    house.open("second")
    assert result.get(timeout=PATIENCE) == ["first", "second"]
    house.await_rest()
    house.app.backend.on_chord_part_return(Context(vars(request), id="another"), states.SUCCESS, "first")
    assert house.queued_messages() == 0
    assert len(house.marks("once", "gather")) == 1


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_alone_with_the_ledger(new_house: Callable[..., House], pool: str) -> None:
    """With the ledger as the broker and the result backend, chords, groups and plain tasks need no server."""
    house = new_house(result_backend=URL, **DELIVERS)
    house.worker("-P", pool, "-c", "2")
    assert house.plain.delay("a").get(timeout=PATIENCE) == ["a"]
    mixed = [house.play.s("b", ["return"]), house.plain.s("c")]
    assert group(mixed).delay().get(timeout=PATIENCE) == ["b", ["c"]]
    assert chord(mixed, house.note.s("end"))().get(timeout=PATIENCE) == ["end", ["b", ["c"]]]


@provokes(because="jobs fail")
def test_another_backend_for_other_tasks(new_house: Callable[..., House], broker: RedisServer) -> None:
    """With `onejob+redis://` Redis has the results of plain tasks, and nothing of jobs, which are in the ledger."""
    other = broker.database()
    house = new_house(result_backend=f"onejob+{other}")
    house.worker("-c", "2")
    job, plain = house.play.delay("job", ["return"]), house.plain.delay("plain")
    failed = house.play.delay("bad", ["raise"])
    assert found(house, job).get(PATIENCE) == "job"
    assert found(house, plain).get(PATIENCE) == ["plain"]
    with pytest.raises(ValueError, match="bad"):
        found(house, failed).get(PATIENCE)
    mixed = [house.play.s("b", ["return"]), house.plain.s("c")]
    assert group(mixed).delay().get(timeout=PATIENCE) == ["b", ["c"]]
    assert chord(mixed, house.note.s("end"))().get(timeout=PATIENCE) == ["end", ["b", ["c"]]]
    tail = chain(house.play.si("slow", ["hold"]), house.note.s("tail")).delay()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(found(house, tail).get, PATIENCE)
        house.await_mark("slow")
        house.open("slow")
        assert waiting.result(PATIENCE) == ["tail", "slow"]
    house.await_rest()
    with redis.Redis.from_url(other) as client:
        stored = {bytes(key).decode()[-36:] for key in client.scan_iter(match="celery-task-meta-*")}
    assert plain.id in stored
    assert not stored & {job.id, failed.id, tail.id}
