"""The settings of webhooks: `onejob_webhook_<name>` in Celery's configuration."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib.util import find_spec
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, Self

from onejob.errors import ConfigurationError
from onejob.jobs.policy import check_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.webhooks.ip_policy import Network

SCHEDULE = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Seconds between a failed attempt and the next one; the schedule that Standard Webhooks recommends."""
PREFIX = "whsec_"
KEY_BYTES = range(24, 65)
PORTS = range(1, 65_536)
PACKAGES = ("httpcore2", "standardwebhooks")


@dataclass(frozen=True, kw_only=True)
class WebhookSettings:
    """How webhooks are signed, which hosts and ports they may connect to, and how they are retried."""

    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Signing secrets, each `whsec_` and base64. Every secret signs, so that secrets can be rotated."""
    submitter_secrets: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)
    """By submitter (or name of an API key), the secrets that sign the webhooks it asks for, instead of `secrets`."""
    source: str = ""
    """The CloudEvents attribute `source`."""
    ports: tuple[int, ...] = (443,)
    """Allowed ports; plain `http` is allowed only when 80 is one of them."""
    allow: tuple[str, ...] = ()
    """Networks (CIDR) that are allowed although they are not public, on any port, also over plain `http`."""
    schedule: tuple[float, ...] = SCHEDULE
    """Seconds between a failed attempt and the next one; after the last the webhook is a dead letter."""

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
                msg = f"onejob_webhook_ports has {port!r}; a port is an integer from 1 to 65535"
                raise ConfigurationError(msg)
        for seconds in self.schedule:
            check_seconds("each entry of onejob_webhook_schedule", seconds, zero=True)
        if not isinstance(self.source, str) or not self.source.isprintable() or " " in self.source:
            msg = f"onejob_webhook_source={self.source!r} must be a URI without spaces, e.g. https://shop.example/jobs"
            raise ConfigurationError(msg)
        _ = self.networks

    @classmethod
    def from_mapping(cls, conf: Mapping[str, Any], *, namespace: str) -> Self:
        """Read Celery's configuration. Raises `ConfigurationError` for an invalid value."""
        values = {field.name: conf.get(f"onejob_webhook_{field.name}") for field in fields(cls)}
        values["source"] = values["source"] or f"urn:onejob:{namespace}"
        return cls(**{name: _as_tuple(name, value) for name, value in values.items() if value is not None})

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

    def signer_of(self, submitter: str) -> str:
        """Return the name whose secrets sign the webhooks of a submitter: its own, or "" for those of the app."""
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
        if not self.secrets_of(self.signer_of(submitter)):
            msg = (
                "webhooks need a signing secret: set app.conf.onejob_webhook_secrets = "
                "['whsec_...'], the base64 of 24 to 64 random bytes after whsec_"
            )
            raise ConfigurationError(msg)
        missing = [name for name in PACKAGES if find_spec(name) is None]
        if missing:
            msg = f'webhooks need {" and ".join(missing)}: pip install "onejob[webhooks]"'
            raise ConfigurationError(msg)


def _as_tuple(name: str, value: Any) -> Any:
    if name in {"source", "submitter_secrets"}:
        return value
    if isinstance(value, list | tuple):
        return tuple(value)
    msg = f"onejob_webhook_{name} must be a list, not a {type(value).__name__}"
    raise ConfigurationError(msg)


def _check_secrets(setting: str, secrets: object) -> None:
    """Raise `ConfigurationError` unless these are valid secrets; its message contains none of them."""
    if not isinstance(secrets, list | tuple):
        msg = f"{setting} must be a list, not a {type(secrets).__name__}"
        raise ConfigurationError(msg)
    for number, secret in enumerate(secrets, start=1):
        if not _is_secret(secret):
            msg = f"entry {number} of {setting} must be 'whsec_' and the base64 of 24 to 64 random bytes"
            raise ConfigurationError(msg)


def _is_secret(secret: object) -> bool:
    encoded = secret.removeprefix(PREFIX) if isinstance(secret, str) and secret.startswith(PREFIX) else ""
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        return False
    return len(key) in KEY_BYTES
