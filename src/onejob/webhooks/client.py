"""The HTTP client for webhooks: one POST per attempt, without redirects, cookies or proxies, under one deadline."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING

import httpcore2

from onejob.webhooks.transport import Deadline, ForbiddenAddressError, RestrictedBackend
from onejob.webhooks.url import WebhookUrl, may_connect

if TYPE_CHECKING:
    from onejob.webhooks.cloudevent import Headers
    from onejob.webhooks.settings import WebhookSettings

TOTAL_SECONDS = 10.0
"""Limit for one attempt, from the DNS lookup to the end of the response."""
CONNECT_SECONDS = 5.0
"""Limit for the DNS lookup and the TCP connection, within `TOTAL_SECONDS`."""
EXCERPT_LIMIT = 100
"""Characters of the response body that are kept when an attempt fails."""
SUCCESS = range(200, 300)
HEADER_LIMIT = 100
MAX_RETRY_AFTER = 86_400.0


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    """The response of a receiver."""

    status: int
    retry_after: float = 0.0
    """Seconds, from the header `Retry-After`; 0 without one."""
    excerpt: str = ""
    """The beginning of the body, unless the attempt succeeded."""

    @property
    def ok(self) -> bool:
        """Whether the receiver accepted the event: any 2xx status."""
        return self.status in SUCCESS


class DeliveryError(Exception):
    """An attempt got no response; the message says why."""


class WebhookClient:
    """Sends to the addresses that the settings allow. `tls` replaces the default context, e.g. for a private CA."""

    def __init__(self, settings: WebhookSettings, tls: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._tls = tls or httpcore2.default_ssl_context()

    def send(
        self, url: str, body: bytes, headers: Headers, *, seconds: float = TOTAL_SECONDS, submitter: str = ""
    ) -> WebhookResponse:
        """Make one attempt within `seconds`; `submitter` is who named the URL, and shares the DNS lookups with others.

        Raises `DeliveryError`, `InvalidArgumentsError` for an invalid URL, and `LookupBusyError` if nothing was sent
        because too many lookups hang.
        """
        target, deadline = WebhookUrl.parse(url), Deadline(seconds)
        is_allowed = partial(may_connect, target=target, settings=self._settings)
        backend = RestrictedBackend(is_allowed, deadline, CONNECT_SECONDS, submitter)
        try:
            with httpcore2.ConnectionPool(ssl_context=self._tls, network_backend=backend, max_connections=1) as pool:
                return _post(pool, target, body, headers)
        except ForbiddenAddressError:
            msg = f"{target.host} resolves to an address, or uses a port, that webhooks may not connect to"
            raise DeliveryError(msg) from None
        except TimeoutError:
            msg = f"{target.host} did not answer within {seconds:g} s"
            raise DeliveryError(msg) from None
        except ssl.SSLError as error:
            msg = f"TLS with {target.host} failed: {error.reason or error}"
            raise DeliveryError(msg) from None
        except OSError as error:
            msg = f"{target.host} cannot be reached: {error.strerror or error}"
            raise DeliveryError(msg) from None
        except httpcore2.NetworkError as error:
            msg = f"{target.host} closed the connection: {error}"
            raise DeliveryError(msg) from None
        except httpcore2.ProtocolError as error:
            msg = f"{target.host} sent an invalid HTTP response: {str(error)[:EXCERPT_LIMIT]}"
            raise DeliveryError(msg) from None


def _post(pool: httpcore2.ConnectionPool, target: WebhookUrl, body: bytes, headers: Headers) -> WebhookResponse:
    url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
    with pool.stream("POST", url, headers=headers, content=body) as response:
        status = response.status
        if status in SUCCESS:
            return WebhookResponse(status)  # without reading the body
        fields = {name.lower(): value for name, value in response.headers}
        return WebhookResponse(status, parse_retry_after(fields.get(b"retry-after", b"")), _read_excerpt(response))


def _read_excerpt(response: httpcore2.Response) -> str:
    """Return the beginning of the body, up to the deadline or an error, as one printable line."""
    read = b""
    try:
        for part in response.iter_stream():
            read += part
            if len(read) >= 4 * EXCERPT_LIMIT:
                break
    except (httpcore2.ProtocolError, httpcore2.NetworkError, OSError):
        pass
    words = read[: 4 * EXCERPT_LIMIT].decode(errors="replace").split()
    return "".join(c if c.isprintable() else "?" for c in " ".join(words))[:EXCERPT_LIMIT]


def parse_retry_after(header: bytes) -> float:
    """Return the seconds of a `Retry-After` (RFC 9110: a number or a date), a day at most; 0 for an invalid one."""
    text = header[:HEADER_LIMIT].decode("latin-1").strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:10]), MAX_RETRY_AFTER)
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return min(max((date - datetime.now(UTC)).total_seconds(), 0.0), MAX_RETRY_AFTER)
