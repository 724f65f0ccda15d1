"""A TCP proxy before PostgreSQL that reads enough of its wire protocol to cut a connection at the user's COMMIT."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from types import TracebackType
    from typing import Self

CUTS = ("after", "during", "before")
"""Where a connection can be cut: when the server has answered the COMMIT (the answer is dropped), as soon as the COMMIT
is on its way to the server, or before it."""
_SSL, _GSS, _CANCEL = 80_877_103, 80_877_104, 80_877_102
_READY, _DONE = b"Z", b"C"


class CutError(ConnectionError):
    """This connection is to be cut."""


class Proxy:
    """Cuts the COMMIT of each named connection once. A connection is named by its `application_name`.

    `cut` is one of `CUTS`, or "random". Runs in a thread of its own; a `with` block ends it.
    """

    def __init__(self, port: int, cut: str, rng: random.Random) -> None:
        self._target = port
        self._cut = cut
        self._dice = rng
        self._seen: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self.cuts: Counter[str] = Counter()
        """How often it cut, by kind; "answered" of them when the server had confirmed the commit."""
        self.connections = 0
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writers = [writer]
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            startup = await _startup(reader, writer)
            to_server = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(to_server[1])
            to_server[1].write(startup)
            await _first_end(_Link(self, _name(startup), reader, writer, *to_server))
        for each in writers:
            each.transport.abort()

    def plan(self, name: str) -> str:
        """Return how to cut a connection that is about to commit; "" to leave it alone."""
        if not name or name in self._seen:
            return ""
        self._seen.add(name)
        return self._dice.choice(CUTS) if self._cut == "random" else self._cut


@dataclass
class _Link:
    """One connection through the proxy."""

    proxy: Proxy
    name: str
    from_client: asyncio.StreamReader
    to_client: asyncio.StreamWriter
    from_server: asyncio.StreamReader
    to_server: asyncio.StreamWriter
    commits: set[bytes] = field(default_factory=set)
    """The names of the prepared statements that say COMMIT."""
    dropping: bool = False
    """Whether a COMMIT is under way whose answer must not arrive."""

    async def upward(self) -> None:
        """Forward what the client sends."""
        while True:
            kind, body = await _message(self.from_client)
            plan = self.proxy.plan(self.name) if self._commits(kind, body) else ""
            if plan == "before":
                self._cut(plan)
            self.dropping = self.dropping or plan == "after"
            self.to_server.write(_packed(kind, body))
            await self.to_server.drain()
            if plan == "during":
                self._cut(plan)

    async def downward(self) -> None:
        """Forward what the server sends, except the answer to a COMMIT that is dropped."""
        answered = False
        while True:
            kind, body = await _message(self.from_server)
            if not self.dropping:
                self.to_client.write(_packed(kind, body))
                await self.to_client.drain()
            elif kind == _DONE:
                answered = body.startswith(b"COMMIT")
            elif kind == _READY:
                self.proxy.cuts["answered"] += answered
                self._cut("after")

    def _commits(self, kind: bytes, body: bytes) -> bool:
        """Return whether a message of the client starts a COMMIT; remember prepared ones."""
        if kind == b"P":
            name, text, *_ = body.split(b"\0")
            (self.commits.add if _is_commit(text) else self.commits.discard)(name)
        return (kind == b"Q" and _is_commit(body[:-1])) or (kind == b"B" and body.split(b"\0")[1] in self.commits)

    def _cut(self, kind: str) -> None:
        self.proxy.cuts[kind] += 1
        raise CutError


def _is_commit(text: bytes) -> bool:
    return text.strip().rstrip(b";").upper() == b"COMMIT"


async def _first_end(link: _Link) -> None:
    """Forward both ways until one side ends or the link is cut."""
    tasks = [asyncio.ensure_future(link.upward()), asyncio.ensure_future(link.downward())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _startup(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Return the client's first real packet; an earlier request for encryption is refused."""
    while True:
        length = await reader.readexactly(4)
        rest = await reader.readexactly(int.from_bytes(length, "big") - 4)
        code = int.from_bytes(rest[:4], "big")
        if code not in {_SSL, _GSS}:
            return length + rest
        writer.write(b"N")


def _name(startup: bytes) -> str:
    """Return the application_name in a startup packet, or ""."""
    if int.from_bytes(startup[4:8], "big") == _CANCEL:
        return ""
    words = startup[8:].rstrip(b"\0").split(b"\0")
    return dict(zip(words[::2], words[1::2], strict=False)).get(b"application_name", b"").decode()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind = await reader.readexactly(1)
    length = int.from_bytes(await reader.readexactly(4), "big")
    return kind, await reader.readexactly(length - 4)


def _packed(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body
