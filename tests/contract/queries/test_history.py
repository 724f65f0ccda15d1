"""History: the transitions of a job, oldest first, within limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State, Transition
from onejob.stores.protocol import HISTORY_LIMIT
from tests.contract.support import (
    CONFLICT_POLICIES,
    START,
    ManualClock,
    apply,
    end,
    events,
    read,
    run,
    start,
    submit,
)

if TYPE_CHECKING:
    from onejob.stores.protocol import Store


def test_transitions_are_in_order(store: Store, clock: ManualClock) -> None:
    """Every claim and change has one line, oldest first, with its time, state, attempt, node and detail."""
    submit(store, source="delay")
    clock.advance(1.0)
    job = start(store)
    clock.advance(1.0)
    apply(store, job, Transition.RETRY, detail="once more")
    clock.advance(1.0)
    job = start(store, node="node-2")
    clock.advance(1.0)
    end(store, job)
    assert [(e.at - START, e.event, e.state, e.attempt, e.node, e.detail) for e in store.history("job-1")] == [
        (0.0, "submit", State.QUEUED, 0, "", "delay"),
        (1.0, "claim", State.RUNNING, 1, "node-1", "attempt 1 on node-1"),
        (2.0, "retry", State.RETRYING, 1, "node-1", "once more"),
        (3.0, "claim", State.RUNNING, 2, "node-2", "attempt 2 on node-2"),
        (4.0, "complete", State.COMPLETED, 2, "node-2", ""),
    ]


def test_lines_with_equal_times_keep_their_order(store: Store, clock: ManualClock) -> None:
    """Lines with equal times are in the order in which they were written."""
    job = run(store)
    for number in range(12):
        apply(store, job, Transition.UPDATE_PROGRESS, detail=str(number))
    assert [entry.detail for entry in store.history("job-1")[2:]] == [str(number) for number in range(12)]


def test_a_clock_that_goes_back_does_not_reorder_a_history(store: Store, clock: ManualClock) -> None:
    """The order of the lines is the order of the operations, whatever the clock shows."""
    job = run(store)
    clock.advance(-1000.0)
    apply(store, job, Transition.UPDATE_PROGRESS)
    clock.advance(500.0)
    end(store, job)
    assert events(store) == ["submit", "claim", "update_progress", "complete"]


def test_the_newest_lines_are_kept(store: Store) -> None:
    """A history keeps its newest lines, up to the limit."""
    job = run(store)
    for number in range(HISTORY_LIMIT + 5):
        apply(store, job, Transition.UPDATE_PROGRESS, detail=str(number))
    details = [entry.detail for entry in store.history("job-1")]
    assert details == [str(number) for number in range(5, HISTORY_LIMIT + 5)]


def test_one_long_history_shortens_no_other(store: Store) -> None:
    """The limit applies to each job by itself."""
    job = run(store)
    submit(store, "job-2")
    for _ in range(HISTORY_LIMIT + 5):
        apply(store, job, Transition.UPDATE_PROGRESS)
    assert events(store, "job-2") == ["submit"]


def test_a_storm_of_duplicates_pushes_nothing_out(store: Store) -> None:
    """Duplicates add no lines to a job's history, however many there are."""
    submit(store, identity="same", delay=50.0)
    for number in range(HISTORY_LIMIT + 5):
        conflict_policy = CONFLICT_POLICIES["replace" if number % 2 else "attach"]
        submit(store, f"other-{number}", identity="same", fingerprint=str(number), **conflict_policy)
    assert read(store).duplicate_count == HISTORY_LIMIT + 5
    assert events(store) == ["submit"]


def test_a_short_history_beside_a_long_one_is_whole(store: Store) -> None:
    """However long another job's history grows, a job keeps all its lines below the limit."""
    short, long = run(store, "short"), run(store, "long")
    for number in range(10):
        apply(store, short, Transition.UPDATE_PROGRESS, detail=str(number))
    for _ in range(HISTORY_LIMIT * 2):
        apply(store, long, Transition.UPDATE_PROGRESS)
    assert [entry.detail for entry in store.history("short")[2:]] == [str(number) for number in range(10)]
    assert len(events(store, "long")) == HISTORY_LIMIT
