"""History: the transitions of a job, oldest first, within limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State, Transition
from onejob.stores.protocol import DUPLICATE_LIMIT, HISTORY_LIMIT
from tests.contract.support import (
    CONFLICT_POLICIES,
    LEASE,
    START,
    UNKNOWN,
    ManualClock,
    apply,
    end,
    events,
    read,
    run,
    start,
    submission,
    submit,
    submit_one,
)

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger
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


def test_each_job_has_its_own_history(ledger: Ledger, store: Store) -> None:
    """The lines of one job are not in another's history, and an unknown job has none."""
    run(store, "job-1")
    submit(store, "job-2")
    assert [entry.event for entry in ledger.history("job-1")] == ["submit", "claim"]
    assert [entry.event for entry in ledger.history("job-2")] == ["submit"]
    assert ledger.history(UNKNOWN) == []


def test_the_newest_lines_are_kept(store: Store) -> None:
    """A history keeps its newest lines, up to the limit."""
    job = run(store)
    for number in range(HISTORY_LIMIT + 5):
        apply(store, job, Transition.UPDATE_PROGRESS, detail=str(number))
    details = [entry.detail for entry in store.history("job-1")]
    assert details == [str(number) for number in range(5, HISTORY_LIMIT + 5)]


def test_a_history_up_to_the_limit_is_whole(store: Store) -> None:
    """No line is dropped before the limit is exceeded."""
    job = run(store)
    for _ in range(HISTORY_LIMIT - 2):
        apply(store, job, Transition.UPDATE_PROGRESS)
    assert len(events(store)) == HISTORY_LIMIT
    assert events(store)[:2] == ["submit", "claim"]
    apply(store, job, Transition.UPDATE_PROGRESS)
    assert len(events(store)) == HISTORY_LIMIT
    assert events(store)[0] == "claim"


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


def test_a_follower_is_recorded_on_both_jobs(store: Store, clock: ManualClock) -> None:
    """A follower's history begins with the followed job, and the followed job has the duplicate."""
    submit(store, identity="same")
    now = clock.advance(1.0)
    submit_one(store, submission("job-2", identity="same", follows=True, source="canvas"), wake_in=LEASE)
    assert [(e.at, e.event, e.state, e.attempt, e.node, e.detail) for e in store.history("job-2")] == [
        (now, "follow", State.QUEUED, 0, "", "follows job-1")
    ]
    assert [(duplicate.at, duplicate.source) for duplicate in store.duplicates("job-1")] == [(now, "canvas")]
    assert events(store) == ["submit"]


def test_followers_beyond_the_duplicate_limit_have_their_own_history(store: Store) -> None:
    """A follower's own history is written however many duplicates there are."""
    submit(store, identity="same")
    for number in range(DUPLICATE_LIMIT + 2):
        submit_one(store, submission(f"other-{number}", identity="same", follows=True), wake_in=LEASE)
    assert events(store, f"other-{DUPLICATE_LIMIT + 1}") == ["follow"]


def test_a_short_history_beside_a_long_one_is_whole(store: Store) -> None:
    """However long another job's history grows, a job keeps all its lines below the limit."""
    short, long = run(store, "short"), run(store, "long")
    for number in range(10):
        apply(store, short, Transition.UPDATE_PROGRESS, detail=str(number))
    for _ in range(HISTORY_LIMIT * 2):
        apply(store, long, Transition.UPDATE_PROGRESS)
    assert [entry.detail for entry in store.history("short")[2:]] == [str(number) for number in range(10)]
    assert len(events(store, "long")) == HISTORY_LIMIT
