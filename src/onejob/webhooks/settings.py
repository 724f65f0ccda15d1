"""What a team may set about webhooks, as `onejob_webhook_<name>` in Celery's configuration."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib.util import find_spec
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, Self

from onejob.errors import ConfigurationError
from onejob.jobs.policy import check_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onejob.webhooks.ip_policy import Network

SCHEDULE = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Seconds after each attempt that failed until the next one, as Standard Webhooks proposes."""
PREFIX = "whsec_"
KEY_BYTES = range(24, 65)
PORTS = range(1, 65_536)
PACKAGES = ("httpcore2", "standardwebhooks")


@dataclass(frozen=True, kw_only=True)
class WebhookSettings:
    """How webhooks are signed, where they may go, and how patiently they are tried."""

    secrets: tuple[str, ...] = field(default=(), repr=False)
    """The keys that sign, each as `whsec_` and base64; every one of them signs, so that receivers can change over."""
    source: str = ""
    """The `source` of the events."""
    ports: tuple[int, ...] = (443,)
    """The ports that may be connected to; without encryption only when 80 is one of them."""
    allow: tuple[str, ...] = ()
    """Networks that may be connected to although they are not public, on any port, also without encryption."""
    schedule: tuple[float, ...] = SCHEDULE
    """Seconds after each attempt that failed until the next one; after the last the webhook is a dead letter."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work, with `ConfigurationError`."""
        for number, secret in enumerate(self.secrets, start=1):
            _check_secret(number, secret)
        for port in self.ports:
            if isinstance(port, bool) or not isinstance(port, int) or port not in PORTS:
                msg = f"onejob_webhook_ports has {port!r}; a port is a whole number from 1 to 65535"
                raise ConfigurationError(msg)
        for seconds in self.schedule:
            check_seconds("each entry of onejob_webhook_schedule", seconds, zero=True)
        if not isinstance(self.source, str) or not self.source.isprintable() or " " in self.source:
            msg = f"onejob_webhook_source={self.source!r} must be a URI without spaces, e.g. https://shop.example/jobs"
            raise ConfigurationError(msg)
        _ = self.networks

    @classmethod
    def from_mapping(cls, conf: Mapping[str, Any], *, namespace: str) -> Self:
        """Read Celery's configuration. Raises `ConfigurationError` for a value that cannot work."""
        given = {each.name: conf.get(f"onejob_webhook_{each.name}") for each in fields(cls)}
        given["source"] = given["source"] or f"urn:onejob:{namespace}"
        return cls(**{name: _as_tuple(name, value) for name, value in given.items() if value is not None})

    @cached_property
    def networks(self) -> tuple[Network, ...]:
        """The networks of `allow`."""
        try:
            return tuple(ip_network(network) for network in self.allow)
        except ValueError as error:
            msg = f"onejob_webhook_allow={list(self.allow)!r} must be networks such as '192.0.2.0/24': {error}"
            raise ConfigurationError(msg) from error

    @property
    def plain(self) -> bool:
        """Whether webhooks may be sent without encryption."""
        return 80 in self.ports  # noqa: PLR2004 - the port of http

    def check_usable(self) -> None:
        """Raise `ConfigurationError` when no webhook could be signed or sent."""
        if not self.secrets:
            msg = (
                "webhooks are signed, and there is no secret to sign with: set app.conf.onejob_webhook_secrets = "
                "['whsec_...'], the base64 of 24 to 64 random bytes after whsec_"
            )
            raise ConfigurationError(msg)
        missing = [name for name in PACKAGES if find_spec(name) is None]
        if missing:
            msg = f'webhooks need {" and ".join(missing)}: pip install "onejob[webhooks]"'
            raise ConfigurationError(msg)


def _as_tuple(name: str, value: Any) -> Any:
    if name == "source":
        return value
    if isinstance(value, list | tuple):
        return tuple(value)
    msg = f"onejob_webhook_{name} must be a list, not a {type(value).__name__}"
    raise ConfigurationError(msg)


def _check_secret(number: int, secret: object) -> None:
    """Raise `ConfigurationError`, which does not tell it, for what is no secret."""
    encoded = secret.removeprefix(PREFIX) if isinstance(secret, str) and secret.startswith(PREFIX) else ""
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        key = b""
    if len(key) not in KEY_BYTES:
        msg = f"entry {number} of onejob_webhook_secrets must be 'whsec_' and the base64 of 24 to 64 random bytes"
        raise ConfigurationError(msg)
