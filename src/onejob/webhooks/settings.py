"""The settings of webhooks, and the URLs and addresses that they permit."""

import base64
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib.util import find_spec
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple, Self, TypeAlias

from onejob.errors import ConfigurationError, InvalidArgumentsError

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
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
"""Unroutable or internal networks that `is_global` accepts in some version of Python."""


def is_public(address: Address) -> bool:
    """Return whether an address, or the IPv4 address embedded in it, is on the public internet."""
    address = embedded_ipv4(address)
    if isinstance(address, IPv6Address) and address not in GLOBAL_UNICAST:
        return False
    special = address.is_multicast or address.is_reserved or address.is_unspecified
    return address.is_global and not special and not any(address in network for network in NOT_PUBLIC)


def embedded_ipv4(address: Address) -> Address:
    """Return the IPv4 address to which an IPv4-mapped or NAT64 address is translated; any other address unchanged."""
    if isinstance(address, IPv4Address):
        return address
    return address.ipv4_mapped or (IPv4Address(address.packed[-4:]) if address in NAT64 else address)


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


URL_LIMIT = 2000
PORTS = range(1, 65_536)
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<rest>(?:[/?][a-z0-9._~:/?\[\]@!$&'()*+,;=%-]*)?)",
    re.ASCII | re.IGNORECASE,
)
LOOPBACK = (ip_address("127.0.0.1"), ip_address("::1"))
"""The addresses of `localhost`, and of every name below it (RFC 6761)."""
DEFAULT_PORTS = {"http": 80, "https": 443}


class WebhookUrl(NamedTuple):
    """A parsed URL. `path` includes the query."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: object) -> Self:
        """Parse a URL. Raises `InvalidArgumentsError`, whose message omits the URL, because it may contain a secret."""
        if not isinstance(url, str) or len(url) > URL_LIMIT:
            raise InvalidArgumentsError(f"a webhook_url is a string of at most {URL_LIMIT} characters")
        match = _URL.fullmatch(url)
        if match is None:
            raise InvalidArgumentsError(
                "a webhook_url is https://HOST[:PORT][/PATH][?QUERY] in ASCII, without a user, a password or a "
                "fragment; write an international name in punycode, and anything else percent-encoded"
            )
        scheme, rest = match["scheme"].lower(), match["rest"]
        port = int(match["port"] or DEFAULT_PORTS[scheme])
        if port not in PORTS:
            raise InvalidArgumentsError(f"a webhook_url is on a port from 1 to 65535, not on {port}")
        return cls(scheme, match["host"].lower(), port, rest if rest.startswith("/") else f"/{rest}")


PREFIX = "whsec_"
KEY_BYTES = range(24, 65)
PACKAGES = ("httpcore2", "standardwebhooks")


@dataclass(frozen=True, kw_only=True)
class WebhookSettings:
    """How webhooks are signed, and which hosts and ports they may connect to."""

    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Signing secrets, each `whsec_` and base64. Every secret signs, so that secrets can be rotated."""
    submitter_secrets: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)
    """By submitter (or name of an API key), the secrets that sign the webhooks it asks for, instead of `secrets`."""
    ports: tuple[int, ...] = (443,)
    """Allowed ports; plain `http` is allowed only when 80 is one of them."""
    allow: tuple[str, ...] = ()
    """Networks (CIDR) that are allowed although they are not public, on any port, also over plain `http`."""

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` for an invalid value."""
        _check_secrets("onejob_webhook_secrets", self.secrets)
        if not isinstance(self.submitter_secrets, Mapping):
            msg = "onejob_webhook_submitter_secrets must map names of submitters to lists of secrets"
            raise ConfigurationError(msg)
        for name, secrets in self.submitter_secrets.items():
            if not isinstance(name, str) or not name or not secrets:
                msg = f"onejob_webhook_submitter_secrets[{name!r}] must have the name of a submitter, and a secret"
                raise ConfigurationError(msg)
            _check_secrets(f"onejob_webhook_submitter_secrets[{name!r}]", secrets)
        for port in self.ports:
            if isinstance(port, bool) or not isinstance(port, int) or port not in PORTS:
                raise ConfigurationError(f"onejob_webhook_ports has {port!r}; a port is an integer from 1 to 65535")
        _ = self.networks

    @classmethod
    def from_mapping(cls, conf: Mapping[str, Any]) -> Self:
        """Read Celery's configuration. Raises `ConfigurationError` for an invalid value."""
        values = {field.name: conf.get(f"onejob_webhook_{field.name}") for field in fields(cls)}
        for name, value in values.items():
            if isinstance(value, list | tuple):
                values[name] = tuple(value)
            elif value is not None and name != "submitter_secrets":
                raise ConfigurationError(f"onejob_webhook_{name} must be a list, not a {type(value).__name__}")
        return cls(**{name: value for name, value in values.items() if value is not None})

    @cached_property
    def networks(self) -> tuple[Network, ...]:
        """`allow`, parsed."""
        try:
            return tuple(ip_network(network) for network in self.allow)
        except ValueError as error:
            msg = f"onejob_webhook_allow={list(self.allow)!r} must be networks such as '192.0.2.0/24': {error}"
            raise ConfigurationError(msg) from error

    @property
    def allows_http(self) -> bool:
        """Whether webhooks may be sent over plain `http`."""
        return 80 in self.ports  # noqa: PLR2004 - the port of http

    def allows_port_of(self, target: WebhookUrl) -> bool:
        """Return whether webhooks may be sent to the port of a URL, with its scheme."""
        return target.port in self.ports and (target.scheme == "https" or self.allows_http)

    def signer_of(self, submitter: str) -> str:
        """Return the name whose secrets sign the webhooks of a submitter: its own, or "" for the app's secrets."""
        return submitter if submitter in self.submitter_secrets else ""

    def secrets_of(self, signer: str) -> Sequence[str]:
        """Return the secrets of a signer, newest first; empty if it has none."""
        return self.submitter_secrets.get(signer, ()) if signer else self.secrets

    @property
    def has_secrets(self) -> bool:
        """Whether any webhook can be signed."""
        return bool(self.secrets or self.submitter_secrets)

    def check_usable(self, submitter: str = "") -> None:
        """Raise `ConfigurationError` when no secret signs for the submitter, or a required package is missing."""
        self.check_signer(self.signer_of(submitter))

    def check_signer(self, signer: str) -> None:
        """Raise `ConfigurationError` when a signer has no secret here, or a required package is missing."""
        if not self.secrets_of(signer):
            raise ConfigurationError(
                f"onejob_webhook_submitter_secrets has no secret for {signer!r}"
                if signer
                else "webhooks need a signing secret: set app.conf.onejob_webhook_secrets = "
                "['whsec_...'], the base64 of 24 to 64 random bytes after whsec_"
            )
        missing = [name for name in PACKAGES if find_spec(name) is None]
        if missing:
            raise ConfigurationError(f'webhooks need {" and ".join(missing)}: pip install "onejob[webhooks]"')


def _check_secrets(setting: str, secrets: object) -> None:
    """Raise `ConfigurationError` for invalid secrets; its message contains none of them."""
    if not isinstance(secrets, list | tuple):
        raise ConfigurationError(f"{setting} must be a list, not a {type(secrets).__name__}")
    for number, secret in enumerate(secrets, start=1):
        encoded = secret.removeprefix(PREFIX) if isinstance(secret, str) and secret.startswith(PREFIX) else ""
        try:
            key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
        except ValueError:
            key = b""
        if len(key) not in KEY_BYTES:
            msg = f"entry {number} of {setting} must be 'whsec_' and the base64 of 24 to 64 random bytes"
            raise ConfigurationError(msg)


def check_url(url: object, settings: WebhookSettings) -> None:
    """Raise `InvalidArgumentsError` for a URL that the settings do not allow.

    A host name is not resolved here, except `localhost`: its addresses are checked in every attempt.
    """
    target = WebhookUrl.parse(url)
    is_local = f".{target.host.rstrip('.')}".endswith(".localhost")
    address = LOOPBACK[0] if is_local else parse_ip(target.host)
    if any(each and may_connect(each, target, settings) for each in (LOOPBACK if is_local else [address])):
        return
    if address is None and (settings.allow or settings.allows_port_of(target)):
        return
    if address is not None and not is_public(address):
        msg = "the webhook_url is an address that is not public, and onejob_webhook_allow does not include it"
        raise InvalidArgumentsError(msg)
    ports = ", ".join(map(str, settings.ports)) or "none"
    schemes = "https or http" if settings.allows_http else "https"
    msg = f"a webhook_url is {schemes} on port {ports} (onejob_webhook_ports), not {target.scheme} on {target.port}"
    raise InvalidArgumentsError(msg)


def may_connect(address: Address, target: WebhookUrl, settings: WebhookSettings) -> bool:
    """Return whether a webhook may connect to an address: it is in `allow`, or is public on an allowed port."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    is_allowed = any((mapped or address) in network for network in settings.networks)
    return is_allowed or (is_public(address) and settings.allows_port_of(target))
