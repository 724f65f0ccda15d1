"""Idempotency keys: a later submission with a key gets the job of the first one, for as long as the key is retained."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import FINAL, Transition
from onejob.jobs.model import Admission, Job, Outcome, Retention
from onejob.jobs.policy import DAY
from onejob.jobs.records import Query
from onejob.ledger.sweep import Swept
from onejob.stores.protocol import GroupBy
from tests.contract.races import together
from tests.contract.support import (
    RUN_AGAIN,
    START,
    ManualClock,
    admission,
    assert_changed,
    counted,
    end,
    get,
    queue_next,
    read,
    run,
    start,
    sweep,
    untouched,
)

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store

KEY_FOR = 100.0
THREADS = 32
OTHER: dict[str, Any] = {"fingerprint": "other", "payload": "[2]"}


def submit_keyed(store: Store, job_id: str = "job-1", **values: Any) -> Admission:
    """Submit with a default identity, key and `key_for`."""
    return admission(store, job_id, **{"identity": "same", "key": "key-1", "key_for": KEY_FOR, **values})


def publish_nothing(job: Job) -> None:
    """Publish nothing."""


# --- the job of the first submission --------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [Transition.COMPLETE, Transition.FAIL, Transition.ABANDON, Transition.DEAD_LETTER])
def test_a_key_returns_its_ended_job(store: Store, clock: ManualClock, event: Transition) -> None:
    """After the end of the first submission's job, even by failure, the key returns it, though its identity is free."""
    submit_keyed(store)
    ended = end(store, start(store), event)
    clock.advance(1.0)
    answer = submit_keyed(store, "job-2")
    assert answer == Admission(replace(ended, duplicate_count=1), Outcome.REPLAYED)
    assert_changed(store, ended, answer.job, duplicate_count=1)


@pytest.mark.parametrize("key", ["a key with spaces", "ключ-😀", "{braces}:colons:*", "x" * 200])
def test_a_key_is_any_text(store: Store, key: str) -> None:
    """A key may be any text."""
    submit_keyed(store, key=key)
    assert submit_keyed(store, "job-2", identity="another", key=key).job.id == "job-1"
    assert submit_keyed(store, "job-3", identity="another", key=key + "x").job.id == "job-3"


def test_a_submission_with_a_known_key_is_recorded_as_a_duplicate(store: Store, clock: ManualClock) -> None:
    """The duplicates by key are recorded on the key's job, before and after its end."""
    submit_keyed(store)
    submit_keyed(store, "job-2", submitter="billing")
    end(store, start(store))
    submit_keyed(store, "job-3")
    found = [
        (each.submission_nonce, each.outcome, each.answered_by, each.submitter) for each in store.duplicates("job-1")
    ]
    assert found == [
        ("nonce-of-job-2", Outcome.ATTACHED, "job-1", "billing"),
        ("nonce-of-job-3", Outcome.REPLAYED, "job-1", ""),
    ]
    assert counted(store, GroupBy.IDENTITY) == {("same", "attached"): 1, ("same", "replayed"): 1}


# --- other arguments ------------------------------------------------------------------------------------------------


def test_a_key_with_other_arguments_is_rejected_after_the_end(store: Store) -> None:
    """A key with other arguments is rejected after the end of the key's job, too."""
    submit_keyed(store)
    ended = end(store, start(store))
    answer = submit_keyed(store, "job-2", **OTHER)
    assert answer == Admission(replace(ended, duplicate_count=1), Outcome.REJECTED, key_reused=True)


def test_a_rejection_does_not_change_the_key(store: Store, clock: ManualClock) -> None:
    """A rejected submission neither takes over the key nor extends its retention."""
    submit_keyed(store)
    clock.advance(1.0)
    submit_keyed(store, "job-2", key_for=5000.0, **OTHER)
    assert submit_keyed(store, "job-3").outcome is Outcome.ATTACHED
    clock.advance(KEY_FOR - 1.0)
    assert submit_keyed(store, "job-4", identity="another", **OTHER).outcome is Outcome.ADMITTED


def test_a_submission_rejected_by_a_job_retains_no_key(store: Store) -> None:
    """The key of a submission that an existing job rejected can be used for another submission."""
    running = run(store, identity="same")
    answer = submit_keyed(store, "job-2", rejects=True)
    assert (answer.outcome, answer.key_reused, answer.job.key_retained_until) == (Outcome.REJECTED, False, None)
    end(store, running)
    assert submit_keyed(store, "job-3", **OTHER).outcome is Outcome.ADMITTED


