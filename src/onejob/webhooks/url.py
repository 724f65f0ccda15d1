"""The URL of a webhook: read in one way only, so that what is checked is what is connected to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from onejob.errors import InvalidArgumentsError
from onejob.webhooks.ip_policy import is_public, is_within, literal, unmapped

if TYPE_CHECKING:
    from onejob.webhooks.ip_policy import Address
    from onejob.webhooks.settings import WebhookSettings

URL_LIMIT = 2000
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<rest>(?:[/?][a-z0-9._~:/?\[\]@!$&'()*+,;=%-]*)?)",
    re.ASCII | re.IGNORECASE,
)
USUAL = {"http": 80, "https": 443}


class WebhookUrl(NamedTuple):
    """Where a webhook goes. `path` has the query, too."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: object) -> WebhookUrl:
        """Read a URL. Raises `InvalidArgumentsError`, which tells what is wrong and not the URL: it may be secret."""
        if not isinstance(url, str) or len(url) > URL_LIMIT:
            msg = f"a webhook_url is a text of at most {URL_LIMIT} characters"
            raise InvalidArgumentsError(msg)
        found = _URL.fullmatch(url)
        if found is None:
            msg = (
                "a webhook_url is https://HOST[:PORT][/PATH][?QUERY] in ASCII, without a user, a password or a "
                "fragment; write an international name in punycode, and anything else percent-encoded"
            )
            raise InvalidArgumentsError(msg)
        scheme, rest = found["scheme"].lower(), found["rest"]
        port = int(found["port"] or USUAL[scheme])
        return cls(scheme, found["host"].lower(), port, rest if rest.startswith("/") else f"/{rest}")


def check_url(url: object, settings: WebhookSettings) -> None:
    """Raise `InvalidArgumentsError` for a URL to which no webhook may be sent, as far as it shows by itself.

    What a name leads to is looked at when a webhook is sent, every time.
    """
    target = WebhookUrl.of(url)
    address = literal(target.host)
    if address is not None and may_connect(address, target, settings):
        return
    if address is None and (settings.allow or _usual(target, settings)):
        return
    if address is not None and not is_public(address):
        msg = "the webhook_url leads to an address that is not public, and onejob_webhook_allow does not have it"
        raise InvalidArgumentsError(msg)
    ports = ", ".join(map(str, settings.ports)) or "none"
    schemes = "https or http" if settings.plain else "https"
    msg = f"a webhook_url is {schemes} on port {ports} (onejob_webhook_ports), not {target.scheme} on {target.port}"
    raise InvalidArgumentsError(msg)


def may_connect(address: Address, target: WebhookUrl, settings: WebhookSettings) -> bool:
    """Tell whether a webhook may be sent to an address: allowed by name of its network, or public and as usual."""
    return is_within(unmapped(address), settings.networks) or (is_public(address) and _usual(target, settings))


def _usual(target: WebhookUrl, settings: WebhookSettings) -> bool:
    return target.port in settings.ports and (target.scheme == "https" or settings.plain)
