"""Submitting jobs over HTTP: the status of every outcome, keys, times, webhooks, and what the document has."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onejob.api import checked_request
from onejob.api.response_models import SubmitResponse, submit_response
from onejob.celery.submission.submit import ADDED_QUOTA
from onejob.errors import InvalidArgumentsError, StoreBusyError, StoreUnavailableError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Outcome
from onejob.jobs.public_view import job_to_dict
from onejob.jobs.query import Query
from onejob.observability.metrics import WEBHOOK_TASK
from onejob.webhooks.job import WebhookPayload
from tests.api.conftest import Shop, problem
from tests.cases import for_each
from tests.webhooks.receiver import OLDER, SECRET


def _sent(shop: Shop, job_id: str) -> Any:
    return json.loads(shop.ledger.get(job_id).payload)["kwargs"]


def test_a_new_job_is_accepted(shop: Shop) -> None:
    """A new job is 202, with its URL as the location, percent-encoded; an equal one is 200 with that job."""
    response = shop.submit(7)
    body = response.json()
    assert (response.status_code, body["outcome"], body["job"]["state"]) == (202, "admitted", "queued")
    assert (response.headers["location"], response.headers["retry-after"]) == (f"/jobs/{body['job']['id']}", "1")
    assert shop.get(response.headers["location"]).json() == body["job"]
    assert _sent(shop, body["job"]["id"]) == {"order_id": 7}
    of_python = shop.task.apply_async((8,), task_id="задача/1").id
    for order_id, first in ((7, body["job"]["id"]), (8, of_python)):
        response = shop.submit(kwargs={"order_id": order_id, "note": "twice"})
        assert (response.status_code, response.json()["outcome"]) == (200, "attached")
        assert response.json()["job"]["id"] == first
    assert response.headers["location"] == "/jobs/%D0%B7%D0%B0%D0%B4%D0%B0%D1%87%D0%B0%2F1"


def test_the_response_is_its_model(shop: Shop) -> None:
    """The body is the JSON of its model, byte for byte, whatever the job's state, times and values are."""
    job = shop.ledger.get(shop.job_id())
    value = '[NaN, -Infinity, 1e300, 123456789012345678901234567890, "\\u00fc\\u2028\\u0000", {"a": null}]'
    error = '{"type": "E", "message": "m", "traceback": "secret"}'
    times: dict[str, Any] = {"created_at": 0.0, "run_at": 1e12, "started_at": 1.5, "finished_at": 1.000001}
    odd = replace(job, progress=value, result=value, **times)
    for each in (job, odd, replace(job, state=State.FAILED, error=error)):
        expected = SubmitResponse.model_validate({"outcome": "attached", "job": job_to_dict(each)}).model_dump_json()
        assert submit_response(Outcome.ATTACHED, each) == expected.encode()


def test_the_conflict_policy_applies(shop: Shop) -> None:
    """Replaced is 200, queued next 202 with a new id, rejected, by the task or the request, 409 with the live job."""
    first = shop.job_id(task="newest", kwargs={"document": 1, "text": "a"}, countdown=5)
    second = shop.submit(task="newest", kwargs={"document": 1, "text": "b"}, countdown=5)
    assert (second.status_code, second.json()["outcome"], second.json()["job"]["id"]) == (200, "replaced", first)
    assert _sent(shop, first)["text"] == "b"
    running = shop.job_id(task="again", kwargs={"customer": 1})
    shop.claimed(running)
    later = shop.submit(task="again", kwargs={"customer": 1})
    assert (later.status_code, later.json()["outcome"]) == (202, "queued_next")
    assert later.headers["location"].endswith(later.json()["job"]["id"])
    assert later.json()["job"]["id"] != running
    for task, more in (("strict", {}), ("invoice", {"on_duplicate": "raise"})):
        job_id = shop.job_id(task=task, **more)
        details = problem(shop.submit(task=task, **more), 409, "duplicate-job")
        assert (details["job_id"], details["state"]) == (job_id, "queued")


def test_a_job_whose_message_cannot_be_sent_is_refused(open_shop: Any) -> None:
    """A submission without a route is 422 with the class of the error only, and leaves no job."""

    def route(*_args: Any, **_options: Any) -> Any:
        raise ZeroDivisionError("secret")

    shop: Shop = open_shop(task_routes=[route])
    response = shop.submit()
    assert "ZeroDivisionError" in problem(response, 422, "unpublishable")["detail"]
    assert "secret" not in response.text
    assert shop.ledger.find(Query()) == []


