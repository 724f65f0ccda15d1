"""One attempt: no receiver and no DNS record can extend its time, read more data, or redirect it elsewhere."""

import re
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import trustme

from onejob.webhooks import client as client_module
from onejob.webhooks.client import (
    EXCERPT_LIMIT,
    MAX_RETRY_AFTER,
    RESPONSE_LIMIT,
    DeliveryError,
    FairSlots,
    LookupBusyError,
    WebhookClient,
    WebhookResponse,
    parse_retry_after,
)
from onejob.webhooks.settings import WebhookSettings
from tests.cases import for_each
from tests.services import eventually, free_port
from tests.webhooks.receiver import LOOPBACK, Receiver, receiving

SHORT = 0.4
"""Seconds for attempts that can only end by their deadline."""


@pytest.fixture
def client(settings: WebhookSettings) -> WebhookClient:
    return WebhookClient(settings)


def send(client: WebhookClient, url: str, seconds: float = 20.0) -> WebhookResponse:
    return client.send(url, b'{"a": 1}', [("content-type", "x/y"), ("webhook-id", "w")], seconds=seconds)


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Resolve every host to these addresses; return the list of the hosts that are resolved."""
    resolved: list[str] = []

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        resolved.append(host)
        families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in addresses]
        return [
            (family, socket.SOCK_STREAM, 6, "", (each, port)) for family, each in zip(families, addresses, strict=True)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return resolved


# --- the request ---------------------------------------------------------------------------------------------------


def test_the_request_arrives_unchanged(
    client: WebhookClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The receiver gets one POST with the given headers, its own host name, and the exact bytes.

    Proxy variables and a netrc file of the environment are ignored.
    """
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert send(client, receiver.url("/ok/a?b=c%20d")).ok
    (got,) = receiver.got()
    assert (got.path, got.body) == ("/ok/a?b=c%20d", b'{"a": 1}')
    assert got.headers == {
        "host": f"127.0.0.1:{receiver.port}", "content-type": "x/y", "webhook-id": "w", "content-length": "8",
    }  # fmt: skip


# --- the response -------------------------------------------------------------------------------------------------


@for_each("kind, status", [
    *(("status", status) for status in (200, 204, 299, 300, 304, 410, 599)),
    *(("redirect", status) for status in (301, 303, 307)),
])  # fmt: skip
def test_2xx_is_success(client: WebhookClient, receiver: Receiver, kind: str, status: int) -> None:
    """A 2xx status is success, whatever the body; of others an excerpt is kept, and no redirect is followed."""
    answer = send(client, receiver.url(f"/{kind}/{status}"))
    assert answer.status == status
    assert answer.ok == (status < 300)
    assert receiver.got()[-1].path == f"/{kind}/{status}"
    if kind == "status" and not answer.ok and status != 304:  # which has no body
        assert answer.excerpt.startswith("no??[31m thanks xxx")
        assert len(answer.excerpt) == EXCERPT_LIMIT
        assert answer.excerpt.isprintable()


ODD_DATES = (
    b"Wed, 21 Oct 2015 07:28:00 GMT", b"Wed, 21 Oct 2015 07:28:00", b"Mon, 01 Jan 0001 00:00:00 +2300", b"",
    b"\xff\x00", b"Mon, 01 Jan 0000 00:00:00 GMT", b"Mon, 99 Jan 2099 00:00:00 GMT",
    b"Mon, 01 Jan 999999 00:00:00 GMT",
    b"Mon, 01 Jan 2099 00:00:00 +99999999999999999999", b"Fri, 31 Dec 9999 23:59:59 -9999",
)  # fmt: skip
"""Dates that are past, without a zone, no dates, and beyond what Python counts."""


@for_each("header, seconds", [("7", 7), ("999999999999", MAX_RETRY_AFTER), ("-1", 0), ("1.5", 0), ("soon", 0)])
def test_retry_after_is_read(client: WebhookClient, receiver: Receiver, header: str, seconds: float) -> None:
    """`Retry-After`, in seconds or as a date, is capped at a day, and an invalid or a past one is 0."""
    assert send(client, receiver.url(f"/status/503/{header}")).retry_after == seconds
    at = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert 3000 < parse_retry_after(at.encode()) <= 3600
    assert parse_retry_after(b"Fri, 31 Dec 9999 23:59:59 GMT") == MAX_RETRY_AFTER
    for odd in ODD_DATES:
        assert parse_retry_after(odd) == 0, odd


