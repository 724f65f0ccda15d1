"""URLs of webhooks, parsed strictly and by one parser, so that the host that is checked is the host that is used."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from onejob.errors import InvalidArgumentsError
from onejob.webhooks.ip_policy import is_public, is_within, parse_ip, unmap

if TYPE_CHECKING:
    from onejob.webhooks.ip_policy import Address
    from onejob.webhooks.settings import WebhookSettings

URL_LIMIT = 2000
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
    def parse(cls, url: object) -> WebhookUrl:
        """Parse a URL. Raises `InvalidArgumentsError`, whose message omits the URL, because it may contain a secret."""
        if not isinstance(url, str) or len(url) > URL_LIMIT:
            msg = f"a webhook_url is a string of at most {URL_LIMIT} characters"
            raise InvalidArgumentsError(msg)
        match = _URL.fullmatch(url)
        if match is None:
            msg = (
                "a webhook_url is https://HOST[:PORT][/PATH][?QUERY] in ASCII, without a user, a password or a "
                "fragment; write an international name in punycode, and anything else percent-encoded"
            )
            raise InvalidArgumentsError(msg)
        scheme, rest = match["scheme"].lower(), match["rest"]
        port = int(match["port"] or DEFAULT_PORTS[scheme])
        return cls(scheme, match["host"].lower(), port, rest if rest.startswith("/") else f"/{rest}")


def check_url(url: object, settings: WebhookSettings) -> None:
    """Raise `InvalidArgumentsError` for a URL that the settings do not allow.

    A host name is not resolved here, except `localhost`: its addresses are checked in every attempt.
    """
    target = WebhookUrl.parse(url)
    is_local = f".{target.host.rstrip('.')}".endswith(".localhost")
    address = LOOPBACK[0] if is_local else parse_ip(target.host)
    addresses = LOOPBACK if is_local else [address]
    if any(each is not None and may_connect(each, target, settings) for each in addresses):
        return
    if address is None and (settings.allow or _is_allowed_port(target, settings)):
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
    return is_within(unmap(address), settings.networks) or (is_public(address) and _is_allowed_port(target, settings))


def _is_allowed_port(target: WebhookUrl, settings: WebhookSettings) -> bool:
    return target.port in settings.ports and (target.scheme == "https" or settings.allows_http)
