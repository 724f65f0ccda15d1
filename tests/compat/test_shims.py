"""Programs for celery-singleton and celery-once keep working on the shims, and what broke them no longer does."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, states

import onejob
from onejob.celery.app_state import app_state_of
from onejob.compat.celery_once import AlreadyQueued, QueueOnce
from onejob.compat.celery_once.backends import File
from onejob.compat.celery_once.backends.redis import parse_url
from onejob.compat.celery_once.helpers import force_string, import_backend, kwargs_to_list, queue_once_key
from onejob.compat.celery_singleton import DuplicateTaskError, Singleton, clear_locks
from onejob.compat.celery_singleton.util import generate_lock
from onejob.compat.shims import notice_once
from onejob.errors import ConfigurationError
from onejob.jobs.model import IdentityHold
from onejob.testing import isolated
from tests.cases import for_each
from tests.celery.harness import LEASE, PATIENCE, Cluster, await_


@pytest.fixture(scope="module")
def program(new_program: Callable[..., Cluster]) -> Cluster:
    """Return the program with a worker, on Redis, as its authors ran it."""
    once = {"backend": "celery_once.backends.Redis", "settings": {"url": "redis://localhost:1", "default_timeout": 60}}
    cluster = new_program(onejob_lease=LEASE, worker_send_task_events=False, ONCE=once)
    cluster.worker("-c", "2")
    return cluster


def is_duplicate(first: Any, task: Any, *call: Any) -> bool:
    """Return whether a call is refused as its library does it: by the same result, or an error about that task."""
    try:
        return bool(task.delay(*call) == first)
    except DuplicateTaskError as error:
        return error.task_id == first.id and first.id in str(error)
    except AlreadyQueued as error:
        return 1 <= error.countdown <= 60 and str(error).startswith("Expires in")


# --- both libraries --------------------------------------------------------------------------------------------------


@for_each("name, duplicate, other", [
    ("single", ("single",), ("single-2", ["return"])), ("once", ("once",), ("once-2", ["return"])),
    ("single_user", ("single_user", ["return"]), ("single-3", ["return"])),
    ("once_user", ("once_user", ["return"]), ("once-3", ["return"])),
    ("single_raising", ("single_raising",), ("single-4", ["return"])), ("once_alone", ("another", ["return"]), None),
])  # fmt: skip
def test_a_call_is_a_duplicate_until_the_end(program: Cluster, name: str, duplicate: Any, other: Any) -> None:
    """Calls that are equal in the arguments that count, all by default, are refused until the first has ended."""
    task = getattr(program, name)
    first = task.delay(name)
    assert is_duplicate(first, task, *duplicate)
    if other is not None:
        assert task.delay(*other).get(PATIENCE) == other[0]
    program.open(name)
    assert first.get(PATIENCE) == name
    assert program.runs(name) == 1
    again = task.delay(*duplicate)
    assert again != first
    assert again.get(PATIENCE) == duplicate[0]


@for_each("name, acts, runs", [
    ("single", ["kill", "return"], 2), ("single", ("return",), 1), ("once", ["raise"], 1),
    ("once", ["retry:0", "return"], 2),
])  # fmt: skip
def test_however_a_job_ends_its_identity_is_free(program: Cluster, name: str, acts: Any, runs: int) -> None:
    """A job that was killed, has failed or retried, or has a tuple that its worker gets as a list, holds nothing."""
    task, key = getattr(program, name), f"{name} {acts}"
    result = task.delay(key, acts)
    result.get(PATIENCE, propagate=False)
    assert program.runs(key) == runs
    again = task.delay(key, acts)
    assert again != result
    again.get(PATIENCE, propagate=False)
    assert program.runs(key) == 2 * runs


@for_each("name", ["single_brief", "once_brief"])
def test_a_running_job_outlives_the_time_of_its_lock(program: Cluster, name: str) -> None:
    """Neither `lock_expiry`, `timeout` nor `clear_locks` lets an equal job run at the same time as a live one."""
    task = getattr(program, name)
    first = task.delay(name)
    await_(lambda: program.runs(name))
    clear_locks(program.app)
    if name == "single_brief":
        task.release_lock([name])
    due = program.ledger.read_clock() + 1.0
    await_(lambda: program.ledger.read_clock() > due)
    assert is_duplicate(first, task, name)
    program.open(name)
    assert first.get(PATIENCE) == name
    assert program.runs(name) == 1


@for_each("namespace", ["", "CELERY"])
def test_settings_are_read_with_and_without_a_namespace(namespace: str, tmp_path: Path) -> None:
    """The settings of both libraries are found by their names, and in capitals below a namespace."""
    once = {"backend": "celery_once.backends.File", "settings": {"location": str(tmp_path), "default_timeout": 7}}
    settings = {
        "singleton_backend_url": "redis://locks/3",
        "singleton_backend_class": "celery_singleton.backends.redis.RedisBackend",
        "singleton_backend_kwargs": {"socket_timeout": 1}, "singleton_key_prefix": "mine:",
        "singleton_raise_on_duplicate": True, "singleton_lock_expiry": 60,
        "singleton_json_encoder_class": "json.JSONEncoder", "broker_url": "memory://",
    }  # fmt: skip
    names = {f"CELERY_{name.upper()}" if namespace else name: value for name, value in settings.items()}
    app = Celery("tests")
    app.config_from_object(names | {f"{namespace}_ONCE".lstrip("_"): once}, namespace=namespace or None)
    single: Any = app.task(base=Singleton, name="single", shared=False)(_anything)
    config = single.singleton_config
    assert (config.backend_url, config.backend_kwargs) == ("redis://locks/3", {"socket_timeout": 1})
    assert (config.backend_class.__name__, config.json_encoder_class) == ("RedisBackend", json.JSONEncoder)
    assert config.key_prefix == "mine:"
    assert config.raise_on_duplicate
    assert config.lock_expiry == 60
    assert single.on_duplicate == "raise"
    assert single.generate_lock("name").startswith("mine:")
    queued: Any = app.task(base=QueueOnce, name="queued", shared=False)(_anything)
    assert (queued.once_config, queued.default_timeout) == (once, 7)
    assert isinstance(queued.once_backend, File)


def test_programs_run_without_settings_and_without_redis(app: Celery) -> None:
    """Without a Redis and without `ONCE` tasks are unique, for an hour; a task overrides the setting."""
    app.conf.singleton_raise_on_duplicate = True
    single: Any = app.task(base=Singleton, name="single", raise_on_duplicate=False, shared=False)(_anything)
    result = single.delay(1)
    clear_locks(app)
    single.release_lock([1])
    assert single.delay(1) == result
    assert single.get_existing_task_id(single.generate_lock("single", [1])) == result.id
    assert single.get_existing_task_id("SINGLETONLOCK_unknown") is None
    locks = [single.generate_lock("single", [number]) for number in (1, 2)]
    assert single.lock_and_run(locks[0], [1]) is None
    assert single.lock_and_run(locks[1], [2]).id == single.get_existing_task_id(locks[1])
    queued: Any = app.task(base=QueueOnce, name="queued", shared=False)(_anything)
    queued.delay(1)
    with pytest.raises(AlreadyQueued) as raised:
        queued.delay(1)
    assert 3590 < raised.value.countdown <= 3600
    with pytest.raises(AttributeError):
        queued.once_config  # noqa: B018 - celery-once's error


class Keyed(Singleton):
    abstract = True

    def generate_lock(self, task_name: str, *_: Any) -> str:
        return task_name


class KeyedOnce(QueueOnce):
    abstract = True

    def get_key(self, *_: Any) -> str:
        return "one"


@for_each("base, options, message", [
    (Singleton, {"unique_onn": ["a"]}, "did you mean unique_on"),
    (onejob.Task, {"lock_expiry": 1}, "another library's"),
    (QueueOnce, {"once": {"key": ["a"]}}, "has key; its keys are graceful, keys, timeout, unlock_before_run"),
    (QueueOnce, {"once": {"keys": ["value"]}, "unique_on": []}, "has unique_on and the keys of once"),
    (Keyed, {}, "generate_lock of task .* set unique_on to a function"),
    (KeyedOnce, {"once": {"keys": ["value"]}}, "get_key of task .* and remove get_key"),
    (onejob.Task, {"unlock_before_run": True}, "unlock_before_run, which is another library's: unique_until"),
])  # fmt: skip
def test_an_unknown_option_is_refused(app: Celery, base: Any, options: dict[str, Any], message: str) -> None:
    """A misspelt option is an error, and so are an option of a shim elsewhere and a text of a lock that decides."""
    define: Any = app.task(base=base, name=message, shared=False, **options)
    with pytest.raises(ConfigurationError, match=message):
        define(_anything).name  # noqa: B018 - binds the task


def test_a_class_has_the_options_of_its_own_once(app: Celery) -> None:
    """A task that derives from one that is bound has the `keys` and `unlock_before_run` of its own `once`, or none."""
    define: Any = app.task
    once: Any = {"keys": ["first"], "unlock_before_run": True}
    task = define(base=QueueOnce, name="base", once=once, bind=True, shared=False)(_bound)
    base = task.__class__
    assert (base.unique_on, base.unique_until) == (["first"], "started")
    found = []
    for own in (once, {"keys": ["other"]}, {"graceful": True}):
        derived = define(base=base, name=str(own), once=own, bind=True, shared=False)(_bound)
        found.append((derived.unique_on, derived.unique_until))
    assert found == [(["first"], "started"), (["other"], "finished"), (None, "finished")]
    base.bind(app)
    assert task.unique_on == ["first"]


def test_a_function_decides_beside_a_text_of_locks(app: Celery) -> None:
    """With a function as `unique_on`, a class may have a text of its own for shared locks."""
    task: Any = app.task(base=Keyed, name="keyed", unique_on=lambda value: value % 2, shared=False)(_anything)
    assert task.delay(1).id == task.delay(3).id
    assert task.delay(2).outcome == onejob.Outcome.ADMITTED


def test_locks_have_the_text_that_the_libraries_give_them(app: Celery) -> None:
    """A lock is the MD5 of name and JSON in celery-singleton, and name and sorted arguments in celery-once."""
    assert generate_lock("tasks.add", [1, 2], {"b": 1, "a": 2}) == "SINGLETONLOCK_d2ffa9b47ac423e2e5fc404361b6956c"
    task: Any = app.task(base=QueueOnce, name="anything", bind=True, shared=False)(_bound)
    assert task.get_key((1,), {"other": [2, "x"]}) == "qo_anything_first-1_other-[2, 'x']"
    assert queue_once_key("name", {"b": 1, "a": {"y": 1, "x": "2"}}) == "qo_name_a-{'x': '2', 'y': 1}_b-1"
    assert queue_once_key("name", {"b": 1, "a": 2}, ["b"]) == "qo_name_b-1"
    assert kwargs_to_list({"b": True, "a": "é"}) == ["a-é", "b-True"]
    assert force_string({"a": {"b": 1}}) == "{'a': \"{'b': 1}\"}"


INSTALL = """
import onejob.compat.celery_once as once, onejob.compat.celery_singleton as single
for shim in (once, single, single):
    shim.install()
