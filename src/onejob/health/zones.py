"""Checks of the hosts' time zone rules: all hosts must compute the same moments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onejob.health.finding import Check, Finding, Level, names_text
from onejob.ledger.zone_rules import differing_zones

# fmt: off
ZONES = Check("zone-rules", "workers", Level.WARNING,
    when="live workers, or the host of the doctor, have different rules for a time zone of a schedule or of a window",
    meaning="one local time is two moments: only the workers with the newest rules submit the ticks of schedules in "
    "this zone, and a window ends when the submitter's host says, so that two jobs may be admitted in one day",
    remedy="install one release of the time zone files on all hosts: update the system's package `tzdata`, which comes "
    "before Python's package of that name, or set PYTHONTZPATH to nothing and pin the latter; then restart the "
    "workers")
# fmt: on


def check_zones(registered: Iterable[tuple[str, Iterable[str]]]) -> Iterator[Finding]:
    """Yield a finding for each zone of which hosts have different rules.

    `registered`: each node's rules, by its name.
    """
    for zone, by_rules in differing_zones(registered).items():
        hosts = ", ".join(f"{rules} on {names_text(names)}" for rules, names in by_rules.items())
        yield ZONES.found(f"{zone}: {hosts}")
