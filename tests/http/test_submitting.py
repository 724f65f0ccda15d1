"""Asking for jobs over HTTP: every outcome has its status, and the arguments are what the signature says."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from onejob.celery.options import options_of
from onejob.errors import InvalidArgumentsError, StoreBusyError, StoreUnavailableError
from onejob.jobs.records import Query
from tests.cases import for_each
from tests.http.conftest import problem

if TYPE_CHECKING:
    from tests.http.conftest import Shop


def _sent(shop: Shop, job_id: str) -> Any:
    """Return the keyword arguments that a worker would get."""
    return json.loads(shop.ledger.get(job_id).payload)["kwargs"]


def test_a_new_job_is_accepted(shop: Shop) -> None:
    """A new job is 202, with the place where it can be looked at."""
    answer = shop.post("invoice", {"order_id": 7})
    body = answer.json()
    assert (answer.status_code, body["outcome"], body["job"]["state"]) == (202, "admitted", "queued")
    assert answer.headers["location"] == f"/jobs/{body['job']['id']}"
    assert answer.headers["retry-after"] == "1"
    assert shop.client.get(answer.headers["location"]).json() == body["job"]
    assert _sent(shop, body["job"]["id"]) == {"order_id": 7}


def test_an_equal_job_answers(shop: Shop) -> None:
    """An equal submission is 200 with the job that is there, also one that came from Python."""
    first = shop.app.tasks["shop.invoice"].delay(7)
    answer = shop.post("invoice", {"order_id": 7, "note": "twice"})
    assert (answer.status_code, answer.json()["outcome"], answer.json()["job"]["id"]) == (200, "attached", first.id)


def test_the_duplicate_names_the_door(shop: Shop) -> None:
    """A duplicate's duplicate says that it came over HTTP."""
    job_id = shop.post("invoice", {"order_id": 7}).json()["job"]["id"]
    shop.post("invoice", {"order_id": 7})
    (duplicate,) = shop.client.get(f"/jobs/{job_id}/duplicates").json()
    assert (duplicate["source"], duplicate["outcome"], duplicate["arguments_differ"]) == ("http", "attached", False)


def test_the_tasks_reaction_counts(shop: Shop) -> None:
    """What a duplicate comes to is the task's choice: replaced is 200, queued next is 202 under a new id."""
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
def test_a_refused_duplicate_is_a_conflict(shop: Shop, task: str, more: dict[str, Any]) -> None:
    """A duplicate that is refused, by the task or at the caller's wish, is 409 and names the live job."""
    job_id = shop.post(task, {"order_id": 7}, **more).json()["job"]["id"]
    told = problem(shop.post(task, {"order_id": 7}, **more), 409, "duplicate-job")
    assert (told["job_id"], told["state"]) == (job_id, "queued")


@pytest.mark.parametrize("where", ["header", "quoted", "body", "both"])
def test_a_key_makes_repeating_harmless(shop: Shop, where: str) -> None:
    """With an idempotency key a repetition gets the first answer's job, also when that has ended."""
    header = {"idempotency-key": '"order 7"' if where == "quoted" else "order 7"}
    more: dict[str, Any] = {} if where == "body" else {"headers": header}
    more |= {"idempotency_key": "order 7"} if where in {"body", "both"} else {}
    job_id = shop.post("invoice", {"order_id": 7}, **more).json()["job"]["id"]
    shop.failed(job_id)
    answer = shop.post("invoice", {"order_id": 7}, **more)
    assert (answer.status_code, answer.json()["job"]["id"]) == (200, job_id)
    assert problem(shop.post("invoice", {"order_id": 8}, **more), 422, "key-reused")["job_id"] == job_id


def test_two_keys_are_one_too_many(shop: Shop) -> None:
    """A request whose header and body name different keys, or whose header is there twice, is refused."""
    told = shop.post("invoice", {"order_id": 7}, idempotency_key="a", headers={"idempotency-key": "b"})
    problem(told, 422, "invalid-request")
    twice = [("idempotency-key", "a"), ("idempotency-key", "b")]
    problem(
        shop.client.post("/jobs", json={"task": "shop.invoice", "kwargs": {"order_id": 1}}, headers=twice),
        422,
        "invalid-request",
    )
    assert shop.ledger.find(Query()) == []


def test_a_task_can_require_a_key(shop: Shop) -> None:
    """A task that requires a key cannot be asked for without one, not even to check; the schema says so."""
    for more in ({}, {"validate_only": True}):
        told = problem(shop.post("paid", {"order_id": 7}, **more), 400, "key-required")
        assert "shop.paid" in told["detail"]
    assert shop.ledger.find(Query()) == []
    assert shop.post("paid", {"order_id": 7}, idempotency_key="a").status_code == 202
    assert shop.post("paid", {"order_id": 7}, headers={"idempotency-key": "a"}).status_code == 200
    schemas = shop.client.get("/openapi.json").json()["components"]["schemas"]
    marked = {
        name for name in schemas if "x-requires-key" in schemas[name].get("properties", {}).get("idempotency_key", {})
    }
    assert marked == {"shop-paid"}


