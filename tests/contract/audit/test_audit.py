"""The audit log: bounded by number and age, newest first, the same on every store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onejob.jobs.records import ACCESS, AuditEntry
from tests.contract.processes import race

if TYPE_CHECKING:
    from onejob.stores.protocol import Store
    from tests.contract.processes import Seat
    from tests.contract.support import ManualClock, StoreAddress

KEEP, KEEP_FOR = 5, 100.0
APPENDED = 10


def entry(number: int) -> AuditEntry:
    """Return an entry that differs from the others by its target."""
    return AuditEntry(actor="ops", source="http", address="192.0.2.1", action="cancel", target=f"job-{number}")


def append(store: Store, *numbers: int, keep: int = KEEP) -> None:
    """Append entries."""
    for number in numbers:
        store.append_audit(entry(number), keep=keep, keep_for=KEEP_FOR)


def targets(store: Store, *, limit: int = 100, before: int | None = None) -> list[str]:
    """Return the targets of the stored entries."""
    return [each.target for each in store.audit(limit=limit, before=before, keep_for=KEEP_FOR)]


def test_an_entry_is_stored_to_the_letter(store: Store, clock: ManualClock) -> None:
    """An entry is returned with the texts that were appended, its time on the store's clock, and an id."""
    texts: dict[str, Any] = {"actor": "ž😀 7", "source": "cli", "address": "", "action": "a b", "target": '{"x": 1}'}
    given = AuditEntry(**texts, outcome="o'clock", detail="1 2 3 \\", count=7)
    store.append_audit(given, keep=KEEP, keep_for=KEEP_FOR)
    (found,) = store.audit(limit=1, before=None, keep_for=KEEP_FOR)
    assert (found.at, found.id > 0) == (clock(), True)
    assert found.to_json() == given.to_json()


def test_a_kind_does_not_displace_another(store: Store) -> None:
    """Each kind of entry has its own room, and all are listed together, newest first."""
    append(store, 1, 2)
    for number in range(3, 30):
        store.append_audit(replace(entry(number), kind=ACCESS), keep=KEEP, keep_for=KEEP_FOR)
    append(store, 30)
    assert targets(store) == [f"job-{number}" for number in (30, 29, 28, 27, 26, 25, 2, 1)]
    first = store.audit(limit=3, before=None, keep_for=KEEP_FOR)
    assert targets(store, before=first[-1].id) == [f"job-{number}" for number in (27, 26, 25, 2, 1)]
    assert [each.kind for each in first] == ["action", ACCESS, ACCESS]


def test_a_lower_limit_applies_gradually(store: Store) -> None:
    """A limit that was lowered is reached by and by, with two deletions per entry at least."""
    append(store, *range(20), keep=100)
    append(store, *range(20, 60), keep=5)
    assert targets(store) == [f"job-{number}" for number in range(59, 54, -1)]


def test_entries_expire(store: Store, clock: ManualClock) -> None:
    """An entry that is older than the limit is not returned, and later ones are deleted no earlier."""
    append(store, 1)
    clock.advance(KEEP_FOR - 1)
    append(store, 2)
    assert targets(store) == ["job-2", "job-1"]
    clock.advance(2)
    assert targets(store) == ["job-2"]
    append(store, 3)
    assert targets(store) == ["job-3", "job-2"]


def append_often(seat: Seat) -> None:
    """Append entries beside other processes."""
    with seat.address.opened() as store:
        seat.ready()
        append(store, *range(APPENDED), keep=1000)


def test_concurrent_entries_are_all_kept(store_address: StoreAddress, store: Store) -> None:
    """The entries of concurrent processes are all kept, each with an id of its own."""
    race(store_address, 4, append_often)
    found = store.audit(limit=1000, before=None, keep_for=1e12)
    assert len({each.id for each in found}) == len(found) == 4 * APPENDED
