"""Compares the time zone rules of this process with other workers', and leaves entries to workers with newer rules."""

from __future__ import annotations

import time
import zoneinfo
from collections.abc import Collection, Iterable, Mapping
from datetime import tzinfo
from functools import cache
from importlib import import_module
from pathlib import Path

from celery import Celery

from onejob.celery.submission.options import tasks_of
from onejob.jobs.zones import LOCAL, name_of, rules_of
from onejob.ledger.ledger import Ledger
from onejob.ledger.zone_rules import ZoneRules, differing_zones, outdated_zones
from onejob.observability.logs import log_warning


def rules_by_zone(zones: Iterable[tzinfo | None]) -> dict[str, ZoneRules]:
    """Return the rules of zones by their names, without zones whose offset never changes."""
    now, found = time.time(), dict[str, ZoneRules]()
    for zone in zones:
        if digest := rules_of(zone, now):
            found[name_of(zone)] = ZoneRules(_release_of(name_of(zone), zoneinfo.TZPATH), digest)
    return found


def window_zones(app: Celery) -> Iterable[tzinfo]:
    """Return the zones of the uniqueness windows of an app's tasks."""
    windows = (task._onejob.window for task in tasks_of(app).values())
    return [window.zone for window in windows if window is not None]


def registered_zones(app: Celery, of_schedule: Mapping[str, ZoneRules]) -> tuple[str, ...]:
    """Return the rules that a worker registers, encoded and sorted: of its windows' zones and of its schedule's."""
    found = {**rules_by_zone(window_zones(app)), **of_schedule}
    return tuple(sorted(rules.encode(zone) for zone, rules in found.items()))


class ZoneAgreement:
    """The agreement of workers about zone files: a process leaves entries to the workers with the newest files."""

    def __init__(self) -> None:
        self.rules: dict[str, ZoneRules] = {}
        """The rules, by zone, of the entries that were read last."""
        self._warned: dict[str, ZoneRules] = {}

    def entries_for_others(self, ledger: Ledger, entries: Mapping[str, tuple[tzinfo | None, str]]) -> Collection[str]:
        """Return the names of the entries whose ticks other workers submit, since those workers have newer rules.

        `entries`: by name, the time zone of each, and its `schedule_digest`; "" for an entry without versions. Only a
        worker with the same version of an entry can tick in place of this process.
        """
        self.rules = rules_by_zone(zone for zone, _ in entries.values())
        workers, found, outdated = ledger.workers() if self.rules else [], set[str](), dict[str, ZoneRules]()
        disputed = set(differing_zones([("", self._encoded()), *((each.name, each.zones) for each in workers)]))
        for name, (entry_zone, digest) in entries.items():
            zone = name_of(entry_zone)
            if zone in self.rules and zone in disputed:
                peers = [worker for worker in workers if not digest or digest in worker.schedules]
                theirs = outdated_zones({zone: self.rules[zone]}, peers)
                outdated |= theirs
                found |= {name for _ in theirs}
        self._warn(outdated)
        return found

    def _encoded(self) -> list[str]:
        return [rules.encode(zone) for zone, rules in self.rules.items()]

    def _warn(self, outdated: Mapping[str, ZoneRules]) -> None:
        for zone, rules in outdated.items():
            if rules > self.rules[zone] and self._warned.get(zone) != rules:
                log_warning(
                    "the schedule entries in %s are left to workers with newer time zone files: %s, here %s",
                    zone, rules, self.rules[zone],
                )  # fmt: skip
        self._warned = {**outdated}


@cache
def _release_of(zone: str, folders: tuple[str, ...]) -> str:
    """Return the release of the files from which Python reads a zone; "" if it is not known."""
    if zone == LOCAL:
        return ""
    for folder in map(Path, folders):
        if (folder / zone).is_file():
            return _release_in(folder)
    try:
        return str(import_module("tzdata").IANA_VERSION)
    except ImportError:
        return ""


def _release_in(folder: Path) -> str:
    """Return the release that a folder of zone files names: in the source file, or in a separate file."""
    try:
        with (folder / "tzdata.zi").open(encoding="utf-8") as source:
            first, _, release = source.readline().rpartition(" ")
        return release.strip() if first == "# version" else ""
    except OSError:
        pass
    try:
        return (folder / "+VERSION").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
