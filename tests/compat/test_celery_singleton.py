"""Programs written for celery-singleton keep working on its shim, and what broke them no longer does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

import onejob
from onejob.compat.celery_singleton import DuplicateTaskError, Singleton, clear_locks
from onejob.compat.celery_singleton.util import generate_lock
from onejob.errors import ConfigurationError
from tests.cases import for_each
from tests.celery.harness import LEASE, PATIENCE, await_

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.celery.harness import House


@pytest.fixture(scope="module")
def program(new_program: Callable[..., House]) -> House:
    """Return the program with a worker, on Redis, as its authors ran it."""
    house = new_program("singleton_app", onejob_lease=LEASE, worker_send_task_events=False)
    house.worker("-c", "2")
    return house


def test_equal_calls_return_the_result_of_one_task(program: House) -> None:
    """Calls that are equal in `unique_on`, or in all arguments, return equal results and run once, until the end."""
    first = program.do_stuff.delay("readme")
    second = program.do_stuff.delay("readme")
    other = program.do_stuff.delay("readme-other", ["return"])
    assert first == second
    assert first != other
    program.open("readme")
    assert [each.get(PATIENCE) for each in (first, second, other)] == ["readme", "readme", "readme-other"]
    assert program.runs("readme") == 1
    again = program.do_stuff.delay("readme")
    assert again != first
    assert again.get(PATIENCE) == "readme"
    bob = program.per_user.delay("bob", ["hold"])
    assert program.per_user.delay(username="bob", acts=["return"]) == bob
    program.open("bob")
    assert bob.get(PATIENCE) == "bob"


def test_an_empty_unique_on_allows_one_at_a_time(program: House) -> None:
    """With `unique_on=[]` and `raise_on_duplicate` any second call raises `DuplicateTaskError` with the task's id."""
    first = program.one_at_a_time.delay("only")
    with pytest.raises(DuplicateTaskError) as raised:
        program.one_at_a_time.delay("another")
    assert raised.value.task_id == first.id
    assert first.id in str(raised.value)
    program.open("only")
    assert first.get(PATIENCE) == "only"


def test_the_lock_of_a_call_names_the_live_task(program: House) -> None:
    """`get_existing_task_id` of a generated lock returns the id of the live job, and None when there is none."""
    task = program.do_stuff
    lock = task.generate_lock(task.name, ["named"])
    assert task.get_existing_task_id(lock) is None
    result = task.delay("named")
    assert task.get_existing_task_id(lock) == result.id
    assert task.lock_and_run(lock, ["named"]) is None
    program.open("named")
    assert result.get(PATIENCE) == "named"
    assert task.get_existing_task_id(lock) is None
    assert task.lock_and_run(lock, ["named"]).get(PATIENCE) == "named"


def test_locks_by_hand_are_kept_in_the_backend(program: House) -> None:
    """`aquire_lock`, `unlock`, `release_lock` and `clear_locks` handle locks as celery-singleton does."""
    task = program.do_stuff
    lock = task.generate_lock("by hand", [1])
    assert task.aquire_lock(lock, "an-id")
    assert not task.aquire_lock(lock, "another-id")
    assert task.get_existing_task_id(lock) == "an-id"
    task.unlock(lock)
    assert task.get_existing_task_id(lock) is None
    own = task.generate_lock(task.name, ["x"], {})
    assert task.aquire_lock(own, "an-id")
    task.release_lock(["x"], {})
    assert task.get_existing_task_id(own) is None
    assert task.aquire_lock(lock, "an-id")
    clear_locks(program.app)
    assert task.get_existing_task_id(lock) is None


def test_a_killed_process_does_not_block(program: House) -> None:
    """A job whose process was killed runs again, without `clear_locks` and without an expiry, and then is free."""
    result = program.do_stuff.delay("killed", ["kill", "return"])
    assert result.get(PATIENCE) == "killed"
    assert program.runs("killed") == 2
    again = program.do_stuff.delay("killed", ["kill", "return"])
    assert again != result
    assert again.get(PATIENCE) == "killed"


