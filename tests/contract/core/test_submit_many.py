"""Submit many: a batch returns what its submissions would return one by one, and costs a few round trips."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from onejob.errors import StoreUnavailableError
from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import Admission, Outcome
from onejob.jobs.quota import Charge, Quota
from onejob.jobs.records import Query
from onejob.stores.protocol import BATCH_LIMIT, DUPLICATE_LIMIT, GroupBy
from tests.contract.processes import race, submit_batches_in_rounds
from tests.contract.support import (
    CONFLICT_POLICIES,
    LEASE,
    START,
    ManualClock,
    admission,
    apply,
    assert_legal,
    end,
    events,
    read,
    run,
    start,
    submission,
    submit,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.jobs.model import Job, Submission
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store
    from tests.contract.support import StoreAddress

SIZE = 40
ROUNDS = 8
PROCESSES = 2


def submit_batch(store: Store, *submissions: Submission) -> list[Admission]:
    """Submit a batch."""
    return store.submit_many(submissions, wake_in=LEASE)


def outcomes_and_ids(answers: Sequence[Admission]) -> list[tuple[str, str]]:
    """Return the outcome and the id of the returned job of each submission."""
    return [(str(answer.outcome), answer.job.id) for answer in answers]


def test_a_batch_is_admitted_in_order(store: Store, clock: ManualClock) -> None:
    """A batch of different submissions is a batch of jobs, returned in the order of the submissions."""
    submissions = [
        submission(f"job-{n}", payload=str(n), delay=n, priority_rank=n, canvas=n % 2 == 0) for n in (3, 1, 2, 0)
    ]
    answers = submit_batch(store, *submissions)
    assert outcomes_and_ids(answers) == [("admitted", new.id) for new in submissions]
    assert [answer.job for answer in answers] == [read(store, new.id) for new in submissions]
    for new, answer in zip(submissions, answers, strict=True):
        job = answer.job
        assert (job.payload, job.priority_rank, job.canvas_pending, job.holds_identity) == (
            new.payload,
            new.priority_rank,
            new.canvas,
            True,
        )
        assert (job.created_at, job.run_at, job.wake_at) == (START, START + new.delay, START + (new.delay or LEASE))
        assert events(store, job.id) == ["submit"]


def test_an_empty_batch_returns_nothing(ledger: Ledger, store: Store) -> None:
    """An empty batch writes nothing and returns nothing."""
    assert submit_batch(store) == ledger.submit_many([]) == []
    assert store.find(Query()) == []


def test_a_batch_may_have_the_size_of_the_limit(store: Store) -> None:
    """A batch may be as large as the limit, and half of it may be duplicates of the other half."""
    submissions = [
        submission(f"job-{number}", identity=str(number % (BATCH_LIMIT // 2))) for number in range(BATCH_LIMIT)
    ]
    answers = submit_batch(store, *submissions)
    half = [f"job-{number}" for number in range(BATCH_LIMIT // 2)]
    assert outcomes_and_ids(answers) == [("admitted", job_id) for job_id in half] + [
        ("attached", job_id) for job_id in half
    ]
    assert len(store.find(Query(limit=BATCH_LIMIT * 2))) == BATCH_LIMIT // 2


def test_the_ledger_splits_larger_batches(ledger: Ledger, store: Store) -> None:
    """The ledger splits a batch larger than the store's limit, and returns all results in order."""
    count = BATCH_LIMIT * 2 + 5
    answers = ledger.submit_many([submission(f"job-{n}", identity=str(n % (BATCH_LIMIT + 1))) for n in range(count)])
    assert [answer.job.id for answer in answers] == [f"job-{n % (BATCH_LIMIT + 1)}" for n in range(count)]
    assert Counter(answer.outcome for answer in answers) == {
        Outcome.ADMITTED: BATCH_LIMIT + 1, Outcome.ATTACHED: BATCH_LIMIT + 4,
    }  # fmt: skip


# --- equivalent to one by one ---------------------------------------------------------------------------------------


def _everything_stored(store: Store, prefix: str) -> list[Any]:
    """Return all stored data of the jobs whose ids have a prefix, without the prefix."""
    jobs = sorted((job for job in store.find(Query(limit=1000)) if job.id.startswith(prefix)), key=lambda job: job.id)
    seen = [(job, store.history(job.id), store.duplicates(job.id)) for job in jobs]
    duplicate_counts = [
        each for by in GroupBy for each in store.duplicate_counts(by, limit=1000) if each.task.startswith(prefix)
    ]
    return [repr(each).replace(prefix, "") for each in (*seen, *duplicate_counts)]


