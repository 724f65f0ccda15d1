"""Limits and retention periods of the ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from onejob.errors import ConfigurationError
from onejob.jobs.lifecycle import State

DAY = 86_400.0
RETENTION: Mapping[State, float] = {State.COMPLETED: DAY, State.CANCELED: DAY, State.FAILED: 14 * DAY}
"""Default seconds for which ended jobs are kept."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits and retention periods of the ledger. Times in seconds."""

    crash_limit: int = 3
    """After this many crashed runs a job becomes a dead letter."""
    publish_limit: int = 8
    """After this many attempts, none of which could send its message, a queued job becomes a dead letter."""
    retention: Mapping[State, float] = field(default_factory=lambda: dict(RETENTION))
    """How long a job is kept after its end, by final state."""
    tombstone_retention: float = 7 * DAY
    """How long the tombstone of a purged job is kept; 0: no tombstones."""
    hold: float = 5.0
    """How long a sweeper may hold the due jobs it took before another sweeper may take them."""

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` for an invalid value."""
        if self.crash_limit < 1 or self.publish_limit < 1:
            msg = f"crash_limit={self.crash_limit} and publish_limit={self.publish_limit} must be at least 1"
            raise ConfigurationError(msg)
        check_seconds("tombstone_retention", self.tombstone_retention, zero=True)
        times = {"hold": self.hold, **{f"retention of {s}": t for s, t in self.retention.items()}}
        for name, seconds in times.items():
            check_seconds(name, seconds)


@dataclass(frozen=True, slots=True)
class Limits:
    """The maximum `size` of a canonical text (bytes of UTF-8), and the maximum nesting `depth` of its containers.

    Raises ConfigurationError unless both are integers of at least 1.
    """

    size: int = 256 * 1024
    depth: int = 64

    def __post_init__(self) -> None:
        for name in ("size", "depth"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"Limits.{name} must be an integer of at least 1, got {value!r}")


def check_seconds(name: str, value: object, *, zero: bool = False) -> None:
    """Raise `ConfigurationError` unless `value` is a positive, finite number; `zero` allows 0, too."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and not zero):  # type: ignore[operator]
        raise ConfigurationError(f"{name} must be a {'' if zero else 'positive '}number of seconds, not {value!r}")
