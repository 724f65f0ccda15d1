"""One attempt: what a receiver does, or its name leads to, never makes us say more, wait longer or go elsewhere."""

from __future__ import annotations

import socket
import ssl
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from onejob.webhooks import transport as network
from onejob.webhooks.client import EXCERPT, LONGEST_WAIT, Answer, NotSentError, WebhookClient, seconds_of
from onejob.webhooks.settings import WebhookSettings
from onejob.webhooks.transport import ANSWER_LIMIT
from tests.services import eventually, free_port
from tests.webhooks.receiver import receiving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.webhooks.receiver import Receiver

SHORT = 0.4
"""Seconds for attempts that can only end by their deadline."""


@pytest.fixture
def sender(settings: WebhookSettings) -> WebhookClient:
    """Return a sender that reaches loopback."""
    return WebhookClient(settings)


def send(sender: WebhookClient, url: str, seconds: float = 20.0) -> Answer:
    """Make one attempt."""
    return sender.send(url, b'{"a": 1}', [("content-type", "x/y"), ("webhook-id", "w")], seconds=seconds)


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Let every name lead to these addresses; return the names that are asked for."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in addresses]
        return [
            (family, socket.SOCK_STREAM, 6, "", (each, port)) for family, each in zip(families, addresses, strict=True)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


# --- what is sent ---------------------------------------------------------------------------------------------------


def test_a_body_arrives_as_it_is(sender: WebhookClient, receiver: Receiver) -> None:
    """The receiver gets one POST with our headers, its own name as the host, and the very bytes."""
    assert send(sender, receiver.url("/ok/a?b=c%20d")).good
    (got,) = receiver.got()
    assert (got.path, got.body) == ("/ok/a?b=c%20d", b'{"a": 1}')
    assert got.headers == {
        "host": f"127.0.0.1:{receiver.port}", "content-type": "x/y", "webhook-id": "w", "content-length": "8",
    }  # fmt: skip


def test_the_environment_names_no_proxy(
    sender: WebhookClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Neither proxies nor passwords of the environment are used."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert send(sender, receiver.url()).good
    assert "authorization" not in receiver.got()[0].headers


# --- what is answered -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_two_hundred_is_success(sender: WebhookClient, receiver: Receiver, status: int) -> None:
    """Every status of the two hundreds is a success, whatever is said besides."""
    assert send(sender, receiver.url(f"/status/{status}")) == Answer(status)


@pytest.mark.parametrize("status", [300, 304, 400, 401, 404, 410, 429, 500, 503, 599])
def test_anything_else_is_none(sender: WebhookClient, receiver: Receiver, status: int) -> None:
    """Any other status is no success, and a short printable line is kept of what is said."""
    answer = send(sender, receiver.url(f"/status/{status}"))
    assert (answer.status, answer.good) == (status, False)
    if status != 304:  # has no body
        assert answer.excerpt.startswith("no??[31m thanks xxx")
        assert (len(answer.excerpt), answer.excerpt.isprintable()) == (EXCERPT, True)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(sender: WebhookClient, receiver: Receiver, status: int) -> None:
    """A redirect is a failure: nothing is sent to where it leads."""
    assert send(sender, receiver.url(f"/redirect/{status}")).status == status
    assert [got.path for got in receiver.got()] == [f"/redirect/{status}"]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7), ("0", 0), ("999999999999", LONGEST_WAIT), ("-1", 0), ("1.5", 0), ("soon", 0)],
)
def test_a_receiver_may_ask_for_patience(
    sender: WebhookClient, receiver: Receiver, header: str, seconds: float
) -> None:
    """`Retry-After` in seconds is understood, a day at most, and what is none says nothing."""
    assert send(sender, receiver.url(f"/status/503/{header}")).retry_after == seconds


def test_patience_may_be_asked_for_until_a_date() -> None:
    """`Retry-After` as a date means the time until then."""
    at = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert 3000 < seconds_of(at.encode()) <= 3600
    assert seconds_of(b"Wed, 21 Oct 2015 07:28:00 GMT") == 0


