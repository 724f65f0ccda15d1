"""Payloads: which values are stored, unchanged, and which are refused."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onejob.celery.messages.payload import decode_failure, dumps, encode_failure, loads
from onejob.errors import InvalidPayloadError
from onejob.jobs.text_limits import TextLimits
from tests.cases import for_each
from tests.services import PostgresServer

LIMITS = TextLimits(size=1000, depth=64)
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


class Money:
    """A type of an application that writes itself as kombu's JSON knows it."""

    def __json__(self) -> dict[str, Any]:
        return {"__type__": "decimal", "__value__": "1.5"}


@for_each("value", [
    {"__type__": "datetime", "__value__": "2026-11-21T00:00:00"}, {"__type__": "no such type", "__value__": None},
    {"a": [1, ({"__value__": [], "__type__": 7},)], "at": datetime(2026, 11, 21, tzinfo=UTC)},
])  # fmt: skip
def test_a_value_that_would_be_read_as_another_type_is_refused(value: object) -> None:
    """A mapping with just the keys of kombu's JSON for other types is refused by name; no other value is changed."""
    with pytest.raises(InvalidPayloadError, match="the result cannot be stored: a mapping with only the keys"):
        dumps(value, "the result", TextLimits())
    error = decode_failure("a job", encode_failure(ValueError(value)))
    assert isinstance(error, ValueError)
    assert "__type__" in str(error)
    kept = {"__type__": "datetime", "__value__": "x", "more": '"__type__"', "at": datetime(2026, 11, 21, tzinfo=UTC)}
    assert loads(dumps(kept, "the result", TextLimits())) == kept
    assert loads(dumps([Money(), "__type__"], "the result", TextLimits())) == [Decimal("1.5"), "__type__"]


@for_each("depth", [68, 300, 5_000])
def test_a_value_that_is_nested_too_deep_is_refused(depth: int) -> None:
    """A value with more levels than the limit is refused; one as deep as arguments may be is accepted."""
    value: object = 1
    for _ in range(64):
        value = [value]
    assert loads(dumps(value, "the result", TextLimits())) == value
    for _ in range(depth - 64):
        value = [value]
    with pytest.raises(InvalidPayloadError, match="the result"):
        dumps(value, "the result", TextLimits())


@for_each("value", [b"", b"text", b"\0", b"PK\3\4\0", b"\xff\0", bytes(range(256))])
def test_bytes_are_stored_whatever_they_are(value: bytes) -> None:
    """Bytes come back from the ledger, also those that would be a text with a NUL character, which no store takes."""
    assert loads(dumps([value], "the arguments", TextLimits())) == [value]
