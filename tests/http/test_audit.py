"""The audit log over HTTP: what operators do and what is refused, with the name of the key."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

from onejob.api import audit as request_audit
from onejob.api import create_app
from onejob.api.api_keys import KeyFile, Role
from onejob.celery.app_state import app_state_of
from onejob.errors import StoreUnavailableError
from tests.http.conftest import LOCAL, Shop, problem
from tests.http.test_api_keys import bearer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

ADDRESS = "192.0.2.7"


@pytest.fixture
def keys(tmp_path: Path) -> dict[Role, str]:
    """Return a key of each role."""
    file = KeyFile(tmp_path / "keys.json")
    return {role: file.add(f"{role}er", role) for role in Role}


@pytest.fixture
def guarded(celery_app: Celery, keys: dict[Role, str], tmp_path: Path) -> Iterator[Shop]:
    """Return a shop with API keys, and a client with another address."""
    app = create_app(celery_app, keys=tmp_path / "keys.json")
    with TestClient(app, raise_server_exceptions=False, client=(ADDRESS, 1234)) as client:
        client.headers.update(bearer(keys[Role.OPERATE]))
        yield Shop(celery_app, client)
    app_state_of(celery_app).ledger.close()


def log(shop: Shop) -> list[dict[str, Any]]:
    """Return the audit log, newest first."""
    response = shop.client.get("/audit")
    assert response.status_code == 200, response.text
    entries: list[dict[str, Any]] = response.json()
    return entries


def test_actions_of_operators_are_recorded(guarded: Shop) -> None:
    """A cancellation and a redrive are recorded with the key's name, its address, the job and the outcome."""
    job_id = guarded.post("invoice", {"order_id": 7}).json()["job"]["id"]
    problem(guarded.client.post(f"/jobs/{job_id}/redrive", json={}), 409, "not-a-dead-letter")
    assert guarded.client.post(f"/jobs/{job_id}/cancel?force=true", json={}).status_code == 200
    assert guarded.client.post("/dead/redrive", json={"all": True, "dry_run": True}).status_code == 200
    found = log(guarded)
    assert {(each["actor"], each["source"], each["address"]) for each in found} == {("operateer", "http", ADDRESS)}
    assert [(each["action"], each["target"], each["outcome"]) for each in found] == [
        ("redrive_many", "", "done"), ("cancel", job_id, "done"), ("redrive", job_id, "not-a-dead-letter"),
    ]  # fmt: skip
    assert found[1]["detail"] == "POST force=true {}"
    assert json.loads(found[0]["detail"].removeprefix("POST ")) == {"all": True, "dry_run": True}


def test_every_operation_is_recorded(guarded: Shop) -> None:
    """Jobs that are made due, deleted, or changed in bulk are recorded; checks and groups are reads, and are not."""
    job_id = guarded.post("invoice", {"order_id": 7}, countdown=3600).json()["job"]["id"]
    client = guarded.client
    client.post(f"/jobs/{job_id}/run-now", json={})
    client.post("/jobs/bulk", json={"operation": "cancel", "filter": {"task": "shop.invoice"}})
    client.delete(f"/jobs/{job_id}")
    client.post("/duplicates/check", json={"task": "shop.invoice", "kwargs": {"order_id": 7}})
    client.get("/dead/groups")
    assert [(each["action"], each["target"], each["outcome"]) for each in log(guarded)] == [
        ("delete", job_id, "done"), ("operate_many", "", "done"), ("run_now", job_id, "done"),
    ]  # fmt: skip


def test_ordinary_requests_are_not_recorded(guarded: Shop) -> None:
    """Submissions, reads and health checks leave no entry."""
    job_id = guarded.post("invoice", {"order_id": 7}).json()["job"]["id"]
    for path in (f"/jobs/{job_id}", "/jobs", "/dead", "/healthz", "/readyz", "/audit"):
        guarded.client.get(path)
    assert log(guarded) == []


