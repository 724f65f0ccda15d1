"""Whether a server is well, who works for it, and what has been counted."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kombu import Connection
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from onejob.api import create_app
from onejob.api.app import log_config
from onejob.api.ttl_cache import TTLCache
from onejob.celery.app_state import app_state_of
from onejob.cli import main
from onejob.errors import StoreUnavailableError
from onejob.ledger.sweep import sweep
from onejob.observability.metrics import BOUNDS, PREFIX, SERIES
from tests.http.conftest import LOCAL, problem
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.http.conftest import Shop

NOWHERE = {"broker_url": "redis://127.0.0.1:1/0", "broker_write_url": "redis://127.0.0.1:1/0"}
PATIENCE = 30.0
LABELS = ("task", "outcome", "end", "state", "le")


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return the values of a text of metrics, by name and values of labels, that of the task first."""
    found = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return {(each.name, *(each.labels[name] for name in LABELS if name in each.labels)): each.value for each in found}


def scraped(shop: Shop) -> dict[tuple[str, ...], float]:
    """Return what the shop's server tells, when all that was counted has arrived."""
    app_state_of(shop.app).ledger.close()
    with TestClient(create_app(shop.app), **LOCAL) as client:
        answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return samples(answer.text)


def test_a_server_tells_whether_it_is_well(shop: Shop) -> None:
    """A server is alive as long as it answers, and ready when its ledger and its broker answer."""
    assert shop.client.get("/healthz").json() == {"status": "ok"}
    checks = {"store": True, "broker": True}
    assert shop.client.get("/readyz").json() == {"status": "ok", "checks": checks, "workers": 0}
    shop.app.conf.update(NOWHERE)
    eventually(lambda: shop.client.get("/readyz").status_code == 503, PATIENCE)
    told = problem(shop.client.get("/readyz"), 503, "not-ready")
    assert told["checks"] == {"store": True, "broker": False}
    assert shop.client.get("/healthz").status_code == 200


def test_a_ledger_that_does_not_answer_is_told(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its ledger a server is not ready, and cannot tell how many workers there are."""

    def away() -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(shop.ledger.store, "nodes", away)
    told = problem(shop.client.get("/readyz"), 503, "not-ready")
    assert (told["checks"], told["workers"]) == ({"store": False, "broker": True}, None)


def test_workers_are_asked_for_only_by_name(shop: Shop) -> None:
    """Without a worker a server is ready, unless `?workers=1` asks for one."""
    assert shop.client.get("/readyz").json()["workers"] == 0
    told = problem(shop.client.get("/readyz?workers=1"), 503, "not-ready")
    assert (told["detail"], told["workers"]) == ("no worker has given a sign of life lately", 0)
    shop.ledger.store.heartbeat("celery@a", lasts=60.0)
    eventually(lambda: shop.client.get("/readyz?workers=1").status_code == 200, PATIENCE)
    assert shop.client.get("/readyz").json()["workers"] == 1


def test_who_asks_often_does_not_ask_the_broker(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask at once whether the server is ready, one connection is made."""
    made: list[float] = []
    connect = Connection.ensure_connection

    def counting(connection: Any, *args: Any, **options: Any) -> Any:
        made.append(1)
        return connect(connection, *args, **options)

    monkeypatch.setattr(Connection, "ensure_connection", counting)
    monkeypatch.setattr("onejob.api.ttl_cache.time.monotonic", lambda: 0.0)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: shop.client.get("/readyz").status_code, range(100)))
    assert (set(answers), len(made)) == ({200}, 1)


def test_an_answer_is_good_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer, or an exception, is told again until its time is over; who asks meanwhile waits for it."""
    now = 0.0
    monkeypatch.setattr("onejob.api.ttl_cache.time.monotonic", lambda: now)
    answers: Iterator[Any] = iter([1, 2, ValueError("three"), 4])
    entered, go_on = threading.Event(), threading.Event()

    def ask() -> int:
        entered.set()
        go_on.wait(60)
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    lately = TTLCache(ask, 1.0)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(lately) for _ in range(4)]
        assert entered.wait(60)
        go_on.set()
        assert [each.result() for each in waiting] == [1] * 4
    now = 1.0
    assert [lately(), lately()] == [2, 2]
    now = 2.0
    for _ in range(2):
        with pytest.raises(ValueError, match="three"):
            lately()
    now = 3.0
    assert lately() == 4


def test_who_takes_long_to_answer_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that took long is told for a multiple of that time."""
    now = 0.0
    monkeypatch.setattr("onejob.api.ttl_cache.time.monotonic", lambda: now)

    def ask() -> float:
        nonlocal now
        now += 4.0
        return now

    lately = TTLCache(ask, 1.0, rest=9.0)
    assert lately() == 4.0
    now = 39.9
    assert lately() == 4.0
    now = 40.0
    assert lately() == 44.0


def test_metrics_of_a_ledger_without_jobs(shop: Shop) -> None:
    """Every series of the table is described, and what has no labels is 0."""
    text = shop.client.get("/metrics").text
    for name, series in SERIES.items():
        assert f"# HELP {PREFIX}{name} {series.meaning}\n# TYPE {PREFIX}{name} {series.kind}\n" in text
    told = samples(text)
    assert set(told.values()) == {0.0}
    assert {name for name, *labels in told if not labels} == {
        PREFIX + name for name, series in SERIES.items() if not series.labels
    }


