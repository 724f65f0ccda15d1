"""Operations over HTTP: run now, delete, bulk operations, groups of dead letters and duplicate checks."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from onejob.api.routes import operate
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Retention
from onejob.jobs.records import Query
from onejob.jobs.timestamps import format_timestamp
from tests.cases import for_each
from tests.http.conftest import problem

if TYPE_CHECKING:
    from tests.http.conftest import Shop

HOUR = 3600


def submit(shop: Shop, order_id: int = 1, task: str = "invoice", **more: Any) -> str:
    """Submit a job, and return its id."""
    return str(shop.post(task, {"order_id": order_id}, **more).json()["job"]["id"])


def bulk(shop: Shop, operation: str, **body: Any) -> dict[str, Any]:
    """Run a bulk operation."""
    response = shop.client.post("/jobs/bulk", json={"operation": operation, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


# --- one job --------------------------------------------------------------------------------------------------------


def test_a_delayed_job_is_made_due(shop: Shop) -> None:
    """A delayed job is due at once, says by whom, and stays the same when that is repeated."""
    job_id = submit(shop, countdown=HOUR)
    due = shop.client.post(f"/jobs/{job_id}/run-now", json={})
    assert (due.status_code, due.json()["state"]) == (200, "queued")
    assert datetime.fromisoformat(due.json()["run_at"]) <= datetime.now(UTC) + timedelta(seconds=60)
    assert shop.ledger.history(job_id)[-1].detail == "made due over HTTP"
    again = shop.client.post(f"/jobs/{job_id}/run-now", json={})
    assert again.json() == due.json()


def test_a_job_that_does_not_wait_is_not_made_due(shop: Shop) -> None:
    """A running job, and one that is queued next, are 409 with the state, and the job that is waited for."""
    first = submit(shop, 1)
    shop.claimed(first)
    details = problem(shop.client.post(f"/jobs/{first}/run-now", json={}), 409, "not-waiting")
    assert (details["job_id"], details["state"]) == (first, "running")
    running = shop.post("again", {"customer": 1}).json()["job"]["id"]
    shop.claimed(running)
    queued = shop.post("again", {"customer": 1}).json()["job"]["id"]
    assert problem(shop.client.post(f"/jobs/{queued}/run-now", json={}), 409, "not-waiting")["follows_id"] == running


def test_an_ended_job_is_deleted(shop: Shop) -> None:
    """An ended job is deleted without content in the response, and is 410 afterwards."""
    job_id = submit(shop)
    shop.failed(job_id)
    response = shop.client.delete(f"/jobs/{job_id}")
    assert (response.status_code, response.content) == (204, b"")
    assert problem(shop.client.get(f"/jobs/{job_id}"), 410, "job-purged")["state"] == "failed"
    problem(shop.client.delete(f"/jobs/{job_id}"), 410, "job-purged")


def test_a_job_in_use_is_not_deleted(shop: Shop) -> None:
    """A live job, and one that answers duplicates, are 409 with the reason."""
    job_id = submit(shop)
    problem(shop.client.delete(f"/jobs/{job_id}"), 409, "job-not-ended")
    shop.ledger.complete(shop.claimed(job_id), "1", keep=Retention(identity_for=60.0))
    details = problem(shop.client.delete(f"/jobs/{job_id}"), 409, "window-open")
    until = shop.ledger.get(job_id).identity_until
    assert until is not None
    assert details["until"] == format_timestamp(until)


# --- many jobs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def ids(shop: Shop) -> list[str]:
    """Return the ids of five delayed jobs, newest first."""
    return [submit(shop, number, countdown=HOUR) for number in range(5)][::-1]


def test_an_operation_on_all_that_match_proceeds_in_portions(shop: Shop, ids: list[str]) -> None:
    """Portion after portion, by the cursor, each matching job is processed once, and no later one."""
    body: dict[str, Any] = {"filter": {"task": "shop.invoice"}, "limit": 2}
    portions, later = [], ""
    while True:
        answer = bulk(shop, "cancel", **body)
        portions.append(answer["done"])
        later = later or submit(shop, 99)
        if answer["next"] is None:
            break
        body["cursor"] = answer["next"]
    assert portions == [ids[:2], ids[2:4], ids[4:]]
    assert [job.id for job in shop.ledger.find(Query(states=frozenset({State.QUEUED})))] == [later]


def test_a_portion_has_a_deadline(shop: Shop, ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A request ends after its time, with at least one job, and with the cursor for the others."""
    monkeypatch.setattr(operate, "BULK_SECONDS", 0.0)
    answer = bulk(shop, "run_now", filter={"task": "shop.invoice"})
    assert (answer["done"], answer["next"] is not None) == (ids[:1], True)


