"""With `share_old_locks`, a program and an old library, whose locks are written here, admit equal work once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis
from celery import Celery, states

from onejob.compat.celery_once import AlreadyQueued, QueueOnce
from onejob.compat.celery_singleton import DuplicateTaskError, Singleton, clear_locks
from onejob.compat.shims import notice_once
from onejob.errors import ConfigurationError
from onejob.jobs.model import Outcome
from tests.cases import for_each
from tests.celery.harness import PATIENCE, Cluster, await_
from tests.compat.program import SHARES


class LockSharingProgram:
    """A program on the shim, and the Redis with the locks of the old library."""

    def __init__(self, cluster: Cluster, url: str) -> None:
        self.cluster = cluster
        self.locks = redis.Redis.from_url(url, decode_responses=True)

    @contextmanager
    def held(self, key: str, **expiry: Any) -> Iterator[str]:
        """Hold a lock of the old library for a block; return its holder."""
        self.locks.set(key, "an-old-task", **expiry)
        try:
            yield "an-old-task"
        finally:
            self.locks.delete(key)

    def await_free(self, key: str) -> None:
        await_(lambda: self.locks.get(key) is None)

    def finish(self, result: Any, key: str, name: str) -> None:
        """Let a job that waits at its gate end, and wait until its lock is free."""
        self.cluster.open(name)
        assert result.get(PATIENCE) == name
        self.await_free(key)


@pytest.fixture(scope="module")
def program(new_program: Callable[..., Cluster]) -> Iterator[LockSharingProgram]:
    """Return the program with a worker, which shares the locks of a database of their own."""
    locks_url = str(new_program().config["broker_url"])
    once = {"backend": "celery_once.backends.Redis", "settings": {"url": locks_url, "default_timeout": 60}}
    cluster = new_program(**{SHARES: True}, singleton_backend_url=locks_url, ONCE=once)
    cluster.worker("-c", "2")
    program = LockSharingProgram(cluster, locks_url)
    yield program
    program.locks.close()


def test_an_old_lock_answers_with_its_task(program: LockSharingProgram) -> None:
    """While a process of celery-singleton holds the lock, any call but a chain's returns its task's result."""
    task = program.cluster.single
    key = task.generate_lock("single", ["old", ["return"]])
    with program.held(key) as old:
        assert task.delay("old", ["return"]).id == asyncio.run(task.asubmit("old", ["return"])).id == old
        assert task.apply_async(("old", ["return"]), task_id="an id of its own").id == old
        assert task.get_existing_task_id(key) == old
        held, admitted = task.submit_many([("old", ["return"]), {"user": "more", "acts": ["return"]}])
        assert held.id == old
        assert admitted.get(PATIENCE) == "more"
        chained = task.si("more", ["return"]) | task.si("old", ["return"])
        assert chained.apply_async().get(PATIENCE) == "old"
    assert task.delay("old", ["return"]).get(PATIENCE) == "old"


@for_each("name", ["single", "once"])
def test_a_lock_that_was_left_is_named(
    program: LockSharingProgram, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """A lock without a job in the ledger is named by a warning, once, with what removes it; then a call is admitted."""
    task, call = getattr(program.cluster, name), ("left-behind", ["return"])
    key = task.generate_lock(name, call) if name == "single" else task.get_key(call)
    program.locks.set(key, "an-old-task", px=600_000)
    for _ in range(2):
        with suppress(AlreadyQueued):
            task.delay(*call)
    (warned,) = (each.getMessage() for each in caplog.records if key in each.getMessage())
    remedy = warned.partition("remove it by ")[2]
    eval(remedy, {"app": program.cluster.app})  # noqa: S307 - as one who follows the advice does
    assert task.delay(*call).get(PATIENCE) == "left-behind"


def test_a_lock_raises_where_it_raised(program: LockSharingProgram) -> None:
    """With `raise_on_duplicate`, a call that an old lock or a live job holds back raises with the id of that task."""
    task = program.cluster.single_raising
    key = task.generate_lock("single_raising", ["live"])
    with program.held(key) as old, pytest.raises(DuplicateTaskError) as raised:
        task.delay("live")
    assert raised.value.task_id == old
    result = task.delay("live")
    with pytest.raises(DuplicateTaskError) as raised:
        task.delay("live")
    assert raised.value.task_id == result.id == program.locks.get(key)
    program.finish(result, key, "live")


def test_a_job_holds_the_old_lock_until_its_end(program: LockSharingProgram) -> None:
    """The lock that celery-singleton looks at has the job's id from its submission to its end, retries included."""
    task = program.cluster.single
    key = task.generate_lock("single", ["held", ["retry:0", "hold"]])
    result = task.delay("held", ["retry:0", "hold"])
    await_(lambda: program.cluster.runs("held") == 2)
    assert program.locks.get(key) == result.id
    assert task.delay("held", ["retry:0", "hold"]) == result
    program.finish(result, key, "held")