def test_a_check_stores_nothing(shop: Shop) -> None:
    """`validate_only` tells the identity that Python's call would have, and leaves nothing behind."""
    answer = shop.post("invoice", {"order_id": 7}, validate_only=True, idempotency_key="k")
    task: Any = shop.app.tasks["shop.invoice"]
    expected = options_of(task).identifier.identity((7,), {})
    assert (answer.status_code, answer.json()["identity"]) == (200, expected)
    assert shop.ledger.find(Query()) == []
    problem(shop.post("invoice", {}, validate_only=True), 422, "invalid-request")


def test_a_job_can_be_due_later(shop: Shop) -> None:
    """A countdown and an eta say when a job is due, a priority how urgent it is."""
    soon = datetime.now(UTC) + timedelta(hours=1)
    due = [
        shop.post("invoice", {"order_id": 1}, countdown=3600, priority=7).json()["job"],
        shop.post("invoice", {"order_id": 2}, eta=soon.isoformat()).json()["job"],
    ]
    for job in due:
        assert abs((datetime.fromisoformat(job["run_at"]) - soon).total_seconds()) < 60
    assert shop.ledger.get(due[0]["id"]).priority_rank == 7


def test_what_was_sent_is_what_the_task_gets(shop: Shop) -> None:
    """Arguments are checked against the hints and passed on as they came: no defaults filled in, nothing coerced."""
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
def test_arguments_that_do_not_fit_are_told(shop: Shop, task: str, kwargs: dict[str, Any], at: str) -> None:
    """Arguments that the signature does not allow are 422, with the place of each, and nothing is stored."""
    told = problem(shop.post(task, kwargs), 422, "invalid-request")
    assert any(at in error["at"] for error in told["errors"])
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
    """A task that is not exposed, a field that there is not (an id of one's own), a value out of range: 422."""
    body = {"task": "shop.invoice", "kwargs": {"order_id": 7}} | more
    problem(shop.client.post("/jobs", json=body), 422, "invalid-request")
    assert shop.ledger.find(Query()) == []


def test_a_task_whose_identity_fails_is_the_callers_fault(shop: Shop) -> None:
    """When a task's own `unique_on` cannot cope with the arguments, the answer is 422, not 500."""
    problem(shop.post("picky", {"user": {}}), 422, "invalid-arguments")
    problem(shop.post("invoice", {"order_id": 1}, idempotency_key="a\u0007"), 422, "invalid-arguments")


def test_each_task_has_its_schema(shop: Shop) -> None:
    """The OpenAPI document has one schema for each exposed task, told apart by `task`, and none for others."""
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
def test_no_job_is_due_beyond_the_calendar(shop: Shop, eta: str) -> None:
    """A job that would be due after more than a year, or was due in another age, is refused, and nothing is stored."""
    answer = shop.post("invoice", {"order_id": 1}, eta=eta)
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2].startswith("invalid")) == (422, True)
    assert shop.client.get("/jobs").json()["jobs"] == []


@pytest.mark.parametrize("countdown", [1e12, float("inf"), float("nan")])
def test_no_job_from_python_is_due_beyond_the_calendar(shop: Shop, countdown: float) -> None:
    """Whatever the door, a job that is due in more than a hundred years is refused."""
    with pytest.raises(InvalidArgumentsError, match="no time that a job can be due at"):
        shop.app.tasks["shop.invoice"].apply_async((1,), countdown=countdown)


def test_a_job_of_yesterday_is_due_now(shop: Shop) -> None:
    """A moment that has passed is now."""
    job = shop.post("invoice", {"order_id": 1}, eta=(datetime.now(UTC) - timedelta(days=1)).isoformat()).json()["job"]
    assert job["run_at"] == job["created_at"]


def test_the_place_of_an_odd_id_can_be_written(shop: Shop) -> None:
    """A job whose id a header could not carry is found where the answer says."""
    shop.app.tasks["shop.invoice"].apply_async((7,), task_id="задача/1")
    answer = shop.post("invoice", {"order_id": 7})
    assert answer.headers["location"] == "/jobs/%D0%B7%D0%B0%D0%B4%D0%B0%D1%87%D0%B0%2F1"


def test_a_row_that_is_somebodys_holds_up_only_those_who_need_it(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that came with one which has to wait are tried again by themselves, and that one is told the truth."""
    ledger, submit_many = shop.ledger, shop.ledger.submit_many

    def busy(submissions: Any, *, wait_for_locks: bool = True) -> Any:
        if any(json.loads(new.payload)["kwargs"]["order_id"] == 7 for new in submissions):
            raise StoreUnavailableError("too long") if wait_for_locks else StoreBusyError("somebody's")
        return submit_many(submissions, wait_for_locks=wait_for_locks)

    monkeypatch.setattr(ledger, "submit_many", busy)
    problem(shop.post("invoice", {"order_id": 7}), 503, "store-unavailable")
    assert shop.post("invoice", {"order_id": 8}).status_code == 202
