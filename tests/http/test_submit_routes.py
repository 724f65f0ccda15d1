"""Submitting jobs over HTTP: the status of every outcome, keys, times, and what the response and the document have."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from onejob.api import checked_request
from onejob.api.response_models import SubmitResponse, job_view, submit_response
from onejob.celery.options import options_of
from onejob.errors import InvalidArgumentsError, StoreBusyError, StoreUnavailableError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Outcome
from onejob.jobs.records import Query
from tests.cases import for_each
from tests.http.conftest import problem

if TYPE_CHECKING:
    from tests.http.conftest import Shop


def _sent(shop: Shop, job_id: str) -> Any:
    """Return the keyword arguments that a worker gets."""
    return json.loads(shop.ledger.get(job_id).payload)["kwargs"]


def test_a_new_job_is_accepted(shop: Shop) -> None:
    """A new job is 202, with its URL as the location; an equal one is 200 with that job, also beside one of Python."""
    response = shop.submit(7)
    body = response.json()
    assert (response.status_code, body["outcome"], body["job"]["state"]) == (202, "admitted", "queued")
    assert (response.headers["location"], response.headers["retry-after"]) == (f"/jobs/{body['job']['id']}", "1")
    assert shop.get(response.headers["location"]).json() == body["job"]
    assert _sent(shop, body["job"]["id"]) == {"order_id": 7}
    for order_id, first in ((7, body["job"]["id"]), (8, shop.task.delay(8).id)):
        response = shop.submit(kwargs={"order_id": order_id, "note": "twice"})
        assert (response.status_code, response.json()["outcome"]) == (200, "attached")
        assert response.json()["job"]["id"] == first


def test_the_response_is_its_model(shop: Shop) -> None:
    """The body is the JSON of its model, byte for byte, whatever the job's state, times and values are."""
    job = shop.ledger.get(shop.job_id())
    value = '[NaN, -Infinity, 1e300, 123456789012345678901234567890, "\\u00fc\\u2028\\u0000", {"a": null}]'
    error = '{"type": "E", "message": "m", "traceback": "secret"}'
    times: dict[str, Any] = {"created_at": 0.0, "run_at": 1e12, "started_at": 1.5, "finished_at": 1.000001}
    odd = replace(job, progress=value, result=value, **times)
    for each in (job, odd, replace(job, state=State.FAILED, error=error)):
        expected = SubmitResponse(outcome=Outcome.ATTACHED, job=job_view(each)).model_dump_json()
        assert submit_response(Outcome.ATTACHED, each) == expected.encode()


def test_the_tasks_conflict_policy_applies(shop: Shop) -> None:
    """The `on_duplicate` of the task applies: replaced is 200, queued next is 202 with a new id."""
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


@for_each("task, more", [("strict", {}), ("invoice", {"on_duplicate": "raise"})])
def test_a_rejected_duplicate_is_a_conflict(shop: Shop, task: str, more: dict[str, Any]) -> None:
    """A duplicate that the task or the request rejects is 409 with the id of the live job."""
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


@for_each("where", ["header", "quoted", "body", "both"])
def test_an_idempotency_key_makes_retries_safe(shop: Shop, where: str) -> None:
    """A repeated submission with an idempotency key gets the first job, also after that has ended."""
    key = f"order {where}"
    more: dict[str, Any] = (
        {} if where == "body" else {"headers": {"idempotency-key": f'"{key}"' if where == "quoted" else key}}
    )
    more |= {"idempotency_key": key} if where in {"body", "both"} else {}
    job_id = shop.job_id(**more)
    shop.failed(job_id)
    response = shop.submit(**more)
    assert (response.status_code, response.json()["job"]["id"]) == (200, job_id)
    assert problem(shop.submit(8, **more), 422, "key-reused")["job_id"] == job_id


def test_two_idempotency_keys_are_refused(shop: Shop) -> None:
    """A request whose header and body have different keys, or whose header is repeated, is refused."""
    problem(shop.submit(idempotency_key="a", headers={"idempotency-key": "b"}), 422, "invalid-request")
    twice = [("idempotency-key", "a"), ("idempotency-key", "b")]
    problem(shop.submit(headers=twice), 422, "invalid-request")
    assert shop.ledger.find(Query()) == []


def test_a_task_can_require_an_idempotency_key(shop: Shop) -> None:
    """A submission without a required key is 400, also with `validate_only`, and the schema marks such a task."""
    for more in ({}, {"validate_only": True}):
        details = problem(shop.submit(task="paid", **more), 400, "key-required")
        assert "shop.paid" in details["detail"]
    assert shop.ledger.find(Query()) == []
    assert shop.submit(task="paid", idempotency_key="a").status_code == 202
    assert shop.submit(task="paid", headers={"idempotency-key": "a"}).status_code == 200
    schemas = shop.get("/openapi.json").json()["components"]["schemas"]
    assert {name for name in schemas if "idempotency_key" in schemas[name].get("required", ())} == {"shop-paid"}


# --- arguments and times --------------------------------------------------------------------------------------------


def test_validate_only_stores_nothing(shop: Shop) -> None:
    """`validate_only` returns the identity that the call has in Python, and stores nothing."""
    response = shop.submit(validate_only=True, idempotency_key="k")
    expected = options_of(shop.task).identifier.identity((7,), {})
    assert (response.status_code, response.json()["identity"]) == (200, expected)
    assert shop.ledger.find(Query()) == []
    problem(shop.submit(kwargs={}, validate_only=True), 422, "invalid-request")


def test_arguments_are_not_coerced(shop: Shop) -> None:
    """Arguments are validated by the type hints and passed on unchanged: no defaults added, nothing coerced."""
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
        assert (response.status_code, ":invalid" in response.json()["type"]) == (422, True)
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
    """The OpenAPI document has one schema for each exposed task, discriminated by `task`, and none for others."""
    document = shop.get("/openapi.json").json()
    body = document["paths"]["/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["discriminator"]["propertyName"] == "task"
    assert body["discriminator"]["mapping"]["shop.invoice"] == "#/components/schemas/shop-invoice"
    assert "shop.hidden" not in body["discriminator"]["mapping"]
    schemas = document["components"]["schemas"]
    assert schemas["shop-invoice"]["description"] == "Write the invoice of an order."
    assert schemas["shop-invoice-arguments"]["required"] == ["order_id"]
    assert schemas["shop-invoice-arguments"]["properties"]["order_id"]["type"] == "integer"


def test_the_location_is_percent_encoded(shop: Shop) -> None:
    """An id with characters that a header cannot have is percent-encoded in the location."""
    shop.task.apply_async((7,), task_id="задача/1")
    assert shop.submit(7).headers["location"] == "/jobs/%D0%B7%D0%B0%D0%B4%D0%B0%D1%87%D0%B0%2F1"


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
