"""A TCP proxy that counts what a client does: requests, round trips and bytes. Noise cannot touch these counts."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from types import TracebackType

_NEXT_LINE = re.compile(rb"[*$](-?\d+)\r\n")


@dataclass(slots=True)
class Traffic:
    """What went through."""

    requests: int = 0
    """Redis commands of the client (those within a script are not), or SQL statements."""
    round_trips: int = 0
    """How often the client sent something after it had received something."""
    sent: int = 0
    received: int = 0


class Wire:
    """Forwards connections to the server of a URL while a `with` block lasts; `traffic` counts."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._read = postgres_requests if url.startswith("postgresql") else redis_requests
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire", daemon=True)
        self.traffic = Traffic()
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.url = self._parts._replace(netloc=self._parts.netloc.replace(f":{self._parts.port}", f":{port}")).geturl()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> int:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._parts.port)
        answered = asyncio.Event()
        answered.set()
        with suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(
                self._upward(reader, to_server, answered), self._downward(from_server, writer, answered)
            )

    async def _upward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answered: asyncio.Event
    ) -> None:
        rest = b""
        while data := await reader.read(65536):
            self.traffic.sent += len(data)
            self.traffic.round_trips += answered.is_set()
            answered.clear()
            found, rest = self._read(rest + data)
            self.traffic.requests += found
            writer.write(data)
        writer.close()

    async def _downward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answered: asyncio.Event
    ) -> None:
        while data := await reader.read(65536):
            self.traffic.received += len(data)
            answered.set()
            writer.write(data)
        writer.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def redis_requests(data: bytes) -> tuple[int, bytes]:
    """Return how many whole commands begin these bytes, and the rest."""
    found = at = 0
    while (end := _end_of_command(data, at)) is not None:
        found, at = found + 1, end
    return found, data[at:]


def _end_of_command(data: bytes, at: int) -> int | None:
    array = _NEXT_LINE.match(data, at)
    if array is None:
        return None
    at = array.end()
    for _ in range(int(array[1])):
        length = _NEXT_LINE.match(data, at)
        if length is None:
            return None
        at = length.end() + int(length[1]) + 2
    return at if at <= len(data) else None


def postgres_requests(data: bytes) -> tuple[int, bytes]:
    """Return how many statements are executed by the whole messages at the start of these bytes, and the rest."""
    found = at = 0
    while len(data) >= at + 8 or (len(data) >= at + 5 and data[at]):
        typed = data[at] != 0  # the first messages of a connection have no type
        end = at + typed + int.from_bytes(data[at + typed : at + typed + 4], "big")
        if end > len(data):
            break
        found += data[at : at + 1] in {b"Q", b"E"}
        at = end
    return found, data[at:]
