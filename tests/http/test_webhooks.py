"""Webhooks requested over HTTP."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from starlette.testclient import TestClient

from onejob.api import create_app
from onejob.celery.app_state import app_state_of
from onejob.jobs.records import Query
from onejob.webhooks.job import WEBHOOK, WebhookPayload
from tests.cases import for_each
from tests.http.conftest import LOCAL, Shop, problem
from tests.http.shop import build
from tests.webhooks.receiver import SECRET

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
