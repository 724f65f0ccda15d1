"""Idempotency keys: another submission with a key gets the answer of the first one, for as long as the key is kept."""

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
from onejob.ledger.sweep import Swept, sweep
from onejob.stores.protocol import DUPLICATE_LIMIT, GroupBy
from tests.contract.races import together
from tests.contract.support import (
    CONFLICT_POLICIES,
    LEASE,
    RUN_AGAIN,
    START,
    ManualClock,
    admission,
    apply,
    assert_changed,
    counted,
    end,
    events,
    get,
    queue_next,
    read,
    run,
    start,
    submit,
    untouched,
)

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store

KEY_FOR = 100.0
THREADS = 32
OTHER: dict[str, Any] = {"fingerprint": "other", "payload": "[2]"}


def keyed(store: Store, job_id: str = "job-1", **values: Any) -> Admission:
    """Submit with the key that all submissions of these tests have."""
    return admission(store, job_id, **{"identity": "same", "key": "key-1", "key_for": KEY_FOR, **values})


def nobody(job: Job) -> None:
    """Publish to nobody."""


# --- the first answer -----------------------------------------------------------------------------------------------


def test_a_key_is_kept_with_its_job(store: Store, clock: ManualClock) -> None:
    """A job that a submission with a key wrote says until when it answers that key."""
    answer = keyed(store)
    assert (answer.outcome, answer.job.key_retained_until) == (Outcome.ADMITTED, START + KEY_FOR)
    assert submit(store, "job-2").key_retained_until is None


@pytest.mark.parametrize("identity", ["same", "another"])
def test_a_key_is_answered_by_its_live_job(store: Store, clock: ManualClock, identity: str) -> None:
    """While the first submission's job lives, it answers the key, whatever identity the second one has."""
    job = keyed(store).job
    clock.advance(1.0)
    answer = keyed(store, "job-2", identity=identity, key_for=5000.0)
    assert answer == Admission(replace(job, duplicate_count=1), Outcome.ATTACHED)
    assert_changed(store, job, answer.job, duplicate_count=1)
    assert get(store, "job-2") is None


@pytest.mark.parametrize("event", [Transition.COMPLETE, Transition.FAIL, Transition.ABANDON, Transition.DEAD_LETTER])
def test_a_key_is_answered_by_its_ended_job(store: Store, clock: ManualClock, event: Transition) -> None:
    """After its end, be it a failure, the first submission's job answers the key, although its identity is free."""
    keyed(store)
    ended = end(store, start(store), event)
    clock.advance(1.0)
    answer = keyed(store, "job-2")
    assert answer == Admission(replace(ended, duplicate_count=1), Outcome.REPLAYED)
    assert_changed(store, ended, answer.job, duplicate_count=1)


def test_a_key_is_answered_whatever_its_identity_does_meanwhile(store: Store) -> None:
    """Jobs of the same identity without the key come and go; the key's job answers, and they do not hear of it."""
    keyed(store)
    ended = end(store, start(store))
    other = run(store, "job-2", identity="same")
    assert keyed(store, "job-3").job == replace(ended, duplicate_count=1)
    assert read(store, "job-2") == other
    end(store, other)
    assert keyed(store, "job-4").job == replace(ended, duplicate_count=2)


def test_each_key_has_its_own_answer(store: Store) -> None:
    """A key is compared as a whole, and is answered by its own job only."""
    keys = ("a", "b", "a b", "ab")
    jobs = [keyed(store, f"job-{number}", identity=str(number), key=key).job for number, key in enumerate(keys)]
    assert len({job.id for job in jobs}) == len(keys)
    for job, key in zip(jobs, keys, strict=True):
        assert keyed(store, f"again-{job.id}", key=key).job.id == job.id


@pytest.mark.parametrize("key", ["a key with spaces", "ключ-😀", "{braces}:colons:*", "x" * 200])
def test_a_key_is_any_text(store: Store, key: str) -> None:
    """A key may be made of anything."""
    keyed(store, key=key)
    assert keyed(store, "job-2", identity="another", key=key).job.id == "job-1"
    assert keyed(store, "job-3", identity="another", key=key + "x").job.id == "job-3"


