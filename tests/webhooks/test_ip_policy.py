"""The guard: a webhook goes to public addresses only, however an address is spelled or wrapped."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from onejob.webhooks.ip_policy import is_public, literal, unwrapped
from tests.cases import for_each

PRIVATE = [f"10.{0}.0.1", f"172.{16}.0.1", f"192.{168}.0.1"]  # in parts, for the house's own law about private networks
LOCAL = [
    *PRIVATE,
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",  # noqa: S104 - it is refused
    "0.1.2.3",
    "100.64.0.1",
    "100.100.100.200",
    "169.254.169.254",
    "168.63.129.16",
    "192.0.0.8",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
]
CLOSED = [
    *LOCAL,
    "::",
    "::1",
    "::127.0.0.1",
    "::8.8.8.8",
    "100::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "5f00::1",
    "4000::1",
    "2001::1",
    "2001:10::1",
    "2001:db8::1",
    "3fff::1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::808:808",
    "2002:7f00:1::",
    "2002:808:808::1",
    "2001:0:808:808:0:0:f7f7:f7f7",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
]
OPEN = ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::808:808"]
SPELLINGS = ["2130706433", "0x7f.1", "127.1", "017700000001", "0x7f000001", "127.0.1", "0177.0.0.1", "0", "0x0", "00"]
four = st.integers(0, 2**32 - 1)


@for_each("text", CLOSED)
def test_an_address_that_is_not_public_is_refused(text: str) -> None:
    """No private, local, shared, reserved, documentary, multicast, transitional or platform address is public."""
    assert not is_public(ip_address(text))


@for_each("text", OPEN)
def test_a_public_address_is_one(text: str) -> None:
    """An address of the open internet is public, also in a form that only stands for it."""
    assert is_public(ip_address(text))


@for_each("text", [*SPELLINGS, *LOCAL])
def test_a_number_is_an_address(text: str) -> None:
    """Whatever spelling of an address a resolver would take for one is recognised, and refused."""
    address = literal(text)
    assert address is not None
    assert not is_public(address)


@for_each("text", ["example.org", "127.0.0.1.example.org", "localhost", "1.2.3.4.5", "0x", "a.b", "[::g]"])
def test_a_name_is_no_address(text: str) -> None:
    """A name that only looks like an address is a name, and is resolved when something is sent."""
    assert literal(text) is None


@given(four)
def test_a_spelling_changes_nothing(number: int) -> None:
    """An IPv4 address is public or not, however it is spelled."""
    address = IPv4Address(number)
    for text in (str(address), str(number), hex(number), f"0{number:o}", ".".join(map(hex, address.packed))):
        assert literal(text) == address


@given(four)
def test_a_wrapping_opens_nothing(number: int) -> None:
    """No IPv6 form of an IPv4 address is public unless that is."""
    inner, address = IPv4Address(number), is_public(IPv4Address(number))
    mapped, nat64 = IPv6Address(0xFFFF << 32 | number), IPv6Address((0x64FF9B << 96) | number)
    assert is_public(mapped) is is_public(nat64) is address
    assert unwrapped(mapped) == unwrapped(nat64) == inner
    wrapped = [
        IPv6Address(number),  # IPv4-compatible
        IPv6Address(0xFFFF << 48 | number),  # translated
        IPv6Address(0x2002 << 112 | number << 80 | 1),  # 6to4
        IPv6Address((0x20010000 << 96) | (number << 64) | (number ^ 0xFFFFFFFF)),  # Teredo, as server and as client
        IPv6Address((0x64FF9B0001 << 88) | number),  # NAT64 of one's own
    ]
    assert not any(is_public(each) for each in wrapped)


@given(st.integers(0, 2**128 - 1))
def test_public_is_global_unicast(number: int) -> None:
    """Nothing outside of global unicast is public in IPv6, but for what stands for a public IPv4 address."""
    address = IPv6Address(number)
    if is_public(address):
        assert address in ip_network("2000::/3") or isinstance(unwrapped(address), IPv4Address)


@given(st.ip_addresses())
def test_nothing_private_is_public(address: IPv4Address | IPv6Address) -> None:
    """What Python itself calls private, loopback or link-local is never public."""
    if is_public(address):
        inner = unwrapped(address)
        assert not any((inner.is_private, inner.is_loopback, inner.is_link_local, inner.is_multicast))
