"""Requests that are invalid: each has its problem (RFC 9457), changes nothing, and none is a server error."""

from __future__ import annotations

import itertools
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import pytest
from celery import Celery
from fastapi import Depends, FastAPI, Query
from fastapi.security import APIKeyQuery
from starlette.testclient import TestClient

from onejob.api import checked_request, router
from onejob.api.checked_request import BODY_LIMIT, VALUE_LIMIT
from onejob.api.problems import Problem
from onejob.errors import StoreError, StoreUnavailableError
from onejob.jobs.query import Query as JobQuery
from tests.api.conftest import Shop, problem
from tests.api.test_entry_points import ROUTES, call_route, path_of
from tests.cases import for_each
from tests.operation_cases import failed

JSON = {"content-type": "application/json"}


def _value(text: str) -> bytes:
    """Return a valid body with this JSON text as the value of an argument."""
    return f'{{"task": "shop.anything", "kwargs": {{"value": {text}}}}}'.encode()


NO_JSON: list[bytes] = [
    b"", b"  ", b'{"task": "shop.any', b"{} {}",
    b"\xef\xbb\xbf" + _value("1"), _value("1").decode().encode("utf-16"), _value('"\xe4"').decode().encode("latin-1"),
    bytes(range(256)), b'{"task": "\xc0\xaf"}', b'{"task": "\xed\xa0\x80"}',
    *map(_value, ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "9" * 5000, "9" * 100_000, "01", "0x10",
                  "1 /* one */", "[1,]", "'a'", '"\x01"']),
    b'{"task": "shop.anything", "task": "shop.invoice", "kwargs": {"value": 1}}',
    b'{"task": "shop.anything", "kwargs": {"value": 1, "value": 2}}',
    *map(_value, ['{"a": {"b": 1, "b": 2}}', '{"a": 1, "\\u0061": 2}']),
    b'{"task": "\\ud800", "kwargs": {}}',
    *map(_value, ['"\\ud800"', '"\\udc00"', '"\\udc00\\ud800"', '{"\\ud800": 1}', "[" * 101 + "]" * 101,
                  "[" * 900 + "]" * 900, '{"a":' * 5000 + "1" + "}" * 5000, "[" * 30_000 + "]" * 30_000]),
    b"[" * 30_000,
]  # fmt: skip
"""No JSON; not UTF-8; numbers that are none, or too large; names given twice; lone surrogates; too deep."""
NO_SUBMISSION: list[bytes] = [
    b"null",
    b"7",
    b"[]",
    b'"task"',
    b"{}",
    b'{"task": "shop.anything"}',
    b'{"task": "shop.anything", "kwargs": null}',
    b'{"task": "shop.anything", "kwargs": [1]}',
    b'{"task": null, "kwargs": {}}',
    b'{"task": {}, "kwargs": {}}',
    b'{"task": "shop.anything\\u0000", "kwargs": {"value": 1}}',
    b'{"task": "shop.anything", "kwargs": {"value": 1, "\\u0000": 1}}',
    b'{"task": "shop.anything", "kwargs": {' + b",".join(b'"%d":1' % n for n in range(19_000)) + b"}}",
]
NO_ARGUMENTS: list[bytes] = [*map(_value, [
    '"\\u0000"', '{"a\\u0000": 1}', '{"__type__": "datetime", "__value__": "never"}', "[" * 70 + "]" * 70,
    '"' + "ä" * 120_000 + '"',
])]  # fmt: skip
"""JSON that no message can carry."""
TOO_LARGE: list[bytes] = [*map(_value, [
    '"' + "x" * (BODY_LIMIT - len(_value('""')) + 1) + '"', '"' + "x" * 4_000_000 + '"',
    "{" + ",".join(f'"{n}":{n}' for n in range(30_000)) + "}", "[" + ",".join(["[]"] * VALUE_LIMIT) + "]",
    "[" * 100_000 + "]" * 100_000,
    "[" + ",".join(["[" * 60 + "]" * 60] * (VALUE_LIMIT // 50)) + "]",
])]  # fmt: skip


@for_each("status, kind, bodies", [
    (400, "bad-json", NO_JSON), (422, "invalid-request", NO_SUBMISSION), (422, "invalid-arguments", NO_ARGUMENTS),
    (413, "too-large", TOO_LARGE),
])  # fmt: skip
def test_a_bomb_is_refused(shop: Shop, status: int, kind: str, bodies: list[bytes]) -> None:
    """A body that is invalid, ambiguous or oversized, declared or not, is a short 4XX, and nothing is stored."""
    for body in bodies:
        response = shop.post("/jobs", content=body, headers=JSON)
        problem(response, status, kind)
        assert len(response.content) < 20_000
    for path, size in itertools.product(("/jobs", "/jobs/x/cancel"), (BODY_LIMIT, BODY_LIMIT + 1)):
        for content in (b" " * size, iter([b" " * BODY_LIMIT, b" " * (size - BODY_LIMIT)])):
            assert (shop.post(path, content=content, headers=JSON).status_code == 413) is (size > BODY_LIMIT)
    assert shop.ledger.find(JobQuery()) == []


SUBMISSIONS: list[dict[str, Any]] = [
    {"task": "shop.hidden"}, {"task": "celery.backend_cleanup"}, {"task": ["shop.invoice"]}, {"id": "mine"},
    {"task_id": "mine"}, {"args": [7]}, {"queue": "other"}, {"countdown": -1}, {"countdown": 1e300},
    {"countdown": "5"}, {"countdown": 1, "eta": "2026-11-21T00:00:00Z"}, {"eta": "2026-11-21T00:00:00"}, {"eta": 5},
    {"eta": "99999-01-01T00:00:00Z"}, {"priority": -1}, {"priority": 1.5}, {"priority": 10**20},
    {"on_duplicate": "replace"}, {"idempotency_key": ""}, {"idempotency_key": "k" * 256}, {"idempotency_key": "a\0"},
    {"idempotency_key": "a\u0007"}, {"webhook_url": ""}, {"webhook_url": "https://h.example/" + "x" * 2000},
    {"webhook_url": 7}, {"webhook_url": "https://h.example/"},
]  # fmt: skip
"""What no submission may have; the last one in an app without secrets for webhooks."""
REDRIVES: list[Any] = [
    {}, {"dry_run": True}, {"job_ids": []}, {"all": False}, {"task": ""}, {"job_ids": ["a"], "all": True},
    {"job_ids": ["a"], "task": "shop.invoice"}, {"job_ids": ["a"], "error": "x"}, {"job_ids": "a"}, {"job_ids": [1]},
    {"job_ids": [""]}, {"job_ids": ["\0"]}, {"job_ids": ["x" * 256]}, {"job_ids": ["a"] * 1001}, {"all": "true"},
    {"all": 1}, {"all": True, "limit": 0}, {"all": True, "limit": 1001}, {"all": True, "limit": "5"}, {"task": "a\0"},
    {"all": True, "state": ["failed"]}, [], None,
]  # fmt: skip
"""Neither ids nor a filter, both, or an invalid value."""
ALL: dict[str, Any] = {"operation": "redrive", "filter": {"task": "shop.invoice"}}
_FILTERS: list[Any] = [
    {}, {"state": []}, {"task": None}, {"state": ["lost"]}, {"state": "lost"}, {"since": "yesterday"},
        {"since": 1}, {"until": "2026-01-31T12:00:00"}, {"tasks": "x"}, {"group": {}},
        {"group": {"task": "a\0b", "error_type": "E", "pattern": ""}},
        {"group": {"task": "a", "error_type": "E", "pattern": "x" * 501}},
]  # fmt: skip
BULKS: list[Any] = [
    {}, {"operation": "redrive"}, {"operation": "redrive", "job_ids": []}, ALL | {"job_ids": ["x"]},
    {"operation": "redrive", "job_ids": ["x"], "cursor": "x"}, ALL | {"operation": "purge"}, ALL | {"operation": 1},
    {"operation": "redrive", "job_ids": ["x"] * 1001}, {"operation": "redrive", "job_ids": ["\0"]},
    *(ALL | {"filter": chosen} for chosen in _FILTERS),
    ALL | {"limit": 0}, ALL | {"limit": 1001}, ALL | {"dry_run": "yes"}, ALL | {"cursor": "no cursor"}, [], None,
]  # fmt: skip
CHECKS: list[dict[str, Any]] = [
    {"kwargs": {}}, {"kwargs": {"order_id": "x"}}, {"countdown": 5}, {"idempotency_key": "k"},
]  # fmt: skip
INVALID: list[tuple[str, Any]] = [
    *(("/jobs", {"task": "shop.invoice", "kwargs": {"order_id": 7}} | each) for each in SUBMISSIONS),
    *(("/dead/redrive", each) for each in REDRIVES), *(("/jobs/bulk", each) for each in BULKS),
    *(("/duplicates/check", {"task": "shop.invoice", "kwargs": {"order_id": 7}} | each) for each in CHECKS),
]  # fmt: skip


def test_only_what_is_offered_can_be_asked_for(shop: Shop) -> None:
    """A body with an unknown field, with a value out of range, or that selects nothing or twice, is 422."""
    dead = failed(shop.ledger)
    for path, body in INVALID:
        response = shop.post(path, content=json.dumps(body).encode(), headers=JSON)
        assert problem(response, 422, "invalid-request").keys() >= {"detail"}, (path, body)
    assert [(job.id, job.state) for job in shop.ledger.find(JobQuery())] == [(dead.id, "failed")]


@for_each("task, kwargs, at", [
    ("invoice", {}, "order_id"), ("invoice", {"order_id": "7"}, "order_id"), ("invoice", {"order_id": 7.0}, "order_id"),
    ("invoice", {"order_id": True}, "order_id"), ("invoice", {"order_id": 7, "more": 1}, "more"),
    ("typed", {"day": "soon", "lines": []}, "day"), ("typed", {"day": "2026-11-21", "lines": [{}]}, "sku"),
    ("typed", {"day": "2026-11-21", "lines": [{"sku": "a", "count": "2"}]}, "count"),
])  # fmt: skip
def test_invalid_arguments_are_refused(shop: Shop, task: str, kwargs: dict[str, Any], at: str) -> None:
    """Arguments that do not match the signature are 422 with their place."""
    details = problem(shop.submit(task=task, kwargs=kwargs), 422, "invalid-request")
    assert any(at in error["at"] for error in details["errors"])

    assert shop.ledger.find(JobQuery()) == []


def test_arguments_that_break_unique_on_are_refused(keyed: Shop) -> None:
    """Arguments with which `unique_on` fails are 422 with its error's class for a submission, a check and an edit."""
    editor, dead = keyed.named("edit"), keyed.app.tasks["shop.picky"].delay({"id": "A"}).id
    keyed.failed(dead)
    edited: dict[str, Any] = {"args": [], "kwargs": {"user": {}}}
    call = {"task": "shop.picky", "kwargs": edited["kwargs"]}
    for path, body in (("/jobs", call), ("/duplicates/check", call), (f"/jobs/{dead}/edit", edited)):
        details = problem(editor.post(path, body), 422, "invalid-arguments")
        assert details["detail"] == "unique_on failed on these arguments: KeyError", path
    assert [(job.id, job.state) for job in keyed.ledger.find(JobQuery())] == [(dead, "failed")]


EXPOSING = "task is exposed by expose=True in its definition"


@for_each("name, why", [("shop.invoce", f"'shop.invoce' is not exposed: did you mean 'shop.invoice'? A {EXPOSING}"),
                        ("x", f"'x' is not exposed: a {EXPOSING}")])  # fmt: skip
def test_a_task_that_is_not_exposed_is_named(shop: Shop, name: str, why: str) -> None:
    """A task that is not exposed is refused by its name, with the most similar one if there is one, and no others."""
    for path in ("/jobs", "/duplicates/check"):
        details = problem(shop.post(path, {"task": name, "kwargs": {}}), 422, "invalid-request")
        assert details["errors"] == [{"at": ["body", "task"], "why": why, "kind": "not_exposed"}]


# --- query parameters -----------------------------------------------------------------------------------------------


@for_each("query", [
    "limit=0", "limit=201", "limit=x", "limit=9999999999999999999999", "state=done", "task=%00", "submitter=%00",
    "queue=%00", "argument=%00", "task=" + "x" * 256, f"argument={'x' * 256}", "include=arguments", "count=perhaps",
    "offset=-1", "offset=10001", "offset=x", "since=yesterday", "since=", "since=2026-01-31T12:00:00",
    "since=2026-01-31", "until=1700000000", "until=2026-02-30T12:00:00Z", "until=2026-01-31T25:00:00Z",
    "until=2026-01-31T12:00:00%2B99:99", "since=2026-01-31T12:00:00+01:00", "since=%D9%A2026-01-31T12:00:00Z",
    *(f"cursor={each}" for each in ("", "x", "%ff", "AAAA", ".", ".-1", "4" * 15 + ".0", "7ff0000000000000.0",
                                    "W" * 2101, "40" * 8 + "f.1")),
])  # fmt: skip
def test_an_invalid_parameter_is_refused(shop: Shop, query: str) -> None:
    """An invalid filter, timestamp, limit, offset or cursor is 422, and the error has its place and reason."""
    details = problem(shop.get(f"/jobs?{query}"), 422, "invalid-request")
    name = query.partition("=")[0]
    assert details["errors"][0]["at"][:2] == ["query", name] if "errors" in details else name in details["detail"]
    assert shop.get(f"/jobs?cursor={'40' * 8}ff00.1").status_code == 200, "the form of a position, whatever its bytes"


def errors(response: Any) -> list[tuple[list[str], str]]:
    return [(each["at"], each["why"]) for each in problem(response, 422, "invalid-request")["errors"]]


@for_each("route", ROUTES)
def test_an_undeclared_parameter_is_refused(shop: Shop, route: tuple[str, str]) -> None:
    """Every route refuses an undeclared query parameter, and more than 50 before their names are compared."""
    job_id = shop.job_id()
    ((at, why),) = errors(shop.request(route[0], path_of(route[1], job_id), params={"zzz": "1"}, json={}))
    assert (at, why.partition(": ")[0]) == (["query", "zzz"], "unknown query parameter 'zzz'")
    assert shop.ledger.get(job_id).state == "queued"
    long = {f"{number}{'x' * 1000}": "" for number in range(50)}
    assert len(call_route(shop, route, params=long).content) < 20_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checked_request, "get_close_matches", None)  # which nothing calls
        assert "not have more than 50" in call_route(shop, route, params=long | {"a": ""}).json()["detail"]


@for_each("path, named, why", [
    ("/jobs?stat=failed", "stat", "did you mean 'state'?"), ("/jobs?Limit=5", "Limit", "did you mean 'limit'?"),
    ("/jobs?task=a&cusror=x", "cusror", "did you mean 'cursor'?"), ("/jobs?limit=1&limit=2", "limit", "given 2 times"),
])  # fmt: skip
def test_a_mistyped_parameter_is_explained(shop: Shop, path: str, named: str, why: str) -> None:
    """The error for a mistyped parameter suggests the most similar one; only a list may be repeated."""
    ((at, said),) = errors(shop.get(path))
    assert at == ["query", named]
    assert why in said
    assert shop.get("/jobs?state=failed&state=queued").status_code == 200


def _tenant(tenant: str, tag: Annotated[list[str] | None, Query()] = None) -> list[str]:
    return [tenant, *(tag or ())]


def _check(
    found: Annotated[list[str], Depends(_tenant)], key: Annotated[str, Depends(APIKeyQuery(name="key"))]
) -> None:
    assert (found, key) == (["a", "x", "y"], "k")


def test_parameters_of_dependencies_are_declared(celery_app: Celery) -> None:
    """Mounted in an app, a route also accepts the parameters of the dependencies of the app."""
    app = FastAPI()
    app.include_router(router(celery_app, prefix="/v1", dependencies=[Depends(_check)]))
    client = TestClient(app)
    assert client.get("/v1/jobs?tenant=a&tag=x&tag=y&key=k&limit=1").status_code == 200
    assert client.get("/v1/healthz").status_code == 200, "a probe needs none of them"
    ((at, _),) = errors(client.get("/v1/jobs?tenant=a&tag=x&tag=y&key=k&limits=1"))
    assert at == ["query", "limits"]


# --- other problems -------------------------------------------------------------------------------------------------


def test_a_failing_store_reveals_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unavailable ledger is 503 with Retry-After; any other failure is 500 and reveals no detail."""

    def gone(*_args: Any, **_more: Any) -> Any:
        raise StoreUnavailableError("password=hunter2")

    def broken(*_args: Any, **_more: Any) -> Any:
        raise StoreError("password=hunter2")

    monkeypatch.setattr(shop.ledger, "submit_many", gone)
    response = shop.submit()
    problem(response, 503, "store-unavailable")
    assert response.headers["retry-after"] == "1"
    monkeypatch.setattr(shop.ledger, "find_page", broken)
    listed = shop.get("/jobs")
    problem(listed, 500, "internal")
    assert "hunter2" not in listed.text + response.text


def test_a_ledger_that_an_operator_must_mend_is_unusable(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """A ledger without a table is 503 with Retry-After; the log says what to do, and the response reveals nothing."""
    with closing(sqlite3.connect(shop.app.conf.onejob_store.removeprefix("sqlite:///"))) as file:
        file.execute("alter table jobs rename to elsewhere")
        response = shop.submit()
        file.execute("alter table elsewhere rename to jobs")
    problem(response, 503, "store-unusable")
    assert int(response.headers["retry-after"]) > 1
    assert "migrate status" in caplog.text
    assert "jobs" not in response.text
    assert shop.submit().status_code == 202


def test_an_unknown_path_is_a_problem(shop: Shop) -> None:
    """A path without a route has the problem that says so, whatever the path looks like."""
    for path in ("/", "/nowhere", "/dead/a/b/c", "/docs", "//jobs", "/jobs/"):
        problem(shop.get(path, follow_redirects=False), 404, "not-found")


# --- fuzzing --------------------------------------------------------------------------------------------------------


CASES = 400
SEED = 1


@pytest.mark.deep
def test_every_response_is_declared(tmp_path: Path) -> None:
    """Valid requests are accepted, invalid ones refused, and each response is declared: none is a 5XX."""
    from chaos.fuzz_api import fuzz, target_on  # here, since its import takes as long as a hundred tests

    target = target_on(f"sqlite:///{tmp_path / 'ledger.db'}", "unused")
    score = fuzz(target, CASES, SEED)
    target.ledger.close()
    assert score.wrong == [], f"seed {SEED}: {score}"
    assert score.cases == CASES
    assert {"200", "202", "404", "409", "422"} <= set(score.statuses), f"seed {SEED}: {score}"


@for_each("text, is_refused", [
    ("[" + "1," * (VALUE_LIMIT - 5) + "1]", False), ("[" + "1," * (VALUE_LIMIT - 4) + "1]", True),
    ("[" + "[]," * (VALUE_LIMIT - 5) + "[]]", False), ("[" + "[]," * (VALUE_LIMIT - 4) + "[]]", True),
    ('"' + ",[{" * 60_000 + '"', False), ('"' + '\\",[' * 40_000 + '\\\\"', False),
])  # fmt: skip
def test_a_body_has_a_limited_number_of_values(text: str, is_refused: bool) -> None:
    """A body may have `VALUE_LIMIT` values, with those in it, and not one more; marks in texts do not count."""
    body = _value(text)
    if not is_refused:
        assert checked_request.parse_json(body) == json.loads(body)
        return
    with pytest.raises(Problem, match=f"more than {VALUE_LIMIT} JSON values") as refused:
        checked_request.parse_json(body)
    assert (refused.value.status_code, refused.value.slug) == (413, "too-large")
