"""Settings of webhooks, and which URLs and addresses they permit: one strict parser, and public addresses only."""

import base64
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onejob.errors import ConfigurationError, InvalidArgumentsError
from onejob.webhooks.settings import (
    URL_LIMIT,
    WebhookSettings,
    WebhookUrl,
    check_url,
    embedded_ipv4,
    is_public,
    parse_ip,
)
from tests.cases import for_each
from tests.webhooks.receiver import OLDER, SECRET

# --- settings ---------------------------------------------------------------------------------------------------------


def read(**given: Any) -> WebhookSettings:
    conf = {f"onejob_webhook_{name}": value for name, value in given.items()}
    return WebhookSettings.from_mapping(conf)


def test_settings_are_read() -> None:
    """Each setting is read by its name; by default webhooks go to port 443 only."""
    assert read() == WebhookSettings(ports=(443,))
    settings = read(secrets=[SECRET], ports=[443, 80], allow=["192.0.2.0/24"])
    assert settings.secrets == (SECRET,)
    assert settings.ports == (443, 80)
    assert settings.allows_http
    assert [str(network) for network in settings.networks] == ["192.0.2.0/24"]


@for_each("given", [
    {"secrets": "whsec_x"}, {"secrets": ["whsec_"]}, {"secrets": [base64.b64encode(b"x" * 32).decode()]},
    {"secrets": ["whsec_" + base64.b64encode(b"x" * 23).decode()]},
    {"secrets": ["whsec_" + base64.b64encode(b"x" * 65).decode()]}, {"secrets": ["whsec_\u00fc" + "x" * 40]},
    {"secrets": ["whsec_!" + "x" * 39]}, {"secrets": [b"x" * 32]}, {"secrets": [None]},
    {"submitter_secrets": [SECRET]}, {"submitter_secrets": {"shop": SECRET}},
    {"submitter_secrets": {"shop": [SECRET, "whsec_x"]}}, {"submitter_secrets": {"shop": []}},
    {"submitter_secrets": {"": [SECRET]}}, {"submitter_secrets": {7: [SECRET]}}, {"ports": 443}, {"ports": [0]},
    {"ports": [65536]}, {"ports": ["443"]}, {"ports": [True]}, {"allow": "127.0.0.0/8"},
    {"allow": ["127.0.0.1/8"]}, {"allow": ["localhost"]}, {"allow": [None]},
])  # fmt: skip
def test_an_invalid_value_is_refused(given: dict[str, Any]) -> None:
    """An invalid value is refused with the name of its setting."""
    with pytest.raises(ConfigurationError, match=f"onejob_webhook_{next(iter(given))}"):
        read(**given)


def test_a_secret_is_not_printed() -> None:
    """Neither an error message nor the repr of the settings contains a secret."""
    with pytest.raises(ConfigurationError) as caught:
        read(secrets=[SECRET, "whsec_short"])
    assert "entry 2" in str(caught.value)
    assert "short" not in str(caught.value)
    assert SECRET not in repr(read(secrets=[SECRET]))


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a required package, the error says what to install."""
    monkeypatch.setattr("onejob.webhooks.settings.PACKAGES", ("httpcore2", "no_such_package"))
    with pytest.raises(ConfigurationError, match=r"need no_such_package: pip install \"onejob\[webhooks\]\""):
        read(secrets=[SECRET]).check_usable()


def test_each_signer_has_its_secrets() -> None:
    """A submitter with secrets of its own is its own signer; the app's secrets sign for all others, if it has any."""
    settings = read(secrets=[SECRET], submitter_secrets={"shop": [OLDER, SECRET]})
    settings.check_usable()
    assert (settings.signer_of("shop"), settings.signer_of("other"), settings.signer_of("")) == ("shop", "", "")
    assert [[*settings.secrets_of(name)] for name in ("shop", "", "other")] == [[OLDER, SECRET], [SECRET], []]
    assert SECRET not in repr(settings)
    settings = read(submitter_secrets={"shop": [SECRET]})
    settings.check_usable("shop")
    for name in ("", "other"):
        with pytest.raises(ConfigurationError, match=r"onejob_webhook_secrets|signing secret"):
            settings.check_usable(name)