def test_each_operation_takes_the_jobs_that_it_applies_to(shop: Shop, ids: list[str]) -> None:
    """Without states in the filter an operation takes the jobs in its own states; a dry run changes nothing."""
    shop.ledger.cancel(ids[0])
    shop.ledger.run_now(ids[1])
    shop.failed(ids[1])
    everything = {"filter": {"task": "shop.invoice"}}
    expected = {"run_now": ids[2:], "cancel": ids[2:], "force_cancel": ids[2:], "redrive": ids[1:2], "delete": ids[:2]}
    for operation, found in expected.items():
        answer = bulk(shop, operation, dry_run=True, **everything)
        assert answer == {"dry_run": True, "done": found, "refused": {}, "next": None}
    for operation in ("run_now", "redrive"):
        assert bulk(shop, operation, **everything)["done"] == expected[operation]
    assert {job.state for job in shop.ledger.find(Query())} == {State.QUEUED, State.CANCELED}
    assert bulk(shop, "force_cancel", **everything)["done"] == ids[1:]
    assert bulk(shop, "delete", **everything)["done"] == ids
    assert shop.ledger.find(Query()) == []


def test_filters_are_combined(shop: Shop, ids: list[str]) -> None:
    """State, identity, submitter, times and the reason select, combined with AND; refused jobs have their reasons."""
    job = shop.ledger.get(ids[2])
    at = {job_id: format_timestamp(shop.ledger.get(job_id).created_at) for job_id in ids}
    shop.ledger.cancel(ids[4], reason="not needed: 7")
    for chosen, found in (
        ({"identity": job.identity}, [ids[2]]),
        ({"submitter": ""}, ids[:4]),
        ({"submitter": "nobody"}, []),
        ({"since": at[ids[3]], "until": at[ids[1]]}, ids[2:4]),
        ({"state": ["queued"], "until": at[ids[0]]}, ids[1:4]),
    ):
        assert bulk(shop, "cancel", filter=chosen, dry_run=True)["done"] == found, chosen
    answer = bulk(shop, "cancel", filter={"state": ["canceled"], "error": "NOT needed"})
    assert (answer["done"], list(answer["refused"])) == ([], [ids[4]])
    assert "is canceled" in answer["refused"][ids[4]]


def test_jobs_are_chosen_by_id(shop: Shop, ids: list[str]) -> None:
    """The jobs with given ids are processed once each, in this order; unknown and unsuitable ones are refused."""
    shop.ledger.run_now(ids[0])
    shop.claimed(ids[0])
    answer = bulk(shop, "run_now", job_ids=[ids[3], "unknown", ids[0], ids[3]])
    assert (answer["done"], answer["next"]) == ([ids[3]], None)
    assert list(answer["refused"]) == ["unknown", ids[0]]


def test_redriven_jobs_may_run_their_steps_again(shop: Shop) -> None:
    """A bulk redrive keeps the completed steps, unless `forget_steps` is set."""
    job_id = submit(shop)
    for forget in (False, True):
        run = shop.ledger.claim(job_id, nonce=f"{forget}", node="node").job
        assert run is not None
        shop.ledger.keep_step(run, "one", "1")
        shop.ledger.fail(run, '{"type": "E", "message": "", "traceback": ""}', "E")
        assert bulk(shop, "redrive", filter={"task": "shop.invoice"}, forget_steps=forget)["done"] == [job_id]
        assert shop.ledger.store.steps(job_id) == ({} if forget else {"one": "1"})


