"""The operations on jobs over HTTP: of one job, of many, of groups of dead letters; edits and duplicate checks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onejob.api.routes import jobs, operate
from onejob.celery.beat.ticks import Beat
from onejob.cli.jobs import jobs as cli_jobs
from onejob.client.operation import Operation
from onejob.jobs.model import IdentityHold
from onejob.jobs.query import Query
from onejob.jobs.timestamps import format_timestamp
from onejob.ledger.job_filters import FILTERS
from onejob.pages import lists
from tests.api.conftest import Shop, problem
from tests.cases import for_each
from tests.fundamentals.shop import claimed, order
from tests.operation_cases import ERROR, NEEDED, OPERATION_CASES, OperationCase, effects, failed, queued, running
from tests.pages.browser import Browser, mounted

REQUESTS: dict[Operation, tuple[str, str, int]] = {
    Operation.CANCEL: ("POST", "/cancel", 200), Operation.FORCE_CANCEL: ("POST", "/cancel?force=true", 202),
    Operation.RUN_NOW: ("POST", "/run-now", 200), Operation.REDRIVE: ("POST", "/redrive", 202),
    Operation.DELETE: ("DELETE", "", 204), Operation.FORCE_DELETE: ("DELETE", "?force=true", 204),
}  # fmt: skip
"""The method, the path and the status of each operation."""


def call(shop: Shop, operation: Operation, job_id: str) -> Any:
    method, path, _ = REQUESTS[operation]
    return shop.request(method, f"/jobs/{job_id}{path}", **({"json": {}} if method == "POST" else {}))


@for_each("case", [*OPERATION_CASES, *NEEDED])
def test_an_operation_is_passed_on_and_recorded(keyed: Shop, case: OperationCase) -> None:
    """Each operation changes its job in the name of the key, and refuses another with its state; both are recorded."""
    ledger, shop = keyed.ledger, keyed.named("operate")
    job, other = case.accepted(ledger), case.refused(ledger)
    before = effects(ledger)[other.id]
    response = call(shop, case.operation, job.id)
    assert response.status_code == REQUESTS[case.operation][2], response.text
    if case.state is None:
        assert (response.content, ledger.get_or_none(job.id)) == (b"", None)
        assert problem(shop.get(f"/jobs/{job.id}"), 410, "job-purged")["state"] == job.state
    else:
        assert effects(ledger)[job.id] == (case.state, f"{case.reason} over HTTP by operate")
        assert response.json() == shop.get(f"/jobs/{job.id}").json()
    details = problem(call(shop, case.operation, other.id), 409, case.problem)
    assert details["job_id"] == other.id
    assert details["state"] == other.state
    assert case.why in details["detail"]
    assert effects(ledger)[other.id] == before
    detail = REQUESTS[case.operation][0] + (" force=true" if case.operation.is_forced else "")
    for entry, target, outcome in zip(ledger.audit(limit=2), (other, job), (case.problem, "done"), strict=True):
        assert (entry.actor, entry.source, entry.target) == ("operate", "http", target.id)
        assert (entry.action, entry.outcome, entry.detail) == (case.operation.permission, outcome, detail)


@for_each("case", OPERATION_CASES)
def test_many_jobs_are_operated_on(shop: Shop, case: OperationCase) -> None:
    """A bulk operation takes the jobs of a filter in the states that it applies to; a dry run changes none."""
    ledger = shop.ledger
    job, other = case.accepted(ledger), case.refused(ledger)
    before = effects(ledger)
    body = {"operation": case.operation, "filter": {"since": format_timestamp(job.created_at)}}
    answer = bulk(shop, **body, dry_run=True)
    assert answer == {"dry_run": True, "done": [job.id], "refused": {}, "next": None}
    assert effects(ledger) == before
    assert bulk(shop, **body)["done"] == [job.id]
    assert effects(ledger).get(job.id, (None, ""))[0] == case.state
    assert effects(ledger)[other.id] == before[other.id]
    chosen = bulk(shop, operation=case.operation, job_ids=["x", other.id, "x"])
    assert (chosen["done"], list(chosen["refused"])) == ([], ["x", other.id])
    assert case.why in chosen["refused"][other.id]


@for_each("case", NEEDED)
def test_many_jobs_are_spared_if_something_needs_them(shop: Shop, case: OperationCase) -> None:
    """A bulk deletion refuses each job that something still needs, with the reason, and takes it when it is forced."""
    job, other = case.accepted(shop.ledger), case.refused(shop.ledger)
    body = {"filter": {"since": format_timestamp(job.created_at)}}
    spared = bulk(shop, **body, operation="delete")
    assert spared["done"] == [job.id]
    assert case.why in spared["refused"][other.id]
    assert other.id in bulk(shop, **body, operation="force_delete", dry_run=True)["done"]
    assert other.id in bulk(shop, **body, operation="force_delete")["done"]
    assert shop.ledger.get_or_none(other.id) is None


def bulk(shop: Shop, **body: Any) -> dict[str, Any]:
    response = shop.post("/jobs/bulk", body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


# --- one job --------------------------------------------------------------------------------------------------------


def test_what_prevents_an_operation_is_named(shop: Shop) -> None:
    """A problem has the job that is waited for, the one that holds the identity, or the end of the window."""
    first, ledger = running(shop.ledger, 1), shop.ledger
    following = ledger.submit(order(1, queue_next=True)).job.id
    details = problem(call(shop, Operation.RUN_NOW, following), 409, "not-waiting")
    assert (details["state"], details["follows_id"]) == ("queued", first.id)
    dead = failed(ledger, 2)
    holder = queued(ledger, 2)
    assert problem(call(shop, Operation.REDRIVE, dead.id), 409, "identity-held")["holder_id"] == holder.id
    kept = ledger.complete(running(ledger, 3), "1", hold=IdentityHold(identity_for=60.0))
    until = problem(call(shop, Operation.DELETE, kept.id), 409, "window-open")["until"]
    assert until == format_timestamp(kept.identity_until or 0)
    save = shop.app.tasks["shop.newest"]
    old = ledger.fail(claimed(ledger, save.delay(4, "old").id), ERROR, "E")
    newer = save.delay(4, "new").id
    assert problem(call(shop, Operation.REDRIVE, old.id), 409, "superseded")["newer_id"] == newer
    requested = call(shop, Operation.CANCEL, first.id)
    assert requested.status_code == 202
    assert requested.json()["cancel_requested"] is True
    assert ledger.get(first.id).cancel == 1


def test_an_edit_needs_its_role(keyed: Shop, shop: Shop) -> None:
    """A dead letter is edited with the role `edit` only, never without keys; the answer is that of a submission."""
    editor, dead = keyed.named("edit"), keyed.named("submit").job_id()
    keyed.failed(dead)
    path, changed = f"/jobs/{dead}/edit", {"kwargs": {"order_id": 8}}
    for other in (keyed.named("operate"), shop):
        problem(other.post(path, changed), 403, "forbidden")
    assert [editor.post(path, body).status_code for body in ({}, {"kwargs": {"unknown": 8}})] == [422, 422]
    assert keyed.ledger.get(dead).state == "failed"
    done = editor.post(path, changed)
    assert (done.status_code, done.json()["outcome"]) == (202, "admitted")
    purged = problem(editor.get(f"/jobs/{dead}"), 410, "job-purged")
    assert f"job {done.json()['job']['id']} was submitted in its place" in purged["detail"]


def test_an_edit_keeps_the_key_of_the_client(keyed: Shop) -> None:
    """The client's identical request is answered by the edited job; other arguments, its new ones too, are a 422."""
    client, key = keyed.named("submit"), {"idempotency-key": "order-7"}
    dead = client.submit(headers=key).json()["job"]["id"]
    keyed.failed(dead)
    edited = keyed.named("edit").post(f"/jobs/{dead}/edit", {"kwargs": {"order_id": 8}}).json()["job"]["id"]
    again = client.submit(headers=key)
    assert (again.status_code, again.json()["outcome"], again.json()["job"]["id"]) == (200, "attached", edited)
    assert problem(client.submit(8, headers=key), 422, "key-reused")["job_id"] == edited
    keyed.failed(edited)
    assert client.submit(headers=key).json()["outcome"] == "replayed"
    needed = problem(keyed.named("operate").request("DELETE", f"/jobs/{edited}"), 409, "job-needed")
    assert "answers its idempotency key until" in needed["needed_by"]


