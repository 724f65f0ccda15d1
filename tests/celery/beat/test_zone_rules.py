"""Which time zone rules the workers agree on, and what of them differs."""

from dataclasses import replace
from datetime import UTC
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

from onejob.celery.beat.zone_rules import ZoneAgreement, rules_by_zone
from onejob.health.zones import check_zones
from onejob.jobs.workers import WorkerInfo
from onejob.ledger.zone_rules import ZoneRules, differing_zones, outdated_zones

WEST = "America/Vancouver"
OLD, NEW, UNKNOWN, NEWER = (
    ZoneRules("2025b", "ff"),
    ZoneRules("2026f", "11"),
    ZoneRules("", "aa"),
    ZoneRules("2026g", "11"),
)


def worker(name: str, *rules: ZoneRules, zone: str = WEST, ticks: bool = True) -> WorkerInfo:
    return WorkerInfo(name, 1.0, runs_schedule=ticks, zones=tuple(each.encode(zone) for each in rules))


def test_rules_are_registered_as_text() -> None:
    """What a worker registers is read again, with and without a release."""
    for rules in (OLD, UNKNOWN):
        assert ZoneRules.decode(rules.encode(WEST)) == (WEST, rules)
    assert (str(OLD), str(UNKNOWN)) == ("2025b (ff)", "aa")


def test_the_newest_registered_rules_tick() -> None:
    """A host leaves a zone to live workers with newer rules that run the schedule, and to no other."""
    old, new = worker("a", OLD), worker("b", NEW)
    mine, theirs = {WEST: OLD}, {WEST: NEW}
    assert outdated_zones(mine, [old, new]) == theirs
    assert outdated_zones(theirs, [old, new]) == {}
    assert outdated_zones({WEST: NEWER}, [old, new]) == {}  # another release with the same rules
    assert outdated_zones({WEST: UNKNOWN}, [old]) == mine
    assert outdated_zones({"Europe/Berlin": OLD}, [old, new]) == {}
    for others in ([], [old], [old, worker("b", NEW, ticks=False)], [old, worker("b", NEW, zone="Asia/Tokyo")]):
        assert outdated_zones(mine, others) == {}


def test_rules_that_nobody_has_seen_yet_wait() -> None:
    """A worker that starts with newer rules leaves the zone to the others until it is registered."""
    assert outdated_zones({WEST: NEW}, [worker("a", OLD)]) == {WEST: OLD}


def test_an_entry_is_left_to_no_worker_that_has_another_version_of_it() -> None:
    """A worker with the newer version of an entry and older zone files ticks: the other one leaves the entry to it."""
    west, agreement = ZoneInfo(WEST), ZoneAgreement()
    newest = max(rules_by_zone([west])[WEST], NEW)
    others: Any = SimpleNamespace(
        workers=lambda: [replace(worker("b", ZoneRules("9999z", newest.digest * 2)), schedules=("former",))]
    )
    entries = {"changed": (west, "newer"), "equal": (west, "former"), "row": (west, ""), "utc": (UTC, "former")}
    assert agreement.entries_for_others(others, entries) == {"equal", "row"}


def test_hosts_with_different_rules_are_named() -> None:
    """A zone with several rules is found, with the hosts that have each, the newest first; equal ones are none."""
    hosts = [("a", OLD), ("b", NEW), ("c", OLD), ("d", NEWER)]
    registered = [(name, [rules.encode(WEST), ZoneRules("", "7").encode("Asia/Gaza")]) for name, rules in hosts]
    assert differing_zones(registered) == {WEST: {NEW: ["b", "d"], OLD: ["a", "c"]}}
    (finding,) = check_zones(registered)
    assert finding.check == "zone-rules"
    assert finding.problem == f"{WEST}: 2026f (11) on b, d, 2025b (ff) on a, c"
    assert [*check_zones([("b", [NEW.encode(WEST)]), ("d", [NEWER.encode(WEST)])])] == []