@for_each(
    "body",
    [
        {},
        {"operation": "cancel"},
        {"operation": "cancel", "job_ids": []},
        {"operation": "cancel", "filter": {}},
        {"operation": "cancel", "filter": {"state": []}},
        {"operation": "cancel", "filter": {"task": None}},
        {"operation": "cancel", "filter": {"task": "x"}, "job_ids": ["x"]},
        {"operation": "cancel", "job_ids": ["x"], "cursor": "x"},
        {"operation": "purge", "job_ids": ["x"]},
        {"operation": 1, "job_ids": ["x"]},
        {"operation": "cancel", "job_ids": ["x"] * 1001},
        {"operation": "cancel", "job_ids": ["\0"]},
        {"operation": "cancel", "filter": {"state": ["lost"]}},
        {"operation": "cancel", "filter": {"state": "queued"}},
        {"operation": "cancel", "filter": {"since": "yesterday"}},
        {"operation": "cancel", "filter": {"since": 1}},
        {"operation": "cancel", "filter": {"until": "2026-01-31T12:00:00"}},
        {"operation": "cancel", "filter": {"tasks": "x"}},
        {"operation": "cancel", "filter": {"group": {}}},
        {"operation": "cancel", "filter": {"task": "x"}, "limit": 0},
        {"operation": "cancel", "filter": {"task": "x"}, "limit": 1001},
        {"operation": "cancel", "filter": {"task": "x"}, "dry_run": "yes"},
        {"operation": "cancel", "filter": {"task": "x"}, "cursor": "no cursor"},
        [],
        None,
    ],
)
def test_what_selects_nothing_or_twice_is_refused(shop: Shop, body: Any) -> None:
    """Neither ids nor a condition, both, or an invalid value is 422."""
    content = json.dumps(body)
    response = shop.client.post("/jobs/bulk", content=content, headers={"content-type": "application/json"})
    problem(response, 422, "invalid-request")


# --- groups of dead letters -----------------------------------------------------------------------------------------


def test_a_group_of_dead_letters_is_redriven(shop: Shop) -> None:
    """Dead letters are listed in groups, and a bulk operation acts on the group that its filter names."""
    failed = []
    for number in range(3):
        job = shop.claimed(submit(shop, number))
        error = {"type": "KeyError" if number != 1 else "E", "message": f"no row {number}", "traceback": "secret"}
        failed.append(shop.ledger.fail(job, json.dumps(error), "no").id)
    response = shop.client.get("/dead/groups")
    assert "secret" not in response.text
    groups = response.json()
    assert [(each["error_type"], each["count"], each["job_ids"]) for each in groups] == [
        ("KeyError", 2, [failed[2], failed[0]]), ("E", 1, [failed[1]]),
    ]  # fmt: skip
    assert (groups[0]["message"], groups[0]["pattern"]) == ("no row 2", "no row …")
    assert groups[0]["first_at"] < groups[0]["last_at"]
    group = {name: groups[0][name] for name in ("task", "error_type", "pattern")}
    assert bulk(shop, "redrive", filter={"group": group})["done"] == [failed[2], failed[0]]
    assert [each["error_type"] for each in shop.client.get("/dead/groups?task=shop.invoice&limit=9").json()] == ["E"]
    assert shop.client.get("/dead/groups?task=shop.other").json() == []
    problem(shop.client.get("/dead/groups?limit=10001"), 422, "invalid-request")


# --- duplicate checks -----------------------------------------------------------------------------------------------


def check(shop: Shop, task: str, kwargs: dict[str, Any], **more: Any) -> Any:
    """Check a call."""
    return shop.client.post("/duplicates/check", json={"task": f"shop.{task}", "kwargs": kwargs, **more})


def test_a_check_names_the_job_that_would_answer(shop: Shop) -> None:
    """A check returns the identity, the hashed text, the outcome and the job of a submission, and stores nothing."""
    before = check(shop, "invoice", {"order_id": 1}).json()
    assert (before["outcome"], before["existing"]) == ("admitted", None)
    assert '"order_id":1' in before["hashed_text"]
    assert shop.ledger.find(Query()) == []
    job_id = submit(shop)
    after = check(shop, "invoice", {"order_id": 1, "note": "x"}).json()
    assert (after["outcome"], after["existing"]["id"], after["identity"]) == ("attached", job_id, before["identity"])
    assert job_id in after["reason"]
    refused = check(shop, "invoice", {"order_id": 1}, on_duplicate="raise").json()
    assert (refused["outcome"], refused["existing"]["id"]) == ("rejected", job_id)
    assert shop.ledger.get(job_id).duplicate_count == 0
    assert check(shop, "paid", {"order_id": 1}).json()["outcome"] == "admitted"


def test_a_wrong_call_is_refused_as_a_submission(shop: Shop) -> None:
    """Wrong arguments, an unknown or hidden task, and options that a check does not take, are 422."""
    for task, kwargs in (("invoice", {}), ("invoice", {"order_id": "x"}), ("hidden", {"order_id": 1}), ("no", {})):
        assert problem(check(shop, task, kwargs), 422, "invalid-request")["errors"]
    details = problem(check(shop, "invoice", {"order_id": 1}, countdown=5, idempotency_key="k"), 422, "invalid-request")
    assert "countdown, idempotency_key" in details["detail"]
    problem(check(shop, "picky", {"user": {}}), 422, "invalid-arguments")
