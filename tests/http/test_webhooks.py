"""Webhooks over HTTP: asked for with the job, refused with the reason, kept to themselves."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from starlette.testclient import TestClient

from onejob.api import create_app
from onejob.celery.app_state import app_state_of
from onejob.jobs.records import Query
from onejob.webhooks.job import WEBHOOK, WebhookCall
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
    """Return a shop that makes webhooks."""
    app = build(f"sqlite:///{tmp_path / 'ledger.db'}", onejob_webhook_secrets=[SECRET])
    with TestClient(create_app(app), raise_server_exceptions=False, **LOCAL) as client:
        yield Shop(app, client)
    app_state_of(app).ledger.close()


def webhooks(shop: Shop) -> list[WebhookCall]:
    """Return who is told of which job."""
    return [WebhookCall.of(job) for job in shop.ledger.find(Query(task=WEBHOOK))]


def test_a_webhook_is_asked_for_with_the_job(calling: Shop) -> None:
    """A submission and each duplicate of it have webhooks of their own, and equal ones are one."""
    job_id = calling.post("invoice", {"order_id": 7}, webhook_url=URL).json()["job"]["id"]
    for url in (URL, f"{URL}/2"):
        assert calling.post("invoice", {"order_id": 7}, webhook_url=url).status_code == 200
    assert sorted(webhooks(calling)) == [WebhookCall(job_id, URL), WebhookCall(job_id, f"{URL}/2")]


def test_who_is_refused_is_told_nothing(calling: Shop) -> None:
    """A submission that is rejected has no webhook."""
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
    """A URL that no webhook may be sent to is a 422 that does not repeat it, and nothing is stored."""
    answer = calling.post("invoice", {"order_id": 7}, webhook_url=url, validate_only=validate_only)
    told = problem(answer, 422, "invalid-arguments")
    assert "webhook_url" in told["detail"]
    assert "s3cret" not in answer.text
    assert calling.ledger.find(Query()) == []


@pytest.mark.parametrize("url", ["", "https://hooks.example/" + "x" * 2000, 7])
def test_a_value_that_is_no_url_is_refused(calling: Shop, url: object) -> None:
    """What is no text of a sensible length is a 422 that tells where."""
    told = problem(calling.post("invoice", {"order_id": 7}, webhook_url=url), 422, "invalid-request")
    assert told["errors"][0]["at"][-1] == "webhook_url"


def test_a_server_without_secrets_says_so(shop: Shop) -> None:
    """Where nothing could be signed, a webhook is a 422 that says so."""
    told = problem(shop.post("invoice", {"order_id": 7}, webhook_url=URL), 422, "invalid-request")
    assert "makes no webhooks" in told["detail"]


def test_a_webhook_is_shown_as_a_job(calling: Shop) -> None:
    """A webhook is a job that can be looked at, and its URL, which may be a secret, is not shown."""
    calling.post("invoice", {"order_id": 7}, webhook_url=URL)
    page = calling.client.get("/jobs", params={"task": WEBHOOK})
    (job,) = page.json()["jobs"]
    assert (job["state"], job["reason"]) == ("queued", f"waits for the end of {job['follows_id']}")
    assert "s3cret" not in page.text
