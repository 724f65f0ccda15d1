"""Counts: how many jobs match, by state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import FINAL, State
from onejob.jobs.records import Query
from tests.contract.support import START, ManualClock, end, run, steps_to, submit

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store


def test_an_empty_store_counts_nothing(ledger: Ledger, store: Store) -> None:
    """An empty store returns no states, and the ledger returns 0 for each state."""
    assert store.counts(Query()) == {}
    assert ledger.counts(Query()) == dict.fromkeys(State, 0)


def test_jobs_are_counted_by_state(ledger: Ledger, store: Store) -> None:
    """Every job is counted once, in its current state."""
    for number, state in enumerate(State):
        for each in range(number + 1):
            steps_to(store, f"{state}-{each}", state)
    assert store.counts(Query()) == {state: number + 1 for number, state in enumerate(State)}
    end(store, run(store, "one-more"))
    assert ledger.counts(Query())[State.COMPLETED] == list(State).index(State.COMPLETED) + 2


QUERIES: list[dict[str, Any]] = [
    {},
    {"task": "even"},
    {"task": "none"},
    {"states": FINAL},
    {"states": frozenset({State.QUEUED, State.RUNNING}), "task": "odd"},
    {"submitter": "user:1"},
    {"submitter": ""},
    {"identity": "identity-of-job-7"},
    {"reason": "RUNNING on"},
    {"since": START + 100.0, "until": START + 150.0},
    {"since": START + 100.0, "states": frozenset({State.COMPLETED}), "submitter": "user:1"},
]


def test_counts_agree_with_lists(store: Store, clock: ManualClock) -> None:
    """The counts of a query are those of its whole list."""
    for number in range(220):
        values: dict[str, Any] = {
            "task": "even" if number % 2 == 0 else "odd",
            "submitter": "user:1" if number % 3 == 0 else "",
        }
        if number % 5 == 0:
            submit(store, f"job-{number}", **values)
        else:
            job = run(store, f"job-{number}", **values)
            if number % 5 > 2:
                end(store, job)
        clock.advance(1.0)
    for requested in QUERIES:
        listed = [job.state for job in store.find(Query(limit=1000, **requested))]
        assert store.counts(Query(**requested)) == {state: listed.count(state) for state in set(listed)}, requested


@pytest.mark.parametrize("place", [{"before": START}, {"before": START + 2.0, "before_id": "job-2"}])
def test_limit_offset_and_cursor_do_not_change_the_counts(
    store: Store, clock: ManualClock, place: dict[str, Any]
) -> None:
    """`limit`, `offset` and the cursor change a list, and not the counts."""
    for number in range(5):
        submit(store, f"job-{number}")
        clock.advance(1.0)
    assert store.counts(Query(limit=1, offset=3, **place)) == {State.QUEUED: 5}


def test_a_count_may_be_limited(store: Store, clock: ManualClock) -> None:
    """A limited count covers the newest matching jobs, up to the limit; the others are not counted."""
    for number in range(260):
        task = "even" if number % 2 == 0 else "odd"
        if number >= 256:
            end(store, run(store, f"job-{number:03}", task=task))
        else:
            submit(store, f"job-{number:03}", task=task)
        clock.advance(1.0)
    completed, queued = State.COMPLETED, State.QUEUED
    assert store.counts(Query(), limit=3) == {completed: 3}
    assert store.counts(Query(), limit=6) == {completed: 4, queued: 2}
    assert store.counts(Query(task="odd"), limit=5) == {completed: 2, queued: 3}
    assert store.counts(Query(until=START + 10.0), limit=7) == {queued: 7}
    assert store.counts(Query(task="none"), limit=7) == {}
    assert store.counts(Query(), limit=1000) == store.counts(Query()) == {completed: 4, queued: 256}
