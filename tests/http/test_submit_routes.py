"""Submitting jobs over HTTP: the status of every outcome, and validation by the signature of the task."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

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
    """A new job is 202, with its URL as the location."""
    response = shop.post("invoice", {"order_id": 7})
    body = response.json()
    assert (response.status_code, body["outcome"], body["job"]["state"]) == (202, "admitted", "queued")
    assert response.headers["location"] == f"/jobs/{body['job']['id']}"
    assert response.headers["retry-after"] == "1"
    assert shop.client.get(response.headers["location"]).json() == body["job"]
    assert _sent(shop, body["job"]["id"]) == {"order_id": 7}


def test_the_response_is_its_model(shop: Shop) -> None:
    """The body is the JSON of its model, byte for byte, whatever the job's state, times and values are."""
    job = shop.ledger.get(shop.app.tasks["shop.invoice"].delay(7).id)
    value = '[NaN, -Infinity, 1e300, 123456789012345678901234567890, "\\u00fc\\u2028\\u0000", {"a": null}]'
    error = '{"type": "E", "message": "m", "traceback": "secret"}'
    times: dict[str, Any] = {"created_at": 0.0, "run_at": 1e12, "started_at": 1.5, "finished_at": 1.000001}
    for each in (
        job,
        replace(job, progress=value, result=value, **times),
        replace(job, state=State.FAILED, error=error),
    ):
        expected = SubmitResponse(outcome=Outcome.ATTACHED, job=job_view(each)).model_dump_json()
        assert submit_response(Outcome.ATTACHED, each) == expected.encode()


def test_a_duplicate_gets_the_existing_job(shop: Shop) -> None:
    """An equal submission is 200 with the existing job, also if that was submitted from Python."""
    first = shop.app.tasks["shop.invoice"].delay(7)
    response = shop.post("invoice", {"order_id": 7, "note": "twice"})
    assert (response.status_code, response.json()["outcome"], response.json()["job"]["id"]) == (
        200,
        "attached",
        first.id,
    )


def test_a_job_whose_message_cannot_be_sent_is_refused(shop: Shop) -> None:
    """A submission without a route is 422 with the class of the error only, and leaves no job."""

    def router(*_args: Any, **_options: Any) -> Any:
        raise ZeroDivisionError("secret")

    shop.app.conf.update(task_routes=[router])
    response = shop.post("invoice", {"order_id": 7})
    assert "ZeroDivisionError" in problem(response, 422, "unpublishable")["detail"]
    assert "secret" not in response.text
    assert shop.ledger.find(Query()) == []


def test_a_duplicate_records_its_source(shop: Shop) -> None:
    """A duplicate submitted over HTTP has the source `http`."""
    job_id = shop.post("invoice", {"order_id": 7}).json()["job"]["id"]
    shop.post("invoice", {"order_id": 7})
    (duplicate,) = shop.client.get(f"/jobs/{job_id}/duplicates").json()
    assert (duplicate["source"], duplicate["outcome"], duplicate["arguments_differ"]) == ("http", "attached", False)


def test_the_tasks_conflict_policy_applies(shop: Shop) -> None:
    """The `on_duplicate` of the task applies: replaced is 200, queued next is 202 with a new id."""
    first = shop.post("newest", {"document": 1, "text": "a"}, countdown=5).json()["job"]["id"]
    second = shop.post("newest", {"document": 1, "text": "b"}, countdown=5)
    assert (second.status_code, second.json()["outcome"], second.json()["job"]["id"]) == (200, "replaced", first)
    assert _sent(shop, first)["text"] == "b"
    running = shop.post("again", {"customer": 1}).json()["job"]["id"]
    shop.claimed(running)
    later = shop.post("again", {"customer": 1})
    assert (later.status_code, later.json()["outcome"]) == (202, "queued_next")
    assert later.headers["location"].endswith(later.json()["job"]["id"])
    assert later.json()["job"]["id"] != running


@pytest.mark.parametrize(("task", "more"), [("strict", {}), ("invoice", {"on_duplicate": "raise"})])
def test_a_rejected_duplicate_is_a_conflict(shop: Shop, task: str, more: dict[str, Any]) -> None:
    """A duplicate that the task or the request rejects is 409 with the id of the live job."""
    job_id = shop.post(task, {"order_id": 7}, **more).json()["job"]["id"]
    details = problem(shop.post(task, {"order_id": 7}, **more), 409, "duplicate-job")
    assert (details["job_id"], details["state"]) == (job_id, "queued")


