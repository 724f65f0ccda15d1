"""The amounts that stores add to metrics, in buckets of a minute or of an hour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from onejob.jobs.durations import DAY


class Period(StrEnum):
    """How metrics are grouped by time: in buckets of a minute or of an hour."""

    MINUTE = "minute"
    HOUR = "hour"

    @property
    def seconds(self) -> int:
        """The length of a bucket, which begins at a multiple of it since the epoch."""
        return 60 if self is Period.MINUTE else 3600

    @property
    def kept_for(self) -> float:
        """For how many seconds after its begin a bucket is kept."""
        return 7200.0 if self is Period.MINUTE else 8 * DAY


@dataclass(frozen=True, slots=True)
class Bucket:
    """The amounts that were added to metrics in one bucket of a period, by the metrics' names."""

    start: float
    """When the bucket begins."""
    amounts: dict[str, float]


NO_AMOUNTS: Mapping[str, float] = MappingProxyType({})
"""No amounts to add."""
