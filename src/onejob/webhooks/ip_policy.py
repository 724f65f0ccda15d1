"""SSRF protection: which IP addresses are public, also when they are mapped or translated into IPv6."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ipaddress import IPv4Network, IPv6Network

Address: TypeAlias = "IPv4Address | IPv6Address"
Network: TypeAlias = "IPv4Network | IPv6Network"
GLOBAL_UNICAST = ip_network("2000::/3")
"""The globally routed unicast addresses of IPv6; all others are local, reserved or multicast."""
NAT64 = ip_network("64:ff9b::/96")
"""RFC 6052: a NAT64 gateway translates these to the IPv4 address in their last 32 bits."""
NOT_PUBLIC: tuple[Network, ...] = (
    ip_network("192.0.0.0/24"),  # protocol assignments
    ip_network("192.88.99.0/24"),  # relays of 6to4
    ip_network("168.63.129.16/32"),  # Azure platform services: reachable only from inside Azure
    ip_network("2001::/23"),  # protocol assignments, Teredo among them
    ip_network("2001:db8::/32"),  # documentation
    ip_network("2002::/16"),  # 6to4
    ip_network("3fff::/20"),  # documentation
)
"""Networks that `is_global` accepts in some version of Python, and that are unroutable or internal."""


def is_public(address: Address) -> bool:
    """Return whether an address, or the IPv4 address embedded in it, is on the public internet."""
    address = embedded_ipv4(address)
    if isinstance(address, IPv6Address) and address not in GLOBAL_UNICAST:
        return False
    special = address.is_multicast or address.is_reserved or address.is_unspecified
    return address.is_global and not special and not is_within(address, NOT_PUBLIC)


def is_within(address: Address, networks: Iterable[Network]) -> bool:
    """Return whether an address is in one of the networks."""
    return any(address in network for network in networks)


def embedded_ipv4(address: Address) -> Address:
    """Return the IPv4 address to which an IPv4-mapped or NAT64 address is translated; any other one unchanged."""
    if isinstance(address, IPv4Address):
        return address
    return address.ipv4_mapped or (IPv4Address(address.packed[-4:]) if address in NAT64 else address)


def unmap(address: Address) -> Address:
    """Return the IPv4 address of an IPv4-mapped IPv6 address (`::ffff:a.b.c.d`); any other one unchanged."""
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def parse_ip(host: str) -> Address | None:
    """Return the address if a host is one, in any notation that resolvers accept (`0x7f.1`); None for a name."""
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except OSError:
        return None