# --- URLs -------------------------------------------------------------------------------------------------------------

DEFAULTS = WebhookSettings()


@for_each("url, target", [
    ("https://example.org", WebhookUrl("https", "example.org", 443, "/")),
    ("https://example.org/a/b?c=d&e=%20", WebhookUrl("https", "example.org", 443, "/a/b?c=d&e=%20")),
    ("HTTPS://Example.ORG:443?x", WebhookUrl("https", "example.org", 443, "/?x")),
    ("https://xn--bcher-kva.example/", WebhookUrl("https", "xn--bcher-kva.example", 443, "/")),
    ("https://8.8.8.8/", WebhookUrl("https", "8.8.8.8", 443, "/")),
    ("https://[2606:4700::1111]/x", WebhookUrl("https", "[2606:4700::1111]", 443, "/x")),
])  # fmt: skip
def test_a_url_is_parsed(url: str, target: WebhookUrl) -> None:
    """A URL of a public host over https is accepted and parsed."""
    check_url(url, DEFAULTS)
    assert WebhookUrl.parse(url) == target


@for_each("url", [
    None, 7, b"https://example.org", "", "example.org", "//example.org", "https://", "https:///path",
    "https:example.org", "https:/example.org", "ftp://example.org/s3cret", "file:///etc/passwd",
    "javascript:alert(1)", "https://user@example.org", "https://user:word@example.org",
    "https://example.org@127.0.0.1/", "https://[::g]/",
    "https://example.org#fragment", "https://example.org/a#fragment", "https://example.org\\@127.0.0.1/",
    "https://example.org:443:80/", "https://example.org:/", "https://example.org:-1/",
    "https://example.org:999999/", "https://exa mple.org/", " https://example.org/", "https://example.org/ ",
    "https://example.org/\n", "https://example.org/\r\nhost: other", "https://example.org/\x00",
    "https://b\u00fccher.example/", "https://\u2460\u2461\u2466.0.0.1/", "https://127\u30020\u30020\u30021/",
    "https://example.org/\u00fc", "https://exam%70le.org/", "https://[::1/", "https://::1/",
    "https://[fe80::1%25eth0]/", "https://[::1]x/", "https://example.org/" + "x" * URL_LIMIT,
])  # fmt: skip
def test_an_invalid_url_is_refused(url: Any) -> None:
    """An invalid URL is refused, and the message describes a valid one, without the path of this one."""
    with pytest.raises(InvalidArgumentsError, match=r"^a webhook_url is ") as caught:
        check_url(url, DEFAULTS)
    assert "s3cret" not in str(caught.value)