@given(
    st.binary(max_size=60)
    | st.from_regex(r"[A-Z][a-z]{2}, \d{1,3} [A-Z][a-z]{2} \d{1,6} \d\d:\d\d:\d\d.*").map(str.encode)
)
def test_any_header_is_understood_or_says_nothing(header: bytes) -> None:
    """Whatever a receiver asks for, it gets between nothing and a day."""
    assert 0 <= seconds_of(header) <= LONGEST_WAIT


# --- receivers that mean no good ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/hang", "/drip/head"])
def test_an_attempt_ends_in_time(sender: WebhookClient, receiver: Receiver, path: str) -> None:
    """A receiver that says nothing, or a byte now and then, is left when the time is up."""
    with pytest.raises(NotSentError, match=r"did not answer within 0.4 s"):
        send(sender, receiver.url(path), SHORT)
    assert not receiver.released.is_set()


def test_a_dripping_body_ends_in_time(sender: WebhookClient, receiver: Receiver) -> None:
    """When the status is known, what drips after it is left when the time is up."""
    answer = send(sender, receiver.url("/drip/body"), SHORT)
    assert answer.status == 500
    assert answer.excerpt.startswith("x")


@pytest.mark.parametrize("where", ["head", "early"])
def test_an_endless_head_is_no_answer(sender: WebhookClient, receiver: Receiver, where: str) -> None:
    """A head without end is not read to its end."""
    with pytest.raises(NotSentError, match="does not speak HTTP"):
        send(sender, receiver.url(f"/flood/{where}"))


@pytest.mark.parametrize(("where", "status"), [("good", 200), ("body", 500)])
def test_an_endless_body_changes_nothing(sender: WebhookClient, receiver: Receiver, where: str, status: int) -> None:
    """The status decides: of a body without end as much is read as is kept of it."""
    assert send(sender, receiver.url(f"/flood/{where}")).status == status


def test_no_more_is_read_than_the_limit() -> None:
    """However much a receiver sends, 64 KiB are read."""
    ours, theirs = socket.socketpair()
    stream, read = network.Stream(ours, network.Deadline(30)), 0
    flood = threading.Thread(target=lambda: theirs.sendall(b"x" * 2 * ANSWER_LIMIT), daemon=True)
    flood.start()
    while part := stream.read(100_000):
        read += len(part)
    stream.close()
    theirs.close()
    assert read == ANSWER_LIMIT


@pytest.mark.parametrize(("path", "why"), [("/garbage", "HTTP"), ("/close", "HTTP")])
def test_what_is_no_answer_is_told(sender: WebhookClient, receiver: Receiver, path: str, why: str) -> None:
    """What is no HTTP, or nothing at all, is a failure that says so."""
    with pytest.raises(NotSentError, match=why):
        send(sender, receiver.url(path))


