"""Programs written for celery-once keep working on its shim, and what broke them no longer does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, states

import onejob
from onejob.compat.celery_once import AlreadyQueued, QueueOnce
from onejob.compat.celery_once.backends import File
from onejob.compat.celery_once.backends.redis import parse_url
from onejob.compat.celery_once.helpers import force_string, import_backend, kwargs_to_list, queue_once_key
from onejob.compat.notices import notice_once
from onejob.errors import ConfigurationError
from tests.cases import for_each
from tests.celery.harness import LEASE, PATIENCE, await_

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.celery.harness import House


@pytest.fixture(scope="module")
def program(new_program: Callable[..., House]) -> House:
    """Return the program with a worker, on Redis, as its authors ran it."""
    once = {"backend": "celery_once.backends.Redis", "settings": {"url": "redis://localhost:1", "default_timeout": 60}}
    house = new_program("once_app", onejob_lease=LEASE, ONCE=once)
    house.worker("-c", "2")
    return house


def test_a_second_call_raises_until_the_first_has_ended(program: House) -> None:
    """An equal call raises `AlreadyQueued` with the rest of the timeout; after the end it is admitted."""
    first = program.slow_task.delay("readme")
    with pytest.raises(AlreadyQueued, match="Expires in") as raised:
        program.slow_task.delay("readme")
    assert 0 < raised.value.countdown <= 60
    assert program.slow_task.delay("readme-other", ["return"]).get(PATIENCE) == "readme-other"
    program.open("readme")
    assert first.get(PATIENCE) == "readme"
    assert program.runs("readme") == 1
    assert program.slow_task.delay("readme").get(PATIENCE) == "readme"


def test_a_graceful_duplicate_is_an_empty_result(program: House) -> None:
    """`graceful`, of the task or of the call, makes a duplicate a rejected result without a value."""
    firsts = [program.graceful.delay("graceful"), program.slow_task.delay("graceful-call")]
    for duplicate in (
        program.graceful.delay("graceful"),
        program.slow_task.apply_async(("graceful-call",), once={"graceful": True}),
    ):
        assert (duplicate.result, duplicate.state) == (None, states.REJECTED)
    with pytest.raises(AlreadyQueued):
        program.graceful.apply_async(("graceful",), once={"graceful": False})
    for first, gate in zip(firsts, ("graceful", "graceful-call"), strict=True):
        program.open(gate)
        assert first.get(PATIENCE) == gate


def test_keys_are_the_arguments_that_count(program: House) -> None:
    """With `keys` the other arguments do not count; with none, the task runs once at a time."""
    keyed, single = program.keyed.delay("keyed"), program.one_at_a_time.delay("single")
    with pytest.raises(AlreadyQueued):
        program.keyed.delay("keyed", ["return"])
    with pytest.raises(AlreadyQueued):
        program.one_at_a_time.delay("another", ["return"])
    program.open("keyed")
    program.open("single")
    assert [keyed.get(PATIENCE), single.get(PATIENCE)] == ["keyed", "single"]


def test_unlock_before_run_admits_one_that_waits(program: House) -> None:
    """With `unlock_before_run` an equal call is admitted once the first one runs."""
    first = program.unlocking.delay("unlocking")
    await_(lambda: program.runs("unlocking") == 1)
    second = program.unlocking.delay("unlocking", ["return"])
    assert second.get(PATIENCE) == "unlocking"
    program.open("unlocking")
    assert first.get(PATIENCE) == "unlocking"


def test_a_running_job_outlives_its_timeout(program: House) -> None:
    """After `timeout` an equal call is still refused as long as the job runs, and told to wait for a second."""
    first = program.brief.delay("brief")
    due = program.ledger.read_clock() + 1.0
    await_(lambda: program.ledger.read_clock() > due)
    with pytest.raises(AlreadyQueued) as raised:
        program.brief.delay("brief")
    assert raised.value.countdown == 1.0
    program.open("brief")
    assert first.get(PATIENCE) == "brief"


def test_arguments_that_change_on_their_way_release_the_identity(program: House) -> None:
    """Tuples, which workers receive as lists, leave nothing held behind the end of the job."""
    for _ in range(2):
        assert program.slow_task.delay("tuple", ("return",), (1, 2)).get(PATIENCE) == [1, 2]


def test_programs_run_without_the_setting(app: Celery) -> None:
    """Without `ONCE` tasks are unique, and the default timeout is an hour."""
    task: Any = app.task(base=QueueOnce, name="anything", shared=False)(_anything)
    task.delay(1)
    with pytest.raises(AlreadyQueued) as raised:
        task.delay(1)
    assert 3590 < raised.value.countdown <= 3600
    assert task.default_timeout == 3600
    with pytest.raises(AttributeError):
        task.once_config  # noqa: B018 - celery-once's error


@for_each("namespace", ["", "CELERY"])
def test_the_setting_is_read_with_and_without_a_namespace(namespace: str, tmp_path: Any) -> None:
    """`ONCE`, and `CELERY_ONCE` below a namespace, name the backend by celery-once's path."""
    once = {"backend": "celery_once.backends.File", "settings": {"location": str(tmp_path), "default_timeout": 7}}
    app = Celery("tests")
    app.config_from_object({f"{namespace}_ONCE".lstrip("_"): once}, namespace=namespace or None)
    task: Any = app.task(base=QueueOnce, name="anything", shared=False)(_anything)
    assert task.once_config == once
    assert isinstance(task.once_backend, File)
    assert task.default_timeout == 7


