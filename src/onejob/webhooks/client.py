"""One attempt to tell a webhook: one POST, without redirects, cookies or proxies, before one deadline."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING

import httpcore2

from onejob.webhooks.transport import Deadline, ForbiddenAddressError, GuardedNetwork
from onejob.webhooks.url import WebhookUrl, may_connect

if TYPE_CHECKING:
    from onejob.webhooks.cloudevent import Headers
    from onejob.webhooks.settings import WebhookSettings

TOTAL_SECONDS = 10.0
"""How long one attempt may take, from the look-up of the name to the end of the answer."""
CONNECT_SECONDS = 5.0
"""How much of that may pass until there is a connection."""
EXCERPT = 100
"""How many characters are kept of the answer to an attempt that failed."""
GOOD = range(200, 300)
HEADER_LIMIT = 100
LONGEST_WAIT = 86_400.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver answered."""

    status: int
    retry_after: float = 0.0
    """For how many seconds it asks not to be asked again."""
    excerpt: str = ""
    """The beginning of what it says about its refusal."""

    @property
    def good(self) -> bool:
        """Whether the receiver has taken the event."""
        return self.status in GOOD


class NotSentError(Exception):
    """No answer came of an attempt; the text says why."""


class WebhookClient:
    """Sends to where the settings allow. `tls` replaces the system's certificates."""

    def __init__(self, settings: WebhookSettings, tls: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._tls = tls or httpcore2.default_ssl_context()

    def send(self, url: str, body: bytes, headers: Headers, *, seconds: float = TOTAL_SECONDS) -> Answer:
        """Make one attempt. Raises `NotSentError`, and `InvalidArgumentsError` for what is no URL."""
        target, deadline = WebhookUrl.of(url), Deadline(seconds)
        permits = partial(may_connect, target=target, settings=self._settings)
        network = GuardedNetwork(permits, deadline, CONNECT_SECONDS)
        try:
            with httpcore2.ConnectionPool(ssl_context=self._tls, network_backend=network, max_connections=1) as pool:
                return _post(pool, target, body, headers)
        except ForbiddenAddressError:
            msg = f"{target.host} leads to an address, or a port, that webhooks may not be sent to"
            raise NotSentError(msg) from None
        except TimeoutError:
            msg = f"{target.host} did not answer within {seconds:g} s"
            raise NotSentError(msg) from None
        except ssl.SSLError as error:
            msg = f"{target.host} cannot be spoken to securely: {error.reason or error}"
            raise NotSentError(msg) from None
        except OSError as error:
            msg = f"{target.host} cannot be reached: {error.strerror or error}"
            raise NotSentError(msg) from None
        except httpcore2.NetworkError as error:
            msg = f"{target.host} closed the connection: {error}"
            raise NotSentError(msg) from None
        except httpcore2.ProtocolError as error:
            msg = f"{target.host} does not speak HTTP as it should: {str(error)[:EXCERPT]}"
            raise NotSentError(msg) from None


def _post(pool: httpcore2.ConnectionPool, target: WebhookUrl, body: bytes, headers: Headers) -> Answer:
    url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
    with pool.stream("POST", url, headers=headers, content=body) as response:
        status = response.status
        if status in GOOD:
            return Answer(status)  # what it says besides is not read
        found = {name.lower(): value for name, value in response.headers}
        return Answer(status, seconds_of(found.get(b"retry-after", b"")), _excerpt(response))


def _excerpt(response: httpcore2.Response) -> str:
    """Return the beginning of an answer, as far as it comes in time, in one printable line."""
    read = b""
    try:
        for part in response.iter_stream():
            read += part
            if len(read) >= 4 * EXCERPT:
                break
    except (httpcore2.ProtocolError, httpcore2.NetworkError, OSError):
        pass
    words = read[: 4 * EXCERPT].decode(errors="replace").split()
    return "".join(c if c.isprintable() else "?" for c in " ".join(words))[:EXCERPT]


def seconds_of(header: bytes) -> float:
    """Return the seconds of a `Retry-After`, a number or a date; 0 when it says nothing that can be read."""
    text = header[:HEADER_LIMIT].decode("latin-1").strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:10]), LONGEST_WAIT)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(max((at - datetime.now(UTC)).total_seconds(), 0.0), LONGEST_WAIT)
