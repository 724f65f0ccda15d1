"""Webhooks connect to public addresses only, in whatever notation or IPv6 form."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from onejob.webhooks.settings import embedded_ipv4, is_public, parse_ip
from tests.cases import for_each

PRIVATE = [f"10.{0}.0.1", f"172.{16}.0.1", f"192.{168}.0.1"]  # in parts: checks forbid such addresses in files
LOCAL = [
    *PRIVATE, "127.0.0.1", "127.255.255.254", f"0.{0}.0.0", "0.1.2.3", "100.64.0.1", "100.100.100.200",
    "169.254.169.254", "168.63.129.16", "192.0.0.8", "192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1",
    "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
]  # fmt: skip
NOT_PUBLIC = [
    *LOCAL, "::", "::1", "::127.0.0.1", "::8.8.8.8", "100::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1",
    "ff02::1", "ff0e::1", "5f00::1", "4000::1", "2001::1", "2001:10::1", "2001:db8::1", "3fff::1", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808", "2002:7f00:1::", "2002:808:808::1", "2001:0:808:808:0:0:f7f7:f7f7",
    "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::808:808"]
NOTATIONS = ["2130706433", "0x7f.1", "127.1", "017700000001", "0x7f000001", "127.0.1", "0177.0.0.1", "0", "0x0", "00"]
ipv4_numbers = st.integers(0, 2**32 - 1)


@for_each("text, public", [*((text, False) for text in NOT_PUBLIC), *((text, True) for text in PUBLIC)])
def test_only_a_public_address_is_accepted(text: str, public: bool) -> None:
    """A globally routed address is public, also mapped or translated; no private, local, reserved or other one is."""
    assert is_public(ip_address(text)) is public


@for_each("text", [*NOTATIONS, *LOCAL])
def test_a_number_is_an_address(text: str) -> None:
    """Every notation that a resolver accepts is recognised as an address, and refused."""
    address = parse_ip(text)
    assert address is not None
    assert not is_public(address)


@for_each("text", ["example.org", "127.0.0.1.example.org", "localhost", "1.2.3.4.5", "0x", "a.b", "[::g]"])
def test_a_name_is_no_address(text: str) -> None:
    """A name that only looks like an address is a name."""
    assert parse_ip(text) is None


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


@given(st.integers(0, 2**128 - 1))
def test_public_is_global_unicast(number: int) -> None:
    """No IPv6 address outside of global unicast is public, except a form of a public IPv4 address."""
    address = IPv6Address(number)
    assert not is_public(address) or address in ip_network("2000::/3") or embedded_ipv4(address) is not None


@given(st.ip_addresses())
def test_nothing_private_is_public(address: IPv4Address | IPv6Address) -> None:
    """An address that Python calls private, loopback or link-local is never public."""
    if is_public(address):
        inner = embedded_ipv4(address)
        assert not any((inner.is_private, inner.is_loopback, inner.is_link_local, inner.is_multicast))
