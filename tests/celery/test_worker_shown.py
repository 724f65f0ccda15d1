"""What a real worker shows of itself: its banner, its registration, its probe file, and what commands find."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from onejob.celery.app_state import app_state_of
from onejob.celery.options import tasks_of
from onejob.celery.worker.bootstep import NAMED_TASKS, describe_ledger
from onejob.celery.worker.heartbeat import find_fault
from onejob.doctor.examine import examine
from onejob.doctor.finding import Installation, Level
from onejob.ledger.explain import explain
from onejob.ledger.stuck import Stuck
from onejob.stores import display_url
from tests.cases import for_each
from tests.celery.harness import await_
from tests.doctor.support import names

if TYPE_CHECKING:
    from onejob.doctor.finding import Finding
    from tests.celery.harness import House


def findings_of(house: House) -> list[Finding]:
    """Examine the installation of a house, as `onejob doctor` does."""
    return examine(Installation(settings=app_state_of(house.app).settings, ledger=house.ledger, app=house.app))


def test_a_worker_shows_its_ledger_at_the_start(house: House) -> None:
    """A started worker has shown, below its banner, the store, the namespace, the lease and the first onejob tasks."""
    text = house.worker("--pool", "solo").text
    (line,) = [line for line in text.splitlines() if "onejob: ledger" in line]
    assert describe_ledger(house.app) in line
    names = sorted(tasks_of(house.app))
    assert line.endswith(f"tasks: {', '.join(names[:NAMED_TASKS])} and {len(names) - NAMED_TASKS} more")
    assert {"plain", "gather"}.isdisjoint(names)


@for_each(
    "url, shown",
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


def test_a_healthy_installation_has_no_warning(house: House) -> None:
    """A worker that is alive leaves `onejob doctor` no warning; it registers its versions; without it there is one."""
    assert names(findings_of(house)) - {"late-acks"} == {"no-worker", "broker-timeout"}
    house.worker("-c", "1", "-P", "threads")
    await_(house.ledger.workers)
    found = findings_of(house)
    assert [finding for finding in found if finding.level.rank > Level.INFO.rank] == []
    assert {finding.subject for finding in found if finding.level is Level.OK} >= {"ledger", "sqlite", "app", "workers"}
    (registered,) = house.ledger.workers()
    assert f"celery {version('celery')}" in registered.versions


def test_a_queue_that_no_worker_consumes_is_found(house: House) -> None:
    """A queue that no live worker consumes is an error of `onejob doctor`, and the answer of `onejob why`."""
    worker = house.worker("-c", "1", "-P", "threads", "-Q", "another")
    unheard = house.play.delay("unheard", ["return"])
    heard = house.play.apply_async(("heard", ["return"]), queue="another", countdown=3600)
    await_(house.ledger.workers)
    missing = [finding.problem for finding in findings_of(house) if finding.check == "queue-without-worker"]
    assert "jobs of play are sent to celery, which no live worker with the task consumes" in missing
    found = explain(house.ledger, unheard.id)
    assert found.stuck is Stuck.QUEUE_NOT_CONSUMED
    assert any(f"consumes the queue celery: {worker.name}@test consumes " in line for line in found.sentences)
    assert explain(house.ledger, heard.id).stuck is None


def test_a_worker_writes_its_probe_file_until_it_ends(house: House) -> None:
    """A worker is alive and ready by its file; frozen it is not; after its end the file is gone."""
    path = house.directory / "probe"
    worker = house.worker("-c", "1", onejob_probe_file=str(path), onejob_lease=3)
    await_(lambda: find_fault(path, time.time(), ready=True, max_age=2.0) is None)
    worker.freeze()
    await_(lambda: "has not moved" in str(find_fault(path, time.time(), max_age=2.0)))
    worker.thaw()
    await_(lambda: find_fault(path, time.time(), ready=True, max_age=2.0) is None)
    worker.sigterm()
    worker.await_end()
    assert not path.exists()
