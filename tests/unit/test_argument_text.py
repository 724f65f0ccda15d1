"""What a person types is turned into the part of a job's arguments that is looked for."""

from __future__ import annotations

import json

import pytest

from onejob.celery.message import encode
from onejob.ledger.search import argument_text
from onejob.uniqueness.canonical_json import Limits


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("order_id=42", '"order_id": 42'),
        ("order_id= 42", '"order_id": 42'),
        ("share=1e3", '"share": 1000.0'),
        ("paid=true", '"paid": true'),
        ("note=null", '"note": null'),
        ('order_id="42"', '"order_id": "42"'),
        ("name=Ada", '"name": "Ada'),
        ("name=Ada=", '"name": "Ada='),
        ("name=", '"name": "'),
        ("name=Zoë", '"name": "Zo\\u00eb'),
        ('ids=[1,2,{"a":null}]', '"ids": [1, 2, {"a": null}]'),
        ("limit=NaN", '"limit": "NaN'),
        ("limit=-Infinity", '"limit": "-Infinity'),
        ("Ada", "Ada"),
        ("42", "42"),
        ('say "hello"', 'say \\"hello\\"'),
        ("a b=1", "a b=1"),
        ("=1", "=1"),
        ("C:\\temp", "C:\\\\temp"),
        ("\U0001f600", "\\ud83d\\ude00"),
        ("", ""),
    ],
)
def test_a_text_becomes_a_part_of_json(typed: str, expected: str) -> None:
    """`name=value` becomes a member of an object: JSON, or the beginning of a text. Any other text is escaped."""
    assert argument_text(typed) == expected


@pytest.mark.parametrize("value", ["[" * 100_000, "1" * 5000, '{"a": ', "\ud800"])
def test_what_is_no_json_is_a_text(value: str) -> None:
    """A value that cannot be parsed, however deep or long, is the beginning of a text."""
    assert argument_text(f"name={value}") == f'"name": {json.dumps(value)[:-1]}'


@pytest.mark.parametrize("value", [7, -0.5, 1e300, True, None, "Zoë", [1, "a"], {"b": {"c": []}}])
def test_an_argument_is_found_in_its_payload(value: object) -> None:
    """The JSON of a keyword argument finds it in the payload as it is stored."""
    payload = encode("shop.invoice", [], {"other": 1, "value": value}, Limits())
    assert argument_text(f"value={json.dumps(value)}") in payload
    assert argument_text(f"value={json.dumps(value, ensure_ascii=False)}") in payload
