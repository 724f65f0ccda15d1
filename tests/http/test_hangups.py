"""A real server whose callers hang up, or speak HTTP badly: others get their own answers, and nothing stays."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from chaos.hangups import TASK, Served, hang_up, served
from onejob.celery.app_state import app_state_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.contract.support import StoreAddress

SEED = 1
HANGUPS = 300


def test_nobody_gets_anothers_answer(store_address: StoreAddress) -> None:
    """While callers hang up everywhere in their requests, others get their own jobs, and no thread or watch is lost."""
    with served(store_address.url, store_address.namespace, "memory://") as (app, server):
        count = hang_up(app, server, HANGUPS, 4, SEED)
    assert count.held, count
    assert count.asked > 0
    assert count.hangups.total() == HANGUPS


def test_anothers_answer_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count of wrong answers can rise: a server that mixes jobs up is found out."""
    with served(f"sqlite:///{tmp_path / 'ledger.db'}", "unused", "memory://") as (app, server):
        ledger = app_state_of(app).ledger
        other = app.tasks[TASK].apply_async((-1,)).id
        get_many = ledger.store.get_many
        mixed_up = lambda job_ids: dict.fromkeys(job_ids, get_many([other])[other])  # noqa: E731 - it is no other than this
        monkeypatch.setattr(ledger.store, "get_many", mixed_up)
        count = hang_up(app, server, 50, 4, SEED)
    assert count.wrong_jobs > 0
    assert not count.held


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a server for raw requests."""
    store = f"sqlite:///{tmp_path_factory.mktemp('raw') / 'ledger.db'}"
    with served(store, "unused", "memory://") as (_, server):
        yield server


def said(server: Served, *requests: bytes) -> list[bytes]:
    """Say something to the server, then a last request, and return the status of each answer."""
    answer = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30.0) as connection, suppress(ConnectionError):
        connection.sendall(b"".join([*requests, LAST]))
        for part in iter(lambda: connection.recv(65_536), b""):
            answer += part
    return re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)


LAST = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
BODY = b'{"task": "hangups.job", "kwargs": {"number": 1}}'
JSON = b"host: localhost\r\ncontent-type: application/json\r\n"
SMUGGLED = (
    b"POST /jobs/x/cancel HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
)
BAD: dict[str, bytes] = {
    "a very long line": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "two lengths": b"POST /jobs HTTP/1.1\r\n" + JSON + b"content-length: 1\r\ncontent-length: 2\r\n\r\n{}",
    "a length that is none": b"POST /jobs HTTP/1.1\r\n" + JSON + b"content-length: -1\r\n\r\n{}",
    "an unknown coding": b"POST /jobs HTTP/1.1\r\n" + JSON + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a chunk that is none": b"POST /jobs HTTP/1.1\r\n" + JSON + b"transfer-encoding: chunked\r\n\r\nzz\r\n\r\n",
    "a header without a name": b"GET /jobs HTTP/1.1\r\nhost: localhost\r\n: x\r\n\r\n",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_http_is_refused(server: Served, name: str) -> None:
    """What is no HTTP, is too large or contradicts itself is refused, and nothing behind it is looked at."""
    assert said(server, BAD[name]) in ([b"400"], []), "a reset may overtake the answer"
    assert said(server) == [b"200"]


@pytest.mark.parametrize("hosts", [["evil.example"], ["localhost", "evil.example"], ["evil.example", "localhost"]])
def test_nobody_is_sent_on(server: Served, hosts: list[str]) -> None:
    """The server is nobody's proxy: who asks for another host, or for two, is refused."""
    lines = "\r\n".join(f"host: {host}" for host in hosts)
    for path in ("/jobs", "http://evil.example/jobs"):
        assert said(server, f"GET {path} HTTP/1.1\r\n{lines}\r\n\r\n".encode())[0] in {b"400", b"403"}


@pytest.mark.parametrize("coding", [b"chunked", b"Chunked", b"chunked, identity", b"\tchunked"])
def test_no_request_hides_in_another(server: Served, coding: bytes) -> None:
    """A body with a length and a coding, whose end is a matter of opinion, is refused, and no more is read."""
    both = b"content-length: %d\r\ntransfer-encoding: %s\r\n\r\n0\r\n\r\n" % (5 + len(SMUGGLED), coding)
    for begin in (b"POST /jobs", b"GET /jobs", b"POST /jobs/x/redrive"):
        assert said(server, begin + b" HTTP/1.1\r\n" + JSON + both + SMUGGLED) == [b"400"]


def test_requests_at_once_are_answered_in_turn(server: Served) -> None:
    """Requests that are sent one behind the other on a connection are answered in their order."""
    post = b"POST /jobs HTTP/1.1\r\n" + JSON + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
    missing = b"GET /jobs/nobody HTTP/1.1\r\nhost: localhost\r\n\r\n"
    assert said(server, post, post, missing) == [b"202", b"200", b"404", b"200"]
