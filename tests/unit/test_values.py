"""Values as text: payloads, arguments that are looked for, calls to copy, times and durations."""

import ast
import json
import shlex
import string
import time as clock_time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from unittest.mock import Mock
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onejob.celery.operations import curl_call, python_call
from onejob.celery.payload import decode, dumps, encode, loads, preview
from onejob.errors import InvalidPayloadError
from onejob.jobs.model import Job
from onejob.jobs.policy import Limits
from onejob.jobs.timestamps import LATEST, duration_text, format_timestamp, local_text, parse_timestamp, relative_text
from onejob.jobs.transitions import new_job
from onejob.ledger.search import argument_text
from tests.cases import for_each
from tests.contract.support import not_none, submission
from tests.services import PostgresServer

LIMITS = Limits(size=1000, depth=64)
ANY_TEXTS = st.text(st.characters(), max_size=8) | st.sampled_from(
    ["\0", "\\u0000", "\\\0", "\\\\u0000", "\\", "\ud800", "\\ud800", "\U0001f600"]
)


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        yield connection


@given(text=ANY_TEXTS, place=st.sampled_from(["value", "key", "list"]))
def test_a_value_is_accepted_exactly_if_jsonb_holds_it(database: psycopg.Connection, text: str, place: str) -> None:
    """A value is refused exactly if PostgreSQL's `jsonb` cannot hold its JSON, and otherwise round-trips unchanged."""
    value = {"value": text, "key": {text: 1}, "list": [1, [text]]}[place]
    try:
        database.execute("select cast(%s as jsonb)", [json.dumps(value)])
    except psycopg.errors.DataError:
        with pytest.raises(InvalidPayloadError, match="the result"):
            dumps(value, "the result", LIMITS)
    else:
        assert json.dumps(loads(dumps(value, "the result", LIMITS))) == json.dumps(value)


@for_each("value", [float("nan"), float("inf"), {1, 2}, object(), "x" * 1000])
def test_a_value_without_json_is_refused(value: object) -> None:
    """A value that JSON does not support, or that is too large, is refused by name."""
    with pytest.raises(InvalidPayloadError, match="the result"):
        dumps(value, "the result", LIMITS)


@for_each("depth", [68, 300, 5_000])
def test_a_value_that_is_nested_too_deep_is_refused(depth: int) -> None:
    """A value with more levels than the limit is refused; one as deep as arguments may be is accepted."""
    value: object = 1
    for _ in range(64):
        value = [value]
    assert loads(dumps(value, "the result", Limits())) == value
    for _ in range(depth - 64):
        value = [value]
    with pytest.raises(InvalidPayloadError, match="the result"):
        dumps(value, "the result", Limits())


@for_each("typed, expected", [
    ("order_id=42", '"order_id": 42'), ("order_id= 42", '"order_id": 42'), ("share=1e3", '"share": 1000.0'),
    ("paid=true", '"paid": true'), ("note=null", '"note": null'), ('order_id="42"', '"order_id": "42"'),
    ("name=Ada", '"name": "Ada'), ("name=Ada=", '"name": "Ada='), ("name=", '"name": "'),
    ("name=Zoë", '"name": "Zo\\u00eb'), ('ids=[1,2,{"a":null}]', '"ids": [1, 2, {"a": null}]'),
    ("limit=NaN", '"limit": "NaN'), ("limit=-Infinity", '"limit": "-Infinity'), ("Ada", "Ada"), ("42", "42"),
    ('say "hello"', 'say \\"hello\\"'), ("a b=1", "a b=1"), ("=1", "=1"), ("C:\\temp", "C:\\\\temp"),
    ("\U0001f600", "\\ud83d\\ude00"), ("", ""), ("0e8ea4c4-3b9d-11f0-9cd2-0242ac120002",) * 2,
    *((f"name={text}", f'"name": {json.dumps(text)[:-1]}') for text in ("[" * 100_000, "1" * 5000, '{"a": ', "\ud800")),
])  # fmt: skip
def test_a_text_becomes_a_part_of_json(typed: str, expected: str) -> None:
    """`name=value` becomes a member of an object: JSON, or the beginning of a text; any other text is escaped."""
    assert argument_text(typed) == expected


@for_each("value", [7, -0.5, 1e300, True, None, "Zoë", [1, "a"], {"b": {"c": []}}])
def test_an_argument_is_found_in_its_payload(value: object) -> None:
    """The JSON of a keyword argument finds it in the payload as it is stored."""
    payload = encode("shop.invoice", [], {"other": 1, "value": value}, Limits())
    assert argument_text(f"value={json.dumps(value)}") in payload
    assert argument_text(f"value={json.dumps(value, ensure_ascii=False)}") in payload


@for_each("value", [
    uuid4(), f"{uuid4()}", UUID("01990a2e-7b1c-7d3e-8f40-5a6b7c8d9e0f"), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    date(2026, 1, 2), Decimal("1.50"), "Zoë",
])  # fmt: skip
def test_an_argument_is_found_as_it_is_shown(value: object) -> None:
    """What a list shows as the value of an argument finds it in the payload as it is stored."""
    payload = encode("shop.invoice", [value], {}, Limits())
    shown = preview({"args": [value], "kwargs": {}})
    assert argument_text(json.loads(shown)) in payload


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
ZONES = st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=30))])
RICH = (
    PLAIN
    | st.datetimes(timezones=ZONES)
    | st.dates()
    | st.times()
    | st.uuids()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.binary(max_size=10)
)
NAMES = st.text(string.ascii_letters, min_size=1, max_size=8)
BASE = "http://localhost:8000/v1/"


