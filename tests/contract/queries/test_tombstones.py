"""Tombstones: the end of a purged job is kept for some time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.errors import ConfigurationError, JobNotFoundError, JobPurgedError
from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.policy import DAY, Policy
from onejob.jobs.records import Tombstone
from onejob.jobs.timestamps import format_timestamp
from onejob.ledger.ledger import Ledger
from tests.contract.support import (
    START,
    UNKNOWN,
    ManualClock,
    apply,
    end,
    run,
    steps_to,
    submit,
    sweep,
)

if TYPE_CHECKING:
    from onejob.stores.protocol import Store

WEEK = 7 * DAY


def _purge(store: Store, *job_ids: str, tombstone_for: float = 100.0) -> list[str]:
    return store.delete(job_ids, sources=FINAL, tombstone_for=tombstone_for)


@pytest.mark.parametrize("state", sorted(FINAL))
def test_a_purged_job_leaves_a_tombstone(store: Store, clock: ManualClock, state: State) -> None:
    """A tombstone has the final state of a job, its end, and the time of its purge."""
    steps_to(store, "job-1", state)
    assert store.tombstone("job-1") is None
    clock.advance(10.0)
    assert _purge(store, "job-1") == ["job-1"]
    expected = Tombstone(id="job-1", state=state, finished_at=START, purged_at=START + 10.0)
    assert store.tombstone("job-1") == expected
    assert _purge(store, "job-1") == []
    assert store.tombstone("job-1") == expected
    assert store.tombstone(UNKNOWN) is None


@pytest.mark.parametrize(("passed", "there"), [(0.0, True), (99.5, True), (100.0, False), (1e6, False)])
def test_a_tombstone_is_kept_for_a_time(store: Store, clock: ManualClock, passed: float, *, there: bool) -> None:
    """A tombstone is kept for the retention that the deletion sets, and no longer."""
    end(store, run(store))
    _purge(store, "job-1")
    clock.advance(passed)
    assert (store.tombstone("job-1") is not None) is there


def test_a_new_job_hides_the_tombstone_of_its_id(store: Store, ledger: Ledger, clock: ManualClock) -> None:
    """A job under the id of a purged one hides the tombstone, and leaves its own when it is purged."""
    end(store, run(store))
    _purge(store, "job-1")
    clock.advance(1.0)
    job = submit(store)
    assert ledger.get("job-1") == job
    assert store.tombstone("job-1") is None
    apply(store, job, Transition.CANCEL)
    clock.advance(1.0)
    _purge(store, "job-1")
    expected = Tombstone(id="job-1", state=State.CANCELED, finished_at=START + 1.0, purged_at=START + 2.0)
    assert store.tombstone("job-1") == expected


def test_an_old_tombstone_can_be_written_anew(store: Store, clock: ManualClock) -> None:
    """A job whose tombstone has expired leaves a new one, in the same deletion that deletes the old one."""
    end(store, run(store))
    _purge(store, "job-1")
    clock.advance(1000.0)
    end(store, run(store))
    assert _purge(store, "job-1") == ["job-1"]
    assert store.tombstone("job-1") is not None


def test_expired_tombstones_are_deleted_in_batches(store: Store, clock: ManualClock) -> None:
    """A deletion removes at most two expired tombstones per deleted job, so they go faster than new ones are added."""
    ids = [end(store, run(store, f"old-{number}")).id for number in range(7)]
    _purge(store, *ids)
    clock.advance(1000.0)
    for left in (5, 3, 1, 0):
        job = end(store, run(store, f"new-{left}"))
        _purge(store, job.id, tombstone_for=1e6)
        now = clock.advance(-1000.0)  # an old one that is still kept can be seen from before its end
        assert sum(store.tombstone(job_id) is not None for job_id in ids) == left
        clock.advance(START + 1000.0 - now)
    assert all(store.tombstone(f"new-{left}") for left in (5, 3, 1, 0))


# --- the ledger -----------------------------------------------------------------------------------------------------


def test_a_purged_job_differs_from_an_unknown_one(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """For the id of a purged job the ledger raises `JobPurgedError`, which has its end, while the tombstone is kept."""
    ledger.complete(run(store), "1")
    clock.advance(DAY)
    assert sweep(ledger, lambda job: None).purged == 1
    with pytest.raises(JobPurgedError, match="completed at") as caught:
        ledger.get("job-1")
    raised = caught.value
    assert (raised.job_id, raised.state, raised.finished_at, raised.purged_at) == (
        "job-1", "completed", format_timestamp(START), format_timestamp(START + DAY),
    )  # fmt: skip
    for use in (ledger.cancel, ledger.redrive, ledger.drop):
        with pytest.raises(JobPurgedError):
            use("job-1")
    clock.advance(WEEK)
    with pytest.raises(JobNotFoundError) as unknown:
        ledger.get("job-1")
    assert not isinstance(unknown.value, JobPurgedError)


def test_a_dropped_dead_letter_leaves_a_tombstone(ledger: Ledger, store: Store) -> None:
    """A dropped dead letter leaves a tombstone with the state failed."""
    ledger.fail(run(store), '{"type": "ValueError"}', "ValueError")
    ledger.drop("job-1")
    with pytest.raises(JobPurgedError, match="' failed at"):
        ledger.get("job-1")


def test_tombstones_can_be_disabled(store: Store, clock: ManualClock) -> None:
    """With `tombstone_retention=0` a purged job is unknown; a negative value is refused."""
    ledger = Ledger(store, Policy(tombstone_retention=0.0))
    ledger.complete(run(store), "1")
    clock.advance(DAY)
    assert sweep(ledger, lambda job: None).purged == 1
    with pytest.raises(JobNotFoundError) as caught:
        ledger.get("job-1")
    assert not isinstance(caught.value, JobPurgedError)
    with pytest.raises(ConfigurationError, match="tombstone_retention"):
        Policy(tombstone_retention=-1.0)