@pytest.mark.parametrize("where", ["header", "quoted", "body", "both"])
def test_an_idempotency_key_makes_retries_safe(shop: Shop, where: str) -> None:
    """A repeated submission with an idempotency key gets the first job, also after that has ended."""
    header = {"idempotency-key": '"order 7"' if where == "quoted" else "order 7"}
    more: dict[str, Any] = {} if where == "body" else {"headers": header}
    more |= {"idempotency_key": "order 7"} if where in {"body", "both"} else {}
    job_id = shop.post("invoice", {"order_id": 7}, **more).json()["job"]["id"]
    shop.failed(job_id)
    response = shop.post("invoice", {"order_id": 7}, **more)
    assert (response.status_code, response.json()["job"]["id"]) == (200, job_id)
    assert problem(shop.post("invoice", {"order_id": 8}, **more), 422, "key-reused")["job_id"] == job_id


def test_two_idempotency_keys_are_refused(shop: Shop) -> None:
    """A request whose header and body have different keys, or whose header is repeated, is refused."""
    details = shop.post("invoice", {"order_id": 7}, idempotency_key="a", headers={"idempotency-key": "b"})
    problem(details, 422, "invalid-request")
    twice = [("idempotency-key", "a"), ("idempotency-key", "b")]
    problem(
        shop.client.post("/jobs", json={"task": "shop.invoice", "kwargs": {"order_id": 1}}, headers=twice),
        422,
        "invalid-request",
    )
    assert shop.ledger.find(Query()) == []


def test_a_task_can_require_an_idempotency_key(shop: Shop) -> None:
    """A submission without a required key is 400, also with `validate_only`, and the schema marks such a task."""
    for more in ({}, {"validate_only": True}):
        details = problem(shop.post("paid", {"order_id": 7}, **more), 400, "key-required")
        assert "shop.paid" in details["detail"]
    assert shop.ledger.find(Query()) == []
    assert shop.post("paid", {"order_id": 7}, idempotency_key="a").status_code == 202
    assert shop.post("paid", {"order_id": 7}, headers={"idempotency-key": "a"}).status_code == 200
    schemas = shop.client.get("/openapi.json").json()["components"]["schemas"]
    marked = {
        name for name in schemas if "x-requires-key" in schemas[name].get("properties", {}).get("idempotency_key", {})
    }
    assert marked == {"shop-paid"}


def test_validate_only_stores_nothing(shop: Shop) -> None:
    """`validate_only` returns the identity that the call has in Python, and stores nothing."""
    response = shop.post("invoice", {"order_id": 7}, validate_only=True, idempotency_key="k")
    task: Any = shop.app.tasks["shop.invoice"]
    expected = options_of(task).identifier.identity((7,), {})
    assert (response.status_code, response.json()["identity"]) == (200, expected)
    assert shop.ledger.find(Query()) == []
    problem(shop.post("invoice", {}, validate_only=True), 422, "invalid-request")


def test_a_job_can_be_due_later(shop: Shop) -> None:
    """A countdown or an eta sets when a job is due, and a priority its rank."""
    soon = datetime.now(UTC) + timedelta(hours=1)
    due = [
        shop.post("invoice", {"order_id": 1}, countdown=3600, priority=7).json()["job"],
        shop.post("invoice", {"order_id": 2}, eta=soon.isoformat()).json()["job"],
    ]
    for job in due:
        assert abs((datetime.fromisoformat(job["run_at"]) - soon).total_seconds()) < 60
    assert shop.ledger.get(due[0]["id"]).priority_rank == 7


def test_arguments_are_not_coerced(shop: Shop) -> None:
    """Arguments are validated by the type hints and passed on unchanged: no defaults added, nothing coerced."""
    sent = {"day": "2026-11-21", "lines": [{"sku": "a"}], "share": 1}
    job_id = shop.post("typed", sent).json()["job"]["id"]
    assert _sent(shop, job_id) == sent
    assert type(_sent(shop, job_id)["share"]) is int
    values = [None, [1, {"a": 1.5}], "ä𝄞", 10**400]
    ids = [shop.post("anything", {"value": value, "json": True}).json()["job"]["id"] for value in values]
    assert [_sent(shop, each)["value"] for each in ids] == values


@pytest.mark.parametrize(
    ("task", "kwargs", "at"),
    [
        ("invoice", {}, "order_id"),
        ("invoice", {"order_id": "7"}, "order_id"),
        ("invoice", {"order_id": 7.0}, "order_id"),
        ("invoice", {"order_id": True}, "order_id"),
        ("invoice", {"order_id": None}, "order_id"),
        ("invoice", {"order_id": 7, "more": 1}, "more"),
        ("typed", {"day": "soon", "lines": []}, "day"),
        ("typed", {"day": "2026-11-21", "lines": [{}]}, "sku"),
        ("typed", {"day": "2026-11-21", "lines": [{"sku": "a", "count": "2"}]}, "count"),
    ],
)
def test_invalid_arguments_are_refused(shop: Shop, task: str, kwargs: dict[str, Any], at: str) -> None:
    """Arguments that do not match the signature are 422 with the place of each, and nothing is stored."""
    details = problem(shop.post(task, kwargs), 422, "invalid-request")
    assert any(at in error["at"] for error in details["errors"])
    assert shop.ledger.find(Query()) == []