import celery_once, celery_once.tasks, celery_once.helpers, celery_once.backends.redis, celery_once.backends.file
from celery_once import QueueOnce, AlreadyQueued
from celery_once.backends import Redis, File
import celery_singleton, celery_singleton.singleton, celery_singleton.backends.redis, celery_singleton.backends.base
from celery_singleton import Singleton, clear_locks, DuplicateTaskError
from celery_singleton.config import Config
from celery_singleton.exceptions import CelerySingletonException
from celery_singleton.util import generate_lock
from celery_singleton.backends import get_backend
assert celery_once is once and celery_once.tasks.AlreadyQueued is AlreadyQueued is once.AlreadyQueued
assert celery_singleton is single and celery_singleton.singleton.Singleton is Singleton is single.Singleton
"""
LOADED = "import sys, types; sys.modules['celery_singleton'] = types.ModuleType('celery_singleton')\n"


def test_install_answers_to_the_names_of_the_libraries() -> None:
    """After `install()` all names of both libraries are the shims; after an import of a library it is an error."""
    ends = [
        subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True).stderr
        for program in (INSTALL, LOADED + INSTALL)
    ]
    assert ends[0] == ""
    assert "celery_singleton was imported from an unknown place before" in ends[1]
    assert "call install() first" in ends[1]


@for_each("error, attributes", [
    (DuplicateTaskError("a message", task_id="an-id"), {"task_id": "an-id"}),
    (AlreadyQueued(2.5), {"countdown": 2.5, "message": "Expires in 2.5 seconds"}),
])  # fmt: skip
def test_errors_survive_the_way_between_processes(error: Exception, attributes: dict[str, object]) -> None:
    """The errors pickle, with their messages and values."""
    loaded = pickle.loads(pickle.dumps(error))  # noqa: S301 - own data
    assert str(loaded) == str(error) == attributes.get("message", "a message")
    assert {name: getattr(loaded, name) for name in attributes} == attributes


# --- celery-singleton ------------------------------------------------------------------------------------------------


def test_a_job_that_has_ended_holds_no_lock(app: Celery) -> None:
    """A completed job that still answers duplicates, in its window, is no live task of a lock."""
    task: Any = app.task(base=Singleton, name="kept", unique_for=60, shared=False)(_anything)
    lock, ledger = task.generate_lock("kept", [1]), app_state_of(app).ledger
    job = ledger.claim(task.delay(1).id, nonce="nonce", node="test").job
    assert job is not None
    assert task.get_existing_task_id(lock) == job.id
    ledger.complete(job, "1", hold=IdentityHold(identity_for=60.0))
    assert task.delay(1).outcome is onejob.Outcome.REPLAYED
    assert task.get_existing_task_id(lock) is None


def test_locks_by_hand_are_kept_in_the_backend(program: Cluster) -> None:
    """`aquire_lock`, `unlock`, `release_lock` and `clear_locks` handle locks as celery-singleton does."""
    task = program.single
    lock, own = task.generate_lock("by hand", [1]), task.generate_lock(task.name, ["x"], {})
    releases: list[tuple[Any, Any]] = [(task.unlock, lock), (clear_locks, program.app)]
    for release, held in releases:
        assert task.aquire_lock(lock, "an-id")
        assert not task.aquire_lock(lock, "another-id")
        assert task.get_existing_task_id(lock) == "an-id"
        release(held)
        assert task.get_existing_task_id(lock) is None
    assert task.aquire_lock(own, "an-id")
    task.release_lock(["x"], {})
    assert task.get_existing_task_id(own) is None


def test_a_wrong_backend_class_is_a_clear_error(app: Celery) -> None:
    """A path that cannot be imported names itself and what to write."""
    app.conf.singleton_backend_class = "nowhere.Backend"
    task: Any = app.task(base=Singleton, shared=False)(_anything)
    with pytest.raises(ConfigurationError, match=r"'nowhere.Backend' cannot be imported.*full path"):
        task.aquire_lock("lock", "id")


@for_each("raises", [False, True])
def test_a_class_of_the_programs_own_answers_duplicates(app: Celery, raises: bool) -> None:
    """A method `on_duplicate` gets the id of the existing task, and may call that of celery-singleton, which raises."""

    class Answering(Singleton):
        abstract = True

        def on_duplicate(self, existing_task_id: str) -> str:  # type: ignore[override] # celery-singleton's
            try:
                return f"{self.name}: {super().on_duplicate(existing_task_id)}"
            except DuplicateTaskError as error:
                return f"{self.name} raises: {error.task_id}"

    options: Any = {"base": Answering, "name": f"answering {raises}", "raise_on_duplicate": raises, "shared": False}
    task: Any = app.task(**options)(_anything)
    task.bind(app)  # once more, as `finalize` does with what was bound before
    first = task.delay(1)
    assert task.delay(1) == f"answering {raises}{' raises' * raises}: {first.id}"


# --- celery-once -----------------------------------------------------------------------------------------------------


def test_a_graceful_duplicate_is_an_empty_result(program: Cluster) -> None:
    """`graceful`, of the task or of the call, makes a duplicate a rejected result without a value."""
    firsts = [program.once_graceful.delay("graceful"), program.once.delay("graceful")]
    for duplicate in (
        program.once_graceful.delay("graceful"),
        program.once.apply_async(("graceful",), once={"graceful": True}),
    ):
        assert (duplicate.result, duplicate.state) == (None, states.REJECTED)
    with pytest.raises(AlreadyQueued):
        program.once_graceful.apply_async(("graceful",), once={"graceful": False})
    program.open("graceful")
    assert [first.get(PATIENCE) for first in firsts] == ["graceful", "graceful"]


def test_unlock_before_run_admits_one_that_waits(program: Cluster) -> None:
    """With `unlock_before_run` an equal call is admitted once the first one runs."""
    first = program.once_unlocking.delay("unlocking")
    await_(lambda: program.runs("unlocking") == 1)
    assert program.once_unlocking.delay("unlocking", ["return"]).get(PATIENCE) == "unlocking"
    program.open("unlocking")
    assert first.get(PATIENCE) == "unlocking"


@for_each("once, age", [({"timeout": 60}, 0), ({"timeout": None}, 3540), ({}, 3540)])
def test_a_duplicate_is_told_when_to_come_back(app: Celery, once: Any, age: int) -> None:
    """`countdown` is what is left of `timeout`, or of an hour without one, by the clock of the ledger."""
    task: Any = app.task(base=QueueOnce, name=f"told {once}", once=once, shared=False)(_anything)
    with isolated(app) as jobs:
        jobs.travel(hours=2)
        task.delay(1)
        jobs.travel(age)
        with pytest.raises(AlreadyQueued) as raised:
            task.delay(1)
    assert 50 < raised.value.countdown <= 60


@for_each("on_duplicate, outcome", [("run_again", "queued_next"), ("attach", "attached")])
def test_a_task_may_say_what_a_duplicate_gets(app: Celery, on_duplicate: str, outcome: str) -> None:
    """`on_duplicate` of a `QueueOnce` task decides in place of `AlreadyQueued`, as that of a `onejob.Task` does."""
    options: Any = {"base": QueueOnce, "name": on_duplicate, "on_duplicate": on_duplicate, "shared": False}
    task: Any = app.task(**options)(_anything)
    job = task.delay(1)
    app_state_of(app).ledger.claim(job.id, nonce="nonce", node="test")
    assert task.delay(1).outcome == outcome


def test_blocking_is_said_to_do_nothing(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    """`blocking`, which no ledger needs, is logged when a task is defined, and a duplicate does not wait."""
    app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"blocking": True, "blocking_timeout": 600}}
    notice_once.cache_clear()
    task: Any = app.task(base=QueueOnce, name="anything", shared=False)(_anything)
    task.delay(1)
    with pytest.raises(AlreadyQueued):
        task.delay(1)
    assert "`blocking`" in caplog.text


def test_the_url_of_the_locks_is_read_as_there() -> None:
    """TCP, TLS and socket URLs are understood, with options; another scheme is refused."""
    assert parse_url("redis://:secret@host:1/2") == {"host": "host", "port": 1, "password": "secret", "db": 2}
    assert parse_url("rediss://host") == {"host": "host", "ssl": True}
    socket = {"unix_socket_path": "/a/b.sock", "db": 3, "socket_timeout": 2.0}
    assert parse_url("redis+socket:///a/b.sock?db=3&socket_timeout=2") == socket
    with pytest.raises(ValueError, match="'amqp'"):
        parse_url("amqp://host")


def test_a_lock_in_a_file_is_held_until_it_is_cleared_or_too_old(tmp_path: Path) -> None:
    """The file backend refuses a second lock, clears it, and takes over one that is older than the timeout."""
    backend = import_backend({"backend": "celery_once.backends.File", "settings": {"location": str(tmp_path / "new")}})
    backend.raise_or_lock("key", 60)
    with pytest.raises(AlreadyQueued) as raised:
        backend.raise_or_lock("key", 60)
    assert 0 < raised.value.countdown <= 60
    backend.raise_or_lock("key", 0)
    backend.clear_lock("key")
    backend.raise_or_lock("key", 60)


def _anything(value: Any) -> Any:
    return value


def _bound(_self: Any, first: Any, other: Any = None) -> Any:
    return first, other