# --- hostile receivers ----------------------------------------------------------------------------------------------


@for_each("path", ["/hang", "/drip/head"])
def test_an_attempt_ends_in_time(client: WebhookClient, receiver: Receiver, path: str) -> None:
    """An attempt to a receiver that sends nothing, or one byte at a time, ends at the deadline."""
    with pytest.raises(DeliveryError, match=r"did not answer within 0.4 s"):
        send(client, receiver.url(path), SHORT)
    assert not receiver.released.is_set()


@for_each("path, status", [("/drip/body", 500), ("/flood/good", 200), ("/flood/body", 500)])
def test_an_endless_body_changes_nothing(client: WebhookClient, receiver: Receiver, path: str, status: int) -> None:
    """A slow or endless body does not change the result: only an excerpt is read, until the deadline."""
    answer = send(client, receiver.url(path), SHORT if "drip" in path else 20.0)
    assert answer.status == status
    assert answer.excerpt.startswith("x") is not answer.ok


@for_each(
    "path, why", [("/flood/head", "invalid"), ("/flood/early", "invalid"), ("/garbage", "HTTP"), ("/close", "HTTP")]
)
def test_an_invalid_response_is_an_error(client: WebhookClient, receiver: Receiver, path: str, why: str) -> None:
    """An invalid or endless response, none, a refused connection and an unknown host are failed attempts."""
    with pytest.raises(DeliveryError, match=why):
        send(client, receiver.url(path))
    with pytest.raises(DeliveryError, match="cannot be reached: Connection refused"):
        send(client, f"http://127.0.0.1:{free_port()}/")
    for host in ("nowhere.invalid", "a..b", "x" * 64 + ".example"):
        with pytest.raises(DeliveryError, match="cannot be reached"):
            send(client, f"https://{host}/")


def test_no_more_is_read_than_the_limit() -> None:
    """However much a receiver sends, at most 64 KiB are read."""
    near, far = socket.socketpair()
    stream, read = client_module.LimitedStream(near, client_module.Deadline(30)), 0
    flood = threading.Thread(target=lambda: far.sendall(b"x" * 2 * RESPONSE_LIMIT), daemon=True)
    flood.start()
    while part := stream.read(100_000):
        read += len(part)
    stream.close()
    far.close()
    assert read == RESPONSE_LIMIT


def test_a_receiver_that_reads_nothing_ends_in_time() -> None:
    """A request that its receiver does not read is sent until the deadline only."""
    near, far = socket.socketpair()
    stream = client_module.LimitedStream(near, client_module.Deadline(SHORT))
    with far, near, pytest.raises(TimeoutError):
        stream.write(b"x" * 50_000_000)


# --- DNS ------------------------------------------------------------------------------------------------------------


LOOPBACK_ONLY: dict[str, Any] = {"allow": tuple(LOOPBACK)}
REFUSED: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    *(("rebound.example", addresses, {"ports": (80,)}) for addresses in (
        ("127.0.0.1",), ("::ffff:127.0.0.1",), ("93.184.216.34", "127.0.0.1"), ("127.0.0.1", "93.184.216.34"), (),
    )),
    *((host, ("127.0.0.1",), {"ports": (80,)}) for host in ("127.1", "2130706433", "[::ffff:127.0.0.1]")),
    ("mixed.example", ("127.0.0.1", "93.184.216.34"), LOOPBACK_ONLY),
]  # fmt: skip
"""A host, its addresses, and settings: with `ports` the port of the receiver is allowed, too."""


@for_each("host, addresses, settings", REFUSED)
def test_a_host_with_an_address_that_is_not_allowed_is_refused(
    receiver: Receiver, host: str, addresses: tuple[str, ...], settings: dict[str, Any]
) -> None:
    """Each address of a host, in any notation, must be public, with an allowed port, or allowed; no error names it."""
    given = settings | ({"ports": (receiver.port, 80)} if "ports" in settings else {})
    with pytest.MonkeyPatch.context() as patch:
        resolved = resolve_to(patch, *addresses)
        with pytest.raises(DeliveryError, match=f"^{re.escape(host)} resolves to an address, or uses a p") as caught:
            send(WebhookClient(WebhookSettings(**given)), f"http://{host}:{receiver.port}/ok")
    assert not any(address in str(caught.value).removeprefix(host) for address in addresses)
    assert set(resolved) <= {host}
    assert receiver.got() == []