def test_a_key_is_compared_with_its_own_submission(store: Store) -> None:
    """Replacing the arguments of a job does not change the arguments of its earlier keys."""
    submit_keyed(store, key="first")
    assert submit_keyed(store, "job-2", key="second", replaces=True, **OTHER).outcome is Outcome.REPLACED
    assert submit_keyed(store, "job-3", key="first").outcome is Outcome.ATTACHED
    assert submit_keyed(store, "job-4", key="second", **OTHER).outcome is Outcome.ATTACHED
    assert submit_keyed(store, "job-5", key="first", **OTHER).key_reused
    assert submit_keyed(store, "job-6", key="second").key_reused
    assert [each.arguments_differ for each in store.duplicates("job-1")] == [True, True, False, False, True]


# --- the job that a key returns -------------------------------------------------------------------------------------


def test_a_key_belongs_to_a_job_that_another_submission_queued(store: Store, clock: ManualClock) -> None:
    """The key of a submission that was attached to the job queued next returns that job."""
    run(store, identity="same")
    queue_next(store)
    assert submit_keyed(store, "job-3", **RUN_AGAIN).job.id == "job-2"
    assert read(store, "job-2").key_retained_until == START + KEY_FOR
    end(store, read(store))
    assert submit_keyed(store, "job-4", **RUN_AGAIN).job.id == "job-2"
    end(store, start(store, "job-2"))
    assert submit_keyed(store, "job-5", **RUN_AGAIN).outcome is Outcome.REPLAYED


def test_a_key_belongs_to_a_replayed_job(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """The key of a submission that was replayed returns the same job after the uniqueness window, too."""
    ledger.complete(run(store, identity="same"), "1", keep=Retention(identity_for=10.0))
    assert submit_keyed(store, "job-2").outcome is Outcome.REPLAYED
    clock.advance(10.0)
    assert admission(store, "job-3", identity="same").outcome is Outcome.ADMITTED
    answer = submit_keyed(store, "job-4")
    assert (answer.outcome, answer.job.id) == (Outcome.REPLAYED, "job-1")


def test_a_repeated_submission_with_a_key_returns_the_same(store: Store, clock: ManualClock) -> None:
    """A repeated submission, after a lost response, returns the same, is not counted, and does not extend its key."""
    run(store, identity="same")
    queue_next(store, "job-2")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("attached", {}), ("refused", {"rejects": True}), ("replaced", {**RUN_AGAIN, **OTHER}),
        ("attached_next", RUN_AGAIN),
    ]  # fmt: skip
    first = [submit_keyed(store, f"{name}-1", key=name, **values) for name, values in calls]
    clock.advance(1.0)
    with untouched(store, "job-1", "job-2"):
        repeated = [submit_keyed(store, f"{name}-1", key=name, **values) for name, values in calls]
    assert [(each.outcome, each.job.id) for each in repeated] == [(each.outcome, each.job.id) for each in first]


# --- retention ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key_for", [0.5, KEY_FOR, 30 * DAY])
def test_a_key_expires_exactly_on_time(store: Store, clock: ManualClock, key_for: float) -> None:
    """A key returns its job until its retention ends on the store's clock; after that it is a new key."""
    submit_keyed(store, key_for=key_for)
    end(store, start(store))
    clock.advance(key_for - 0.25)
    assert submit_keyed(store, "job-2", **OTHER).key_reused
    clock.advance(0.25)
    answer = submit_keyed(store, "job-3", **OTHER)
    assert (answer.outcome, answer.job.id) == (Outcome.ADMITTED, "job-3")
    assert submit_keyed(store, "job-4", **OTHER).job.id == "job-3"


def test_a_duplicate_by_key_does_not_extend_the_retention(store: Store, clock: ManualClock) -> None:
    """The retention of a key counts from the first submission with it."""
    submit_keyed(store)
    clock.advance(KEY_FOR - 1.0)
    assert submit_keyed(store, "job-2").job.key_retained_until == START + KEY_FOR
    clock.advance(1.0)
    end(store, start(store))
    assert submit_keyed(store, "job-3").outcome is Outcome.ADMITTED


