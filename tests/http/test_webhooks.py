"""Webhooks requested over HTTP."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

from onejob.api import create_app
from onejob.api.api_keys import KeyFile, Role
from onejob.celery.app_state import app_state_of
from onejob.celery.webhooks import ADDED_LIMIT
from onejob.jobs.quota import NO_QUOTAS, Quotas
from onejob.jobs.records import Query
from onejob.webhooks.job import WEBHOOK, WebhookPayload
from tests.cases import for_each
from tests.http.conftest import LOCAL, Shop, problem
from tests.http.shop import build
from tests.http.test_api_keys import bearer
from tests.webhooks.receiver import OLDER, SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

URL = "https://hooks.example/s3cret"


@pytest.fixture
def calling(tmp_path: Path) -> Iterator[Shop]:
    """Return a shop with webhooks configured."""
    app = build(f"sqlite:///{tmp_path / 'ledger.db'}", onejob_webhook_secrets=[SECRET])
    with TestClient(create_app(app), raise_server_exceptions=False, **LOCAL) as client:
        yield Shop(app, client)
    app_state_of(app).ledger.close()


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    """Return an empty file of API keys."""
    return KeyFile(tmp_path / "keys.json")


@pytest.fixture
def keys(file: KeyFile) -> dict[str, str]:
    """Return API keys by name: "one" has a quota, "three" has a webhook secret."""
    quotas = {"one": Quotas.parse("3/day", None)}
    return {name: file.add(name, Role.SUBMIT, quotas.get(name, NO_QUOTAS)) for name in ("one", "two", "three")}


@pytest.fixture
def keyed(tmp_path: Path, file: KeyFile, keys: dict[str, str]) -> Iterator[Shop]:
    """Return a shop with webhooks and API keys."""
    assert keys
    secrets: dict[str, Any] = {
        "onejob_webhook_secrets": [SECRET],
        "onejob_webhook_submitter_secrets": {"three": [OLDER]},
    }
    app = build(f"sqlite:///{tmp_path / 'ledger.db'}", **secrets)
    with TestClient(create_app(app, keys=file.path), raise_server_exceptions=False) as client:
        yield Shop(app, client)
    app_state_of(app).ledger.close()


def webhooks(shop: Shop) -> list[WebhookPayload]:
    """Return the webhook calls in the ledger."""
    return [WebhookPayload.from_job(job) for job in shop.ledger.find(Query(task=WEBHOOK))]


def test_each_url_gets_one_webhook(calling: Shop) -> None:
    """A submission and each of its duplicates can add a webhook, and equal ones are one."""
    job_id = calling.post("invoice", {"order_id": 7}, webhook_url=URL).json()["job"]["id"]
    for url in (URL, f"{URL}/2"):
        assert calling.post("invoice", {"order_id": 7}, webhook_url=url).status_code == 200
    assert sorted(webhooks(calling)) == [WebhookPayload(job_id, URL), WebhookPayload(job_id, f"{URL}/2")]


def test_a_rejected_submission_has_no_webhook(calling: Shop) -> None:
    """A rejected submission creates no webhook."""
    calling.post("strict", {"order_id": 7})
    problem(calling.post("strict", {"order_id": 7}, webhook_url=URL), 409, "duplicate-job")
    assert webhooks(calling) == []


@for_each("url, validate_only", itertools.product(
    [
        "http://hooks.example/s3cret", "https://127.1/s3cret", "https://2130706433/s3cret", "https://[::1]/s3cret",
        "https://[64:ff9b::7f00:1]/s3cret", "https://user@hooks.example/s3cret", "https://hooks.example:8443/s3cret",
        "https://169.254.169.254/s3cret", "s3cret",
    ], [True, False]))  # fmt: skip
def test_a_url_that_cannot_be_is_refused(calling: Shop, url: str, validate_only: bool) -> None:
    """A forbidden URL is 422 without the URL in the response, and nothing is stored."""
    response = calling.post("invoice", {"order_id": 7}, webhook_url=url, validate_only=validate_only)
    details = problem(response, 422, "invalid-arguments")
    assert "webhook_url" in details["detail"]
    assert "s3cret" not in response.text
    assert calling.ledger.find(Query()) == []


@pytest.mark.parametrize("url", ["", "https://hooks.example/" + "x" * 2000, 7])
def test_an_invalid_value_is_refused(calling: Shop, url: object) -> None:
    """A value that is not a string of a valid length is 422 with its place."""
    details = problem(calling.post("invoice", {"order_id": 7}, webhook_url=url), 422, "invalid-request")
    assert details["errors"][0]["at"][-1] == "webhook_url"


def test_a_server_without_secrets_refuses_webhooks(shop: Shop) -> None:
    """Without configured secrets a webhook is 422 with this reason."""
    details = problem(shop.post("invoice", {"order_id": 7}, webhook_url=URL), 422, "invalid-request")
    assert "sends no webhooks" in details["detail"]


def test_a_webhook_is_a_job(calling: Shop) -> None:
    """A webhook is returned as a job, without its URL, which may be secret."""
    calling.post("invoice", {"order_id": 7}, webhook_url=URL)
    page = calling.client.get("/jobs", params={"task": WEBHOOK})
    (job,) = page.json()["jobs"]
    assert (job["state"], job["reason"]) == ("queued", f"waits for the end of {job['follows_id']}")
    assert "s3cret" not in page.text


def test_a_job_gets_few_webhooks(calling: Shop) -> None:
    """Duplicates can add a limited number of URLs to one job; then new ones are 422, and those that it has are not."""
    job_id = calling.post("invoice", {"order_id": 7}, webhook_url=URL).json()["job"]["id"]
    for number in range(ADDED_LIMIT):
        assert calling.post("invoice", {"order_id": 7}, webhook_url=f"{URL}/{number}").status_code == 200
    for number in range(300):
        response = calling.post("invoice", {"order_id": 7}, webhook_url=f"{URL}/new/{number}")
        assert problem(response, 422, "too-many-webhooks")["job_id"] == job_id
    for url in (URL, f"{URL}/0", f"{URL}/{ADDED_LIMIT - 1}"):
        assert calling.post("invoice", {"order_id": 7}, webhook_url=url).status_code == 200
    assert len(webhooks(calling)) == 1 + ADDED_LIMIT
    assert calling.post("invoice", {"order_id": 8}, webhook_url=URL).status_code == 202


def test_the_submitter_of_a_webhook_is_recorded(keyed: Shop, keys: dict[str, str]) -> None:
    """A webhook has the name of the API key that asked for it as its submitter, not that of the job."""
    for name in ("one", "two"):
        keyed.client.headers.update(bearer(keys[name]))
        keyed.post("invoice", {"order_id": 7}, webhook_url=f"{URL}/{name}")
    found = keyed.ledger.find(Query(task=WEBHOOK))
    assert {job.submitter: WebhookPayload.from_job(job).url for job in found} == {
        "one": f"{URL}/one", "two": f"{URL}/two"
    }  # fmt: skip


def test_a_new_webhook_uses_the_quota(keyed: Shop, keys: dict[str, str]) -> None:
    """A new webhook of an existing job counts as a new job does; one that exists, or a new job's own, costs nothing."""
    keyed.client.headers.update(bearer(keys["two"]))
    keyed.post("invoice", {"order_id": 7})
    keyed.client.headers.update(bearer(keys["one"]))  # 3 per day
    for url in (f"{URL}/1", f"{URL}/1", f"{URL}/2"):
        assert keyed.post("invoice", {"order_id": 7}, webhook_url=url).status_code == 200
    assert keyed.post("invoice", {"order_id": 8}, webhook_url=URL).status_code == 202
    details = problem(keyed.post("invoice", {"order_id": 7}, webhook_url=f"{URL}/3"), 429, "quota-exceeded")
    assert details["limit"] == "3/day"
    assert keyed.post("invoice", {"order_id": 7}, webhook_url=f"{URL}/2").status_code == 200
    assert keyed.post("invoice", {"order_id": 7}).status_code == 200
    assert len(webhooks(keyed)) == 3


def test_a_key_with_a_secret_has_its_own_webhook(keyed: Shop, keys: dict[str, str]) -> None:
    """Two keys that name one URL share its webhook, unless one of them has a secret of its own."""
    for name in ("two", "three", "one"):
        keyed.client.headers.update(bearer(keys[name]))
        keyed.post("invoice", {"order_id": 7}, webhook_url=URL)
    assert sorted(payload.signer for payload in webhooks(keyed)) == ["", "three"]


def test_without_a_secret_for_the_key_a_webhook_is_refused(keyed: Shop, keys: dict[str, str], file: KeyFile) -> None:
    """With secrets for some keys only, another key's webhook is refused, and its job is not submitted."""
    app = build(str(keyed.app.conf.onejob_store), onejob_webhook_submitter_secrets={"three": [SECRET]})
    with TestClient(create_app(app, keys=file.path), raise_server_exceptions=False) as client:
        for name, status in (("two", 422), ("three", 202)):
            body = {"task": "shop.invoice", "kwargs": {"order_id": 9}, "webhook_url": URL}
            assert client.post("/jobs", json=body, headers=bearer(keys[name])).status_code == status
    app_state_of(app).ledger.close()
