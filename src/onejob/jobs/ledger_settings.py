"""The settings of a ledger: its limits, and how long it keeps rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onejob.errors import ConfigurationError
from onejob.jobs.durations import DAY, check_seconds
from onejob.jobs.lifecycle import State

RETENTION: Mapping[State, float] = {State.COMPLETED: DAY, State.CANCELED: DAY, State.FAILED: 14 * DAY}
"""Default seconds for which ended jobs are kept."""


@dataclass(frozen=True, slots=True)
class LedgerSettings:
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
