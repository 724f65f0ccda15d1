"""A search for an argument finds it in the payload as it is stored."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID, uuid4

from onejob.celery.messages.payload import encode, preview
from onejob.jobs.text_limits import TextLimits
from onejob.ledger.job_filters import argument_text
from tests.cases import for_each


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
    payload = encode("shop.invoice", [], {"other": 1, "value": value}, TextLimits())
    assert argument_text(f"value={json.dumps(value)}") in payload
    assert argument_text(f"value={json.dumps(value, ensure_ascii=False)}") in payload


@for_each("value", [
    uuid4(), f"{uuid4()}", UUID("01990a2e-7b1c-7d3e-8f40-5a6b7c8d9e0f"), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    date(2026, 1, 2), Decimal("1.50"), "Zoë",
])  # fmt: skip
def test_an_argument_is_found_as_it_is_shown(value: object) -> None:
    """What a list shows as the value of an argument finds it in the payload as it is stored."""
    payload = encode("shop.invoice", [value], {}, TextLimits())
    shown = preview({"args": [value], "kwargs": {}})
    assert argument_text(json.loads(shown)) in payload