def test_nobody_there_is_told(sender: WebhookClient) -> None:
    """A refused connection is a failure that says so."""
    with pytest.raises(NotSentError, match="cannot be reached: Connection refused"):
        send(sender, f"http://127.0.0.1:{free_port()}/")


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "addresses",
    [
        ("127.0.0.1",), ("169.254.169.254",), ("::1",), ("::ffff:127.0.0.1",), ("64:ff9b::7f00:1",), ("2002:7f00:1::",),
        ("93.184.216.34", "127.0.0.1"), ("127.0.0.1", "93.184.216.34"), ("100.64.0.1",), ("224.0.0.1",), (),
    ],
)  # fmt: skip
def test_a_name_that_leads_inside_is_refused(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    """A name is refused when a single one of its addresses is not public, and the failure tells none of them."""
    asked = resolving(monkeypatch, *addresses)
    settings = WebhookSettings(ports=(receiver.port, 80))
    with pytest.raises(NotSentError, match=r"^rebound\.example leads to an address, or a port") as caught:
        send(WebhookClient(settings), f"http://rebound.example:{receiver.port}/ok")
    assert not any(address in str(caught.value) for address in addresses)
    assert (asked, receiver.got()) == (["rebound.example"], [])


def test_an_address_that_is_allowed_opens_no_other(
    settings: WebhookSettings, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address in a network that is allowed does not take a public one along to an unusual port."""
    resolving(monkeypatch, "127.0.0.1", "93.184.216.34")
    with pytest.raises(NotSentError, match="leads to an address, or a port"):
        send(WebhookClient(settings), f"http://mixed.example:{receiver.port}/ok")
    assert receiver.got() == []


def test_a_name_is_resolved_once(sender: WebhookClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was checked is what is connected to: the resolver is asked once, and the receiver sees the name."""
    asked = resolving(monkeypatch, "127.0.0.1")
    assert send(sender, f"http://receiver.example:{receiver.port}/ok").good
    assert asked == ["receiver.example"]
    assert receiver.got()[0].headers["host"] == f"receiver.example:{receiver.port}"


def test_the_next_address_is_tried(sender: WebhookClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """When one address of a name does not answer, the next one is tried."""
    with receiving() as receiver:
        resolving(monkeypatch, "127.0.0.2", "127.0.0.1")
        assert send(sender, f"http://receiver.example:{receiver.port}/ok").good


def test_a_slow_resolver_ends_in_time(sender: WebhookClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that hangs is left when the time is up, and only so many are left hanging."""
    go_on = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: go_on.wait(60) and [])
    monkeypatch.setattr(network, "LOOK_UPS", threading.BoundedSemaphore(2))
    threads = threading.active_count()
    for _ in range(4):
        with pytest.raises(NotSentError, match="did not answer within"):
            send(sender, "https://slow.example/", 0.05)
    assert threading.active_count() <= threads + 2
    go_on.set()
    eventually(lambda: threading.active_count() <= threads)


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "x" * 64 + ".example"])
def test_no_name_at_all_is_told(sender: WebhookClient, host: str) -> None:
    """A name that leads nowhere is a failure that says so."""
    with pytest.raises(NotSentError, match="cannot be reached"):
        send(sender, f"https://{host}/")


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1", "017700000001", "[::ffff:127.0.0.1]"])
def test_odd_spellings_are_what_they_are(receiver: Receiver, host: str) -> None:
    """Another spelling of a loopback address is refused, too, when something is sent."""
    settings = WebhookSettings(ports=(receiver.port, 80))
    with pytest.raises(NotSentError, match="leads to an address, or a port"):
        send(WebhookClient(settings), f"http://{host}:{receiver.port}/ok")
    assert receiver.got() == []


# --- encryption -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Return an authority that signs certificates."""
    return trustme.CA()


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """Return what a client needs to trust an authority."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture
def secure(authority: trustme.CA) -> Iterator[Receiver]:
    """Return a receiver with a certificate for `receiver.example` and 127.0.0.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("receiver.example", "127.0.0.1").configure_cert(context)
    with receiving(context) as receiver:
        yield receiver


def test_a_certificate_is_that_of_the_name(
    settings: WebhookSettings, secure: Receiver, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over https the certificate must be that of the name in the URL, not of the address behind it."""
    sender = WebhookClient(settings, trusting(authority))
    assert send(sender, secure.url()).good
    resolving(monkeypatch, "127.0.0.1")
    assert send(sender, secure.url(host="receiver.example")).good
    with pytest.raises(NotSentError, match="cannot be spoken to securely"):
        send(sender, secure.url(host="other.example"))
    assert len(secure.got()) == 2


def test_an_unknown_authority_is_refused(sender: WebhookClient, secure: Receiver) -> None:
    """A certificate that nobody known has signed is a failure, and nothing is sent."""
    with pytest.raises(NotSentError, match="cannot be spoken to securely: CERTIFICATE_VERIFY_FAILED"):
        send(sender, secure.url())
    assert secure.got() == []


def test_a_handshake_ends_in_time(settings: WebhookSettings) -> None:
    """A receiver that accepts and never speaks is left when the time is up."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(NotSentError, match=r"did not answer within 0.4 s"):
            send(WebhookClient(replace(settings)), f"https://127.0.0.1:{port}/", SHORT)
