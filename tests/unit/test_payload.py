"""Payloads: JSON that every store can hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onejob.celery.message import dumps, loads
from onejob.errors import InvalidPayloadError
from onejob.uniqueness.canonical_json import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services import PostgresServer

LIMITS = Limits(size=1000, depth=64)
texts = st.text(st.characters(), max_size=8) | st.sampled_from(
    ["\0", "\\u0000", "\\\0", "\ud800", "\\ud800", "\U0001f600"]
)


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> Iterator[psycopg.Connection]:
    """Return a connection to PostgreSQL."""
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        yield connection


@given(text=texts, place=st.sampled_from(["value", "key", "list"]))
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


@pytest.mark.parametrize("value", ["a\0b", {"\0": 1}, ["\ud800"], "\udfff", "\\\0"])
def test_characters_that_stores_cannot_hold_are_refused(value: object) -> None:
    """A NUL character or a lone surrogate is refused wherever it is, and the error names the remedy."""
    with pytest.raises(InvalidPayloadError, match="encode the bytes"):
        dumps(value, "the value of step 'one'", LIMITS)


@pytest.mark.parametrize("value", ["\\u0000", "\\ud800", "\\\\u0000", "\U0001f600", "\\"])
def test_escapes_in_a_text_are_kept(value: str) -> None:
    """A backslash and letters that look like an escape are kept, and so is a character outside of the basic plane."""
    assert loads(dumps(value, "the result", LIMITS)) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object(), "x" * 1000])
def test_a_value_without_json_is_refused(value: object) -> None:
    """A value that JSON does not support, or that is too large, is refused by name."""
    with pytest.raises(InvalidPayloadError, match="the result"):
        dumps(value, "the result", LIMITS)


@pytest.mark.parametrize("depth", [68, 300, 5_000])
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
