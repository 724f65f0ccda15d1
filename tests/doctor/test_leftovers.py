"""The laws of `onejob doctor --migrate`."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

import onejob
from onejob.compat.celery_once import QueueOnce
from onejob.compat.celery_singleton import Singleton
from onejob.doctor.leftovers import find_leftovers
from tests.cases import for_each
from tests.cli.command import APP, call
from tests.doctor.support import run_command
from tests.services import RedisServer

SOURCE = '''"""import celery_once"""
import celery_singleton
from celery_once.tasks import QueueOnce
from onejob.compat.celery_singleton import Singleton
from onejob.compat import celery_once as shim
# base=Singleton, lock_expiry=10
@app.task(base=QueueOnce, once={"keys": ["a"]})
def one(a): ...
@app.task(base=Singleton, lock_expiry=10, raise_on_duplicate=True)
def two(a): ...
class Base(Singleton):
    lock_expiry = 60
app.conf.ONCE = {"backend": "celery_once.backends.Redis"}
CELERY_SINGLETON_BACKEND_URL = "redis://localhost"
app.conf.update(singleton_key_prefix="x", **{"singleton_lock_expiry": 1})
signal.connect(receiver, once=True); client.set("key", "value", nx=False); done.set("key")
once = 1
app.conf["singleton_raise_on_duplicate"] = True
if not client.set(f"job:{id}", token, nx=True, px=1000): ...
pool.client().setnx("key", "value")
from celery_singleton import clear_locks as clear
clear(app)
celery_singleton.clear_locks(app)
elsewhere.clear_locks(app)
@app.task(base=celery_singleton.Singleton, unique_on=[])
def three(a): ...
class Every(Singleton):
    unique_on = ()
@app.task(base=onejob.Task, unique_on=[])
def four(a): ...
@app.task(base=Singleton, unique_on=["a"])
def five(a): ...
'''
FOUND = {
    (2, "imports celery_singleton"), (3, "imports celery_once"), (4, "imports onejob.compat.celery_singleton"),
    (5, "imports onejob.compat.celery_once"), (7, "sets the option once"), (9, "sets the option lock_expiry"),
    (9, "sets the option raise_on_duplicate"), (12, "sets the option lock_expiry"), (13, "sets ONCE"),
    (13, "names 'celery_once.backends.Redis'"), (14, "sets CELERY_SINGLETON_BACKEND_URL"),
    (15, "sets singleton_key_prefix"), (15, "sets singleton_lock_expiry"), (18, "sets singleton_raise_on_duplicate"),
    (19, "client.set takes a lock in Redis"), (20, "pool.client().setnx takes a lock in Redis"),
    (21, "imports celery_singleton"), (22, "calls clear_locks"), (23, "calls clear_locks"),
    (25, "sets unique_on=[]"), (28, "sets unique_on=()"),
}  # fmt: skip


def test_leftovers_in_source_are_found_by_syntax(tmp_path: Path) -> None:
    """Imports, options and settings of old libraries, and locks by SET NX, are found, by line; other uses are not."""
    (tmp_path / "package").mkdir()
    file = tmp_path / "package" / "tasks.py"
    file.write_text(SOURCE)
    (tmp_path / "package" / "folder.py").mkdir()
    (tmp_path / "package" / ".#tasks.py").symlink_to("somebody@host.42")  # as an editor locks a file
    findings = find_leftovers(None, [tmp_path])
    assert sorted((finding.subject, finding.problem) for finding in findings) == sorted(
        (f"{file}:{line}", problem) for line, problem in FOUND
    )
    lines = [int(finding.subject.rpartition(":")[2]) for finding in findings]
    assert lines == sorted(lines)
    assert findings[0].remedy.startswith("the same names from onejob.compat.celery_singleton, or install()")
    assert all(finding.meaning and finding.remedy for finding in findings)
    assert find_leftovers(None, [file]) == findings
    for text in ("def (:", "total = 1" + " + 1" * 9999, "query = build()" + ".filter(1)" * 400):
        file.write_text(text)
        (finding,) = find_leftovers(None, [tmp_path])
        assert "could not be read" in finding.problem, text[:20]
        assert finding.meaning == "it was not examined", text[:20]


@for_each("call", [
    "import onejob.compat.celery_once\nonejob.compat.celery_once.install()",
    "from onejob.compat import celery_once as shim\nshim.install()",
    "from onejob.compat.celery_once import install\ninstall()",
])  # fmt: skip
def test_an_import_through_the_alias_is_one_of_the_shim(tmp_path: Path, call: str) -> None:
    """Where a file calls a shim's `install()`, imports by the old library's name are reported as the shim's."""
    (tmp_path / "tasks.py").write_text("import celery_once\nimport celery_singleton\n")
    old, other = find_leftovers(None, [tmp_path / "tasks.py"])
    (tmp_path / "start.py").write_text(call)
    *_, aliased, unchanged = find_leftovers(None, [tmp_path / "start.py", tmp_path / "tasks.py"])
    assert aliased.problem == "imports celery_once, which install() makes the shim"
    assert "the shim keeps" in aliased.meaning
    assert "the old library's locks" in old.meaning
    assert unchanged == other