def test_refusals_are_recorded(guarded: Shop, keys: dict[Role, str]) -> None:
    """A bad key, a missing role and a job that the key does not see are recorded, with the name of a valid key."""
    client = guarded.client
    client.get("/jobs", headers=bearer("onejob_wrong"))
    client.post("/jobs/x/cancel", json={}, headers=bearer(keys[Role.SUBMIT]))
    client.get("/jobs/nobodys", headers=bearer(keys[Role.READ]))
    assert [(each["actor"], each["action"], each["target"], each["outcome"]) for each in log(guarded)] == [
        ("reader", "get_job", "nobodys", "job-not-found"),
        ("submiter", "cancel", "x", "forbidden"),
        ("", "list_jobs", "", "unauthorized"),
    ]
    assert "onejob_wrong" not in client.get("/audit").text


def test_the_refusal_of_an_expired_key_has_its_name(guarded: Shop, tmp_path: Path) -> None:
    """A request with a key that has expired is recorded with the name of the key."""
    text = KeyFile(tmp_path / "keys.json").add("trial", Role.READ, expires_at=time.time() - 1.0)
    problem(guarded.client.get("/jobs", headers=bearer(text)), 401, "unauthorized")
    assert [(each["actor"], each["outcome"]) for each in log(guarded)] == [("trial", "unauthorized")]


def test_refusals_cannot_fill_the_log(guarded: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many refused requests make one entry per window, whatever paths they use; the next one has their number."""
    for number in range(50):
        guarded.client.get(f"/jobs/{number}", headers=bearer(f"onejob_{number}"))
    assert [(each["count"], each["target"]) for each in log(guarded)] == [(1, "0")]
    monkeypatch.setattr(request_audit, "REFUSAL_WINDOW", 0.0)
    guarded.client.get("/jobs/last", headers=bearer("onejob_x"))
    assert [(each["count"], each["target"]) for each in log(guarded)] == [(50, "last"), (1, "0")]


def test_pages_follow_each_other(guarded: Shop) -> None:
    """The id of the last entry of a page continues after it."""
    for number in range(5):
        guarded.client.post(f"/jobs/job-{number}/cancel?force=true", json={"a": number})
    entries = guarded.client.get("/audit", params={"limit": 2}).json()
    entries += guarded.client.get("/audit", params={"limit": 2, "before": entries[-1]["id"]}).json()
    assert [each["id"] for each in entries] == sorted({each["id"] for each in entries}, reverse=True)


def test_only_operators_read_it(guarded: Shop, keys: dict[Role, str]) -> None:
    """The audit log requires the role operate."""
    problem(guarded.client.get("/audit", headers=bearer(keys[Role.SUBMIT])), 403, "forbidden")


def test_a_failure_fails_no_action(
    guarded: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An action takes place although the audit log cannot be written; the log of the process says so."""
    job_id = guarded.post("invoice", {"order_id": 7}).json()["job"]["id"]

    def fail(*_: Any, **__: Any) -> None:
        msg = "no store"
        raise StoreUnavailableError(msg)

    monkeypatch.setattr(guarded.ledger.store, "append_audit", fail)
    assert guarded.client.post(f"/jobs/{job_id}/cancel", json={}).status_code == 200
    assert f"the audit log has no entry of cancel {job_id}: no store" in caplog.text


def test_each_entry_is_logged(guarded: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """Each entry is a line of the logger `onejob.audit`, without control characters."""
    caplog.set_level(logging.INFO, "onejob.audit")
    guarded.client.post("/jobs/a%1b%5b2Jb/cancel", json={})
    (record,) = [each for each in caplog.records if each.name == "onejob.audit"]
    assert record.getMessage().startswith("http cancel actor='operateer'")
    assert record.getMessage().isprintable()


def test_without_keys_actions_are_recorded(shop: Shop) -> None:
    """A server without API keys records the actions of operators, without a name."""
    job_id = shop.post("invoice", {"order_id": 7}).json()["job"]["id"]
    shop.client.post(f"/jobs/{job_id}/cancel", json={})
    (entry,) = log(shop)
    assert (entry["actor"], entry["address"], entry["target"]) == ("", LOCAL["client"][0], job_id)