def test_an_edit_that_would_not_run_is_refused(keyed: Shop) -> None:
    """An edit that another job would answer, with other arguments, is a 409 that names that job, and is recorded."""
    editor, dead, live = keyed.named("edit"), keyed.task.delay(1).id, keyed.task.delay(2).id
    keyed.failed(dead)
    response = editor.post(f"/jobs/{dead}/edit", {"args": [2], "kwargs": {"note": "x"}})
    refused = problem(response, 409, "not-resubmittable")
    assert refused["job_id"] == dead
    assert live in refused["detail"]
    (entry,) = keyed.ledger.audit(limit=9)
    assert (entry.actor, entry.kind, entry.outcome, entry.target) == ("edit", "action", "not-resubmittable", dead)
    assert keyed.ledger.get(dead).state == "failed"


@for_each("path, body", [("/jobs/{}/redrive?forget_steps={}", {}), ("/dead/redrive", {"all": True}),
                         ("/jobs/bulk", {"operation": "redrive", "filter": {"task": "shop.invoice"}})])  # fmt: skip
def test_redriven_jobs_may_run_their_steps_again(shop: Shop, path: str, body: dict[str, Any]) -> None:
    """A redrive keeps the completed steps, unless `forget_steps` is set, over each route."""
    job_id = shop.job_id()
    for forget in (False, True):
        run = shop.claimed(job_id)
        shop.ledger.keep_step(run, "one", "1")
        shop.ledger.fail(run, ERROR, "E")
        response = shop.post(path.format(job_id, forget), body | ({"forget_steps": forget} if body else {}))
        assert response.status_code in {200, 202}
        assert shop.ledger.store.steps(job_id) == ({} if forget else {"one": "1"})
    shop.ledger.cancel(job_id)


