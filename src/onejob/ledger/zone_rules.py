"""The time zone rules of hosts: zone files of different releases give different moments for one schedule.

So all workers choose the same set of rules, among the rules that live workers have registered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

from onejob.jobs.workers import WorkerInfo


class ZoneRules(NamedTuple):
    """The rules of one time zone on one host. They are ordered by preference: the newest is last."""

    version: str
    """The release of the zone files, such as `2026a`; "" if it is not known."""
    digest: str
    """The digest of the offsets in the years to come."""

    def __str__(self) -> str:
        """The release, if it is known, and the digest."""
        return f"{self.version} ({self.digest})" if self.version else self.digest

    def encode(self, zone: str) -> str:
        """Return the text that a worker registers."""
        return f"{zone} {self.digest} {self.version}".rstrip()

    @classmethod
    def decode(cls, text: str) -> tuple[str, Self]:
        """Return a zone and its rules from a text of `encode`."""
        zone, digest, version = (*text.split(), "", "")[:3]
        return zone, cls(version, digest)


def zones_of(texts: Iterable[str]) -> dict[str, ZoneRules]:
    """Return the rules of each zone that a worker has registered."""
    return dict(map(ZoneRules.decode, texts))


def outdated_zones(mine: Mapping[str, ZoneRules], workers: Iterable[WorkerInfo]) -> dict[str, ZoneRules]:
    """Return the zones whose ticks this host leaves to other hosts, with those hosts' rules.

    The other hosts have the newest rules of all live workers that run the schedule. Rules that no worker has registered
    yet, such as a starting worker's, do not count: no other worker knows them.
    """
    chosen: dict[str, ZoneRules] = {}
    for worker in workers:
        for zone, rules in zones_of(worker.zones).items() if worker.runs_schedule else ():
            chosen[zone] = max(rules, chosen.get(zone, rules))
    return {zone: chosen[zone] for zone, rules in mine.items() if chosen.get(zone, rules).digest != rules.digest}


def differing_zones(registered: Iterable[tuple[str, Iterable[str]]]) -> dict[str, dict[ZoneRules, list[str]]]:
    """Return the zones with several rules, each with the names of the hosts that have them, the newest rules first.

    `registered`: the texts that each host registers, by its name. Releases with an equal digest do not differ.
    """
    found: dict[str, dict[str, tuple[ZoneRules, list[str]]]] = {}
    for name, texts in registered:
        for zone, rules in zones_of(texts).items():
            found.setdefault(zone, {}).setdefault(rules.digest, (rules, []))[1].append(name)
    return {
        zone: dict(sorted(by_digest.values(), reverse=True))
        for zone, by_digest in sorted(found.items()) if len(by_digest) > 1
    }  # fmt: skip