@for_each(
    "more",
    [
        {"task": "shop.hidden"},
        {"task": "celery.backend_cleanup"},
        {"task": ["shop.invoice"]},
        {"id": "mine"},
        {"task_id": "mine"},
        {"args": [7]},
        {"queue": "other"},
        {"countdown": -1},
        {"countdown": 1e300},
        {"countdown": "5"},
        {"countdown": 1, "eta": "2026-11-21T00:00:00Z"},
        {"eta": "2026-11-21T00:00:00"},
        {"eta": 5},
        {"priority": -1},
        {"priority": 1.5},
        {"on_duplicate": "replace"},
        {"idempotency_key": ""},
        {"idempotency_key": "k" * 256},
    ],
)
def test_only_what_is_offered_can_be_asked_for(shop: Shop, more: dict[str, Any]) -> None:
    """A task that is not exposed, an unknown field and a value out of range are 422."""
    body = {"task": "shop.invoice", "kwargs": {"order_id": 7}} | more
    problem(shop.client.post("/jobs", json=body), 422, "invalid-request")
    assert shop.ledger.find(Query()) == []


def test_a_failing_unique_on_is_422(shop: Shop) -> None:
    """If the task's `unique_on` raises for the arguments, the response is 422, not 500."""
    problem(shop.post("picky", {"user": {}}), 422, "invalid-arguments")
    problem(shop.post("invoice", {"order_id": 1}, idempotency_key="a\u0007"), 422, "invalid-arguments")


def test_each_task_has_its_schema(shop: Shop) -> None:
    """The OpenAPI document has one schema for each exposed task, discriminated by `task`, and none for others."""
    document = shop.client.get("/openapi.json").json()
    body = document["paths"]["/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["discriminator"]["propertyName"] == "task"
    assert body["discriminator"]["mapping"]["shop.invoice"] == "#/components/schemas/shop-invoice"
    assert "shop.hidden" not in body["discriminator"]["mapping"]
    schemas = document["components"]["schemas"]
    assert schemas["shop-invoice"]["description"] == "Write the invoice of an order."
    assert schemas["shop-invoice-arguments"]["required"] == ["order_id"]
    assert schemas["shop-invoice-arguments"]["properties"]["order_id"]["type"] == "integer"


@pytest.mark.parametrize(
    "eta",
    ["9999-12-31T23:59:59-12:00", "9999-12-31T23:59:59Z", "2500-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"],
)
def test_a_distant_eta_is_refused(shop: Shop, eta: str) -> None:
    """An eta more than a year away, or outside the calendar, is refused, and nothing is stored."""
    response = shop.post("invoice", {"order_id": 1}, eta=eta)
    assert (response.status_code, response.json()["type"].rpartition(":")[2].startswith("invalid")) == (422, True)
    assert shop.client.get("/jobs").json()["jobs"] == []


@pytest.mark.parametrize("countdown", [1e12, float("inf"), float("nan")])
def test_a_distant_countdown_is_refused_in_python(shop: Shop, countdown: float) -> None:
    """A countdown of more than a hundred years is refused from Python, too."""
    with pytest.raises(InvalidArgumentsError, match="not a valid time for a job"):
        shop.app.tasks["shop.invoice"].apply_async((1,), countdown=countdown)


def test_a_past_eta_is_now(shop: Shop) -> None:
    """A job with an eta in the past is due now."""
    job = shop.post("invoice", {"order_id": 1}, eta=(datetime.now(UTC) - timedelta(days=1)).isoformat()).json()["job"]
    assert job["run_at"] == job["created_at"]


def test_the_location_is_percent_encoded(shop: Shop) -> None:
    """An id with characters that a header cannot have is percent-encoded in the location."""
    shop.app.tasks["shop.invoice"].apply_async((7,), task_id="задача/1")
    response = shop.post("invoice", {"order_id": 7})
    assert response.headers["location"] == "/jobs/%D0%B7%D0%B0%D0%B4%D0%B0%D1%87%D0%B0%2F1"


def test_a_locked_row_delays_only_its_own_request(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A submission that waits for a locked row is retried outside its batch, and reports its own error."""
    ledger, submit_many = shop.ledger, shop.ledger.submit_many

    def busy(submissions: Any, *, wait_for_locks: bool = True) -> Any:
        if any(json.loads(new.payload)["kwargs"]["order_id"] == 7 for new in submissions):
            raise StoreUnavailableError("too long") if wait_for_locks else StoreBusyError("somebody's")
        return submit_many(submissions, wait_for_locks=wait_for_locks)

    monkeypatch.setattr(ledger, "submit_many", busy)
    problem(shop.post("invoice", {"order_id": 7}), 503, "store-unavailable")
    assert shop.post("invoice", {"order_id": 8}).status_code == 202
