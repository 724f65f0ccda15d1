"""Which addresses a webhook may be sent to: public ones only, whatever they are wrapped in."""

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
"""All of IPv6 that is given out to reach somebody; what is outside is local, reserved or another kind of address."""
NAT64 = ip_network("64:ff9b::/96")
"""How a network without IPv4 names IPv4 addresses: whoever is inside decides."""
CLOSED: tuple[Network, ...] = (
    ip_network("192.0.0.0/24"),  # protocol assignments
    ip_network("192.88.99.0/24"),  # relays of 6to4
    ip_network("168.63.129.16/32"),  # what Azure tells its machines: public by number, reached from inside only
    ip_network("2001::/23"),  # protocol assignments, Teredo among them
    ip_network("2001:db8::/32"),  # documentation
    ip_network("2002::/16"),  # 6to4
    ip_network("3fff::/20"),  # documentation
)
"""What Python calls global, in one version or another, and leads nowhere or inside."""


def is_public(address: Address) -> bool:
    """Tell whether an address is somebody's on the open internet, and no way around to one that is not."""
    address = unwrapped(address)
    if isinstance(address, IPv6Address) and address not in GLOBAL_UNICAST:
        return False
    special = address.is_multicast or address.is_reserved or address.is_unspecified
    return address.is_global and not special and not is_within(address, CLOSED)


def is_within(address: Address, networks: Iterable[Network]) -> bool:
    """Tell whether one of these networks has an address."""
    return any(address in network for network in networks)


def unwrapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, if it is one that a network here would translate."""
    if isinstance(address, IPv4Address):
        return address
    return address.ipv4_mapped or (_last_four(address) if address in NAT64 else address)


def unmapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 socket writes in its own way."""
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def literal(host: str) -> Address | None:
    """Return the address that a host is, in any of the spellings that resolvers know (`0x7f.1`); None for a name."""
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def _last_four(address: IPv6Address) -> IPv4Address:
    return IPv4Address(address.packed[-4:])
