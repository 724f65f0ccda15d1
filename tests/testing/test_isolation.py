"""An isolated app works on a ledger and a broker of the test's own."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import TimeoutError as CeleryTimeoutError

import onejob
from onejob.celery.app_state import app_state_of
from onejob.testing import Jobs, isolated, reset
from tests.testing import shop


def make_app(store: str) -> tuple[Any, Any]:
    app: Any = Celery("settings", set_as_current=False)
    app.conf.onejob_store = store

    def add(a: int) -> int:
        return a + 1

    return app, app.task(base=onejob.Task, name="settings.add", shared=False)(add)


def test_each_block_has_a_ledger_of_its_own_and_leaves_nothing() -> None:
    """Blocks do not see each other's jobs, their files are removed, and the app is as before, also after an error."""
    shop.app.finalize()
    assert not shop.app.conf.task_always_eager  # which loads the settings
    app: Any = shop.app
    before, state = dict(app.conf.changes), shop.app.__dict__.get("_onejob_state")
    paths = []
    for _ in range(2):
        with isolated(shop.app) as jobs:
            assert shop.invoice.delay(1).outcome == "admitted"
            paths.append(jobs.store.path)
    assert paths[0] != paths[1]
    assert [path.parent.exists() for path in paths] == [False, False]
    assert app.conf.changes == before
    assert shop.app.__dict__.get("_onejob_state") is state
    with pytest.raises(onejob.errors.JobNotFoundError), isolated(shop.app) as jobs:
        jobs.get("no-such-job")
    assert shop.app.connection_for_write().hostname == "broker.invalid"


def test_each_block_has_a_result_backend_of_its_own() -> None:
    """The result of a plain Celery task in one block is not that of a task with the same id in the next."""
    states = []
    for _ in range(2):
        with isolated(shop.app) as jobs:
            plain = shop.plain.apply_async((1,), task_id="the same")
            states.append(plain.state)
            jobs.run_all()
            states.append(plain.state)
    assert states == ["PENDING", "SUCCESS"] * 2


def test_settings_are_read_anew_in_each_block() -> None:
    """Each block reads the settings anew; its own end with it, also before the first use of an app or after a reset."""
    app, add = make_app("redis://ledger.invalid:1/0")
    for seconds in (60, 120):
        app.conf.onejob_key_retention = seconds
        with isolated(app):
            assert app_state_of(app).settings.key_retention == seconds
    with isolated(app, key_retention=7, payload_limit=50) as jobs:
        assert jobs.app_state.settings.key_retention == 7
        with pytest.raises(onejob.errors.InvalidPayloadError, match="past 50 bytes"):
            add.delay("x" * 100)
        app.conf.onejob_crash_limit = 9
    assert app.conf.onejob_key_retention == 120
    assert app.conf.get("onejob_crash_limit") is None
    app, add = make_app("sqlite:///unused.db")
    app.finalize()
    reset(app)
    own = app_state_of(app)
    with isolated(app, lease=6) as jobs:
        assert jobs.ledger.get(add.delay(1).id).lease == 6
    with isolated(app) as jobs:
        assert jobs.ledger.get(add.delay(1).id).lease == 30
    assert (own.settings.lease, own.settings.store) == (30, "sqlite:///unused.db")


def test_reset_honours_changed_settings(tmp_path: Path) -> None:
    """After `reset` the app has the ledger and its tasks the lease of its settings now, without an isolation."""
    app, add = make_app(f"sqlite:///{tmp_path / 'one.db'}")
    app.conf.broker_url = "memory://"
    add.delay(1)
    app.conf.update(onejob_store=f"sqlite:///{tmp_path / 'two.db'}", onejob_lease=60)
    reset(app)
    result = add.delay(1)
    assert (result.outcome, app_state_of(app).ledger.get(result.id).lease) == ("admitted", 60)
    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["one.db", "two.db"]
    reset(app)


