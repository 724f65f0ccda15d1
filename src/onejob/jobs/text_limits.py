"""The limits of the JSON texts that jobs have."""

from __future__ import annotations

from dataclasses import dataclass

from onejob.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class TextLimits:
    """The maximum `size` of a canonical text (bytes of UTF-8), and the maximum nesting `depth` of its containers.

    Raises ConfigurationError unless both are integers of at least 1.
    """

    size: int = 256 * 1024
    depth: int = 64

    def __post_init__(self) -> None:
        for name in ("size", "depth"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"TextLimits.{name} must be an integer of at least 1, got {value!r}")
