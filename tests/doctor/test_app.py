"""The laws of the checks of an app's settings, its broker, its webhooks and its keys."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import celery
import pytest
from kombu import Queue

import onejob
from onejob.api.api_keys import KeyFile, Role
from onejob.celery.app_state import app_state_of
from onejob.doctor import app as app_checks
from onejob.doctor import webhooks
from onejob.health import redis
from onejob.health.finding import Installation, Level
from onejob.observability.metrics import total_name
from onejob.webhooks.job import webhook_submission
from tests.cases import for_each
from tests.doctor.support import names
from tests.services import RedisServer, start_redis

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - of this test
LONG = {total_name(("run_seconds", "invoice", "300")): 1.0}
"""The totals of a ledger in which a run took from one to five minutes."""
AMQP = {"broker_url": "amqp://127.0.0.1:1//", "task_default_priority": 5}


@contextmanager
def shop(tmp_path: Path, **conf: Any) -> Iterator[Installation]:
    app = celery.Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update({
        "onejob_store": f"sqlite:///{tmp_path / 'ledger.db'}", "worker_prefetch_multiplier": 1,
        "result_backend": "cache+memory://", "result_expires": 86400, **conf,
    })  # fmt: skip
    define: Any = app.task
    define(base=onejob.Task, shared=False, name="invoice")(_invoice)
    state = app_state_of(app)
    yield Installation(settings=state.settings, ledger=state.ledger, app=app)
    state.ledger.close()
    app.close()


def _invoice(order_id: int) -> int:
    return order_id


@for_each("python, is_found", [
    ((3, 11, 9), True), ((3, 11, 10), False), ((3, 12, 5), True), ((3, 12, 6), False), ((3, 13, 0), False),
])  # fmt: skip
def test_a_python_with_slow_cookies_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: tuple[int, ...], is_found: bool
) -> None:
    """An app with exposed tasks on a Python whose `http.cookies` can be blocked has the finding "python-cookies"."""
    monkeypatch.setattr(app_checks, "PYTHON", python)
    with shop(tmp_path) as installation:
        assert "python-cookies" not in names(app_checks.examine(installation))
        define: Any = installation.app and installation.app.task
        define(base=onejob.Task, shared=False, name="exposed", expose=True)(_invoice)
        assert ("python-cookies" in names(app_checks.examine(installation))) is is_found


def test_a_schedule_that_nobody_runs_is_found(tmp_path: Path) -> None:
    """A task with a schedule is found unless the workers run it."""
    for beat, expected in ((False, {"schedule-off"}), (True, set())):
        with shop(tmp_path, onejob_beat=beat) as installation:
            define: Any = installation.app and installation.app.task
            define(base=onejob.Task, shared=False, name="nightly", schedule=3600)(_invoice)
            assert names(app_checks.examine(installation)) & {"schedule-off"} == expected


def test_a_forgotten_base_is_found(tmp_path: Path) -> None:
    """A task with options of `onejob.Task` and Celery's class is an error: its equal calls run twice."""
    with shop(tmp_path) as installation:
        define: Any = installation.app and installation.app.task
        define(shared=False, name="plain", unique_on=["order_id"])(_invoice)
        (found,) = [each for each in app_checks.examine(installation) if each.check == "task-without-base"]
    assert (found.level, found.problem.partition(",")[0]) == (Level.ERROR, "task plain has unique_on")


def test_a_ledger_that_delivers_to_an_app_without_jobs_is_found(tmp_path: Path) -> None:
    """An app whose broker is the ledger, and that has no task of onejob, is found: other processes may not know it."""
    with shop(tmp_path, broker_url="onejob://") as installation:
        assert "no-onejob-task" not in names(app_checks.examine(installation))
        app = celery.Celery("plain", broker="onejob://", set_as_current=False)
        app.conf.onejob_store = installation.settings.store
        assert "no-onejob-task" in names(app_checks.examine(replace(installation, app=app)))
        app_state_of(app).close()


@for_each("conf, totals, expected, value", [
    ({}, {}, set(), "1 in all"),
    ({"task_always_eager": True}, {}, {"task-always-eager"}, "task_always_eager is True"),
    ({"task_serializer": "pickle"}, {}, {"pickle"}, "task_serializer is pickle"),
    ({"accept_content": ["json", "application/x-pickle"]}, {}, {"pickle"}, "accept_content"),
    ({"worker_prefetch_multiplier": 4}, {}, {"prefetch"}, "worker_prefetch_multiplier is 4"),
    ({"worker_prefetch_multiplier": 4}, LONG, {"prefetch-long-runs", "shutdown-grace"}, "runs took 1 min or more"),
    ({"onejob_shutdown_grace": 300}, LONG, set(), "1 in all"),
    ({"task_acks_late": True}, {}, {"late-acks"}, "task_acks_late or task_reject_on_worker_lost is on for invoice"),
    ({"task_reject_on_worker_lost": True}, {}, {"late-acks"}, "invoice"),
    ({"result_backend": None}, {}, {"result-backend"}, "there is no result_backend"),
    ({"task_ignore_result": True}, {}, {"result-backend"}, "task_ignore_result is True"),
    ({"result_backend": "onejob://", "result_expires": 60}, {}, set(), "1 in all"),
    ({"result_expires": 60}, {}, {"result-expires"}, "result_expires is 1 min"),
    ({"onejob_retention": {"completed": 30 * 86400}}, {}, {"result-expires"}, "30 d"),
    ({"task_default_priority": 3, "worker_prefetch_multiplier": 4}, {}, {"priority-prefetch", "prefetch"},
     "worker_prefetch_multiplier is 4"),
    ({"broker_url": "onejob://", "task_default_priority": 3, "worker_prefetch_multiplier": 4}, {}, set(), "1 in all"),
    ({"broker_url": "redis://:hidden@127.0.0.1:1/0"}, {}, {"broker-unreachable"}, "127.0.0.1:1/0"),
    (AMQP, {}, {"broker-unreachable", "priorities"}, "amqp://"),
    (AMQP | {"task_queue_max_priority": 10}, {}, {"broker-unreachable"}, "amqp://"),
    (AMQP | {"task_queues": [Queue("celery", max_priority=10)]}, {}, {"broker-unreachable"}, "amqp://"),
])  # fmt: skip
def test_a_setting_is_found(
    tmp_path: Path, conf: dict[str, Any], totals: dict[str, float], expected: set[str], value: str
) -> None:
    """Each setting that touches the promise, by itself or with the runs seen, is one finding."""
    with shop(Path(mkdtemp(dir=tmp_path)), **conf) as installation:
        installation.ledger.store.increment(totals)
        findings = [*app_checks.examine(installation)]
    assert names(findings) == expected
    assert value in findings[0].problem
    assert "hidden" not in str(findings)
    assert ("1 in all" in findings[-1].problem) is all(each.level in {Level.OK, Level.INFO} for each in findings)