def test_a_job_is_retained_for_the_last_of_its_keys(store: Store, clock: ManualClock) -> None:
    """The retention of a job with several keys is that of the key retained longest, whatever their order."""
    assert submit_keyed(store, "job-1", key="a", key_for=50.0).job.key_retained_until == START + 50.0
    assert submit_keyed(store, "job-2", key="b", key_for=500.0).job.key_retained_until == START + 500.0
    clock.advance(1.0)
    assert submit_keyed(store, "job-3", key="c", key_for=5.0).job.key_retained_until == START + 500.0
    clock.advance(5.0)
    assert submit_keyed(store, "job-4", key="c", identity="another").outcome is Outcome.ADMITTED


@pytest.mark.parametrize("key_for", [DAY + 100.0, DAY, DAY - 100.0])
def test_a_purge_waits_for_the_retention_of_the_key(
    ledger: Ledger, store: Store, clock: ManualClock, key_for: float
) -> None:
    """An ended job is purged after its retention, but not before the retention of its last key ends."""
    submit_keyed(store, key_for=key_for)
    ledger.complete(start(store), "1")
    last = max(DAY, key_for)
    clock.advance(DAY - 0.5)
    assert sweep(ledger, publish_nothing) == Swept()
    clock.advance(0.5)
    if last > DAY:
        assert sweep(ledger, publish_nothing) == Swept()
        assert read(store).wake_at == START + last
        clock.advance(last - DAY - 0.5)
        assert submit_keyed(store, "job-2").outcome is Outcome.REPLAYED
        assert sweep(ledger, publish_nothing) == Swept()
        clock.advance(0.5)
    assert sweep(ledger, publish_nothing) == Swept(purged=1)
    assert get(store, "job-1") is None
    assert submit_keyed(store, "job-3", **OTHER).outcome is Outcome.ADMITTED


def test_a_drop_does_not_wait_for_the_key(ledger: Ledger, store: Store) -> None:
    """A dead letter that is dropped is deleted with its keys."""
    submit_keyed(store)
    ledger.fail(start(store), "{}", "no")
    ledger.drop("job-1")
    assert get(store, "job-1") is None
    assert submit_keyed(store, "job-2", **OTHER).outcome is Outcome.ADMITTED


def test_a_deletion_deletes_all_keys_of_the_job(store: Store) -> None:
    """The deletion of a job deletes its keys, and the keys of other jobs stay."""
    for key in ("a", "b", "c"):
        submit_keyed(store, f"job-{key}", key=key)
    submit_keyed(store, "other", identity="another", key="d")
    end(store, start(store, "job-a"))
    assert store.delete(["job-a"], sources=FINAL) == ["job-a"]
    for number, key in enumerate(("a", "b", "c")):
        identity = f"identity-{key}"
        assert submit_keyed(store, f"new-{number}", identity=identity, key=key, **OTHER).outcome is Outcome.ADMITTED
    assert submit_keyed(store, "late", key="d").job.id == "other"


# --- concurrent submissions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("identities", [1, THREADS])
def test_of_many_threads_with_one_key_one_is_admitted(store: Store, identities: int) -> None:
    """Of many concurrent submissions with one key one is admitted, and all return its job, also of other identities."""
    ids = {f"job-{number}": f"identity-{number % identities}" for number in range(THREADS)}
    answers = together(*[partial(submit_keyed, store, job_id, identity=identity) for job_id, identity in ids.items()])
    assert Counter(answer.outcome for answer in answers) == {Outcome.ADMITTED: 1, Outcome.ATTACHED: THREADS - 1}
    (job,) = store.find(Query(limit=1000))
    assert {answer.job.id for answer in answers} == {job.id}
    assert (job.duplicate_count, job.holds_identity) == (THREADS - 1, True)


def test_of_two_kinds_with_one_key_one_kind_is_accepted(store: Store) -> None:
    """Of concurrent submissions of two kinds with one key, one is admitted, and all of the other kind are rejected."""
    kinds = [str(number % 2) for number in range(THREADS)]
    answers = together(*[
        partial(submit_keyed, store, f"job-{number}", identity=kind, fingerprint=kind)
        for number, kind in enumerate(kinds)
    ])  # fmt: skip
    (job,) = store.find(Query(limit=1000))
    for kind, answer in zip(kinds, answers, strict=True):
        accepted = kind == job.fingerprint
        assert (answer.job.id, answer.key_reused) == (job.id, not accepted)
        assert (answer.outcome is Outcome.REJECTED) is not accepted
    assert sum(answer.outcome is Outcome.ADMITTED for answer in answers) == 1
    assert job.duplicate_count == THREADS - 1