def test_leftovers_in_an_app_are_found(tmp_path: Path) -> None:
    """Settings and task options of old libraries, and tasks of their shims, are found in an app; others are not."""
    app = Celery("old", broker="memory://", changes={"onejob_store": f"sqlite:///{tmp_path}/ledger.db"})
    app.conf.update(singleton_lock_expiry=5, singleton_backend_class="its.Backend",
                    ONCE={"backend": "celery_once.backends.File", "settings": {}})  # fmt: skip
    define: Any = app.task
    define(base=Singleton, name="single", raise_on_duplicate=True, shared=False)(_nothing)
    define(base=QueueOnce, name="shares", share_old_locks=True, shared=False)(_nothing)
    define(base=QueueOnce, name="once", once={"graceful": True}, shared=False)(_nothing)
    define(base=onejob.Task, name="new", shared=False)(_nothing)
    app.finalize()
    found = {(finding.subject, finding.problem) for finding in find_leftovers(app, [])}
    assert found == {
        ("settings: ONCE", "the app sets it"), ("settings: singleton_backend_class", "the app sets it"),
        ("settings: singleton_lock_expiry", "the app sets it"), ("task shares", "it has share_old_locks=True"),
        ("task shares", "its class is a shim of onejob.compat"),
        ("task single", "its class is a shim of onejob.compat"), ("task single", "it has raise_on_duplicate=True"),
        ("task once", "its class is a shim of onejob.compat"), ("task once", "it has once={'graceful': True}"),
    }  # fmt: skip
    assert not find_leftovers(Celery("new", broker="memory://"), [])
    (tmp_path / "settings.py").write_text("singleton_lock_expiry = 5\nONCE = {}\n")
    both = [finding.subject for finding in find_leftovers(app, [tmp_path, Path(__file__)])]
    assert {f"{tmp_path / 'settings.py'}:1", "task shares"} < {*both}
    assert not {"settings: ONCE", "settings: singleton_lock_expiry", "task single", "task once"} & {*both}


def test_old_locks_in_redis_are_counted(broker: RedisServer) -> None:
    """Locks of both libraries are counted; the printed commands delete them in the database examined."""
    url = broker.database()
    with redis.Redis.from_url(url) as client:
        client.set("SINGLETONLOCK_1", "an-id")
        client.set("SINGLETONLOCK_2", "an-id", ex=100)
        client.set("qo_task a's", "token", ex=100)
    app = Celery("old", broker="memory://", backend=url)
    app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"url": url}}
    singleton, once = [finding for finding in find_leftovers(app, []) if finding.subject.startswith("redis")]
    assert singleton.problem.startswith("2 locks of celery-singleton, 1 without an expiry, such as SINGLETON")
    assert once.problem == "1 lock of celery-once, 0 without an expiry, such as qo_task a's"
    for finding in (singleton, once):
        run_command(finding.remedy.partition(": ")[2])
    assert [finding for finding in find_leftovers(app, []) if finding.subject.startswith("redis")] == []
    (away,) = find_leftovers(Celery("away", broker="redis://127.0.0.1:1/0"), [])
    assert away.problem.startswith("could not look")


def test_a_task_may_wrap_a_class() -> None:
    """A task whose function names a class as what it wraps, and so has no source, is no leftover and no error."""
    app = Celery("classes")

    class Report: ...

    def run() -> None: ...

    app.task(name="report")(functools.update_wrapper(run, Report, updated=()))
    assert find_leftovers(app, []) == []


def test_the_command_fails_with_findings(tmp_path: Path) -> None:
    """`doctor --migrate` exits with 1 if anything is left and 0 otherwise, and prints JSON on request."""
    file = tmp_path / "old.py"
    file.write_text("import celery_once\n")
    result = call("doctor", "--migrate", str(file))
    assert result.exit_code == 1
    assert f"{file}:1: imports celery_once" in result.output
    assert "to do: the same names from onejob.compat.celery_once" in result.output
    told = json.loads(call("doctor", "--migrate", "--json", str(tmp_path)).output)
    assert [finding["subject"] for finding in told] == [f"{file}:1"]
    module = tmp_path / "migrated_shop.py"
    module.write_text(APP.format(path=tmp_path / "ledger.db"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        done = call("-A", "migrated_shop", "doctor", "--migrate", str(module))
    assert (done.exit_code, done.output.strip()) == (0, "nothing is left of celery-singleton or celery-once")


def _nothing() -> None:
    """Do nothing."""
