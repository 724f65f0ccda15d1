"""The client of the provider."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

URL = os.environ.get("PIPELINE_PROVIDER", "http://127.0.0.1:1")


class BusyError(Exception):
    """The provider refuses the request for now: it was above the rate, or too many were there."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of the model, and the tokens that it has billed."""

    value: Any
    tokens: int


async def ask(what: str, customer: str, text: str) -> Answer:
    """Have the model embed a text (`embed`), or write its card (`card`). Raises `BusyError`."""
    async with asyncio.timeout(60):
        status, found = await _post(f"/{what}", {"customer": customer, "text": text})
    if status == 429:
        raise BusyError(found["error"])
    if status != 200:
        raise OSError(f"the provider answered {status}")
    return Answer(found["answer"], found["tokens"])


async def _post(path: str, content: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """Send a request, as an asynchronous HTTP client does; return the status and the content of the answer."""
    address = urlsplit(URL)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        body = json.dumps(content).encode()
        writer.write(f"POST {path} HTTP/1.0\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(answer)
    finally:
        writer.close()
