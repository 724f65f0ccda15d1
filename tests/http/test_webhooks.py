"""Webhooks requested over HTTP."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from starlette.testclient import TestClient

from onejob.api import create_app
from onejob.celery.webhooks import ADDED_QUOTA
from onejob.jobs.records import Query
from onejob.webhooks.job import WEBHOOK, WebhookPayload
from tests.cases import for_each
from tests.http.conftest import LOCAL, Shop, problem
from tests.webhooks.receiver import OLDER, SECRET

URL = "https://hooks.example/s3cret"


@pytest.fixture
def calling(open_shop: Any) -> Shop:
    """Return a shop with webhooks configured, and API keys: "edit" has a webhook secret of its own."""
    secrets: dict[str, Any] = {
        "onejob_webhook_submitter_secrets": {"edit": [OLDER]},
        "onejob_webhook_secrets": [SECRET],
    }
    shop: Shop = open_shop(has_keys=True, **secrets)
    return shop.named("submit")


def webhooks(shop: Shop) -> list[WebhookPayload]:
    """Return the webhook calls in the ledger."""
    return sorted(WebhookPayload.from_job(job) for job in shop.ledger.find(Query(task=WEBHOOK)))


def test_each_url_gets_one_webhook(calling: Shop) -> None:
    """A submission and each of its duplicates can add a webhook, equal ones are one, and a rejected one adds none."""
    job_id = calling.job_id(webhook_url=URL)
    for url in (URL, f"{URL}/2"):
        assert calling.submit(webhook_url=url).status_code == 200
    problem(calling.submit(webhook_url=f"{URL}/3", on_duplicate="raise"), 409, "duplicate-job")
    assert webhooks(calling) == [WebhookPayload(job_id, URL), WebhookPayload(job_id, f"{URL}/2")]


@for_each("url, validate_only", itertools.product(
    [
        "http://hooks.example/s3cret", "https://127.1/s3cret", "https://2130706433/s3cret", "https://[::1]/s3cret",
        "https://[64:ff9b::7f00:1]/s3cret", "https://user@hooks.example/s3cret", "https://hooks.example:8443/s3cret",
        "https://169.254.169.254/s3cret", "s3cret",
    ], [True, False]))  # fmt: skip
def test_a_url_that_cannot_be_is_refused(calling: Shop, url: str, validate_only: bool) -> None:
    """A forbidden URL is 422 without the URL in the response, and nothing is stored."""
    response = calling.submit(webhook_url=url, validate_only=validate_only)
    assert "webhook_url" in problem(response, 422, "invalid-arguments")["detail"]
    assert "s3cret" not in response.text
    assert calling.ledger.find(Query()) == []


def test_a_webhook_is_a_job(calling: Shop) -> None:
    """A webhook is returned as a job of the key that asked for it, without its URL, which may be secret."""
    calling.submit()
    calling.named("operate").submit(webhook_url=URL)
    page = calling.named("read").get("/jobs", params={"task": WEBHOOK})
    (job,) = page.json()["jobs"]
    assert (job["state"], job["reason"]) == ("queued", f"waits for the end of {job['follows_id']}")
    assert (job["submitter"], "s3cret" in page.text) == ("operate", False)


def test_a_job_gets_few_webhooks(calling: Shop) -> None:
    """Duplicates can add a limited number of URLs to one job; then new ones are 422, and those that it has are not."""
    job_id = calling.job_id(webhook_url=URL)
    added = [f"{URL}/{number}" for number in range(ADDED_QUOTA.limit)]
    assert {calling.submit(webhook_url=url).status_code for url in added} == {200}
    for number in range(3):
        response = calling.submit(webhook_url=f"{URL}/new/{number}")
        assert problem(response, 422, "too-many-webhooks")["job_id"] == job_id
    assert {calling.submit(webhook_url=url).status_code for url in (URL, *added)} == {200}
    assert len(webhooks(calling)) == 1 + ADDED_QUOTA.limit
    assert calling.submit(8, webhook_url=URL).status_code == 202


def test_a_new_webhook_uses_the_quota(calling: Shop) -> None:
    """A new webhook of an existing job counts as a new job does; one that exists, or a new job's own, costs nothing."""
    calling.submit()
    one = Shop(calling.app, TestClient(create_app(calling.app, quota="3/day"), **LOCAL))
    statuses = [one.submit(webhook_url=f"{URL}/{number}").status_code for number in (1, 1, 2)]
    assert (statuses, one.submit(8, webhook_url=URL).status_code) == ([200, 200, 200], 202)
    assert problem(one.submit(webhook_url=f"{URL}/3"), 429, "quota-exceeded")["limit"] == "3/day"
    assert [one.submit(**more).status_code for more in ({"webhook_url": f"{URL}/2"}, {})] == [200, 200]
    assert len(webhooks(calling)) == 3


def test_a_key_with_a_secret_has_its_own_webhook(calling: Shop, shop: Shop) -> None:
    """Keys that name one URL share its webhook, unless one has a secret of its own; a server without any refuses it."""
    for name in ("submit", "edit", "operate"):
        calling.named(name).submit(webhook_url=URL)
    assert [payload.signer for payload in webhooks(calling)] == ["", "edit"]
    assert "sends no webhooks" in problem(shop.submit(webhook_url=URL), 422, "invalid-request")["detail"]


def test_without_a_secret_for_the_key_a_webhook_is_refused(open_shop: Any) -> None:
    """With secrets for some keys only, another key's webhook is refused, and its job is not submitted."""
    shop: Shop = open_shop(has_keys=True, onejob_webhook_submitter_secrets={"edit": [SECRET]})
    statuses = [shop.named(name).submit(webhook_url=URL).status_code for name in ("submit", "edit")]
    assert statuses == [422, 202]