@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
@pytest.mark.parametrize("begun", [False, True])
def test_reactions_do_not_touch_the_job_of_a_key(
    store: Store, clock: ManualClock, begun: bool, conflict_policy: str
) -> None:
    """A key is answered, and only that: nothing is refused, replaced, moved or queued."""
    job = keyed(store, delay=0.0 if begun else 50.0).job
    job = start(store) if begun else job
    clock.advance(1.0)
    answer = keyed(
        store, "job-2", payload="[2]", priority_rank=9, delay=0.0, expires_in=5.0, **CONFLICT_POLICIES[conflict_policy]
    )
    assert answer == Admission(answer.job, Outcome.ATTACHED)
    assert_changed(store, job, answer.job, duplicate_count=1)
    assert get(store, "job-2") is None


def test_who_meets_a_key_leaves_a_duplicate(store: Store, clock: ManualClock) -> None:
    """The duplicates of those who met a key lie with its job, live and ended."""
    keyed(store)
    keyed(store, "job-2", submitter="billing")
    end(store, start(store))
    keyed(store, "job-3")
    found = [
        (each.submission_nonce, each.outcome, each.answered_by, each.submitter) for each in store.duplicates("job-1")
    ]
    assert found == [
        ("nonce-of-job-2", Outcome.ATTACHED, "job-1", "billing"),
        ("nonce-of-job-3", Outcome.REPLAYED, "job-1", ""),
    ]
    assert counted(store, GroupBy.IDENTITY) == {("same", "attached"): 1, ("same", "replayed"): 1}


@pytest.mark.parametrize("ended", [False, True])
def test_a_key_is_answered_to_followers(store: Store, clock: ManualClock, ended: bool) -> None:
    """A submission that must end under its own id follows the key's job, and is woken at once when that has ended."""
    keyed(store)
    if ended:
        end(store, start(store))
    now = clock.advance(1.0)
    answer = keyed(store, "job-2", follows=True)
    assert (answer.outcome, answer.job.id) == (Outcome.REPLAYED if ended else Outcome.ATTACHED, "job-1")
    assert answer.follower == read(store, "job-2")
    assert (answer.follower.follows_id, answer.follower.wake_at) == ("job-1", now if ended else None)


def test_a_row_under_its_own_id_answers_before_a_key(store: Store) -> None:
    """A submission whose id is known is answered by that row, whatever its key says."""
    keyed(store)
    own = submit(store, "job-2")
    with untouched(store, "job-1", "job-2"):
        assert keyed(store, "job-2") == Admission(own, Outcome.ADMITTED)


# --- another submission ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
def test_a_key_with_other_arguments_is_rejected(
    store: Store, clock: ManualClock, conflict_policy: str, begun: bool
) -> None:
    """A key that comes with other arguments is refused and said to be reused; only that somebody asked is kept."""
    job = keyed(store, delay=0.0 if begun else 50.0).job
    job = start(store) if begun else job
    now = clock.advance(1.0)
    values = {"identity": "another", "priority_rank": 9, "follows": True, **OTHER, **CONFLICT_POLICIES[conflict_policy]}
    answer = keyed(store, "job-2", **values)
    assert answer == Admission(answer.job, Outcome.REJECTED, key_reused=True)
    assert_changed(store, job, answer.job, duplicate_count=1)
    assert get(store, "job-2") is None
    (duplicate,) = store.duplicates("job-1")
    assert (duplicate.outcome, duplicate.arguments_differ, duplicate.fingerprint, duplicate.at) == (
        Outcome.REJECTED,
        True,
        "other",
        now,
    )
    assert counted(store, GroupBy.IDENTITY) == {("same", "rejected"): 1}


def test_a_key_with_other_arguments_is_rejected_after_the_end(store: Store) -> None:
    """The end of the key's job makes the key nobody else's."""
    keyed(store)
    ended = end(store, start(store))
    answer = keyed(store, "job-2", **OTHER)
    assert answer == Admission(replace(ended, duplicate_count=1), Outcome.REJECTED, key_reused=True)


def test_a_rejection_keeps_the_key(store: Store, clock: ManualClock) -> None:
    """Who was rejected for a key has not taken it over, nor has it been kept any longer for that."""
    keyed(store)
    clock.advance(1.0)
    keyed(store, "job-2", key_for=5000.0, **OTHER)
    assert keyed(store, "job-3").outcome is Outcome.ATTACHED
    clock.advance(KEY_FOR - 1.0)
    assert keyed(store, "job-4", identity="another", **OTHER).outcome is Outcome.ADMITTED