@for_each("value", [b"", b"text", b"\0", b"PK\3\4\0", b"\xff\0", bytes(range(256))])
def test_bytes_are_stored_whatever_they_are(value: bytes) -> None:
    """Bytes come back from the ledger, also those that would be a text with a NUL character, which no store takes."""
    assert loads(dumps([value], "the arguments", Limits())) == [value]


def job_of(args: list[Any], kwargs: dict[str, Any], task: str = "shop.invoice") -> Job:
    payload = encode(task, args, kwargs, Limits())
    return replace(new_job(submission(), now=0.0, wake_after=0.0), task=task, payload=payload)


@given(args=st.lists(RICH, max_size=3), kwargs=st.dictionaries(NAMES, RICH, max_size=3), task=TEXTS.filter(bool))
def test_python_text_makes_the_same_call(args: list[Any], kwargs: dict[str, Any], task: str) -> None:
    """The Python text, executed with `app` alone, submits the task with the arguments that a worker gets."""
    job = job_of(args, kwargs, task)
    text, app, message = python_call(job), Mock(tasks={task: Mock()}), decode(job.payload)
    exec(compile(ast.parse(text), "text", "exec"), {"app": app})  # noqa: S102 - the text under test
    app.tasks[task].apply_async.assert_called_once_with(args=message.args, kwargs=message.kwargs)


@given(args=st.lists(PLAIN, max_size=2), kwargs=st.dictionaries(NAMES, PLAIN, max_size=3), task=TEXTS.filter(bool))
def test_shell_text_sends_the_same_json(args: list[Any], kwargs: dict[str, Any], task: str) -> None:
    """A shell splits the command into the URL, the headers and one body, which has the call's JSON."""
    names = [f"{name} of the task" for name in "ab"]
    text = not_none(curl_call(job_of(args, kwargs, task), BASE, parameters=names))
    assert text.isprintable()
    assert text.isascii()
    words = shlex.split(text)
    body = json.loads(words.pop())
    assert words == [
        "curl", "-s", "-H", "authorization: Bearer $KEY", "-H", "content-type: application/json",
        "http://localhost:8000/v1/jobs", "-d",
    ]  # fmt: skip
    assert body == {"task": task, "kwargs": dict(zip(names, args, strict=False)) | kwargs}


@for_each("value", [datetime(2026, 1, 31, tzinfo=UTC), date(2026, 1, 31), time(12), UUID(int=1), Decimal(1), b"x"])
def test_what_json_has_not_cannot_be_sent(value: Any) -> None:
    """A call with a value that JSON has not, or with positional arguments that have no names, has no request."""
    assert curl_call(job_of([], {"value": value}), BASE) is None
    assert curl_call(job_of([1, 2], {}), BASE, parameters=["only"]) is None


@for_each("text, at", [
    ("1970-01-01T00:00:00Z", 0.0), ("1970-01-01t00:00:00.25z", 0.25), ("1970-01-01 01:00:00+01:00", 0.0),
    ("1969-12-31T23:00:00-01:00", 0.0), ("1970-01-01T00:00:00.123456789Z", 0.123456),
    *((text, None) for text in ("", "now", "0", "1970-01-01", "19700101T000000Z", "1970-01-01T00:00:00")),
    ("1970-W01-4T00:00:00Z", None), (5, None), (None, None),
])  # fmt: skip
def test_a_timestamp_has_a_time_zone(text: Any, at: float | None) -> None:
    """A timestamp is parsed in any time zone; without one, or in another format, it is refused with an example."""
    if at is not None:
        assert parse_timestamp(text) == at
    else:
        with pytest.raises(ValueError, match="2026-01-31T12:00:00Z"):
            parse_timestamp(text)


@given(st.integers(-(10**15), 10**16))
def test_a_timestamp_round_trips(microseconds: int) -> None:
    """A formatted timestamp is parsed to the same time, to the microsecond."""
    assert parse_timestamp(format_timestamp(microseconds / 1e6)) == pytest.approx(microseconds / 1e6, abs=2e-6)


@for_each("zone, offset", [("XXX-5:30", "+05:30"), ("XXX+11", "-11:00"), ("XXX-14", "+14:00"), ("UTC", "+00:00")])
def test_local_time_has_its_offset(monkeypatch: pytest.MonkeyPatch, zone: str, offset: str) -> None:
    """A local time has its offset, and can be parsed back to the millisecond; one beyond the calendar is clamped."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        clock_time.tzset()
        for at in (0.0, 1_790_000_000.25, datetime.fromtimestamp(1_790_000_000.25, UTC)):
            text = local_text(at)
            assert text.endswith(offset)
            assert parse_timestamp(text) == (at if isinstance(at, float) else at.timestamp())
        for beyond, parsed in ((-1e300, 0.0), (1e300, LATEST), (float("inf"), LATEST)):
            assert (parse_timestamp(local_text(beyond)), local_text(beyond)[-6:]) == (parsed, offset)
    clock_time.tzset()


@for_each("seconds, text", [
    (0.2, "0 s"), (7.6, "8 s"), (59.7, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (3605, "1 h"),
    (7500, "2 h 5 min"), (90_000, "1 d 1 h"), (8_640_000, "100 d"), (-30, "30 s"),
])  # fmt: skip
def test_a_duration_has_two_units(seconds: float, text: str) -> None:
    """A duration is written in its largest unit and the next smaller one, rounded; a time in the future, or ago."""
    assert duration_text(seconds) == text
    assert [relative_text(at, 100.0) for at in (160.0, 100.0, 40.0)] == ["in 1 min", "0 s ago", "1 min ago"]