# --- many jobs ------------------------------------------------------------------------------------------------------


def test_an_empty_filter_selects_nothing(shop: Shop) -> None:
    """A filter that leaves out no job, as an empty part of an error, is refused, also by the document."""
    for chosen in ({}, {"error": ""}, {"argument": "", "state": []}):
        problem(shop.post("/jobs/bulk", {"operation": "cancel", "filter": chosen}), 422, "invalid-request")
    for condition in shop.get("/openapi.json").json()["components"]["schemas"]["BulkFilter"]["anyOf"]:
        ((name, schema),) = condition["properties"].items()
        if name not in {"state", "since", "until", "group"}:
            body = {"operation": "cancel", "filter": {name: ""}}
            assert (shop.post("/jobs/bulk", body).status_code == 200) is ("" not in schema["not"]["enum"]), name


def test_an_operation_proceeds_in_portions(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A portion has a limit and a deadline, and its cursor leads to the next one, which has no job that came later."""
    ids = [queued(shop.ledger, number).id for number in range(5)][::-1]
    body: dict[str, Any] = {"operation": "cancel", "filter": {"task": "shop.invoice"}}
    first = bulk(shop, **body, limit=2)
    queued(shop.ledger, 99)
    monkeypatch.setattr(operate, "BULK_SECONDS", 0.0)
    second = bulk(shop, **body, cursor=first["next"])
    assert first["done"] == ids[:2]
    assert second["done"] == ids[2:3]
    assert second["next"] is not None


def test_each_front_end_has_each_filter(shop: Shop) -> None:
    """Each filter is a parameter of lists, a field of bulk requests and an option of the commands, with its text."""
    document = shop.get("/openapi.json").json()
    names = {each.name: each.help for each in FILTERS}
    listed = {each["name"]: each.get("description") for each in document["paths"]["/jobs"]["get"]["parameters"]}
    bulk_filter = document["components"]["schemas"]["BulkFilter"]["properties"]
    options = {each.name: getattr(each, "help", "") for each in cli_jobs.commands["list"].params}
    assert (listed | names, options | names) == (listed, options)
    assert bulk_filter.keys() == names.keys() | {"group"}
    assert shop.get("/dead?state=queued").status_code == 422, "dead letters have one state"
    dead, other = (shop.failed(shop.job_id(number, tags=[tag])) for number, tag in enumerate("ab", 1))
    assert [[job["id"] for job in shop.get(f"/dead?tag={tag}").json()["jobs"]] for tag in "ab"] == [
        [dead.id],
        [other.id],
    ]
    for chosen in ({"tag": "a"}, {"argument": "order_id=1", "error": "valueerror"}):
        assert bulk(shop, operation="delete", filter=chosen, dry_run=True)["done"] == [dead.id], chosen
    answer = bulk(shop, operation="cancel", filter={"state": ["failed"], "tag": "b"})
    assert (answer["done"], list(answer["refused"])) == ([], [other.id]), "a named state is one that may be refused"
    assert shop.post("/dead/redrive", {"tag": "a"}).json()["done"] == [dead.id]


def test_dead_letters_are_chosen(shop: Shop) -> None:
    """Ids, a task, a substring of the reason, or all choose dead letters, in order, up to the limit."""
    first, second = failed(shop.ledger, 1).id, shop.failed(shop.job_id(1, "strict"), reason="KeyError: x").id
    for body, done in (
        ({"task": "shop.strict"}, [second]), ({"error": "keyerror"}, [second]), ({"all": True}, [second, first]),
        ({"task": "shop.invoice", "error": "KeyError"}, []), ({"all": True, "limit": 1}, [second]),
        ({"job_ids": [first, "unknown", second, first]}, [first, second]),
    ):  # fmt: skip
        answer = shop.post("/dead/redrive", body | {"dry_run": True}).json()
        assert answer["dry_run"] is True
        assert answer["done"] == done
        assert list(answer["refused"]) == ["unknown"] * ("job_ids" in body)
    assert shop.post("/dead/redrive", {"error": "ValueError"}).json()["done"] == [first]
    assert effects(shop.ledger)[first] == ("queued", "redriven over HTTP")


# --- groups of dead letters -----------------------------------------------------------------------------------------


def test_a_group_of_dead_letters_is_redriven(shop: Shop) -> None:
    """Dead letters are listed in groups, and a bulk operation acts on the group that its filter names."""
    dead = []
    for number in range(3):
        error = {"type": "KeyError" if number != 1 else "E", "message": f"no row {number}", "traceback": "secret"}
        dead.append(shop.failed(shop.job_id(number), json.dumps(error), "no").id)
    response = shop.get("/dead/groups")
    groups = response.json()["groups"]
    assert [(each["error_type"], each["message"], each["pattern"], each["job_ids"]) for each in groups] == [
        ("KeyError", "no row 2", "no row …", [dead[2], dead[0]]), ("E", "no row 1", "no row …", [dead[1]]),
    ]  # fmt: skip
    assert groups[0]["first_at"] < groups[0]["last_at"]
    assert "secret" not in response.text
    group = {name: groups[0][name] for name in ("task", "error_type", "pattern")}
    assert bulk(shop, operation="redrive", filter={"group": group})["done"] == [dead[2], dead[0]]
    left = shop.get("/dead/groups?task=shop.invoice&limit=9").json()
    assert [each["error_type"] for each in left["groups"]] == ["E"]
    assert shop.get("/dead/groups?task=shop.other").json()["groups"] == []


def test_the_groups_of_a_response_are_bounded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The groups in which jobs failed last are returned, and the others are counted, in API and dashboard."""
    for number, words in enumerate(("a", "b", "a", "c")):
        shop.failed(shop.job_id(number), json.dumps({"type": "E", "message": words, "traceback": ""}), words)
    for module in (jobs, lists):
        monkeypatch.setattr(module, "GROUP_LIMIT", 2)
    found = shop.get("/dead/groups").json()
    assert ([each["message"] for each in found["groups"]], found["other_groups"], found["other_jobs"]) == (
        ["c", "a"], 1, 1,
    )  # fmt: skip
    browser = Browser(mounted(shop.app))
    page = browser.json("/dead")
    assert ([each["message"] for each in page["groups"]], page["group_count"], page["total"]) == (["c", "a"], 3, 4)
    assert "4 dead letters in 3 groups, the latest failure first; the first 2 are shown." in browser.page("/dead").text


# --- duplicate checks -----------------------------------------------------------------------------------------------


def check(shop: Shop, task: str, kwargs: dict[str, Any], **more: Any) -> Any:
    return shop.post("/duplicates/check", {"task": f"shop.{task}", "kwargs": kwargs, **more})


def test_a_check_names_the_job_that_would_answer(shop: Shop) -> None:
    """A check returns the identity, the hashed text, the outcome and the job of a submission, and stores nothing."""
    before = check(shop, "invoice", {"order_id": 1}).json()
    assert (before["outcome"], before["existing"]) == ("admitted", None)
    assert '"order_id":1' in before["hashed_text"]
    assert shop.ledger.find(Query()) == []
    job_id = shop.job_id(1)
    after = check(shop, "invoice", {"order_id": 1, "note": "x"}).json()
    assert (after["outcome"], after["existing"]["id"], after["identity"]) == ("attached", job_id, before["identity"])
    assert job_id in after["reason"]
    refused = check(shop, "invoice", {"order_id": 1}, on_duplicate="raise").json()
    assert (refused["outcome"], refused["existing"]["id"]) == ("rejected", job_id)
    assert shop.ledger.get(job_id).duplicate_count == 0
    assert check(shop, "paid", {"order_id": 1}).json()["outcome"] == "admitted"
    problem(check(shop, "picky", {"user": {}}), 422, "invalid-arguments")


# --- the beat schedule ----------------------------------------------------------------------------------------------


NAME = "invoices: 7/day"
PATH = "/schedules/invoices%3A%207/day"


@pytest.fixture
def scheduled(keyed: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Return the shop with an entry of the beat schedule, at which a worker has looked, and API keys."""
    entry = {"task": "shop.invoice", "schedule": 3600.0, "args": [7]}
    monkeypatch.setitem(keyed.app.conf, "beat_schedule", {NAME: entry})
    Beat(keyed.app).look()
    return keyed


def entry_of(shop: Shop) -> dict[str, Any]:
    response = shop.get("/schedules")
    assert response.status_code == 200, response.text
    (found,) = [each for each in response.json() if each["name"] == NAME]
    return dict(found)


def test_an_entry_is_paused_resumed_and_run(scheduled: Shop) -> None:
    """An operator pauses, resumes and runs an entry, each of which is recorded; a reader sees it with its next tick."""
    shop = scheduled.named("operate")
    before = entry_of(scheduled.named("read"))
    assert (before["task"], before["schedule"], before["missed"]) == ("shop.invoice", "every 3600 s", "last")
    assert before["paused"] is False
    assert before["last_tick_at"] is None
    assert before["next_tick_at"] is not None
    paused = shop.post(f"{PATH}/pause")
    assert (paused.status_code, paused.json()) == (200, before | {"paused": True, "next_tick_at": None})
    assert entry_of(shop) == paused.json()
    assert shop.post(f"{PATH}/resume").json()["paused"] is False
    job_id = shop.post(f"{PATH}/run").json()["job_id"]
    assert shop.ledger.get(job_id).task == "shop.invoice"
    assert shop.post(f"{PATH}/run").json()["job_id"] == job_id
    recorded = [(entry.action, entry.target, entry.actor) for entry in shop.ledger.audit(limit=4)]
    actions = ["run_schedule", "run_schedule", "resume_schedule", "pause_schedule"]
    assert recorded == [(action, NAME, "operate") for action in actions]
    problem(shop.post("/schedules/nothing/pause"), 404, "schedule-not-found")
    problem(shop.post("/schedules/nothing/run"), 404, "schedule-not-found")