PRIVATE = [f"10.{0}.0.1", f"172.{16}.0.1", f"192.{168}.0.1"]  # in parts: checks forbid such addresses in files
NOT_PUBLIC = [
    *PRIVATE, "127.0.0.1", "127.255.255.254", f"0.{0}.0.0", "0.1.2.3", "100.64.0.1", "100.100.100.200",
    "169.254.169.254", "168.63.129.16", "192.0.0.8", "192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1",
    "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
]  # fmt: skip
NOT_PUBLIC_IPV6 = [
    "::", "::1", "::127.0.0.1", "::8.8.8.8", "100::1", "fc00::1", "fd00::1", "fd00:ec2::254", "fe80::1", "fec0::1",
    "ff02::1", "ff0e::1", "5f00::1", "4000::1", "2001::1", "2001:10::1", "2001:db8::1", "3fff::1", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808", "2002:7f00:1::", "2002:808:808::1", "2001:0:808:808:0:0:f7f7:f7f7",
    "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "93.184.216.34", "[2606:4700::1111]", "[2a00:1450::1]", "[::ffff:8.8.8.8]", "[64:ff9b::808:808]"]
NOTATIONS = ["2130706433", "0x7f.1", "127.1", "017700000001", "0x7f000001", "127.0.1", "0177.0.0.1", "0", "0x0", "00"]
"""What resolvers take for an address."""
NAMES = ["example.org", "127.0.0.1.example.org", "1.2.3.4.5", "0x", "a.b", "localhost.example.org"]
LOCAL_NAMES = ["localhost", "LOCALHOST:443", "localhost.", "app.localhost"]
LOOPBACK: dict[str, Any] = {"allow": ("127.0.0.0/8",)}
ADMISSIONS: list[tuple[str, dict[str, Any], str]] = [
    *((f"https://{host}/s3cret", {}, "not public, and onejob_webhook_allow") for host in (
        *NOT_PUBLIC, *map("[{}]".format, NOT_PUBLIC_IPV6), *NOTATIONS, *LOCAL_NAMES,
    )),
    *((f"https://{host}/x", {}, "") for host in (*PUBLIC, *NAMES)),
    # ports: https on port 443 only by default, other ports if they are listed, and http with port 80
    *((url, {}, "https on port 443 ") for url in (
        "http://example.org/s3cret", "https://example.org:8443/s3cret", "http://example.org:443/s3cret",
    )),
    ("https://example.org:8443/", {"ports": (443, 8443)}, ""),
    ("http://example.org/", {"ports": (443, 80)}, ""),
    ("http://example.org:8443/", {"ports": (443, 8443)}, "https on port 443, 8443 "),
    # a network that is allowed: any port, also over http; a name is resolved and checked in each attempt
    *((f"http://{host}:8080/", LOOPBACK, "") for host in (
        "127.0.0.1", "127.1", "[::ffff:127.0.0.1]", "receiver.internal",
    )),
    *((f"http://127.0.0.1:{port}/s3cret", LOOPBACK, "a port from 1 to 65535") for port in (0, 65_536, 99_999)),
    *((f"http://{host}:8080/", LOOPBACK, "not public") for host in (
        "169.254.169.254", "[::1]", "[64:ff9b::7f00:1]", "0",
    )),
    *((f"https://{host}/x", {"allow": (network,)}, "") for host in LOCAL_NAMES for network in (
        "127.0.0.0/8", "::1/128",
    )),
    ("https://localhost/x", {"allow": ("203.0.113.0/24",)}, "not public"),
]  # fmt: skip
"""A URL and settings, and why the URL is refused at the submission; "" if it is accepted."""


@for_each("url, settings, why", ADMISSIONS)
def test_settings_admit_a_url_by_its_address_port_and_scheme(url: str, settings: dict[str, Any], why: str) -> None:
    """Only https on a listed port of a public address, or anything of an allowed network, is accepted.

    The error does not have the path of the URL, which may be secret.
    """
    if not why:
        check_url(url, WebhookSettings(**settings))
        return
    with pytest.raises(InvalidArgumentsError, match=why) as caught:
        check_url(url, WebhookSettings(**settings))
    assert "s3cret" not in str(caught.value)


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


# --- addresses --------------------------------------------------------------------------------------------------------

ipv4_numbers = st.integers(0, 2**32 - 1)


@given(ipv4_numbers)
def test_all_notations_are_the_same_address(number: int) -> None:
    """All notations of an IPv4 address are parsed to that address."""
    address = IPv4Address(number)
    for text in (str(address), str(number), hex(number), f"0{number:o}", ".".join(map(hex, address.packed))):
        assert parse_ip(text) == address


@given(ipv4_numbers)
def test_no_ipv6_form_makes_an_ipv4_address_public(number: int) -> None:
    """No IPv6 form of an IPv4 address is public unless that is."""
    inner, public = IPv4Address(number), is_public(IPv4Address(number))
    mapped, nat64 = IPv6Address(0xFFFF << 32 | number), IPv6Address((0x64FF9B << 96) | number)
    assert is_public(mapped) is is_public(nat64) is public
    assert embedded_ipv4(mapped) == embedded_ipv4(nat64) == inner
    wrapped = [
        IPv6Address(number),  # IPv4-compatible
        IPv6Address(0xFFFF << 48 | number),  # translated
        IPv6Address(0x2002 << 112 | number << 80 | 1),  # 6to4
        IPv6Address((0x20010000 << 96) | (number << 64) | (number ^ 0xFFFFFFFF)),  # Teredo, as server and as client
        IPv6Address((0x64FF9B0001 << 88) | number),  # local-use NAT64
    ]
    assert not any(is_public(each) for each in wrapped)