@pytest.mark.parametrize("identities", ["ab", "ba"])
def test_the_first_submission_of_a_batch_gets_the_key(store: Store, identities: str) -> None:
    """Of submissions of different identities with one key in a batch, the first is admitted, in either order."""
    submissions = [
        submission(f"job-{number}", identity=name, key="key-1") for number, name in enumerate(identities * 2)
    ]
    assert outcomes_and_ids(submit_batch(store, *submissions)) == [("admitted", "job-0")] + [("attached", "job-0")] * 3
    assert store.find(Query()) == [read(store, "job-0")]


def test_a_repeated_batch_changes_nothing(store: Store, clock: ManualClock) -> None:
    """A repeated batch, after a lost response, returns the same jobs and changes no count."""
    submissions = [
        submission(
            f"late-{number}", identity=str(number % 9), fingerprint=str(number), **CONFLICT_POLICIES[conflict_policy]
        )
        for number, conflict_policy in enumerate(["attach", "replace", "raise"] * 9)
    ]
    first = submit_batch(store, *submissions)
    before = _everything_stored(store, "")
    clock.advance(1.0)
    repeated = submit_batch(store, *submissions)
    assert outcomes_and_ids(repeated) == outcomes_and_ids(first)
    assert [each.job for each in repeated] == [read(store, each.job.id) for each in first]
    assert _everything_stored(store, "") == before


def test_a_submission_that_occurs_twice_in_a_batch_is_one(store: Store) -> None:
    """A submission that occurs twice in a batch is returned twice, and counted at most once."""
    submit(store, identity="same")
    new, duplicate = submission("new"), submission("late", identity="same")
    answers = submit_batch(store, new, duplicate, new, duplicate)
    assert outcomes_and_ids(answers) == [("admitted", "new"), ("attached", "job-1")] * 2
    assert (read(store, "new").duplicate_count, read(store).duplicate_count) == (0, 1)


# --- concurrent batches ---------------------------------------------------------------------------------------------


def test_batches_in_opposite_order_do_not_block_each_other(store_address: StoreAddress) -> None:
    """Processes whose batches overlap in opposite order all complete, and every identity has one job."""
    answers = race(store_address, PROCESSES, submit_batches_in_rounds, ROUNDS, SIZE, False)  # noqa: FBT003
    answer_counts = Counter(each for answers_of_process in answers for each in answers_of_process)
    assert sum(answer_counts.values()) == PROCESSES * ROUNDS * SIZE
    with store_address.opened() as store:
        found: list[Job] = [job for job in store.find(Query(limit=10_000)) if job.follows_id is None]
        assert len(found) == len({job.identity for job in found}) == ROUNDS * SIZE
        for job in found:
            assert (answer_counts["admitted", job.id], answer_counts["attached", job.id]) == (1, PROCESSES - 1)
            assert (job.duplicate_count, job.holds_identity) == (PROCESSES - 1, True)


def test_batches_with_crossed_keys_do_not_block_each_other(store_address: StoreAddress) -> None:
    """Processes whose batches pair the same identities with the same keys in opposite order all complete."""
    answers = race(store_address, PROCESSES, submit_batches_in_rounds, ROUNDS, SIZE, True)  # noqa: FBT003
    answer_counts = Counter(each for answers_of_process in answers for each in answers_of_process)
    assert sum(answer_counts.values()) == PROCESSES * ROUNDS * SIZE
    with store_address.opened() as store:
        found: list[Job] = [job for job in store.find(Query(limit=10_000)) if job.follows_id is None]
        assert len(found) == len({job.identity for job in found})
        assert {job_id for outcome, job_id in answer_counts if outcome == "admitted"} == {job.id for job in found}
        assert {outcome for outcome, _ in answer_counts} == {"admitted", "attached"}
        assert all(answer_counts["admitted", job.id] == 1 for job in found)


@pytest.mark.parametrize("values", [{"key": "k"}, {"charges": (Charge("quota", Quota(5, 60), "a quota"),)}])
def test_the_order_of_a_batch_is_that_of_equal_submissions(store: Store, values: dict[str, Any]) -> None:
    """Among equal submissions of a batch the first is admitted, even when it alone has a key or a quota."""
    submissions = [submission("first", identity="same", **values), submission("plain", identity="same")]
    answers = store.submit_many(submissions, wake_in=LEASE)
    assert [(each.job.id, each.outcome) for each in answers] == [
        ("first", Outcome.ADMITTED), ("first", Outcome.ATTACHED),
    ]  # fmt: skip


def test_a_cached_holder_is_verified(store: Store) -> None:
    """A store that has returned one job many times returns the next holder of the identity as soon as there is one."""
    for number in range(3):
        job = run(store, f"job-{number}", identity="same")
        for late in range(3):
            assert outcomes_and_ids([admission(store, f"late-{number}-{late}", identity="same")]) == [
                ("attached", job.id)
            ]
        assert outcomes_and_ids(submit_batch(store, *_equal_submissions(number))) == [("attached", job.id)] * 5
        end(store, job)
    assert (
        outcomes_and_ids(submit_batch(store, *_equal_submissions(9)))
        == [("admitted", "batch-9-0")] + [("attached", "batch-9-0")] * 4
    )