def test_who_is_refused_by_a_job_in_its_way_keeps_no_key(store: Store) -> None:
    """A key of a submission that nothing came of is as good as new."""
    running = run(store, identity="same")
    answer = keyed(store, "job-2", rejects=True)
    assert (answer.outcome, answer.key_reused, answer.job.key_retained_until) == (Outcome.REJECTED, False, None)
    end(store, running)
    assert keyed(store, "job-3", **OTHER).outcome is Outcome.ADMITTED


def test_a_key_is_compared_with_the_submission_that_had_it(store: Store) -> None:
    """What replaced the arguments of the job since does not change to whom its keys belong."""
    keyed(store, key="first")
    assert keyed(store, "job-2", key="second", replaces=True, **OTHER).outcome is Outcome.REPLACED
    assert keyed(store, "job-3", key="first").outcome is Outcome.ATTACHED
    assert keyed(store, "job-4", key="second", **OTHER).outcome is Outcome.ATTACHED
    assert keyed(store, "job-5", key="first", **OTHER).key_reused
    assert keyed(store, "job-6", key="second").key_reused
    assert [each.arguments_differ for each in store.duplicates("job-1")] == [True, True, False, False, True]


# --- which job answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("conflict_policy", "begun", "outcome", "answers"), [
    ("attach", False, Outcome.ATTACHED, "job-1"),
    ("attach", True, Outcome.ATTACHED, "job-1"),
    ("replace", False, Outcome.REPLACED, "job-1"),
    ("replace", True, Outcome.ATTACHED, "job-1"),
    ("run_again", False, Outcome.REPLACED, "job-1"),
    ("run_again", True, Outcome.QUEUED_NEXT, "job-2"),
])  # fmt: skip
def test_a_key_is_kept_for_the_job_that_answers(
    store: Store, clock: ManualClock, conflict_policy: str, begun: bool, outcome: Outcome, answers: str
) -> None:
    """Whichever job answered the first submission with a key answers the others, and is kept for as long."""
    submit(store, identity="same")
    if begun:
        start(store)
    now = clock.advance(1.0)
    answer = keyed(store, "job-2", **OTHER, **CONFLICT_POLICIES[conflict_policy])
    assert (answer.outcome, answer.job.id, answer.job.key_retained_until) == (outcome, answers, now + KEY_FOR)
    assert read(store, answers) == answer.job
    again = keyed(store, "job-3", identity="another", **OTHER)
    assert (again.outcome, again.job) == (
        Outcome.ATTACHED,
        replace(answer.job, duplicate_count=answer.job.duplicate_count + 1),
    )


def test_a_key_is_kept_for_a_job_that_was_queued_already(store: Store, clock: ManualClock) -> None:
    """A submission that one more run serves, which another had queued, is answered by that run."""
    run(store, identity="same")
    queue_next(store)
    assert keyed(store, "job-3", **RUN_AGAIN).job.id == "job-2"
    assert read(store, "job-2").key_retained_until == START + KEY_FOR
    end(store, read(store))
    assert keyed(store, "job-4", **RUN_AGAIN).job.id == "job-2"
    end(store, start(store, "job-2"))
    assert keyed(store, "job-5", **RUN_AGAIN).outcome is Outcome.REPLAYED


