"""A real server with clients that disconnect early or send invalid HTTP."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from chaos.hangups import TASK, Served, hang_up, served
from onejob.celery.app_state import app_state_of
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.contract.support import StoreAddress

SEED = 1
HANGUPS = 300


def assert_others_are_answered(url: str, namespace: str = "unused") -> None:
    """Assert that clients that disconnect at every stage of a request affect no others."""
    with served(url, namespace, "memory://") as (app, server):
        count = hang_up(app, server, HANGUPS, 4, SEED)
    assert count.held, count
    assert count.asked > 0
    assert count.hangups.total() == HANGUPS


def test_disconnects_do_not_affect_other_clients(tmp_path: Path) -> None:
    """While clients disconnect at every stage of a request, others get their own jobs, and no thread or watch leaks."""
    assert_others_are_answered(f"sqlite:///{tmp_path / 'ledger.db'}")


@pytest.mark.deep
def test_disconnects_affect_nobody_on_each_store(store_address: StoreAddress) -> None:
    """The same holds on each store, whose connections are pooled differently."""
    assert_others_are_answered(store_address.url, store_address.namespace)


def test_wrong_responses_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness detects a server that returns the job of another client."""
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


def statuses_of(server: Served, *requests: bytes) -> list[bytes]:
    """Send raw requests and a last valid one, and return the status of each response."""
    response = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30.0) as connection, suppress(ConnectionError):
        connection.sendall(b"".join([*requests, LAST]))
        for part in iter(lambda: connection.recv(65_536), b""):
            response += part
    return re.findall(rb"HTTP/1\.1 (\d{3}) ", response)


LAST = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
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


@for_each("name", BAD)
def test_invalid_http_is_refused(server: Served, name: str) -> None:
    """Invalid, oversized or contradictory HTTP is refused, and nothing after it on the connection is processed."""
    assert statuses_of(server, BAD[name]) in ([b"400"], []), "a reset may overtake the response"
    assert statuses_of(server) == [b"200"]


@for_each("hosts", [["evil.example"], ["localhost", "evil.example"], ["evil.example", "localhost"]])
def test_the_server_is_not_a_proxy(server: Served, hosts: list[str]) -> None:
    """A request to another host, or with two Host headers, is refused."""
    lines = "\r\n".join(f"host: {host}" for host in hosts)
    for path in ("/jobs", "http://evil.example/jobs"):
        assert statuses_of(server, f"GET {path} HTTP/1.1\r\n{lines}\r\n\r\n".encode())[0] in {b"400", b"403"}


@for_each("coding", [b"chunked", b"Chunked", b"chunked, identity", b"\tchunked"])
def test_request_smuggling_is_refused(server: Served, coding: bytes) -> None:
    """A body with both Content-Length and Transfer-Encoding is refused, and the connection is closed."""
    both = b"content-length: %d\r\ntransfer-encoding: %s\r\n\r\n0\r\n\r\n" % (5 + len(SMUGGLED), coding)
    for begin in (b"POST /jobs", b"GET /jobs", b"POST /jobs/x/redrive"):
        assert statuses_of(server, begin + b" HTTP/1.1\r\n" + JSON + both + SMUGGLED) == [b"400"]
