"""Delete: an ended job that holds no identity is deleted, and leaves a tombstone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.errors import JobNotEndedError, JobNotFoundError, JobPurgedError, UniquenessWindowError
from onejob.jobs.lifecycle import FINAL, State
from onejob.jobs.model import Retention
from onejob.jobs.timestamps import format_timestamp
from tests.contract.support import START, UNKNOWN, ManualClock, get, run, steps_to, submit, untouched

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store


@pytest.mark.parametrize("state", sorted(FINAL))
def test_an_ended_job_is_deleted(ledger: Ledger, store: Store, state: State) -> None:
    """A job in a final state is deleted with its history, and its id says how it ended."""
    steps_to(store, "job-1", state)
    ledger.delete("job-1")
    assert (get(store, "job-1"), store.history("job-1")) == (None, [])
    with pytest.raises(JobPurgedError) as caught:
        ledger.get("job-1")
    assert caught.value.state == state


@pytest.mark.parametrize("state", sorted(set(State) - FINAL))
def test_a_live_job_is_not_deleted(ledger: Ledger, store: Store, state: State) -> None:
    """A job that has not ended is refused with its state."""
    steps_to(store, "job-1", state)
    with untouched(store), pytest.raises(JobNotEndedError) as caught:
        ledger.delete("job-1")
    assert caught.value.state == state


def test_a_job_that_answers_duplicates_is_not_deleted(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A completed job is refused within its uniqueness window, with the end of that, and deleted after it."""
    ledger.complete(run(store), "1", keep=Retention(identity_for=60.0))
    with untouched(store), pytest.raises(UniquenessWindowError) as caught:
        ledger.delete("job-1")
    assert caught.value.until == format_timestamp(START + 60.0)
    clock.advance(60.0)
    ledger.delete("job-1")
    assert get(store, "job-1") is None
    assert submit(store, "job-2", identity="identity-of-job-1").id == "job-2"


def test_an_unknown_or_deleted_job_is_not_found(ledger: Ledger, store: Store) -> None:
    """An unknown id raises `JobNotFoundError`, that of a deleted job `JobPurgedError`."""
    with pytest.raises(JobNotFoundError):
        ledger.delete(UNKNOWN)
    steps_to(store, "job-1", State.CANCELED)
    ledger.delete("job-1")
    with pytest.raises(JobPurgedError):
        ledger.delete("job-1")
