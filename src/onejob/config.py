"""Settings to ledger: the only place where one is built from the other."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from onejob.canonical import Limits
from onejob.errors import ConfigurationError
from onejob.ledger import Ledger, Policy
from onejob.stores import SCHEMES, open_store, scheme_of

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a team may set, as `onejob_<name>` in Celery's configuration. Times in seconds, sizes in bytes."""

    store: str = ""
    """URL of the ledger's store; empty: the result backend or the broker, when a ledger can live there."""
    lease: float = 30.0
    """How long a run stays valid without a sign of life."""
    heartbeat: float = 10.0
    """How often a worker's parent process renews the leases of its runs."""
    sweep: float = 1.0
    """How often a worker looks for jobs that are due, lost or old."""
    key_prefix: str = "onejob"
    """Namespace of the ledger's keys in a Redis that others use too."""
    crash_limit: int = 3
    """A job that has killed this many workers fails as a dead letter."""
    shutdown_grace: float = 0.0
    """How long runs may go on after SIGTERM before the worker ends them and hands them back."""
    publish_timeout: float = 2.0
    """How long a submission waits for the broker; past it the sweeper publishes."""
    payload_limit: int = 256 * 1024
    depth_limit: int = 64

    def __post_init__(self) -> None:
        """Refuse values that cannot work, with `ConfigurationError`."""
        for name in ("lease", "heartbeat", "sweep", "publish_timeout"):
            check_seconds(f"onejob_{name}", getattr(self, name))
        check_seconds("onejob_shutdown_grace", self.shutdown_grace, zero=True)
        check_lease(self.lease, self.heartbeat)
        if not self.key_prefix or any(c in self.key_prefix for c in "{} \n\t*?[]"):
            msg = f"onejob_key_prefix={self.key_prefix!r} must be a plain name without spaces, braces or wildcards"
            raise ConfigurationError(msg)

    @classmethod
    def from_mapping(cls, conf: Mapping[str, Any]) -> Self:
        """Read Celery's configuration. Raises `ConfigurationError` for a value that cannot work."""
        given = {name: conf.get(f"onejob_{name}") for name in NAMES}
        given["store"] = given["store"] or _default_store(conf)
        return cls(**{name: value for name, value in given.items() if value is not None})

    @property
    def limits(self) -> Limits:
        """How large and how deep arguments and results may be."""
        return Limits(size=self.payload_limit, depth=self.depth_limit)


NAMES = tuple(f.name for f in fields(Settings))


def check_seconds(name: str, value: object, *, zero: bool = False) -> None:
    """Raise `ConfigurationError` unless `value` is a positive finite number (or zero, if allowed)."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and not zero):  # type: ignore[operator]
        msg = f"{name} must be a {'' if zero else 'positive '}number of seconds, not {value!r}"
        raise ConfigurationError(msg)


def check_lease(lease: float, heartbeat: float) -> None:
    """Raise `ConfigurationError` when one missed heartbeat would lose a lease."""
    if lease < 2 * heartbeat:
        msg = (
            f"a lease of {lease:g} s does not survive one missed heartbeat of {heartbeat:g} s: "
            f"make onejob_lease at least {2 * heartbeat:g}, or onejob_heartbeat at most {lease / 2:g}"
        )
        raise ConfigurationError(msg)


def build_ledger(settings: Settings) -> Ledger:
    """Return the ledger that `settings` describe. Raises `ConfigurationError` when they name no store."""
    if not settings.store:
        msg = (
            "onejob has no store for its ledger: neither the result backend nor the broker is one. "
            "Set app.conf.onejob_store, for example to 'sqlite:///onejob.db' or 'redis://localhost:6379/0'"
        )
        raise ConfigurationError(msg)
    store = open_store(settings.store, prefix=settings.key_prefix)
    return Ledger(store, Policy(crash_limit=settings.crash_limit))


def _default_store(conf: Mapping[str, Any]) -> str:
    candidates = [conf.get("result_backend"), conf.get("broker_write_url") or conf.get("broker_url")]
    usable = (url for url in candidates if isinstance(url, str) and scheme_of(url) in SCHEMES and ";" not in url)
    return next(usable, "")