def test_a_key_is_kept_for_a_replay(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A submission that the kept end of a job answered is answered by it when the window is over, too."""
    ledger.complete(run(store, identity="same"), "1", keep=Retention(identity_for=10.0))
    assert keyed(store, "job-2").outcome is Outcome.REPLAYED
    clock.advance(10.0)
    assert admission(store, "job-3", identity="same").outcome is Outcome.ADMITTED
    answer = keyed(store, "job-4")
    assert (answer.outcome, answer.job.id) == (Outcome.REPLAYED, "job-1")


def test_a_repeated_submission_with_a_key_is_answered_as_the_first_one(store: Store, clock: ManualClock) -> None:
    """A submission whose answer was lost comes to the same thing, is not counted again, and keeps its key no longer."""
    run(store, identity="same")
    queue_next(store, "job-2")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("attached", {}), ("refused", {"rejects": True}), ("replaced", {**RUN_AGAIN, **OTHER}), ("joined", RUN_AGAIN),
    ]  # fmt: skip
    first = [keyed(store, f"{name}-1", key=name, **values) for name, values in calls]
    clock.advance(1.0)
    with untouched(store, "job-1", "job-2"):
        again = [keyed(store, f"{name}-1", key=name, **values) for name, values in calls]
    assert [(each.outcome, each.job.id) for each in again] == [(each.outcome, each.job.id) for each in first]


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("values", [{}, OTHER])
def test_a_repeated_meeting_with_a_key_is_answered_as_the_first_one(
    store: Store, clock: ManualClock, values: dict[str, Any], ended: bool
) -> None:
    """Who met a key and asks once more, because the answer was lost, is one duplicate, also when it was rejected."""
    keyed(store)
    if ended:
        end(store, start(store))
    first = keyed(store, "job-2", **values)
    clock.advance(1.0)
    with untouched(store, "job-1"):
        assert keyed(store, "job-2", **values) == first
    assert sum(counted(store, GroupBy.IDENTITY).values()) == 1


# --- until it is forgotten ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key_for", [0.5, KEY_FOR, 30 * DAY])
def test_a_key_is_forgotten_to_the_moment(store: Store, clock: ManualClock, key_for: float) -> None:
    """A key is answered until its time is over on the store's clock; from then on it is a new one."""
    keyed(store, key_for=key_for)
    end(store, start(store))
    clock.advance(key_for - 0.25)
    assert keyed(store, "job-2", **OTHER).key_reused
    clock.advance(0.25)
    answer = keyed(store, "job-3", **OTHER)
    assert (answer.outcome, answer.job.id) == (Outcome.ADMITTED, "job-3")
    assert keyed(store, "job-4", **OTHER).job.id == "job-3"


def test_a_forgotten_key_of_a_live_job_is_met_like_any_other(store: Store, clock: ManualClock) -> None:
    """After its time a key protects nobody: its submission meets the job in its way, and is kept anew."""
    keyed(store)
    clock.advance(KEY_FOR)
    answer = keyed(store, "job-2", replaces=True, **OTHER)
    assert (answer.outcome, answer.job.id) == (Outcome.REPLACED, "job-1")
    assert answer.job.key_retained_until == START + 2 * KEY_FOR
    assert keyed(store, "job-3").key_reused


def test_a_key_is_not_kept_longer_for_being_met(store: Store, clock: ManualClock) -> None:
    """The time of a key counts from the first submission with it."""
    keyed(store)
    clock.advance(KEY_FOR - 1.0)
    assert keyed(store, "job-2").job.key_retained_until == START + KEY_FOR
    clock.advance(1.0)
    end(store, start(store))
    assert keyed(store, "job-3").outcome is Outcome.ADMITTED


def test_a_job_is_kept_for_the_last_of_its_keys(store: Store, clock: ManualClock) -> None:
    """Of several keys that one job answers, the one that is kept longest counts, whichever came last."""
    assert keyed(store, "job-1", key="a", key_for=50.0).job.key_retained_until == START + 50.0
    assert keyed(store, "job-2", key="b", key_for=500.0).job.key_retained_until == START + 500.0
    clock.advance(1.0)
    assert keyed(store, "job-3", key="c", key_for=5.0).job.key_retained_until == START + 500.0
    clock.advance(5.0)
    assert keyed(store, "job-4", key="c", identity="another").outcome is Outcome.ADMITTED


@pytest.mark.parametrize("key_for", [DAY + 100.0, DAY, DAY - 100.0])
def test_a_purge_waits_for_the_key(ledger: Ledger, store: Store, clock: ManualClock, key_for: float) -> None:
    """An ended job is purged after its retention, but not before the last of its keys is forgotten, to the moment."""
    keyed(store, key_for=key_for)
    ledger.complete(start(store), "1")
    last = max(DAY, key_for)
    clock.advance(DAY - 0.5)
    assert sweep(ledger, nobody) == Swept()
    clock.advance(0.5)
    if last > DAY:
        assert sweep(ledger, nobody) == Swept()
        assert read(store).wake_at == START + last
        clock.advance(last - DAY - 0.5)
        assert keyed(store, "job-2").outcome is Outcome.REPLAYED
        assert sweep(ledger, nobody) == Swept()
        clock.advance(0.5)
    assert sweep(ledger, nobody) == Swept(purged=1)
    assert get(store, "job-1") is None
    assert keyed(store, "job-3", **OTHER).outcome is Outcome.ADMITTED


def test_a_purge_of_a_window_waits_for_the_key(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A completed job that kept its identity gives it up when its window is over, and stays for its key."""
    keyed(store, key_for=30 * DAY)
    ledger.complete(start(store), "1", keep=Retention(identity_for=60.0))
    clock.advance(2 * DAY)
    assert sweep(ledger, nobody) == Swept()
    assert not read(store).holds_identity
    assert read(store).wake_at == START + 30 * DAY
    clock.advance(28 * DAY)
    assert sweep(ledger, nobody) == Swept(purged=1)


def test_a_drop_does_not_wait_for_the_key(ledger: Ledger, store: Store) -> None:
    """A dead letter that somebody drops is gone with its keys."""
    keyed(store)
    ledger.fail(start(store), "{}", "no")
    ledger.drop("job-1")
    assert get(store, "job-1") is None
    assert keyed(store, "job-2", **OTHER).outcome is Outcome.ADMITTED


def test_a_deleted_job_takes_all_its_keys_with_it(store: Store) -> None:
    """No key answers for a job that is gone, and the other jobs keep theirs."""
    for key in ("a", "b", "c"):
        keyed(store, f"job-{key}", key=key)
    keyed(store, "other", identity="another", key="d")
    end(store, start(store, "job-a"))
    assert store.delete(["job-a"], sources=FINAL) == ["job-a"]
    for number, key in enumerate(("a", "b", "c")):
        identity = f"identity-{key}"
        assert keyed(store, f"new-{number}", identity=identity, key=key, **OTHER).outcome is Outcome.ADMITTED
    assert keyed(store, "late", key="d").job.id == "other"


def test_a_job_that_was_sent_again_answers_its_key(ledger: Ledger, store: Store) -> None:
    """A dead letter that lives again answers its key as a live job."""
    keyed(store)
    ledger.fail(start(store), "{}", "no")
    assert keyed(store, "job-2").outcome is Outcome.REPLAYED
    assert ledger.redrive("job-1").key_retained_until is not None
    assert keyed(store, "job-3").outcome is Outcome.ATTACHED


def test_keys_change_nothing_about_a_life(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A job with keys is claimed, published and ended like any other, and its history does not tell of them."""
    keyed(store)
    for number in range(DUPLICATE_LIMIT + 1):
        keyed(store, f"again-{number}")
    clock.advance(LEASE)
    assert sweep(ledger, nobody) == Swept(published=1)
    ledger.complete(start(store), "1")
    assert events(store) == ["submit", "publish", "claim", "complete"]
    assert apply(store, read(store), Transition.CANVAS_NOTIFIED).key_retained_until == START + KEY_FOR


# --- at once --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("identities", [1, THREADS])
def test_of_many_threads_with_one_key_one_is_admitted(store: Store, identities: int) -> None:
    """Of many submissions with one key at the same moment one is admitted, and its job answers all, also others'."""
    ids = {f"job-{number}": f"identity-{number % identities}" for number in range(THREADS)}
    answers = together(*[partial(keyed, store, job_id, identity=identity) for job_id, identity in ids.items()])
    assert Counter(answer.outcome for answer in answers) == {Outcome.ADMITTED: 1, Outcome.ATTACHED: THREADS - 1}
    (job,) = store.find(Query(limit=1000))
    assert {answer.job.id for answer in answers} == {job.id}
    assert (job.duplicate_count, job.holds_identity) == (THREADS - 1, True)


def test_of_many_threads_with_one_key_for_two_one_kind_is_served(store: Store) -> None:
    """Of submissions of two kinds with one key at the same moment, one is admitted, and the other kind is rejected."""
    kinds = [str(number % 2) for number in range(THREADS)]
    answers = together(*[
        partial(keyed, store, f"job-{number}", identity=kind, fingerprint=kind) for number, kind in enumerate(kinds)
    ])  # fmt: skip
    (job,) = store.find(Query(limit=1000))
    for kind, answer in zip(kinds, answers, strict=True):
        served = kind == job.fingerprint
        assert (answer.job.id, answer.key_reused) == (job.id, not served)
        assert (answer.outcome is Outcome.REJECTED) is not served
    assert sum(answer.outcome is Outcome.ADMITTED for answer in answers) == 1
    assert job.duplicate_count == THREADS - 1