def test_a_running_task_outlives_lock_expiry_and_clear_locks(program: House) -> None:
    """Neither `lock_expiry` nor `clear_locks` lets an equal job run at the same time as a live one."""
    first = program.expiring.delay("expiring", ["hold"])
    await_(lambda: program.runs("expiring"))
    clear_locks(program.app)
    program.expiring.release_lock(["expiring", ["hold"]])
    due = program.ledger.read_clock() + program.expiring.lock_expiry
    await_(lambda: program.ledger.read_clock() > due)
    assert program.expiring.delay("expiring", ["hold"]) == first
    program.open("expiring")
    assert first.get(PATIENCE) == "expiring"
    assert program.runs("expiring") == 1


@for_each("namespace", ["", "CELERY"])
def test_settings_are_read_with_and_without_a_namespace(namespace: str) -> None:
    """All settings of celery-singleton are found in lower case, and in capitals below a namespace."""
    settings = {
        "singleton_backend_url": "redis://locks/3",
        "singleton_backend_class": "celery_singleton.backends.redis.RedisBackend",
        "singleton_backend_kwargs": {"socket_timeout": 1},
        "singleton_key_prefix": "mine:",
        "singleton_raise_on_duplicate": True,
        "singleton_lock_expiry": 60,
        "singleton_json_encoder_class": "json.JSONEncoder",
    }
    names = {f"CELERY_{name.upper()}" if namespace else name: value for name, value in settings.items()}
    app = Celery("tests")
    app.config_from_object(names | {f"{namespace}_BROKER_URL" if namespace else "broker_url": "memory://"},
                           namespace=namespace or None)  # fmt: skip
    task: Any = app.task(base=Singleton, shared=False)(_nothing)
    config = task.singleton_config
    assert config.backend_url == "redis://locks/3"
    assert config.backend_class.__name__ == "RedisBackend"
    assert config.backend_kwargs == {"socket_timeout": 1}
    assert (config.key_prefix, config.raise_on_duplicate, config.lock_expiry) == ("mine:", True, 60)
    assert config.json_encoder_class is json.JSONEncoder
    assert task.on_duplicate == "raise"
    assert task.generate_lock("name").startswith("mine:")


def test_a_wrong_backend_class_is_a_clear_error(app: Celery) -> None:
    """A path that cannot be imported names itself and what to write."""
    app.conf.singleton_backend_class = "nowhere.Backend"
    task: Any = app.task(base=Singleton, shared=False)(_nothing)
    with pytest.raises(ConfigurationError, match=r"'nowhere.Backend' cannot be imported.*full path"):
        task.aquire_lock("lock", "id")


def test_programs_run_without_any_redis(app: Celery) -> None:
    """Without a Redis, tasks are unique, and the helpers for locks find none; a task decides before the setting."""
    app.conf.singleton_raise_on_duplicate = True
    task: Any = app.task(base=Singleton, raise_on_duplicate=False, shared=False)(_nothing)
    result = task.delay()
    clear_locks(app)
    task.release_lock()
    assert task.delay() == result
    assert task.get_existing_task_id(task.generate_lock(task.name)) == result.id
    assert task.get_existing_task_id("SINGLETONLOCK_unknown") is None


def test_a_class_of_the_programs_own_answers_duplicates(app: Celery) -> None:
    """A subclass whose method `on_duplicate` answers duplicates is called with the id of the existing task."""

    class Answering(Singleton):
        abstract = True

        def on_duplicate(self, existing_task_id: str) -> str:  # type: ignore[override] # celery-singleton's
            return f"{self.name}: {existing_task_id}"

    task: Any = app.task(base=Answering, name="answering", shared=False)(_nothing)
    first = task.delay()
    assert task.delay() == f"answering: {first.id}"


def test_an_option_that_means_nothing_is_refused_as_elsewhere(app: Celery) -> None:
    """The shim understands the options of celery-singleton, and no misspelt ones."""
    with pytest.raises(ConfigurationError, match="did you mean unique_on"):
        app.task(base=Singleton, unique_onn=["a"], shared=False)(_nothing).name  # noqa: B018 - binds the task
    with pytest.raises(ConfigurationError, match="another library's"):
        app.task(base=onejob.Task, name="another", lock_expiry=1, shared=False)(_nothing).name  # noqa: B018 - binds the task


def test_locks_have_the_text_that_celery_singleton_gives_them() -> None:
    """The text of a lock is the prefix and the MD5 of the name and both JSON texts with sorted keys."""
    assert generate_lock("tasks.add", [1, 2], {"b": 1, "a": 2}) == "SINGLETONLOCK_d2ffa9b47ac423e2e5fc404361b6956c"


def _nothing() -> str:
    return "nothing"