def test_no_other_setting_leads_to_a_real_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery prefers the environment and `broker_transport` to the URLs; a block hides both, and gives them back."""
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://broker.invalid:2/0")
    monkeypatch.setitem(shop.app.conf, "broker_transport", "redis")
    with isolated(shop.app) as jobs:
        result = shop.double.delay(3)
        jobs.run_all()
        assert result.get(timeout=0) == 6
    assert os.environ["CELERY_BROKER_URL"] == "redis://broker.invalid:2/0"
    assert shop.app.conf.broker_transport == "redis"


def test_the_ledger_of_another_app_is_refused(jobs: Jobs, tmp_path: Path) -> None:
    """While an app is isolated, no real ledger of another app is opened: the error says what to do."""
    app, add = make_app(f"sqlite:///{tmp_path / 'real.db'}")
    app.conf.broker_url = "memory://"
    with pytest.raises(onejob.errors.ConfigurationError, match="isolate this app, too"):
        add.delay(1)
    with isolated(app):
        add.delay(1)
    assert [*tmp_path.iterdir()] == []


def test_two_isolated_apps_run_their_own_jobs(jobs: Jobs) -> None:
    """An isolated app leaves the messages in the common broker alone whose task only another one has, also to clear."""
    app, add = make_app("sqlite:///unused.db")
    with isolated(app) as others:
        shop.plain.delay(1)
        others.clear()
        results = add.delay(1), shop.double.delay(2), app.send_task(shop.plain.name, (3,))
        assert [jobs.run_all(), results[0].state, others.run_all()] == [3, "PENDING", 1]
    assert (results[1].get(timeout=0), shop.calls) == (4, [1, 2, 3])


def test_a_block_that_cannot_be_is_refused(jobs: Jobs) -> None:
    """A second isolation of one app and settings that cannot work are refused, and do no harm to the next block."""
    with pytest.raises(onejob.errors.ConfigurationError, match="already"), isolated(shop.app):
        pass
    app, add = make_app("sqlite:///unused.db")
    app.task(base=onejob.Task, name="settings.short", shared=False, lease=20)(add.run)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("leese", {"leese": 3}), ("store", {"store": "redis://x"}), ("onejob_lease", {"lease": 0}),
        ("onejob_heartbeat: a worker renews", {"heartbeat": 30}), ("not.*'webhook_ports'", {"webhook_ports": (80,)}),
    ]  # fmt: skip
    for message, options in wrong:
        with pytest.raises(onejob.errors.ConfigurationError, match=message), isolated(app, **options):
            pass
    with isolated(app):
        assert add.delay(1).outcome == "admitted"


def test_nobody_waits_for_a_job_that_only_the_test_can_run(jobs: Jobs) -> None:
    """A wait for what has not ended raises at once, in other threads of the test, too; what has ended has its value."""
    result, failed, plain = shop.double.delay(4), shop.fail.delay("no"), shop.plain.delay(5)
    for waiting in (result, plain):
        with pytest.raises(onejob.OneJobError, match=r"is PENDING.*jobs\.run_all\(\)"):
            waiting.get()
    with pytest.raises(onejob.OneJobError, match=r"aget\(\) would wait.*jobs\.run_all\(\)"):
        asyncio.run(result.aget())
    with pytest.raises(CeleryTimeoutError):
        result.get(timeout=0)
    jobs.run_all()
    assert result.get() == asyncio.run(result.aget()) == 8
    assert plain.get() == 5
    with pytest.raises(ValueError, match="no"):
        failed.get()
    result = shop.double.delay(4)

    async def wait() -> None:
        await asyncio.wait_for(result.aget(), timeout=1)

    with ThreadPoolExecutor() as pool, pytest.raises(onejob.OneJobError, match=r"aget\(\) would wait"):
        pool.submit(copy_context().run, asyncio.run, wait()).result()


def test_another_thread_may_wait_for_the_test(jobs: Jobs) -> None:
    """A thread waits without a timeout for a job that the thread of the test runs."""
    result = shop.double.delay(4)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(result.get)
        jobs.run_all()
        assert waiting.result(timeout=60) == 8
