"""A pytest plugin for Celery's own suite: its tasks are of the class under test, and its server is a private one."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import celery
import pytest

from onejob.stores import migrate
from tests.services import start_postgres, start_redis

OUTCOMES = "CELERY_SUITE_OUTCOMES"
"""Environment variable: the file for the outcomes, a JSON object of `passed` or the first line of trouble by test."""
TASK_CLASS = "CELERY_SUITE_TASK_CLASS"
"""Environment variable: the class of all tasks."""
KNOWN = "CELERY_SUITE_KNOWN"
"""Environment variable: a JSON list of the seconds that tests that are known to fail may take, and of these tests."""
LEDGER = "CELERY_SUITE_LEDGER"
"""Environment variable: the kind of the ledger that delivers the jobs; "": a Redis is the broker and the ledger."""
FIRST = "CELERY_SUITE_FIRST"
"""Environment variable: a part of the names of the tests that begin first, since they wait longest."""

NEXT_SECONDS = 10.0
"""How long each later subtest of a test may take whose time is over."""

if importlib.util.find_spec("pytest_subtests") is None:  # pytest has them since
    sys.modules["pytest_subtests"] = ModuleType("pytest_subtests")
    sys.modules["pytest_subtests"].SubTests = pytest.Subtests  # type: ignore[attr-defined]
celery.Celery.task_cls = os.environ[TASK_CLASS]
_folder = tempfile.TemporaryDirectory(prefix="celery-suite-")
_server = start_redis(Path(_folder.name))
_postgres = start_postgres() if os.environ[LEDGER] == "postgresql" else None
os.environ |= {
    "TEST_BROKER": _server.url, "TEST_BACKEND": _server.url, "REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(_server.port),
    "WORKER_LOGLEVEL": "INFO",
}  # fmt: skip
_outcomes: dict[str, str] = {}


def _have_ledger_deliver(store: str) -> None:
    """Have the ledger of each app in one store, which delivers the jobs."""
    os.environ["TEST_BROKER"] = "onejob://"
    original = celery.Celery.__init__

    def init(app: Any, *args: Any, **options: Any) -> None:
        original(app, *args, **options)
        app.add_defaults({"onejob_store": store})

    celery.Celery.__init__ = init  # type: ignore[method-assign,assignment]


if _postgres is not None:
    migrate.upgrade(_postgres.url, "onejob")
    _have_ledger_deliver(_postgres.url)
elif os.environ[LEDGER] == "sqlite":
    _have_ledger_deliver(f"sqlite:///{_folder.name}/ledger.db")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Drop the time limits of the tests, which a busy machine exceeds, but for those that are known to fail."""
    seconds, *known = json.loads(os.environ[KNOWN])
    for item in items:
        for node in item.listchain():
            node.own_markers = [mark for mark in node.own_markers if mark.name != "timeout"]
        if _name(item.nodeid) in known:
            item.add_marker(pytest.mark.timeout(seconds))
    items.sort(key=lambda item: (os.environ[FIRST] not in item.name, _name(item.nodeid) not in known))


def pytest_timeout_set_timer(settings: Any) -> bool:
    """Start the time limit of a test, which comes again after it has ended a subtest, and not the test."""
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"timeout: {settings.timeout} s"))
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, NEXT_SECONDS)
    return True


def pytest_timeout_cancel_timer() -> bool:
    signal.setitimer(signal.ITIMER_REAL, 0)
    return True


def _name(nodeid: str) -> str:
    return nodeid.removeprefix("t/integration/")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the outcome of a test: a failure of its setup, its call, its end or a subtest is one of the test."""
    test = _name(report.nodeid)
    if report.failed:
        _outcomes[test] = f"{report.when}: {report.longreprtext.strip().splitlines()[-1:]}"
    elif report.when == "call" and report.passed:
        _outcomes.setdefault(test, "passed")


def pytest_unconfigure(config: pytest.Config) -> None:
    _server.stop()
    if _postgres is not None:
        _postgres.remove()
    _folder.cleanup()
    if not hasattr(config, "workerinput"):
        Path(os.environ[OUTCOMES]).write_text(json.dumps(_outcomes), encoding="utf-8")