def test_blocking_is_said_to_do_nothing(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    """`blocking`, which no ledger needs, is logged when a task is defined, and a duplicate does not wait."""
    app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"blocking": True, "blocking_timeout": 600}}
    notice_once.cache_clear()
    task: Any = app.task(base=QueueOnce, name="anything", shared=False)(_anything)
    task.delay(1)
    with pytest.raises(AlreadyQueued):
        task.delay(1)
    assert "`blocking`" in caplog.text


def test_an_unknown_key_of_once_is_refused(app: Celery) -> None:
    """A misspelt key of `once` is an error that names the known ones; its options are errors elsewhere."""
    with pytest.raises(ConfigurationError, match="has key; its keys are graceful, keys, timeout, unlock_before_run"):
        app.task(base=QueueOnce, once={"key": ["a"]}, shared=False)(_anything).name  # noqa: B018 - binds the task
    with pytest.raises(ConfigurationError, match="unlock_before_run, which is another library's: unique_until"):
        app.task(base=onejob.Task, name="other", unlock_before_run=True, shared=False)(_anything).name  # noqa: B018 - binds the task


def test_keys_have_the_text_that_celery_once_gives_them(app: Celery) -> None:
    """The text of a key is the task's name and the sorted arguments, dicts with sorted keys inside them."""
    task: Any = app.task(base=QueueOnce, name="anything", bind=True, shared=False)(_bound)
    assert task.get_key((1,), {"other": [2, "x"]}) == "qo_anything_first-1_other-[2, 'x']"
    assert queue_once_key("name", {"b": 1, "a": {"y": 1, "x": "2"}}) == "qo_name_a-{'x': '2', 'y': 1}_b-1"
    assert queue_once_key("name", {"b": 1, "a": 2}, ["b"]) == "qo_name_b-1"
    assert kwargs_to_list({"b": True, "a": "é"}) == ["a-é", "b-True"]
    assert force_string({"a": {"b": 1}}) == "{'a': \"{'b': 1}\"}"


def test_the_url_of_the_locks_is_read_as_there() -> None:
    """TCP, TLS and socket URLs are understood, with options; another scheme is refused."""
    assert parse_url("redis://:secret@host:1/2") == {"host": "host", "port": 1, "password": "secret", "db": 2}
    assert parse_url("rediss://host") == {"host": "host", "ssl": True}
    assert parse_url("redis+socket:///a/b.sock?db=3&socket_timeout=2") == {
        "unix_socket_path": "/a/b.sock", "db": 3, "socket_timeout": 2.0
    }  # fmt: skip
    with pytest.raises(ValueError, match="'amqp'"):
        parse_url("amqp://host")


def test_a_lock_in_a_file_is_held_until_it_is_cleared_or_too_old(tmp_path: Any) -> None:
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
