"""Which job would answer a submission."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import FINAL, Transition
from tests.contract.support import apply, end, read, run, start, submit

if TYPE_CHECKING:
    from onejob.stores.protocol import Store
    from tests.contract.support import ManualClock

KEY_FOR = 100.0
WINDOW = 50.0


def _id(store: Store, identity: str = "same", key: str | None = None) -> str | None:
    job = store.find_existing(identity, key)
    return None if job is None else job.id


def test_the_holder_answers(store: Store) -> None:
    """The job that holds the identity would answer; no other job would, and none for another identity."""
    assert _id(store) is None
    submit(store, identity="same")
    assert (_id(store), _id(store, "other"), _id(store, "same", "unknown")) == ("job-1", None, "job-1")
    assert store.find_existing("same", None) == read(store)
    end(store, start(store))
    assert _id(store) is None


def test_the_job_of_the_key_has_precedence(store: Store, clock: ManualClock) -> None:
    """The job of the idempotency key would answer before the holder, also after its end, while the key is kept."""
    submit(store, identity="same", key="k", key_for=KEY_FOR)
    end(store, start(store))
    submit(store, "job-2", identity="same")
    assert (_id(store), _id(store, "same", "k"), _id(store, "other", "k")) == ("job-2", "job-1", "job-1")
    clock.advance(KEY_FOR)
    assert (_id(store, "same", "k"), _id(store, "other", "k")) == ("job-2", None)


def test_the_key_of_a_deleted_job_hides_no_other(store: Store) -> None:
    """The key of a job that expired, was canceled and deleted answers with the holder of the identity."""
    submit(store, identity="same", key="k", key_for=KEY_FOR, expires_in=4.0)
    apply(store, read(store), Transition.CANCEL)
    assert store.delete(["job-1"], sources=FINAL, skip_referenced=False, tombstone_for=0.0) == ["job-1"]
    submit(store, "job-2", identity="other")
    assert (_id(store, "other", "k"), _id(store, "same", "k")) == ("job-2", None)


def test_a_holder_answers_within_its_window_only(store: Store, clock: ManualClock) -> None:
    """A completed job that holds its identity would answer until its uniqueness window is over, and not after."""
    apply(store, run(store, identity="same"), Transition.COMPLETE, keeps_identity=True, identity_for=WINDOW)
    clock.advance(WINDOW - 1)
    assert _id(store) == "job-1"
    clock.advance(1)
    assert _id(store) is None
    assert read(store).holds_identity
    assert submit(store, "job-3", identity="same").id == "job-3"
