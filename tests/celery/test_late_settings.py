"""Settings that an app sets after its tasks were bound: in a hook of the worker, or between two uses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import celery
import pytest

from onejob import State
from onejob.celery.app_state import app_state_of
from onejob.errors import ConfigurationError, InvalidPayloadError
from onejob.jobs.query import Query
from tests.celery.app import LATE
from tests.celery.harness import Cluster, await_
from tests.celery.test_options import app_with, define
from tests.submissions import row_of

POOLS = {
    "prefork": {},
    "threads": {},
    "spawn": {"worker_pool": "prefork", "worker_pool_start_method": "spawn"},
}
needs_start_method = pytest.mark.skipif(
    tuple(celery.VERSION) < (5, 7), reason="before Celery 5.7, a pool has no start method"
)


@pytest.mark.parametrize("sent", ["celeryd_init", "worker_init"])
@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.deep),
                                  pytest.param("spawn", marks=needs_start_method)])  # fmt: skip
def test_a_worker_uses_the_settings_of_its_hooks(new_cluster: Callable[..., Cluster], pool: str, sent: str) -> None:
    """A ledger and a lease that are set in `celeryd_init` or `worker_init` are those of the parent and its children."""
    cluster = new_cluster()
    other = cluster.another_app(onejob_store="sqlite:///elsewhere.db", onejob_lease=60)
    given = {name: cluster.config[name] for name in ("onejob_store", "onejob_lease")}
    late: dict[str, Any] = {name: other.conf[name] for name in given} | {LATE: {sent: given}} | POOLS[pool]
    worker = cluster.worker("-c", "1", *(["--pool", pool] if pool == "threads" else []), **late)
    result = cluster.play.delay("outer", ["submit:play"], ["inner", ["return"]])
    inner = result.get(timeout=40)
    assert cluster.await_state(inner, State.COMPLETED).lease == cluster.config["onejob_lease"]
    (parent,) = await_(cluster.ledger.workers)
    assert parent.name == f"{worker.name}@test"
    cluster.assert_quiet()


SET: dict[str, Callable[[Any, str, Any], object]] = {
    "an attribute": setattr,
    "an item": lambda conf, name, value: conf.__setitem__(name, value),
    "an update": lambda conf, name, value: conf.update({name: value}),
}


@pytest.mark.parametrize("way", SET)
def test_a_setting_counts_until_the_ledger_is_open(tmp_path: Path, way: str) -> None:
    """What is set after a task was bound counts; a change under an open ledger is refused, with both values."""
    app = app_with(onejob_store=f"sqlite:///{tmp_path}/first.db", onejob_lease=30)
    task: Any = define(app)
    app.finalize()
    assert task._onejob.lease == 30
    SET[way](app.conf, "onejob_store", f"sqlite:///{tmp_path}/second.db")
    SET[way](app.conf, "onejob_lease", 60)
    SET[way](app.conf, "onejob_payload_limit", 50)
    assert row_of(task.delay(1)).lease == 60
    assert not (tmp_path / "first.db").exists()
    with pytest.raises(InvalidPayloadError, match="past 50 bytes"):
        task.delay("x" * 100)
    SET[way](app.conf, "timezone", "Europe/Berlin")  # which is not ours
    task.delay(2)
    SET[way](app.conf, "onejob_store", f"sqlite:///{tmp_path}/third.db")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"onejob_store was .*second\.db.*, and is .*third\.db.* now"):
            task.delay(3)
    SET[way](app.conf, "onejob_store", f"sqlite:///{tmp_path}/second.db")
    assert task.delay(3).outcome == "admitted"
    assert len(app_state_of(app).ledger.find(Query())) == 3


def test_a_changed_secret_is_not_shown(tmp_path: Path) -> None:
    """The error of a change shows no password of a store, and no secret of webhooks."""
    app = app_with(onejob_store=f"sqlite:///{tmp_path}/kept.db")
    task: Any = define(app)
    task.delay(1)
    _ = app_state_of(app).webhooks
    app.conf.onejob_store = "postgresql://user:hidden@127.0.0.1/jobs"
    app.conf.onejob_webhook_secrets = ["whsec_aGlkZGVuaGlkZGVuaGlkZGVuaGlkZGVu"]
    with pytest.raises(ConfigurationError, match="onejob_webhook_secrets was") as caught:
        task.delay(2)
    assert "hidden" not in str(caught.value)
    assert "aGlkZGVu" not in str(caught.value)