def test_a_name_is_resolved_once(client: WebhookClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host is resolved once, so that a checked address is used, if need be the next one, with the host's name."""
    resolved = resolve_to(monkeypatch, "127.0.0.2", "127.0.0.1")
    assert send(client, f"http://receiver.example:{receiver.port}/ok").ok
    assert resolved == ["receiver.example"]
    assert receiver.got()[0].headers["host"] == f"receiver.example:{receiver.port}"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second address of the loopback")
def test_an_address_that_never_answers_leaves_time_for_the_next(
    client: WebhookClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the first address answers no connection, as a broken IPv6, the next one gets it; one alone fails soon."""
    monkeypatch.setattr(client_module, "CONNECT_SECONDS", SHORT)
    resolve_to(monkeypatch, "127.0.0.2", "127.0.0.1")
    with socket.create_server(("127.0.0.2", receiver.port), backlog=0), ExitStack() as fill:
        for _ in range(3):  # more than the backlog, which leaves the next ones without an answer
            waiting = fill.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(("127.0.0.2", receiver.port))
        assert send(client, f"http://receiver.example:{receiver.port}/ok").ok
        resolve_to(monkeypatch, "127.0.0.2")
        with pytest.raises(DeliveryError):
            send(client, f"http://receiver.example:{receiver.port}/ok", seconds=3600.0)


def lookups() -> int:
    """Return how many threads resolve a name."""
    return sum(thread.name == "onejob-dns-lookup" for thread in threading.enumerate())


def test_a_slow_resolver_ends_in_time(client: WebhookClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt with a hanging resolver ends in time; with too many that hang, in all or of a host, none is made."""
    resume = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: resume.wait(60) and [])
    monkeypatch.setattr(client_module, "LOOKUPS", slots := FairSlots(64, per_host=2))
    for error in (DeliveryError, DeliveryError, LookupBusyError, LookupBusyError):
        with pytest.raises(error):
            send(client, "https://slow.example/", 0.05)
    assert slots.used_by("") == 2
    monkeypatch.setattr(client_module, "LOOKUPS", FairSlots(6, per_host=2))
    for number in range(3):
        with pytest.raises(DeliveryError, match="did not answer within"):
            send(client, f"https://slow{number}.example/", 0.05)
    for _ in range(2):
        with pytest.raises(LookupBusyError, match="too many hang"):
            send(client, "https://honest.example/", 20.0)
    assert lookups() == 2 + 3
    resume.set()
    eventually(lambda: not lookups())
    assert slots.used_by("") == 0


# --- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(authority: trustme.CA) -> Iterator[Receiver]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("receiver.example", "127.0.0.1").configure_cert(context)
    with receiving(context) as receiver:
        yield receiver


def test_the_certificate_must_match_the_host(
    settings: WebhookSettings, secure: Receiver, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over https the certificate must match the host in the URL, not its address, and be of a known authority."""
    with pytest.raises(DeliveryError, match=r"TLS with .* failed: CERTIFICATE_VERIFY_FAILED"):
        send(WebhookClient(settings), secure.url())
    context = ssl.create_default_context()
    authority.configure_trust(context)
    client = WebhookClient(settings, context)
    assert send(client, secure.url()).ok
    resolve_to(monkeypatch, "127.0.0.1")
    assert send(client, secure.url(host="receiver.example")).ok
    with pytest.raises(DeliveryError, match=r"TLS with .* failed"):
        send(client, secure.url(host="other.example"))
    assert len(secure.got()) == 2


def test_a_handshake_ends_in_time(settings: WebhookSettings) -> None:
    """A TLS handshake that the receiver never answers ends at the deadline."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(DeliveryError, match=r"did not answer within 0.4 s"):
            send(WebhookClient(settings), f"https://127.0.0.1:{port}/", SHORT)
