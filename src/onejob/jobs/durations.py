"""Durations in seconds: a day, and the check of a given duration."""

from __future__ import annotations

import math

from onejob.errors import ConfigurationError

DAY = 86_400.0


def check_seconds(name: str, value: object, *, zero: bool = False) -> None:
    """Raise `ConfigurationError` unless `value` is a positive, finite number; `zero` allows 0, too."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and not zero):  # type: ignore[operator]
        raise ConfigurationError(f"{name} must be a {'' if zero else 'positive '}number of seconds, not {value!r}")