@for_each("name", ["single", "once"])
def test_the_end_of_an_old_message_releases_its_lock(program: LockSharingProgram, name: str) -> None:
    """A message that an old library published under its lock is run by our worker, which releases that lock."""
    call, runs, old = ("from-old", ["return"]), program.cluster.runs("from-old"), f"an-old-id-of-{name}"
    task = getattr(program.cluster, name)
    key = task.generate_lock(name, call) if name == "single" else task.get_key(call)
    program.locks.set(key, old, px=60_000)
    program.cluster.app.send_task(name, call, **({"task_id": old} if name == "single" else {}))
    await_(lambda: program.cluster.runs("from-old") > runs)
    program.await_free(key)


def test_the_lock_of_an_ended_job_is_taken_over(program: LockSharingProgram) -> None:
    """A lock of ours that was left behind, because its process died, does not hold back the next call."""
    task = program.cluster.single
    ended = task.delay("left", ["return"])
    assert ended.get(PATIENCE) == "left"
    key = task.generate_lock("single", ["left", ["return"]])
    program.await_free(key)
    program.locks.set(key, ended.id)
    again = task.delay("left", ["return"])
    assert again.outcome is Outcome.ADMITTED
    assert again.get(PATIENCE) == "left"
    program.await_free(key)


def test_a_lock_is_given_back_for_a_duplicate(program: LockSharingProgram) -> None:
    """A call that takes a free lock, and is answered by a live job whose lock is gone, leaves the lock free."""
    task = program.cluster.single
    key = task.generate_lock("single", ["unlocked"])
    result = task.delay("unlocked")
    program.locks.delete(key)
    assert (task.delay("unlocked").id, program.locks.get(key)) == (result.id, None)
    program.finish(result, key, "unlocked")


def test_a_foreign_lock_is_never_released(program: LockSharingProgram) -> None:
    """A job whose lock an old task took over leaves that lock alone; a submission that raises releases its own."""
    task = program.cluster.single
    with pytest.raises(Exception, match="nowhere"):
        task.apply_async(("foreign",), serializer="nowhere")
    assert program.locks.get(task.generate_lock("single", ["foreign"])) is None
    result = task.delay("foreign")
    with program.held(task.generate_lock("single", ["foreign"])) as old:
        program.cluster.open("foreign")
        assert result.get(PATIENCE) == "foreign"
        others = {name: task.delay(name) for name in ("next-1", "next-2")}
        await_(lambda: all(map(program.cluster.runs, others)))  # so neither process is still at the end of that job
        assert task.delay("foreign").id == old
    for name, other in others.items():
        program.finish(other, task.generate_lock("single", [name]), name)


def test_clear_locks_leaves_shared_locks(program: LockSharingProgram, caplog: pytest.LogCaptureFixture) -> None:
    """While locks are shared, `clear_locks` keeps those of old tasks and of live jobs, and logs why."""
    task = program.cluster.single
    ours = task.generate_lock("single", ["of-ours"])
    result = task.delay("of-ours")
    notice_once.cache_clear()
    with program.held(key := task.generate_lock("single", ["of-old"])) as old:
        clear_locks(program.cluster.app)
        assert (program.locks.get(key), program.locks.get(ours)) == (old, result.id)
        assert "clear_locks removed nothing" in caplog.text
        assert task.delay("of-old").id == old
    program.finish(result, ours, "of-ours")


