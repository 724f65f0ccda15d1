"""What both shims have: they answer to the name of the library, and their errors pass between processes."""

from __future__ import annotations

import pickle
import subprocess
import sys

from onejob.compat.celery_once import AlreadyQueued
from onejob.compat.celery_singleton import DuplicateTaskError
from tests.cases import for_each

ONCE = """
import onejob.compat.celery_once as shim
shim.install()
import celery_once, celery_once.tasks, celery_once.helpers, celery_once.backends.redis, celery_once.backends.file
from celery_once import QueueOnce, AlreadyQueued
from celery_once.backends import Redis, File
assert celery_once is shim and celery_once.tasks.AlreadyQueued is AlreadyQueued is shim.AlreadyQueued
"""
SINGLETON = """
import onejob.compat.celery_singleton as shim
shim.install()
shim.install()
import celery_singleton, celery_singleton.singleton, celery_singleton.backends.redis, celery_singleton.backends.base
from celery_singleton import Singleton, clear_locks, DuplicateTaskError
from celery_singleton.config import Config
from celery_singleton.exceptions import CelerySingletonException
from celery_singleton.util import generate_lock
from celery_singleton.backends import get_backend
assert celery_singleton is shim and Singleton is shim.Singleton and celery_singleton.singleton.Singleton is Singleton
"""
LOADED = "import sys, types; sys.modules['celery_singleton'] = types.ModuleType('celery_singleton')\n"


def run(program: str) -> str:
    """Run a program, and return its errors."""
    return subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True).stderr


def test_install_answers_to_the_name_of_the_library() -> None:
    """After `install()`, the names of both libraries and of their submodules are the shims."""
    assert run(ONCE + SINGLETON) == ""


def test_install_refuses_a_library_that_is_loaded() -> None:
    """`install()` after an import of the library itself is an error that says what to do."""
    errors = run(LOADED + SINGLETON)
    assert "celery_singleton was imported from an unknown place before" in errors
    assert "call install() first" in errors


@for_each("error, attributes", [
    (DuplicateTaskError("a message", task_id="an-id"), {"task_id": "an-id"}),
    (AlreadyQueued(2.5), {"countdown": 2.5, "message": "Expires in 2.5 seconds"}),
])  # fmt: skip
def test_the_error_survives_the_way_between_processes(error: Exception, attributes: dict[str, object]) -> None:
    """The errors pickle, with their messages and values."""
    loaded = pickle.loads(pickle.dumps(error))  # noqa: S301 - own data
    assert str(loaded) == str(error) == attributes.get("message", "a message")
    assert {name: getattr(loaded, name) for name in attributes} == attributes
