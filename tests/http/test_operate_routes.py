"""Redriving dead letters in bulk, and forced cancellation over HTTP."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onejob.celery.app_state import app_state_of
from onejob.jobs.lifecycle import State
from tests.cases import for_each
from tests.http.conftest import problem
from tests.http.shop import BROKER, SETTINGS, STORE, build
from tests.services import Daemon, eventually, start_redis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from tests.http.conftest import Shop

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
LATE = {"onejob_heartbeat": 3600.0, "onejob_lease": 7200.0}
"""Settings by which neither a heartbeat nor the end of a lease comes while a test waits."""


@pytest.fixture
def dead(shop: Shop) -> list[str]:
    """Return the ids of four dead letters, oldest first: three invoices and one of another task."""
    ids = [shop.post("invoice", {"order_id": number}).json()["job"]["id"] for number in range(3)]
    ids.append(shop.post("anything", {"value": 1}).json()["job"]["id"])
    for job_id in ids[:3]:
        shop.failed(job_id)
    error = '{"type": "KeyError", "message": "x", "traceback": ""}'
    shop.ledger.fail(shop.claimed(ids[3]), error, "KeyError: x")
    return ids


def _redrive(shop: Shop, **body: Any) -> Any:
    response = shop.client.post("/dead/redrive", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def _states(shop: Shop, ids: list[str]) -> list[State]:
    return [shop.ledger.get(job_id).state for job_id in ids]


def test_dead_letters_are_redriven_by_id(shop: Shop, dead: list[str]) -> None:
    """The dead letters with the given ids are redriven once each, in this order, and no others."""
    assert _redrive(shop, job_ids=[dead[2], dead[0], dead[2]]) == {
        "dry_run": False, "done": [dead[2], dead[0]], "refused": {},
    }  # fmt: skip
    assert _states(shop, dead) == ["queued", "failed", "queued", "failed"]
    assert shop.ledger.history(dead[0])[-1].detail == "redriven over HTTP"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"task": "shop.invoice"}, (2, 1, 0)),
        ({"task": "shop.invoice", "limit": 2}, (2, 1)),
        ({"error": "keyerror"}, (3,)),
        ({"task": "shop.invoice", "error": "KeyError"}, ()),
        ({"all": True}, (3, 2, 1, 0)),
        ({"all": True, "limit": 1}, (3,)),
    ],
)
def test_a_filter_chooses_dead_letters(
    shop: Shop, dead: list[str], body: dict[str, Any], expected: tuple[int, ...]
) -> None:
    """A task, a substring of the reason, or all: the newest first, up to the limit; a dry run lists the same."""
    ids = [dead[number] for number in expected]
    assert _redrive(shop, **body, dry_run=True) == {"dry_run": True, "done": ids, "refused": {}}
    assert _states(shop, dead) == ["failed"] * 4
    assert _redrive(shop, **body)["done"] == ids
    assert {job_id for job_id in dead if shop.ledger.get(job_id).state is State.QUEUED} == set(ids)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_refusal_does_not_stop_the_others(shop: Shop, dead: list[str], *, dry_run: bool) -> None:
    """An unknown, purged or not failed job is refused with its reason, and the others are redriven."""
    waiting = shop.post("anything", {"value": 2}).json()["job"]["id"]
    shop.ledger.drop(dead[1])
    response = _redrive(shop, job_ids=["unknown", dead[1], waiting, "\u202e", dead[0]], dry_run=dry_run)
    assert response["done"] == [dead[0]]
    refused = response["refused"]
    assert list(refused) == ["unknown", dead[1], waiting, "\u202e"]
    for job_id, reason in (("unknown", "never submitted"), (dead[1], "purged"), (waiting, "queued")):
        assert reason in refused[job_id]


def test_a_held_identity_is_refused(shop: Shop, dead: list[str]) -> None:
    """A dead letter whose identity another job holds is refused with the id of that job."""
    holder = shop.post("invoice", {"order_id": 1}).json()["job"]["id"]
    response = _redrive(shop, task="shop.invoice")
    assert response["done"] == [dead[2], dead[0]]
    assert holder in response["refused"][dead[1]]


@pytest.mark.parametrize("forget", [False, True])
def test_steps_are_kept_by_default(shop: Shop, *, forget: bool) -> None:
    """A redriven job keeps its completed steps, unless `forget_steps` is set."""
    job_id = shop.post("invoice", {"order_id": 1}).json()["job"]["id"]
    run = shop.claimed(job_id)
    shop.ledger.keep_step(run, "one", "1")
    shop.ledger.fail(run, '{"type": "ValueError", "message": "", "traceback": ""}', "ValueError")
    _redrive(shop, job_ids=[job_id], forget_steps=forget)
    assert shop.ledger.store.steps(job_id) == ({} if forget else {"one": "1"})


@for_each(
    "body",
    [
        {},
        {"dry_run": True},
        {"job_ids": []},
        {"all": False},
        {"task": ""},
        {"job_ids": ["a"], "all": True},
        {"job_ids": ["a"], "task": "shop.invoice"},
        {"job_ids": ["a"], "error": "x"},
        {"job_ids": "a"},
        {"job_ids": [1]},
        {"job_ids": [""]},
        {"job_ids": ["\0"]},
        {"job_ids": ["x" * 256]},
        {"job_ids": ["a"] * 1001},
        {"all": "true"},
        {"all": 1},
        {"all": True, "limit": 0},
        {"all": True, "limit": 1001},
        {"all": True, "limit": "5"},
        {"task": "a\0"},
        {"all": True, "states": ["failed"]},
        [],
        None,
    ],
)
def test_what_chooses_nothing_or_twice_is_refused(shop: Shop, dead: list[str], body: Any) -> None:
    """Neither ids nor a filter, both, or an invalid value is 422, and no dead letter is redriven."""
    response = shop.client.post("/dead/redrive", content=json.dumps(body), headers={"content-type": "application/json"})
    details = problem(response, 422, "invalid-request")
    assert details["errors"]
    assert _states(shop, dead) == ["failed"] * 4


def test_a_cancellation_does_not_need_the_broker(shop: Shop) -> None:
    """Cancellation of a run is requested in the ledger even while the broker is unavailable."""
    job_id = shop.post("invoice", {"order_id": 1}).json()["job"]["id"]
    shop.claimed(job_id)
    shop.app.conf.update(broker_url="redis://127.0.0.1:1/0", broker_write_url="redis://127.0.0.1:1/0")
    response = shop.client.post(f"/jobs/{job_id}/cancel?force=true", json={})
    assert (response.status_code, response.json()["cancel_requested"]) == (202, True)


@pytest.fixture
def celery_app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Celery]:
    """Return an app with an SQLite ledger, and with a real broker for tests with a worker."""
    store = f"sqlite:///{tmp_path / 'ledger.db'}"
    if "worker" not in request.fixturenames:
        yield build(store)
        return
    redis = start_redis(tmp_path)
    app = build(store, redis.url, **LATE)
    yield app
    app.close()
    redis.stop()


@pytest.fixture
def worker(celery_app: Celery, tmp_path: Path) -> Iterator[Daemon]:
    """Return a worker whose next heartbeat is an hour away."""
    ledger = app_state_of(celery_app).settings.store
    environment = [f"{STORE}={ledger}", f"{BROKER}={celery_app.conf.broker_url}", f"{SETTINGS}={json.dumps(LATE)}"]
    command = [sys.executable, "-m", "celery", "-A", "tests.http.shop", "worker", "-c", "1", "--without-gossip"]
    worker = Daemon(["env", *environment, *command], log=tmp_path / "log", cwd=ROOT)
    yield worker
    worker.process.terminate()
    worker.process.wait(PATIENCE)


@pytest.mark.deep
def test_a_forced_cancellation_does_not_wait_for_a_heartbeat(shop: Shop, worker: Daemon) -> None:
    """A forced cancellation over HTTP ends the run long before its worker's next heartbeat."""
    # The first renewal comes soon after the worker's start; the run begins after it.
    job_id = shop.post("sleeps", {"seconds": 3600}, countdown=3).json()["job"]["id"]
    eventually(lambda: shop.ledger.get(job_id).state is State.RUNNING, PATIENCE)
    response = shop.client.post(f"/jobs/{job_id}/cancel?force=true", json={})
    assert response.status_code == 202
    eventually(lambda: shop.ledger.get(job_id).state is State.CANCELED, PATIENCE)
    assert worker.alive
