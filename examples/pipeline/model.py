"""The client of the provider."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

URL = os.environ.get("PIPELINE_PROVIDER", "http://127.0.0.1:1")


class BusyError(Exception):
    """The provider refuses the request for now: it was above the rate, or too many were there."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of the model, and the tokens that it has billed."""

    value: Any
    tokens: int


def ask(what: str, customer: str, text: str) -> Answer:
    """Have the model embed a text (`embed`), or write its card (`card`). Raises `BusyError`."""
    body = json.dumps({"customer": customer, "text": text}).encode()
    try:
        with urllib.request.urlopen(f"{URL}/{what}", body, timeout=60) as response:  # noqa: S310 - our own provider
            found = json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 429:
                raise BusyError(json.load(error)["error"]) from None
            raise
    return Answer(found["answer"], found["tokens"])
