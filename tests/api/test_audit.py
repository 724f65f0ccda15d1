"""The audit log over HTTP: what operators do and what is refused, with the name of the key."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from fastapi import Depends, FastAPI, HTTPException
from starlette.testclient import TestClient

from onejob.api import audit as request_audit
from onejob.api import create_app, router
from onejob.api.api_keys import Role
from onejob.errors import StoreUnavailableError
from onejob.ledger.job_filters import audit_text
from onejob.pages import dashboard
from tests.api.conftest import LOCAL, REMOTE, Shop, Standing, bearer

BODY = b'{"args": [{"4111": 1}, 2], "kwargs": {"cards": {"4112": 3}}, "dry_run": true, "job_ids": ["a", "b"]}'
ADDRESS = REMOTE["client"][0]


@pytest.fixture
def guarded(standing: Standing) -> Shop:
    """Return the shop for an operator, with an API that has refused nobody so far, since it counts refusals."""
    web = create_app(standing.app, standing.keys.path)
    shop = Shop(standing.app, TestClient(web, raise_server_exceptions=False, **REMOTE), standing.texts)
    return shop.named("operate")


def log(shop: Shop, *names: str) -> list[Any]:
    response = shop.get("/audit")
    assert response.status_code == 200, response.text
    return [tuple(each[name] for name in names or ("action", "target", "outcome")) for each in response.json()]


def refuse() -> None:
    raise HTTPException(401, "log in")


def test_every_operation_is_recorded(
    guarded: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each change of jobs is recorded with the key's name and address, but no submission and no read.

    The operations on one job are rows of the table of `tests/operation_cases.py`.
    """
    job_id = guarded.job_id(countdown=3600)
    for path in (f"/jobs/{job_id}", "/jobs", "/dead", "/dead/groups", "/healthz", "/readyz", "/audit"):
        guarded.get(path)
    guarded.post("/duplicates/check", {"task": "shop.invoice", "kwargs": {"order_id": 7}})
    assert log(guarded) == []
    guarded.post("/dead/redrive", {"all": True, "dry_run": True})
    guarded.post("/jobs/bulk", {"operation": "cancel", "filter": {"task": "shop.invoice"}})
    assert log(guarded, "action", "target", "outcome", "detail") == [
        ("operate_many", "", "done", "POST operation=cancel filter.task=shop.invoice"),
        ("redrive_many", "", "done", "POST all=true dry_run=true"),
    ]  # fmt: skip
    assert {*log(guarded, "actor", "source", "address")} == {("operate", "http", ADDRESS)}

    def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("no store")

    monkeypatch.setattr(guarded.ledger.store, "append_audit", fail)
    job_id = guarded.job_id(8)
    assert guarded.post(f"/jobs/{job_id}/cancel").status_code == 200, "a failure of the log fails no action"
    assert f"the audit log has no entry of cancel {job_id}: no store" in caplog.text


def test_refusals_are_recorded(guarded: Shop, standing: Standing) -> None:
    """A bad or expired key, a missing role and an unseen job are recorded, with the name of a valid key."""
    trial = standing.keys.add("trial", Role.READ, expires_at=time.time() - 1.0)
    guarded.get("/jobs", headers=bearer("onejob_wrong"))
    guarded.named("submit").post("/jobs/x/cancel")
    guarded.named("read").get("/jobs/nobodys")
    guarded.get("/jobs", headers=bearer(trial))
    assert log(guarded, "actor", "action", "target", "outcome") == [
        ("trial", "list_jobs", "", "unauthorized"), ("read", "get_job", "nobodys", "job-not-found"),
        ("submit", "cancel", "x", "forbidden"), ("", "list_jobs", "", "unauthorized"),
    ]  # fmt: skip
    assert "onejob_wrong" not in guarded.get("/audit").text


