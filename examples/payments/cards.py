"""The client of the payment gateway: one request, and three errors."""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException
from urllib.error import HTTPError

PATIENCE = 5.0
"""Seconds that an answer may take."""


class NoAnswerError(Exception):
    """No clear answer: the card may be charged or not. Repeat the request with the same key."""


class DeclinedError(Exception):
    """The bank declines the card, also if the request is repeated."""


class MisuseError(Exception):
    """The gateway does not understand us. A person has to look."""


def take_money(gateway: str, key: str, order_id: int, cents: int, card: str) -> str:
    """Charge a card, and return the id of the charge. Equal keys charge once. Raises one of the three errors."""
    body = json.dumps({"order": order_id, "cents": cents, "card": card}).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    request = urllib.request.Request(gateway, body, headers)  # noqa: S310 - the address is our own
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:  # noqa: S310
            return str(json.load(response)["charge"])
    except HTTPError as answer:
        raise _trouble(answer) from None
    except (OSError, HTTPException) as error:
        raise NoAnswerError(repr(error)) from None


def _trouble(answer: HTTPError) -> Exception:
    with answer:
        text = f"{answer.code} {answer.read().decode()}"
    if answer.code == 402:
        return DeclinedError(text)
    return NoAnswerError(text) if answer.code >= 500 else MisuseError(text)
