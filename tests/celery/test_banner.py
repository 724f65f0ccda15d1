"""What a worker logs at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import celery
import pytest

import onejob
from onejob.celery.options import tasks_of
from onejob.celery.worker.bootstep import NAMED_TASKS, describe_ledger
from onejob.stores import display_url
from tests.celery.harness import on_every_store

if TYPE_CHECKING:
    from tests.celery.harness import House


@on_every_store("house")
def test_a_worker_logs_its_ledger_at_the_start(house: House) -> None:
    """A worker that has started has logged the store, the namespace, the lease and its onejob tasks."""
    text = house.worker("--pool", "solo").text
    (line,) = [line for line in text.splitlines() if "onejob: ledger" in line]
    assert describe_ledger(house.app) in line
    assert " play, " in line


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://shop:s3cret@db.example:5433/shop?sslmode=require", "postgresql://db.example:5433/shop"),
        ("postgresql://db.example/shop?user=shop&password=s3cret@x", "postgresql://db.example:5432/shop"),
        ("rediss://:s3cret@cache.example/1", "rediss://cache.example:6379/1"),
        ("redis://cache.example/1?password=s3cret", "redis://cache.example:6379/1"),
        ("redis+socket:///run/redis.sock?virtual_host=2&password=s3cret", "unix:///run/redis.sock/2"),
        ("sqlite:////srv/ledger.db", "sqlite:////srv/ledger.db"),
    ],
)
def test_a_shown_url_has_no_secret(url: str, shown: str) -> None:
    """The URL that is logged has the place of the store, and neither user, password nor options."""
    assert display_url(url) == shown


def test_only_the_first_tasks_are_named() -> None:
    """Of an app with many tasks, the log line names some and counts the others; plain tasks are not named."""
    app: Any = celery.Celery("many", broker="memory://")
    app.conf.onejob_store = "sqlite:///ledger.db"

    def work() -> None: ...

    for number in range(NAMED_TASKS + 2):
        app.task(work, base=onejob.Task, name=f"many.t{number:02}", shared=False)
    app.task(work, name="many.plain", shared=False)
    line = describe_ledger(app)
    assert line.startswith("onejob: ledger sqlite:///ledger.db, lease 30 s, tasks: many.t00, many.t01")
    assert line.endswith(f"and {len(tasks_of(app)) - NAMED_TASKS} more")
    assert "plain" not in line