def test_metrics_tell_what_happened(shop: Shop) -> None:
    """Submissions, claims, ends of runs, what was sent again and by sweeps are counted, and jobs are by state."""
    ids = [shop.post("invoice", {"order_id": number}).json()["job"]["id"] for number in range(4)]
    shop.post("invoice", {"order_id": 0})
    shop.ledger.complete(shop.claimed(ids[0]), "1")
    shop.ledger.claim(ids[0], nonce="again", node="node")
    shop.failed(ids[1])
    shop.failed(ids[2])
    shop.ledger.redrive(ids[2])
    sweep(shop.ledger, lambda _job: None)
    shop.ledger.store.heartbeat("celery@a", lasts=60.0)
    told = scraped(shop)
    wanted = {
        ("onejob_submissions_total", "shop.invoice", "admitted"): 4, ("onejob_claims_total", "shop.invoice"): 3,
        ("onejob_submissions_total", "shop.invoice", "attached"): 1, ("onejob_claims_refused_total", "shop.invoice"): 1,
        ("onejob_runs_total", "shop.invoice", "completed"): 1, ("onejob_runs_total", "shop.invoice", "failed"): 2,
        ("onejob_redriven_total",): 1, ("onejob_sweeps_total",): 1, ("onejob_published_total",): 1,
        ("onejob_jobs", "queued"): 2, ("onejob_jobs", "completed"): 1, ("onejob_jobs", "failed"): 1,
        ("onejob_jobs", "running"): 0, ("onejob_dead_letters",): 1, ("onejob_workers",): 1,
        ("onejob_run_seconds_count", "shop.invoice"): 3, ("onejob_wait_seconds_count", "shop.invoice"): 3,
    }  # fmt: skip
    assert {name: told[name] for name in wanted} == wanted


def test_a_histogram_adds_up(shop: Shop) -> None:
    """The buckets of a histogram are cumulative, up to all that were observed."""
    shop.ledger.store.increment({f'["run_seconds", "t", "{bound}"]': 1.0 for bound in ("0.5", "10", "+Inf")})
    shop.ledger.store.increment({'["run_seconds", "t", "sum"]': 5000.25})
    told = scraped(shop)
    buckets = [told["onejob_run_seconds_bucket", "t", bound] for bound in BOUNDS[:-1]]
    assert buckets == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2]
    assert told["onejob_run_seconds_bucket", "t", "+Inf"] == told["onejob_run_seconds_count", "t"] == 3
    assert told["onejob_run_seconds_sum", "t"] == 5000.25


def test_totals_of_another_version_are_left_out(shop: Shop) -> None:
    """A total that this version does not know harms no scrape."""
    shop.ledger.store.increment(
        {'["from_the_future", "x"]': 1.0, '["claims_total"]': 1.0, '["claims_total", "t"]': 2.0}
    )
    told = scraped(shop)
    assert told["onejob_claims_total", "t"] == 2.0
    assert "future" not in str(told)


def test_a_task_by_an_odd_name_breaks_no_line(shop: Shop) -> None:
    """Whatever a label is, it is one value."""
    name = 'x"\n\\} forged'
    shop.ledger.store.increment({json.dumps(["claims_total", name]): 1.0})
    assert scraped(shop)["onejob_claims_total", name] == 1.0


def test_a_scraper_cannot_hurt_the_store(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often metrics are asked for, the store is asked now and then."""
    asked: list[str] = []
    totals = shop.ledger.store.totals

    def counting() -> dict[str, float]:
        asked.append("totals")
        return totals()

    monkeypatch.setattr(shop.ledger.store, "totals", counting)
    monkeypatch.setattr("onejob.api.ttl_cache.time.monotonic", lambda: 0.0)
    assert {shop.client.get("/metrics").status_code for _ in range(20)} == {200}
    assert asked == ["totals"]


def test_workers_and_metrics_at_the_command_line(shop: Shop, tmp_path: Path) -> None:
    """`onejob workers` lists nodes, and `onejob metrics` prints what the server tells."""
    shop.ledger.store.heartbeat("celery@a", lasts=60.0)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"

    def call(*args: str) -> str:
        return CliRunner().invoke(main, ["--store", url, *args], catch_exceptions=False).output

    assert [line.split()[0] for line in call("workers").splitlines()] == ["node", "celery@a"]
    assert [node["name"] for node in json.loads(call("workers", "--json"))] == ["celery@a"]
    assert samples(call("metrics"))["onejob_workers",] == 1.0


@pytest.mark.parametrize("as_json", [False, True])
def test_a_server_logs_what_happens_to_jobs(as_json: bool) -> None:
    """The server's log has what happens to jobs beside its own lines, in the same form."""
    config = log_config(as_json=as_json)
    assert config["loggers"]["onejob"]["handlers"] == ["default"]
    forms = {str(formatter["()"]) for formatter in config["formatters"].values()}
    assert ("onejob.observability.logs.JsonFormatter" in forms) is as_json
