"""The fixtures of `celery.contrib.pytest`, with jobs."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery==5.7.0",),
    feature="`celery.contrib.pytest`",
    ran="`celery_app` with `celery_worker`, and `celery_session_app` with `celery_session_worker`; Redis, `memory://`",
    holds="Jobs that a test defines run in the worker's thread after `celery_worker.reload()`, duplicates once.",
    do="In `celery_config` name `onejob_store` and, as Celery's ping needs one, a `result_backend`. [The plugin of "
    "onejob](../guides/testing.md) needs neither a worker nor a broker.",
    fails="`onejob://` is unknown to the fixtures' worker, which starts before a task of onejob is bound.",
)
TESTS = """
import os
import threading
import pytest
import onejob

@pytest.fixture(scope="session")
def celery_config(tmp_path_factory):
    store = f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db"
    return {"broker_url": os.environ["BROKER"], "result_backend": "cache+memory://", "onejob_store": store}

def check(app, worker, number):
    runs, gate = [], threading.Event()

    @app.task(base=onejob.Task, name=f"add-{number}")
    def add(a, b):
        runs.append(a)
        gate.wait(30)
        return a + b

    worker.reload()
    first, again = add.delay(number, 2), add.delay(number, 2)
    gate.set()
    assert first.id == again.id
    assert first.get(timeout=20) == number + 2
    assert runs == [number]

@pytest.mark.parametrize("number", range(3))
def test_a_worker_of_each_test(celery_app, celery_worker, number):
    check(celery_app, celery_worker, number)

@pytest.mark.parametrize("number", range(3))
def test_a_worker_of_the_session(celery_session_app, celery_session_worker, number):
    check(celery_session_app, celery_session_worker, 10 + number)
"""
PYTEST = ("-m", "pytest", "-q", "-p", "celery.contrib.pytest", "-p", "no:cacheprovider", "--tb=short", "test_shop.py")


@pytest.mark.parametrize("kind", ["redis", "memory://"])
def test_the_fixtures_run_jobs(program: MakeProgram, kind: str) -> None:
    """Both workers of the fixtures run the jobs of three tests each, and a duplicate runs once."""
    shop = program("")
    shop.variables["BROKER"] = shop.variables["SHOP_BROKER"] if kind == "redis" else kind
    (shop.folder / "test_shop.py").write_text(TESTS)
    assert "6 passed" in shop.command(*PYTEST)


def test_the_fixtures_do_not_know_our_broker(program: MakeProgram) -> None:
    """With `onejob://` the fixtures' worker does not start."""
    shop = program("", BROKER="onejob://")
    (shop.folder / "test_shop.py").write_text(TESTS)
    with pytest.raises(AssertionError, match="No such transport: onejob"):
        shop.command(*PYTEST)
