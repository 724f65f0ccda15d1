"""Which job would answer a submission, and a submission that only an existing job may answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import Outcome
from onejob.jobs.records import Query
from tests.contract.support import REPLACE, RUN_AGAIN, apply, end, read, run, start, submission, submit

if TYPE_CHECKING:
    from onejob.jobs.model import Admission
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store
    from tests.contract.support import ManualClock

KEY_FOR = 100.0
WINDOW = 50.0


def answered(ledger: Ledger, job_id: str = "job-2", *, identity: str = "same", **values: Any) -> Admission | None:
    """Submit to existing jobs only, and return the admission."""
    return ledger.attach_existing(submission(job_id, identity=identity, **values))


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


def test_a_holder_answers_within_its_window_only(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A completed job that holds its identity would answer until its uniqueness window is over, and not after."""
    apply(store, run(store, identity="same"), Transition.COMPLETE, keeps_identity=True, identity_for=WINDOW)
    clock.advance(WINDOW - 1)
    assert _id(store) == "job-1"
    clock.advance(1)
    assert (_id(store), answered(ledger)) == (None, None)
    assert read(store).holds_identity
    assert submit(store, "job-3", identity="same").id == "job-3"


def test_it_is_answered_as_by_a_submission(ledger: Ledger, store: Store) -> None:
    """A live job and the job of a key answer like a submission: with count, duplicate and outcome."""
    submit(store, identity="same", key="k")
    attached, refused = answered(ledger), answered(ledger, "job-3", rejects=True)
    assert attached is not None
    assert refused is not None
    assert (attached.job.id, attached.outcome, refused.outcome) == ("job-1", Outcome.ATTACHED, Outcome.REJECTED)
    assert (read(store).duplicate_count, len(store.duplicates("job-1"))) == (2, 2)
    end(store, start(store))
    replayed = answered(ledger, "job-4", key="k")
    assert replayed is not None
    assert (replayed.job.id, replayed.outcome, read(store).expires_at) == ("job-1", Outcome.REPLAYED, None)


@pytest.mark.parametrize("wants", [REPLACE, RUN_AGAIN])
def test_a_submission_that_would_change_a_job_is_not_answered(
    ledger: Ledger, store: Store, wants: dict[str, Any]
) -> None:
    """A submission that would replace a job, or run after it, is not answered, and changes nothing."""
    submit(store, identity="same")
    before = read(store)
    assert answered(ledger, fingerprint="other", **wants) is None
    start(store)
    assert answered(ledger, fingerprint="other", **wants) is None
    assert (read(store).payload, read(store).expires_at, read(store).duplicate_count) == (before.payload, None, 0)
    assert len(store.find(Query())) == 1


def test_without_a_job_nothing_is_written(ledger: Ledger, store: Store) -> None:
    """If no job exists, nothing is written."""
    assert answered(ledger) is None
    assert answered(ledger, key="k") is None
    assert store.find(Query()) == []


def test_a_job_that_ends_meanwhile_is_not_run_again(
    ledger: Ledger, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the job ends between the lookup and the write, no job is left, and the identity is free."""
    submit(store, identity="same")
    find_existing = store.find_existing

    def ends_meanwhile(*arguments: Any) -> Any:
        found = find_existing(*arguments)
        end(store, start(store))
        return found

    monkeypatch.setattr(store, "find_existing", ends_meanwhile)
    assert answered(ledger) is None
    assert [job.id for job in store.find(Query())] == ["job-1"]
    assert ledger.submit(submission("job-3", identity="same")).outcome is Outcome.ADMITTED