def test_runs_longer_than_the_visibility_timeout_are_found(tmp_path: Path, redis_server: RedisServer) -> None:
    """A Redis that delivers late acknowledged messages again while their runs work is found."""
    conf = {"broker_url": redis_server.url, "task_acks_late": True, "onejob_shutdown_grace": 1}
    options = {"visibility_timeout": 30}
    with shop(tmp_path, **conf, broker_transport_options=options) as installation:
        assert names(app_checks.examine(installation)) == {"late-acks"}
        installation.ledger.store.increment(LONG)
        assert names(app_checks.examine(installation)) == {"late-acks", "visibility-timeout"}
    with shop(tmp_path, **conf) as installation:
        assert names(app_checks.examine(installation)) == {"late-acks"}


def test_a_broker_that_evicts_is_found(tmp_path: Path) -> None:
    """A Redis broker beside the ledger is examined for eviction only: what else it loses is published again."""
    server = start_redis(tmp_path, "--maxmemory-policy", "allkeys-lru")
    with shop(tmp_path, broker_url=server.url) as installation:
        assert names(redis.examine(installation)) == {"broker-eviction"}
        server.stop()
        assert names(redis.examine(installation)) == set()


# --- webhooks and keys ----------------------------------------------------------------------------------------------


def test_webhooks_without_a_secret_are_found(tmp_path: Path) -> None:
    """A webhook that waits in the ledger of an app without secrets is found, and so are open destinations."""
    with shop(tmp_path) as installation:
        assert names(webhooks.examine(installation)) == set()
        assert installation.app is not None
        result = installation.app.tasks["invoice"].delay(1)
        job = installation.ledger.get(result.id)
        sent = webhook_submission("https://shop.example/hook", job, submitter="", signer="", host="here")
        installation.ledger.follow(sent, follows_id=job.id)
        assert names(webhooks.examine(installation)) == {"webhooks-unsigned"}
    with shop(tmp_path, onejob_webhook_submitter_secrets={"another": [SECRET]}) as installation:
        assert names(webhooks.examine(installation)) == {"webhooks-unsigned"}
    with shop(tmp_path, onejob_webhook_secrets=[SECRET]) as installation:
        assert names(webhooks.examine(installation)) == set()
    conf = {"onejob_webhook_ports": [443, 80], "onejob_webhook_allow": ["192.0.2.0/24"]}
    with shop(tmp_path, onejob_webhook_secrets=[SECRET], **conf) as installation:
        assert names(webhooks.examine(installation)) == {"webhooks-plain-http", "webhooks-private-networks"}


def test_a_file_of_keys_is_examined(tmp_path: Path) -> None:
    """A file of keys is found if it is missing, writable or readable by others, or has a key that expires soon."""
    path = tmp_path / "keys.json"

    def found(days: float = 0) -> set[str]:
        return names(webhooks.check_keys(path, time.time() + days * 86400))

    assert found() == {"keys-unusable"}
    KeyFile(path).add("shop", Role.SUBMIT)
    for mode, expected in ((0o600, set()), (0o604, {"keys-readable"}), (0o622, {"keys-unusable"}), (0o600, set())):
        path.chmod(mode)
        assert found() == expected, mode
    KeyFile(path).add("guest", Role.READ, expires_at=time.time() + 30 * 86400)
    assert (found(), found(days=20), found(days=31)) == (set(), {"keys-expiring"}, {"keys-expiring"})


def test_a_file_of_keys_in_foreign_hands_is_found(tmp_path: Path) -> None:
    """A file of keys that belongs to another user is found, and one that everybody may replace is an error."""
    folder = tmp_path / "keys"
    folder.mkdir()
    KeyFile(folder / "keys.json").add("shop", Role.SUBMIT)
    folder.chmod(0o777)
    assert names(webhooks.check_keys(folder / "keys.json", time.time())) == {"keys-unusable"}
    folder.chmod(0o1777)
    assert names(webhooks.check_keys(folder / "keys.json", time.time())) == set()
    if os.geteuid() == 0:
        os.chown(folder / "keys.json", 12_345, 12_345)
        assert names(webhooks.check_keys(folder / "keys.json", time.time())) == {"keys-owner"}
