"""A pytest plugin for Celery's own suite: its tasks are of the class under test, and its server is a private one."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import celery
import pytest

from tests.services import start_redis

if TYPE_CHECKING:
    from collections.abc import Iterable

OUTCOMES = "CELERY_SUITE_OUTCOMES"
"""Environment variable: the file for the outcomes, a JSON object of `passed` or the first line of trouble by test."""
TASK_CLASS = "CELERY_SUITE_TASK_CLASS"
"""Environment variable: the class of all tasks."""

if importlib.util.find_spec("pytest_subtests") is None:  # pytest has them since
    sys.modules["pytest_subtests"] = ModuleType("pytest_subtests")
    sys.modules["pytest_subtests"].SubTests = pytest.Subtests  # type: ignore[attr-defined]
celery.Celery.task_cls = os.environ[TASK_CLASS]
_folder = tempfile.TemporaryDirectory(prefix="celery-suite-")
_server = start_redis(Path(_folder.name))
os.environ |= {
    "TEST_BROKER": _server.url, "TEST_BACKEND": _server.url, "REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(_server.port),
    "WORKER_LOGLEVEL": "INFO",
}  # fmt: skip
_outcomes: dict[str, str] = {}


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Drop the time limits of the tests, which a busy machine exceeds: `--timeout` holds for each."""
    for item in items:
        for node in item.listchain():
            node.own_markers = [mark for mark in node.own_markers if mark.name != "timeout"]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the outcome of a test: a failure of its setup, its call, its end or a subtest is one of the test."""
    test = report.nodeid.removeprefix("t/integration/")
    if report.failed:
        _outcomes[test] = f"{report.when}: {report.longreprtext.strip().splitlines()[-1:]}"
    elif report.when == "call" and report.passed:
        _outcomes.setdefault(test, "passed")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the server; the process that has the outcomes of all writes them."""
    _server.stop()
    _folder.cleanup()
    if not hasattr(config, "workerinput"):
        Path(os.environ[OUTCOMES]).write_text(json.dumps(_outcomes), encoding="utf-8")
