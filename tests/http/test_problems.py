"""Errors are problem details (RFC 9457), and no request body causes a server error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onejob.api.json_body import BODY_LIMIT
from onejob.api.problems import PREFIX, PROBLEM_TYPES
from onejob.errors import StoreError, StoreUnavailableError
from onejob.jobs.records import Query
from tests.cases import for_each
from tests.http.conftest import problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.http.conftest import Shop

PAGE = Path(__file__).parents[2] / "docs" / "problems.md"
JSON = {"content-type": "application/json"}


def _value(text: str) -> bytes:
    """Return a valid body with this JSON text as the value of an argument."""
    return f'{{"task": "shop.anything", "kwargs": {{"value": {text}}}}}'.encode()


BOMBS: dict[str, bytes] = {
    "nothing": b"",
    "blank": b"  ",
    "half": b'{"task": "shop.any',
    "two": b"{} {}",
    "null": b"null",
    "number": b"7",
    "list": b"[]",
    "text": b'"task"',
    "empty": b"{}",
    "no kwargs": b'{"task": "shop.anything"}',
    "kwargs null": b'{"task": "shop.anything", "kwargs": null}',
    "kwargs list": b'{"task": "shop.anything", "kwargs": [1]}',
    "task null": b'{"task": null, "kwargs": {}}',
    "task object": b'{"task": {}, "kwargs": {}}',
    "task NUL": b'{"task": "shop.anything\\u0000", "kwargs": {"value": 1}}',
    "task surrogate": b'{"task": "\\ud800", "kwargs": {}}',
    "byte order mark": b"\xef\xbb\xbf" + _value("1"),
    "utf-16": _value("1").decode().encode("utf-16"),
    "latin-1": _value('"\xe4"').decode().encode("latin-1"),
    "raw bytes": bytes(range(256)),
    "overlong": b'{"task": "\xc0\xaf"}',
    "raw surrogate": b'{"task": "\xed\xa0\x80"}',
    "NaN": _value("NaN"),
    "Infinity": _value("Infinity"),
    "-Infinity": _value("-Infinity"),
    "1e400": _value("1e400"),
    "-1e400": _value("-1e400"),
    "5000 digits": _value("9" * 5000),
    "100000 digits": _value("9" * 100_000),
    "leading zero": _value("01"),
    "hex": _value("0x10"),
    "comment": _value("1 /* one */"),
    "trailing comma": _value("[1,]"),
    "single quotes": _value("'a'"),
    "control character": _value('"\x01"'),
    "twice": b'{"task": "shop.anything", "task": "shop.invoice", "kwargs": {"value": 1}}',
    "twice in kwargs": b'{"task": "shop.anything", "kwargs": {"value": 1, "value": 2}}',
    "twice deep": _value('{"a": {"b": 1, "b": 2}}'),
    "twice by escape": _value('{"a": 1, "\\u0061": 2}'),
    "lone high surrogate": _value('"\\ud800"'),
    "lone low surrogate": _value('"\\udc00"'),
    "surrogates in the wrong order": _value('"\\udc00\\ud800"'),
    "surrogate in a name": _value('{"\\ud800": 1}'),
    "NUL": _value('"\\u0000"'),
    "NUL in a name": _value('{"a\\u0000": 1}'),
    "NUL in an argument's name": b'{"task": "shop.anything", "kwargs": {"value": 1, "\\u0000": 1}}',
    "tagged by Celery": _value('{"__type__": "datetime", "__value__": "never"}'),
    "depth 70": _value("[" * 70 + "]" * 70),
    "depth 101": _value("[" * 101 + "]" * 101),
    "depth 900": _value("[" * 900 + "]" * 900),
    "depth 5000 of objects": _value('{"a":' * 5000 + "1" + "}" * 5000),
    "depth 100000": _value("[" * 100_000 + "]" * 100_000),
    "depth 100000, open": b"[" * 100_000,
    "one byte too many": _value('"' + "x" * (BODY_LIMIT - len(_value('""')) + 1) + '"'),
    "a few MB": _value('"' + "x" * 4_000_000 + '"'),
    "many names": _value("{" + ",".join(f'"{n}":{n}' for n in range(30_000)) + "}"),
    "many unknown names": b'{"task": "shop.anything", "kwargs": {'
    + b",".join(b'"%d":1' % n for n in range(20_000))
    + b"}}",
    "large once escaped": _value('"' + "ä" * 120_000 + '"'),
    "key with NUL": b'{"task": "shop.anything", "kwargs": {"value": 1}, "idempotency_key": "\\u0000"}',
    "key too long": b'{"task": "shop.anything", "kwargs": {"value": 1}, "idempotency_key": "' + b"k" * 300 + b'"}',
    "eta far": b'{"task": "shop.anything", "kwargs": {"value": 1}, "eta": "99999-01-01T00:00:00Z"}',
    "countdown huge": b'{"task": "shop.anything", "kwargs": {"value": 1}, "countdown": 1e308}',
    "priority huge": b'{"task": "shop.anything", "kwargs": {"value": 1}, "priority": 99999999999999999999}',
}


@for_each("name", BOMBS)
def test_a_bomb_is_refused(shop: Shop, name: str) -> None:
    """A body that is invalid, ambiguous or oversized is a 4XX, and nothing is stored."""
    response = shop.client.post("/jobs", content=BOMBS[name], headers=JSON)
    assert 400 <= response.status_code < 500, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["type"].startswith(PREFIX)
    assert len(response.content) < 20_000
    assert shop.ledger.find(Query()) == []


@pytest.mark.parametrize(
    "name",
    [
        "half",
        "utf-16",
        "raw surrogate",
        "NaN",
        "1e400",
        "5000 digits",
        "twice deep",
        "lone high surrogate",
        "surrogate in a name",
        "depth 101",
        "depth 100000",
    ],
)
def test_invalid_json_is_refused(shop: Shop, name: str) -> None:
    """Invalid or ambiguous JSON is a bad-json problem, before the body is validated."""
    problem(shop.client.post("/jobs", content=BOMBS[name], headers=JSON), 400, "bad-json")


@pytest.mark.parametrize(
    "value",
    [
        "𝄞",
        "\u202e",
        "<script>alert(1)</script>",
        "'; drop table jobs; --",
        {"": {}},
        [[]] * 50,
        "x" * 200_000,
        10**4000,
        -0.0,
    ],
)
def test_unusual_values_are_accepted(shop: Shop, value: Any) -> None:
    """Every value that JSON can represent is passed to the task unchanged."""
    response = shop.post("anything", {"value": value})
    assert response.status_code == 202, response.text
    assert json.loads(shop.ledger.get(response.json()["job"]["id"]).payload)["kwargs"]["value"] == value


def _chunks(size: int) -> Iterator[bytes]:
    for _ in range(size // 1000):
        yield b"x" * 1000


def test_the_size_of_a_body_is_limited(shop: Shop) -> None:
    """A body that is too large is 413, whether its length is declared, understated or unknown."""
    problem(shop.client.post("/jobs", content=b"x" * (BODY_LIMIT + 1), headers=JSON), 413, "too-large")
    problem(shop.client.post("/jobs", content=_chunks(BODY_LIMIT + 2000), headers=JSON), 413, "too-large")
    problem(shop.client.post("/jobs/x/cancel", content=_chunks(BODY_LIMIT + 2000), headers=JSON), 413, "too-large")


@pytest.mark.parametrize("path", ["/", "/nowhere", "/jobs/a/b/c", "/docs", "//jobs", "/jobs/"])
def test_an_unknown_path_is_404(shop: Shop, path: str) -> None:
    """An unknown path is 404, as a problem."""
    problem(shop.client.get(path, follow_redirects=False), 404, "not-found")


def test_a_wrong_method_is_405(shop: Shop) -> None:
    """A method that a path does not support is 405, and `Allow` lists those that it does."""
    response = shop.client.delete("/healthz")
    problem(response, 405, "method-not-allowed")
    assert response.headers["allow"] == "GET"


def test_an_unavailable_store_is_503(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unavailable ledger is 503 with Retry-After; any other failure is 500 and reveals no detail."""

    def gone(*_args: Any, **_more: Any) -> Any:
        raise StoreUnavailableError("password=hunter2")

    def broken(*_args: Any, **_more: Any) -> Any:
        raise StoreError("password=hunter2")

    monkeypatch.setattr(shop.ledger, "submit_many", gone)
    response = shop.post("invoice", {"order_id": 1})
    problem(response, 503, "store-unavailable")
    assert response.headers["retry-after"] == "1"
    monkeypatch.setattr(shop.ledger, "find_page", broken)
    listed = shop.client.get("/jobs")
    problem(listed, 500, "internal")
    assert "hunter2" not in listed.text + response.text


def test_every_problem_is_documented() -> None:
    """docs/problems.md lists each problem type with its status, and no other."""
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert {(row[1].strip(" `"), int(row[2])) for row in rows} == {
        (name, kind.status) for name, kind in PROBLEM_TYPES.items()
    }
