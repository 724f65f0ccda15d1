"""The URL of a webhook is checked on submission, by one strict parser."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onejob.errors import InvalidArgumentsError
from onejob.webhooks.settings import URL_LIMIT, WebhookSettings, WebhookUrl, check_url
from tests.cases import for_each

DEFAULTS = WebhookSettings()


@for_each(
    "url, target",
    [
        ("https://example.org", WebhookUrl("https", "example.org", 443, "/")),
        ("https://example.org/a/b?c=d&e=%20", WebhookUrl("https", "example.org", 443, "/a/b?c=d&e=%20")),
        ("HTTPS://Example.ORG:443?x", WebhookUrl("https", "example.org", 443, "/?x")),
        ("https://xn--bcher-kva.example/", WebhookUrl("https", "xn--bcher-kva.example", 443, "/")),
        ("https://8.8.8.8/", WebhookUrl("https", "8.8.8.8", 443, "/")),
        ("https://[2606:4700::1111]/x", WebhookUrl("https", "[2606:4700::1111]", 443, "/x")),
    ],
)
def test_a_url_is_parsed(url: str, target: WebhookUrl) -> None:
    """A URL of a public host over https is accepted and parsed."""
    check_url(url, DEFAULTS)
    assert WebhookUrl.parse(url) == target


@for_each(
    "url",
    [
        None, 7, b"https://example.org", "", "example.org", "//example.org", "https://", "https:///path",
        "https:example.org", "https:/example.org", "ftp://example.org", "file:///etc/passwd", "javascript:alert(1)",
        "https://user@example.org", "https://user:word@example.org", "https://example.org@127.0.0.1/",
        "https://example.org#fragment", "https://example.org/a#fragment", "https://example.org\\@127.0.0.1/",
        "https://example.org:443:80/", "https://example.org:/", "https://example.org:-1/",
        "https://example.org:999999/", "https://exa mple.org/", " https://example.org/", "https://example.org/ ",
        "https://example.org/\n", "https://example.org/\r\nhost: other", "https://example.org/\x00",
        "https://b\u00fccher.example/", "https://\u2460\u2461\u2466.0.0.1/", "https://127\u30020\u30020\u30021/",
        "https://example.org/\u00fc", "https://exam%70le.org/", "https://[::1/", "https://::1/",
        "https://[fe80::1%25eth0]/", "https://[::1]x/", "https://example.org/" + "x" * URL_LIMIT,
    ],
)  # fmt: skip
def test_an_invalid_url_is_refused(url: Any) -> None:
    """An invalid URL is refused, and the message describes a valid one."""
    with pytest.raises(InvalidArgumentsError, match=r"^a webhook_url is "):
        check_url(url, DEFAULTS)


@for_each("url", ["https://127.0.0.1/s3cret", "ftp://h/s3cret", "http://h/s3cret", "https://h:1/s3cret"])
def test_an_error_does_not_contain_the_url(url: str) -> None:
    """No error message contains the path of the URL, which may be secret."""
    with pytest.raises(InvalidArgumentsError) as caught:
        check_url(url, DEFAULTS)
    assert "s3cret" not in str(caught.value)


@for_each("host", ["127.0.0.1", "127.1", "0x7f.1", "0", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "[fd00::1]"])
def test_a_private_address_is_refused(host: str) -> None:
    """An address that is not public is refused on submission, in any notation."""
    with pytest.raises(InvalidArgumentsError, match="not public"):
        check_url(f"https://{host}/x", DEFAULTS)


def test_ports_can_be_allowed() -> None:
    """Only https on port 443 is accepted by default; other ports if they are listed, and http with port 80."""
    for url in ("http://example.org/", "https://example.org:8443/", "http://example.org:443/"):
        with pytest.raises(InvalidArgumentsError, match="https on port 443 "):
            check_url(url, DEFAULTS)
    check_url("https://example.org:8443/", WebhookSettings(ports=(443, 8443)))
    check_url("http://example.org/", WebhookSettings(ports=(443, 80)))
    with pytest.raises(InvalidArgumentsError, match="https on port 443, 8443 "):
        check_url("http://example.org:8443/", WebhookSettings(ports=(443, 8443)))


@for_each("host", ["localhost", "LOCALHOST:443", "localhost.", "app.localhost"])
def test_localhost_is_an_address_of_this_machine(host: str) -> None:
    """A name of this machine is refused at the submission, unless a network of it is allowed."""
    with pytest.raises(InvalidArgumentsError, match="not public, and onejob_webhook_allow"):
        check_url(f"https://{host}/x", DEFAULTS)
    for network in ("127.0.0.0/8", "::1/128"):
        check_url(f"https://{host}/x", WebhookSettings(allow=(network,)))
    with pytest.raises(InvalidArgumentsError):
        check_url(f"https://{host}/x", WebhookSettings(allow=("203.0.113.0/24",)))
    check_url("https://localhost.example.org/", DEFAULTS)


def test_a_network_can_be_allowed() -> None:
    """An address in an allowed network is accepted on any port, also over http; others are refused."""
    allowed = WebhookSettings(allow=("127.0.0.0/8",))
    for host in ("127.0.0.1", "127.1", "[::ffff:127.0.0.1]"):
        check_url(f"http://{host}:8080/", allowed)
    for host in ("169.254.169.254", "[::1]", "[64:ff9b::7f00:1]", "0"):
        with pytest.raises(InvalidArgumentsError, match="not public"):
            check_url(f"http://{host}:8080/", allowed)
    check_url("http://receiver.internal:8080/", allowed)  # resolved and checked in each attempt


@given(st.text(max_size=50))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    """Any text is either parsed as a URL in plain ASCII or refused with `InvalidArgumentsError`."""
    for url in (text, f"https://{text}", f"https://example.org{text}"):
        try:
            target = WebhookUrl.parse(url)
        except InvalidArgumentsError:
            continue
        assert url.isascii()
        assert "@" not in target.host
        assert target.path.startswith("/")