def test_an_old_lock_refuses_with_its_countdown(program: LockSharingProgram) -> None:
    """While a process of celery-once holds the lock, a call raises with what is left of that lock."""
    task = program.cluster.once
    key = task.get_key(("old", ["return"]))
    with program.held(key, px=30_000):
        with pytest.raises(AlreadyQueued) as raised:
            task.delay("old", ["return"])
        assert 0 < raised.value.countdown <= 30
        graceful = task.apply_async(("old", ["return"]), once={"graceful": True})
        assert (graceful.result, graceful.state) == (None, states.REJECTED)
    assert task.delay("old", ["return"]).get(PATIENCE) == "old"


def test_many_have_the_outcomes_of_the_ledger(program: LockSharingProgram) -> None:
    """`submit_many` of tasks that raise rejects what a live job or an old lock holds back, and submits the others."""
    task = program.cluster.once
    with program.held(task.get_key(("many-0",))):
        results = task.submit_many([("many-0",), ("many-1",), ("many-1",), ("many-2", ["return"])])
    assert [each.outcome.value for each in results] == ["rejected", "admitted", "rejected", "admitted"]
    assert results[1].id == results[2].id
    assert results[3].get(PATIENCE) == "many-2"
    program.finish(results[1], task.get_key(("many-1",)), "many-1")


def test_a_job_of_once_holds_the_old_lock_until_its_end(program: LockSharingProgram) -> None:
    """The lock that celery-once looks at is held, and expires, until the end, or the start with `unlock_before_run`."""
    task = program.cluster.once
    key = task.get_key(("held-by-once",))
    result = task.delay("held-by-once")
    await_(lambda: program.cluster.runs("held-by-once"))
    assert program.locks.get(key) == result.id
    assert 0 < program.locks.pttl(key) <= 60_000
    with pytest.raises(AlreadyQueued):
        task.delay("held-by-once")
    program.finish(result, key, "held-by-once")
    unlocked = program.cluster.once_unlocking.delay("unlocking")
    await_(lambda: program.cluster.runs("unlocking"))
    assert program.locks.get(program.cluster.once_unlocking.get_key(("unlocking",))) is None
    program.cluster.open("unlocking")
    assert unlocked.get(PATIENCE) == "unlocking"


@for_each("base, setting", [(QueueOnce, "set ONCE as"), (Singleton, "set singleton_backend_url as")])
def test_locks_without_a_place_cannot_be_shared(base: Any, setting: str) -> None:
    """`share_old_locks` without the setting that says where the locks are is refused when a task is defined."""
    app = Celery("tests", broker="memory://")
    define: Any = app.task(base=base, name="nowhere", shared=False, share_old_locks=True)
    with pytest.raises(ConfigurationError, match=f"{setting}.*or remove share_old_locks"):
        define(_nothing).name  # noqa: B018 - binds the task
    define = app.task(base=base, name="unclear", shared=False, share_old_locks="yes")
    with pytest.raises(ConfigurationError, match="share_old_locks of task unclear must be True or False, not 'yes'"):
        define(_nothing).name  # noqa: B018 - binds the task


def _nothing() -> None:
    """Do nothing."""


def test_without_the_option_the_old_redis_is_not_asked(new_program: Callable[..., Cluster]) -> None:
    """Without `share_old_locks` old locks count for nothing, and no command reaches their Redis."""
    cluster = new_program("sqlite", singleton_backend_url="redis://127.0.0.1:1/0")
    assert cluster.single.apply_async(("alone",), countdown=60).outcome is Outcome.ADMITTED
    with pytest.raises(redis.ConnectionError):  # so nothing of the above has asked it
        cluster.single.singleton_backend.get("any")
