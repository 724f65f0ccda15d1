"""A pytest plugin for the suites of other libraries: their names mean our shims, and their tools are at hand."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import celery
import pytest
import redis

from onejob import config
from onejob.compat import celery_once, celery_singleton

pytest_plugins = ["celery.contrib.pytest"]

sharing = os.environ["PEER_MODE"] == "sharing"
celery_singleton.install(share_old_locks=sharing)
celery_once.install(share_old_locks=sharing)
logging.getLogger("onejob.jobs").setLevel(logging.WARNING)
_settings: Any = config.Settings.from_mapping.__func__  # type: ignore[attr-defined]


def _with_a_ledger(cls: Any, conf: Any) -> Any:
    """Read an app's settings; a suite's app knows nothing of a ledger, so this run's Redis is its store."""
    return _settings(cls, {**{name: conf.get(name) for name in conf}, "onejob_store": os.environ["PEER_REDIS_URL"]})


config.Settings.from_mapping = classmethod(_with_a_ledger)  # type: ignore[assignment]


class FakeStrictRedis(redis.Redis):
    def __init__(self) -> None:
        details = redis.Redis.from_url(os.environ["PEER_REDIS_URL"]).connection_pool.connection_kwargs
        super().__init__(host=details["host"], port=details["port"], db=15)


def _module(name: str, **content: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(content)
    sys.modules[name] = module


_module("fakeredis", FakeStrictRedis=FakeStrictRedis)
sys.modules["mock"] = mock
celery.task = celery.shared_task  # type: ignore[attr-defined] # gone since Celery 5


@pytest.fixture
def mocker() -> Iterator[Any]:
    """Return what these suites use of pytest-mock."""
    active: list[Any] = []

    def patch(*args: Any, **kwargs: Any) -> Any:
        active.append(mock.patch(*args, **kwargs))
        return active[-1].start()

    yield SimpleNamespace(patch=patch, Mock=mock.Mock, call=mock.call)
    for each in reversed(active):
        each.stop()