def test_a_locked_row_delays_only_its_own_request(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A submission that waits for a locked row is retried outside its batch, and reports its own error."""
    ledger, submit_many = shop.ledger, shop.ledger.submit_many

    def busy(submissions: Any, *, wait_for_locks: bool = True, **options: Any) -> Any:
        if any(json.loads(new.payload)["kwargs"]["order_id"] == 7 for new in submissions):
            raise StoreUnavailableError("too long") if wait_for_locks else StoreBusyError("somebody's")
        return submit_many(submissions, wait_for_locks=wait_for_locks, **options)

    monkeypatch.setattr(ledger, "submit_many", busy)
    problem(shop.submit(7), 503, "store-unavailable")
    assert shop.submit(8).status_code == 202


# --- idempotency keys -----------------------------------------------------------------------------------------------


HEADER, KEY = "idempotency-key", "order 7"
KEYS: list[dict[str, Any]] = [
    {"headers": {HEADER: KEY}}, {"headers": {HEADER: f'"{KEY}"'}}, {"idempotency_key": KEY},
    {"headers": {HEADER: KEY}, "idempotency_key": KEY}, {"headers": {HEADER: f" {KEY} \t"}},
]  # fmt: skip
TWO_KEYS: list[dict[str, Any]] = [
    {"headers": {HEADER: "a"}, "idempotency_key": "b"}, {"headers": [(HEADER, "a"), (HEADER, "b")]}
]  # fmt: skip


def test_tags_are_those_of_the_job(shop: Shop) -> None:
    """Tags in the body become those of the job; what can be none is refused, and nothing is stored."""
    for wrong in ("import", [1], [""], ["x" * 65], ["a\tb"], [" a"], [str(number) for number in range(11)]):
        response = shop.submit(2, tags=wrong)
        assert response.status_code == 422, wrong
        assert "tags" in response.text, wrong
    assert shop.ledger.find(Query()) == []
    assert shop.submit(1, tags=["import", "ü", "import"]).json()["job"]["tags"] == ["import", "ü"]


def test_an_idempotency_key_makes_retries_safe(shop: Shop) -> None:
    """A repeated submission with a key, wherever it is, gets the first job, also after its end; two keys are 422."""
    for more in TWO_KEYS:
        problem(shop.submit(**more), 422, "invalid-request")
    assert shop.ledger.find(Query()) == []
    job_id = shop.job_id(**KEYS[0])
    shop.failed(job_id)
    for more in KEYS:
        response = shop.submit(**more)
        assert (response.status_code, response.json()["job"]["id"]) == (200, job_id)
        assert problem(shop.submit(8, **more), 422, "key-reused")["job_id"] == job_id


# --- arguments and times --------------------------------------------------------------------------------------------


def test_arguments_are_not_coerced(shop: Shop) -> None:
    """Arguments are validated and passed on unchanged, nothing added or coerced; `validate_only` stores nothing."""
    response = shop.submit(validate_only=True, idempotency_key="k")
    expected = shop.task._onejob.identifier.identity((7,), {})
    assert (response.status_code, response.json()["identity"]) == (200, expected)
    problem(shop.submit(kwargs={}, validate_only=True), 422, "invalid-request")
    assert shop.ledger.find(Query()) == []
    sent = {"day": "2026-11-21", "lines": [{"sku": "a"}], "share": 1}
    job_id = shop.job_id(task="typed", kwargs=sent)
    assert _sent(shop, job_id) == sent
    assert type(_sent(shop, job_id)["share"]) is int
    values = [None, [1, {"a": 1.5}], "ä𝄞", 10**400]
    ids = [shop.job_id(task="anything", kwargs={"value": value, "json": True}) for value in values]
    assert [_sent(shop, each)["value"] for each in ids] == values


def test_a_job_can_be_due_later(shop: Shop) -> None:
    """A countdown or an eta within a year sets when a job is due, now if that is past, and a priority its rank."""
    soon = datetime.now(UTC) + timedelta(hours=1)
    for eta in ("9999-12-31T23:59:59-12:00", "9999-12-31T23:59:59Z", "2500-01-01T00:00:00Z"):
        response = shop.submit(eta=eta)
        assert response.status_code == 422
        assert ":invalid" in response.json()["type"]
    for countdown in (1e12, float("inf"), float("nan")):
        with pytest.raises(InvalidArgumentsError, match="not a valid time for a job"):
            shop.task.apply_async((1,), countdown=countdown)
    assert shop.ledger.find(Query()) == []
    first = shop.submit(1, countdown=3600, priority=7).json()["job"]
    for job in (first, shop.submit(2, eta=soon.isoformat()).json()["job"]):
        assert abs((datetime.fromisoformat(job["run_at"]) - soon).total_seconds()) < 60
    assert shop.ledger.get(first["id"]).priority_rank == 7
    for number, past in enumerate(("0001-01-01T00:00:00+12:00", (soon - timedelta(days=1)).isoformat())):
        job = shop.submit(3 + number, eta=past).json()["job"]
        assert job["run_at"] == job["created_at"]


# --- the document and the server ------------------------------------------------------------------------------------


def test_each_task_has_its_schema(shop: Shop) -> None:
    """The document has one schema for each exposed task; without a key that one of them requires, the answer is 400."""
    document = shop.get("/openapi.json").json()
    body = document["paths"]["/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["discriminator"]["propertyName"] == "task"
    assert body["discriminator"]["mapping"]["shop.invoice"] == "#/components/schemas/shop-invoice"
    assert "shop.hidden" not in body["discriminator"]["mapping"]
    schemas = document["components"]["schemas"]
    assert schemas["shop-invoice"]["description"] == "Write the invoice of an order."
    assert schemas["shop-invoice-arguments"]["required"] == ["order_id"]
    assert schemas["shop-invoice-arguments"]["properties"]["order_id"]["type"] == "integer"
    assert {name for name in schemas if "idempotency_key" in schemas[name].get("required", ())} == {"shop-paid"}
    for more in ({}, {"validate_only": True}):
        assert "shop.paid" in problem(shop.submit(task="paid", **more), 400, "key-required")["detail"]
    assert shop.ledger.find(Query()) == []
    assert [shop.submit(task="paid", **each).status_code for each in KEYS] == [202, *[200] * (len(KEYS) - 1)]


def test_a_large_body_is_parsed_in_a_thread(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body above 16 KiB does not occupy the event loop while it is parsed; a smaller one needs no other thread."""
    decoder, threads = checked_request._decoder, list[str]()

    class Noting:
        def decode(self, text: str) -> Any:
            threads.append(threading.current_thread().name)
            return decoder.decode(text)

    monkeypatch.setattr(checked_request, "_decoder", Noting())
    for path in ("/jobs", "/duplicates/check", "/jobs/bulk"):
        for size in (0, checked_request.INLINE_BYTES):
            threads.clear()
            shop.post(path, {"task": "shop.invoice", "kwargs": {"order_id": 1, "note": "x" * size}})
            assert {name.startswith("AnyIO worker") for name in threads} == {bool(size)}, (path, threads)


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
    return sorted(WebhookPayload.from_job(job) for job in shop.ledger.find(Query(task=WEBHOOK_TASK)))


def test_each_url_gets_one_webhook(calling: Shop) -> None:
    """A submission and its duplicates add a webhook each, equal ones are one, a rejected one adds none; it is a job."""
    job_id = calling.job_id(webhook_url=URL)
    for url in (URL, f"{URL}/2"):
        assert calling.named("operate").submit(webhook_url=url).status_code == 200
    problem(calling.submit(webhook_url=f"{URL}/3", on_duplicate="raise"), 409, "duplicate-job")
    assert webhooks(calling) == [WebhookPayload(job_id, URL), WebhookPayload(job_id, f"{URL}/2")]
    page = calling.named("read").get("/jobs", params={"task": WEBHOOK_TASK})
    second, first = page.json()["jobs"]
    assert first["submitter"] == "submit"
    assert second["submitter"] == "operate"
    assert "s3cret" not in page.text
    assert (second["state"], second["reason"]) == ("queued", f"waits for the end of {job_id}")


@for_each("url", ["http://hooks.example/s3cret", "https://127.1/s3cret", "s3cret"])
def test_a_url_that_cannot_be_is_refused(calling: Shop, url: str) -> None:
    """A forbidden URL is 422 without the URL in the response, and nothing is stored."""
    for validate_only in (True, False):
        response = calling.submit(webhook_url=url, validate_only=validate_only)
        assert "webhook_url" in problem(response, 422, "invalid-arguments")["detail"]
        assert "s3cret" not in response.text
    assert calling.ledger.find(Query()) == []


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


def test_a_key_with_a_secret_has_its_own_webhook(calling: Shop, shop: Shop) -> None:
    """Keys that name one URL share its webhook, unless one has a secret of its own; a server without any refuses it."""
    for name in ("submit", "edit", "operate"):
        calling.named(name).submit(webhook_url=URL)
    assert [payload.signer for payload in webhooks(calling)] == ["", "edit"]
    assert "sends no webhooks" in problem(shop.submit(webhook_url=URL), 422, "invalid-request")["detail"]