def test_refusals_cannot_fill_the_log(guarded: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many refused requests make one entry per window, whatever paths they use; the next one has their number."""
    for number in range(50):
        guarded.get(f"/jobs/{number}", headers=bearer(f"onejob_{number}"))
    assert log(guarded, "count", "target") == [(1, "0")]
    monkeypatch.setattr(request_audit, "REFUSAL_WINDOW", 0.0)
    guarded.get("/jobs/last", headers=bearer("onejob_x"))
    assert log(guarded, "count", "target") == [(50, "last"), (1, "0")]


HOSTILE: tuple[dict[str, Any], ...] = (
    {"content": b"{}", "headers": {"content-type": "text/plain"}}, {"json": {}}, {"json": {}, "params": {"bogus": "1"}},
    {"content": b"{", "headers": {"content-type": "application/json"}},
)  # fmt: skip


def test_nobody_can_erase_the_log(guarded: Shop, standing: Standing) -> None:
    """No requests of strangers, other sites or readers displace an action, at any front end: they are counted."""
    done = guarded.job_id()
    guarded.post(f"/jobs/{done}/cancel")
    mounted = FastAPI()
    mounted.include_router(router(guarded.app, prefix="/v1", dependencies=[Depends(refuse)]))
    mounted.mount("/pages", dashboard(guarded.app, keys=standing.keys.path))
    mounted.mount("/hook", dashboard(guarded.app, authorize=lambda _: ("ann", "read")))
    mounted.mount("/local", create_app(guarded.app))
    stranger = TestClient(mounted, raise_server_exceptions=False, **LOCAL)
    reader = TestClient(mounted, raise_server_exceptions=False, headers=bearer(guarded.texts["read"]), **LOCAL)
    for client in (stranger, reader):
        for path in ("/v1/jobs/x/cancel", "/pages/operate/x", "/hook/operate/x", "/local/jobs/x/cancel"):
            for request in HOSTILE * 3:
                client.post(path, **request)
    entries = guarded.ledger.audit(limit=200)
    assert [each.target for each in entries if each.kind == "action"] == [done]
    refused = [(each.source, each.actor, each.outcome) for each in entries if each.kind == "access"]
    assert len(refused) == len(set(refused)) <= 4


def test_a_tenant_displaces_no_operator(
    guarded: Shop, standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """What a caller with own jobs does to them, however often, displaces no action of an operator."""
    monkeypatch.setattr("onejob.ledger.ledger.AUDIT_LIMIT", 20)
    done = guarded.job_id()
    guarded.post(f"/jobs/{done}/cancel")
    tenant = bearer(standing.keys.add("tenant", Role.OPERATE, own_jobs=True))
    own = [guarded.job_id(number, headers=tenant, countdown=3600) for number in range(25)]
    for job_id in own:
        guarded.post(f"/jobs/{job_id}/cancel", headers=tenant)
    for _ in range(25):
        guarded.post(f"/jobs/{own[-1]}/cancel", headers=tenant)
        guarded.post("/jobs/bulk", {"operation": "cancel", "filter": {"task": "shop.invoice"}}, headers=tenant)
    entries = guarded.ledger.audit(limit=200)
    assert [(each.actor, each.target) for each in entries if each.kind == "action"] == [("operate", done)]
    outcomes = [each.outcome for each in entries if each.kind == "own"]
    assert (len(outcomes), outcomes.count("job-ended"), {each.actor for each in entries if each.kind == "own"}) == (
        20, 1, {"tenant"},
    )  # fmt: skip


def test_an_operation_that_is_refused_again_is_counted(guarded: Shop) -> None:
    """Equal requests that the state of a job does not allow are one entry; each change of a job is one."""
    job_id, other = guarded.job_id(1), guarded.job_id(2)
    for _ in range(5):
        guarded.post(f"/jobs/{job_id}/cancel")
        guarded.post(f"/jobs/{other}/cancel")
    assert sorted(log(guarded, "target", "outcome")) == sorted(
        (each, outcome) for each in (job_id, other) for outcome in ("done", "job-ended")
    )


def test_no_key_is_in_the_log(guarded: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """API keys in URLs and bodies are neither in the audit log nor in its logger, whose lines are printable."""
    caplog.set_level(logging.INFO, "onejob.audit")
    key = guarded.texts["edit"]
    guarded.get("/jobs", params={"api_key": key}, headers={"authorization": ""})
    guarded.post("/jobs/a%1b%5b2Jb/cancel", params={"access_token": key})
    guarded.request("DELETE", f"/jobs/{key}")
    guarded.post("/jobs/bulk", {"operation": "cancel", "filter": {"task": key}})
    entries = guarded.get("/audit?limit=1").json()
    entries += guarded.get("/audit", params={"before": entries[-1]["id"]}).json()
    assert (len(entries), entries[0]["detail"]) == (4, "POST operation=cancel filter.task=[redacted]")
    assert key not in f"{entries} {caplog.text}"
    lines = [each.getMessage() for each in caplog.records if each.name == "onejob.audit"]
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)
    assert lines[-1].startswith("http operate_many actor='operate'")
    found = audit_text(request_audit.fields_of_json(BODY))
    assert found == "args (2) kwargs.cards dry_run=true job_ids (2)", "of what is in an argument it has nothing"