def _equal_submissions(number: int) -> list[Submission]:
    return [submission(f"batch-{number}-{each}", identity="same") for each in range(5)]


# --- equal submissions of one batch ---------------------------------------------------------------------------------


def _mostly_equal_submissions(prefix: str, conflict_policy: str, number: int) -> list[Submission]:
    """Return submissions of three identities, most of them equal, and for one identity some with other arguments."""
    submissions = []
    for each in range(number):
        values: dict[str, Any] = {
            "identity": f"{prefix}{each % 3}",
            "task": f"{prefix}task",
            **CONFLICT_POLICIES[conflict_policy],
        }
        if each % 3 == 2 and each % 5 == 0:
            values |= {"fingerprint": "other", "delay": 3.0}
        submissions.append(submission(f"{prefix}equal-{each}", nonce=f"{prefix}{each}", submitter=prefix, **values))
    return submissions


@pytest.mark.parametrize("conflict_policy", ["attach", "raise", "replace"])
@pytest.mark.parametrize("state", ["none", "waiting", "running", "ended"])
def test_equal_submissions_at_once_equal_one_by_one(
    ledger: Ledger, store: Store, clock: ManualClock, conflict_policy: str, state: str
) -> None:
    """Equal submissions at once leave the same rows, counts and duplicates in a ledger as one by one."""
    for prefix in ("one-", "all-"):
        for number in range(0 if state == "none" else 3):
            name = f"{prefix}{number}"
            submit(store, f"{name}-first", identity=name, task=f"{prefix}task", nonce=name, delay=20.0)
    clock.advance(20.0)
    for name in [f"{prefix}{number}" for prefix in ("one-", "all-") for number in range(3)]:
        if state in {"running", "ended"}:
            begun = start(store, f"{name}-first", nonce=name)
            if state == "ended":
                apply(store, begun, Transition.COMPLETE, keeps_identity=True, identity_for=50.0, wake_in=100.0)
    one_by_one = [ledger.submit(new) for new in _mostly_equal_submissions("one-", conflict_policy, 70)]
    at_once = ledger.submit_many(_mostly_equal_submissions("all-", conflict_policy, 70))
    assert [(str(each.outcome), each.job.id.replace("all-", "")) for each in at_once] == [
        (str(each.outcome), each.job.id.replace("one-", "")) for each in one_by_one
    ]
    jobs = {prefix: [read(store, f"{prefix}{each}") for each in _ids(one_by_one)] for prefix in ("one-", "all-")}
    assert [repr(job).replace("all-", "") for job in jobs["all-"]] == [
        repr(job).replace("one-", "") for job in jobs["one-"]
    ]
    for job in jobs["all-"]:
        assert len(store.duplicates(job.id)) == min(job.duplicate_count, DUPLICATE_LIMIT)
        assert_legal(store.history(job.id), job)
    counts: Counter[str] = Counter()
    for each in store.duplicate_counts(GroupBy.SUBMITTER, limit=9):
        counts[each.name] += each.count
    counted = {each.id: each for each in ledger.store.find(Query(limit=1000)) if each.id.startswith("one-")}
    assert counts["all-"] == counts["one-"] == sum(job.duplicate_count for job in counted.values())


def _ids(answers: Sequence[Admission]) -> list[str]:
    return sorted({answer.job.id.removeprefix("one-") for answer in answers})


def test_a_repeated_submission_is_no_duplicate(ledger: Ledger, store: Store) -> None:
    """A submission that occurs twice in one batch of the ledger is returned twice and counted once."""
    new = submission("job-1", identity="same")
    assert outcomes_and_ids(ledger.submit_many([new, new])) == [("admitted", "job-1")] * 2
    assert read(store).duplicate_count == 0


def test_equal_submissions_are_returned_when_duplicates_cannot_be_recorded(
    ledger: Ledger, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the store cannot record the duplicates of a batch, all its submissions are still returned."""

    def fail_to_record(*_args: Any, **_more: Any) -> None:
        raise StoreUnavailableError("unavailable")

    monkeypatch.setattr(store, "record", fail_to_record)
    submissions = [submission(f"job-{number}", identity=str(number % 2)) for number in range(4)]
    assert outcomes_and_ids(ledger.submit_many(submissions)) == [
        ("admitted", "job-0"), ("admitted", "job-1"), ("attached", "job-0"), ("attached", "job-1"),
    ]  # fmt: skip
