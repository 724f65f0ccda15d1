"""Submit many: each is answered as if it had come alone, one after the other, and the batch costs a few round trips."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from onejob.errors import StoreUnavailableError
from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import Admission, Outcome
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
    counted,
    end,
    events,
    holders,
    read,
    run,
    start,
    submission,
    submit,
    submit_one,
    untouched,
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


def batch(store: Store, *submissions: Submission) -> list[Admission]:
    """Submit some at once."""
    return store.submit_many(submissions, wake_in=LEASE)


def told(answers: Sequence[Admission]) -> list[tuple[str, str]]:
    """Return outcome and answering job of each."""
    return [(str(answer.outcome), answer.job.id) for answer in answers]


def test_each_is_admitted_in_its_order(store: Store, clock: ManualClock) -> None:
    """A batch of different submissions is a batch of jobs, answered in the order in which they were given."""
    submissions = [
        submission(f"job-{n}", payload=str(n), delay=n, priority_rank=n, canvas=n % 2 == 0) for n in (3, 1, 2, 0)
    ]
    answers = batch(store, *submissions)
    assert told(answers) == [("admitted", new.id) for new in submissions]
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


def test_nothing_is_answered_with_nothing(ledger: Ledger, store: Store) -> None:
    """An empty batch is no submission."""
    assert batch(store) == ledger.submit_many([]) == []
    assert store.find(Query()) == []


def test_a_batch_of_one_is_a_submission(store: Store, clock: ManualClock) -> None:
    """One submission in a batch comes to what it comes to alone."""
    alone = submit_one(store, submission("alone"), wake_in=LEASE)
    (answer,) = batch(store, submission("many"))
    assert answer.outcome is Outcome.ADMITTED
    assert (
        replace(answer.job, id="alone", identity=alone.job.identity, submission_nonce=alone.job.submission_nonce)
        == alone.job
    )


def test_equal_ones_in_a_batch_are_one_job(store: Store) -> None:
    """Of equal submissions in one batch the first is admitted, and the others are answered by its job."""
    answers = batch(store, *[submission(f"job-{number}", identity="same") for number in range(50)])
    assert told(answers) == [("admitted", "job-0")] + [("attached", "job-0")] * 49
    assert [answer.job.duplicate_count for answer in answers] == list(range(50))
    assert store.find(Query()) == [answers[-1].job] == holders(store, "same")
    assert [duplicate.submission_nonce for duplicate in store.duplicates("job-0")] == [
        f"nonce-of-job-{number}" for number in range(50 - DUPLICATE_LIMIT, 50)
    ]
    assert counted(store, GroupBy.TASK) == {("app.add", "attached"): 49}


def test_a_batch_meets_what_is_there(store: Store) -> None:
    """A batch meets the jobs of before it, and the others of the batch are admitted."""
    waiting = submit(store, "waiting", identity="waiting")
    running = run(store, "running", identity="running")
    ended = end(store, run(store, "ended", identity="ended"))
    identities = ("running", "new", "ended", "waiting")
    answers = batch(store, *[submission(f"job-{name}", identity=name) for name in identities])
    assert told(answers) == [
        ("attached", "running"), ("admitted", "job-new"), ("admitted", "job-ended"), ("attached", "waiting"),
    ]  # fmt: skip
    assert read(store, "running") == replace(running, duplicate_count=1)
    assert read(store, "waiting") == replace(waiting, duplicate_count=1)
    assert read(store, "ended") == ended


def test_a_thousand_are_submitted_at_once(store: Store) -> None:
    """A batch may be as large as the limit, half of it equal to the other half."""
    submissions = [
        submission(f"job-{number}", identity=str(number % (BATCH_LIMIT // 2))) for number in range(BATCH_LIMIT)
    ]
    answers = batch(store, *submissions)
    half = [f"job-{number}" for number in range(BATCH_LIMIT // 2)]
    assert told(answers) == [("admitted", job_id) for job_id in half] + [("attached", job_id) for job_id in half]
    assert len(store.find(Query(limit=BATCH_LIMIT * 2))) == BATCH_LIMIT // 2


def test_the_ledger_takes_more_than_a_thousand(ledger: Ledger, store: Store) -> None:
    """A ledger cuts what is more than a store takes at once into batches, and answers for all in order."""
    count = BATCH_LIMIT * 2 + 5
    answers = ledger.submit_many([submission(f"job-{n}", identity=str(n % (BATCH_LIMIT + 1))) for n in range(count)])
    assert [answer.job.id for answer in answers] == [f"job-{n % (BATCH_LIMIT + 1)}" for n in range(count)]
    assert Counter(answer.outcome for answer in answers) == {
        Outcome.ADMITTED: BATCH_LIMIT + 1, Outcome.ATTACHED: BATCH_LIMIT + 4,
    }  # fmt: skip


# --- as if one after the other --------------------------------------------------------------------------------------


def _mixed(prefix: str) -> list[Submission]:
    """Return submissions of every reaction, with keys and followers among them, that meet each other and more."""
    submissions = []
    reactions = list(CONFLICT_POLICIES.values())
    for number in range(80):
        values: dict[str, Any] = {
            "identity": f"{prefix}{number % 6}", "fingerprint": str(number % 5), "payload": str(number),
            "delay": float(number * 7 % 40), "priority_rank": number * 3 % 4, "follows": number % 7 == 0,
            "submitter": f"{prefix}{number % 3}", "task": f"{prefix}task", **reactions[number * 5 % 4 or number % 4],
        }  # fmt: skip
        if number % 11 == 0:
            values |= {"key": f"{prefix}{number % 6}", "key_for": 50.0}
        if number % 13 == 0:
            values |= {"expires_in": 30.0 + number}
        submissions.append(submission(f"{prefix}late-{number}", nonce=f"{prefix}{number}", **values))
    return submissions


def _prepare(store: Store, prefix: str) -> None:
    """Have jobs of five identities be in the way: waiting, running, retrying, queued again, and ended."""
    names = [f"{prefix}{number}" for number in range(5)]
    for name in names:
        submit(store, f"{name}-first", identity=name, task=f"{prefix}task", nonce=name, delay=20.0 * (name[-1] == "0"))
    running = [start(store, f"{name}-first", nonce=name) for name in names[1:]]
    apply(store, running[1], Transition.RETRY, run_in=5.0, wake_in=5.0)
    apply(store, running[2], Transition.RELEASE)
    end(store, running[3])


def _everything(store: Store, prefix: str) -> list[Any]:
    """Return all that can be seen of the jobs whose names begin so, without the prefix."""
    jobs = sorted((job for job in store.find(Query(limit=1000)) if job.id.startswith(prefix)), key=lambda job: job.id)
    seen = [(job, store.history(job.id), store.duplicates(job.id)) for job in jobs]
    duplicate_counts = [
        tally for by in GroupBy for tally in store.duplicate_counts(by, limit=1000) if tally.task.startswith(prefix)
    ]
    return [repr(each).replace(prefix, "") for each in (*seen, *duplicate_counts)]


def test_a_batch_comes_to_what_its_submissions_come_to_one_by_one(store: Store, clock: ManualClock) -> None:
    """Whatever the submissions of a batch want of whom they meet, answers and rows are as if each came alone."""
    for prefix in ("one-", "all-"):
        _prepare(store, prefix)
    clock.advance(5.0)
    one_by_one = [submit_one(store, new, wake_in=LEASE) for new in _mixed("one-")]
    at_once = batch(store, *_mixed("all-"))
    assert [repr(each).replace("all-", "") for each in at_once] == [repr(e).replace("one-", "") for e in one_by_one]
    assert {each.outcome for each in at_once} == set(Outcome) - {Outcome.REPLAYED}
    assert _everything(store, "all-") == _everything(store, "one-")
    for job in store.find(Query(limit=1000)):
        assert_legal(store.history(job.id), job)


@pytest.mark.parametrize("identities", ["ab", "ba"])
def test_a_key_in_a_batch_is_the_first_ones(store: Store, identities: str) -> None:
    """Of submissions of different identities with one key in one batch, the first has it, whatever they are called."""
    submissions = [
        submission(f"job-{number}", identity=name, key="key-1") for number, name in enumerate(identities * 2)
    ]
    assert told(batch(store, *submissions)) == [("admitted", "job-0")] + [("attached", "job-0")] * 3
    assert store.find(Query()) == [read(store, "job-0")]


def test_a_batch_that_is_repeated_changes_nothing(store: Store, clock: ManualClock) -> None:
    """A batch that comes again, because its answer was lost, gets the same jobs, and nothing is counted again."""
    submissions = [
        submission(
            f"late-{number}", identity=str(number % 9), fingerprint=str(number), **CONFLICT_POLICIES[conflict_policy]
        )
        for number, conflict_policy in enumerate(["attach", "replace", "raise"] * 9)
    ]
    first = batch(store, *submissions)
    before = _everything(store, "")
    clock.advance(1.0)
    again = batch(store, *submissions)
    assert told(again) == told(first)
    assert [each.job for each in again] == [read(store, each.job.id) for each in first]
    assert _everything(store, "") == before


def test_one_submission_twice_in_a_batch_is_one(store: Store) -> None:
    """A submission that stands in its batch twice is answered twice, and counted once or not at all."""
    submit(store, identity="same")
    new, duplicate = submission("new"), submission("late", identity="same")
    answers = batch(store, new, duplicate, new, duplicate)
    assert told(answers) == [("admitted", "new"), ("attached", "job-1")] * 2
    assert (read(store, "new").duplicate_count, read(store).duplicate_count) == (0, 1)


def test_a_batch_touches_no_others(store: Store) -> None:
    """Jobs that no submission of a batch meets stay as they are."""
    for number in range(3):
        run(store, f"other-{number}")
    with untouched(store, "other-0", "other-1", "other-2"):
        batch(store, *[submission(f"job-{number}") for number in range(20)])


@pytest.mark.parametrize("key_reused", [False, True])
def test_one_that_is_rejected_rejects_no_other(ledger: Ledger, store: Store, key_reused: bool) -> None:
    """Each submission of a batch is answered by itself, also when one is refused by a job or for its key."""
    submit(store, "held", identity="held", key="key-1")
    refused = {"key": "key-1", "fingerprint": "other"} if key_reused else {"identity": "held", "rejects": True}
    answers = ledger.submit_many([submission("a"), submission("b", **refused), submission("c")])
    assert told(answers) == [("admitted", "a"), ("rejected", "held"), ("admitted", "c")]
    assert [answer.key_reused for answer in answers] == [False, key_reused, False]


# --- at once with others --------------------------------------------------------------------------------------------


def test_batches_in_opposite_order_hold_nobody_up(store_address: StoreAddress) -> None:
    """Processes whose batches overlap in opposite order all get their answers, and every identity has one job."""
    answers = race(store_address, PROCESSES, submit_batches_in_rounds, ROUNDS, SIZE, False)  # noqa: FBT003
    told = Counter(each for answered in answers for each in answered)
    assert sum(told.values()) == PROCESSES * ROUNDS * SIZE
    with store_address.opened() as store:
        found: list[Job] = [job for job in store.find(Query(limit=10_000)) if job.follows_id is None]
        assert len(found) == len({job.identity for job in found}) == ROUNDS * SIZE
        for job in found:
            assert (told["admitted", job.id], told["attached", job.id]) == (1, PROCESSES - 1)
            assert (job.duplicate_count, job.holds_identity) == (PROCESSES - 1, True)


def test_batches_with_crossed_keys_hold_nobody_up(store_address: StoreAddress) -> None:
    """Processes whose batches have the same identities and the same keys, but crosswise, all get their answers."""
    answers = race(store_address, PROCESSES, submit_batches_in_rounds, ROUNDS, SIZE, True)  # noqa: FBT003
    told = Counter(each for answered in answers for each in answered)
    assert sum(told.values()) == PROCESSES * ROUNDS * SIZE
    with store_address.opened() as store:
        found: list[Job] = [job for job in store.find(Query(limit=10_000)) if job.follows_id is None]
        assert len(found) == len({job.identity for job in found})
        assert {job_id for outcome, job_id in told if outcome == "admitted"} == {job.id for job in found}
        assert {outcome for outcome, _ in told} == {"admitted", "attached"}
        assert all(told["admitted", job.id] == 1 for job in found)


def test_the_first_of_a_batch_is_the_first_with_a_key_or_without(store: Store) -> None:
    """Among equal submissions of a batch the first one is admitted, also when only it has an idempotency key."""
    submissions = [submission("keyed", identity="same", key="k"), submission("plain", identity="same")]
    answers = store.submit_many(submissions, wake_in=LEASE)
    assert [(each.job.id, each.outcome) for each in answers] == [
        ("keyed", Outcome.ADMITTED), ("keyed", Outcome.ATTACHED),
    ]  # fmt: skip


def test_what_a_store_remembers_of_whom_it_met_is_a_guess(store: Store) -> None:
    """A store that has met one job many times answers with the next one as soon as that one holds the identity."""
    for number in range(3):
        job = run(store, f"job-{number}", identity="same")
        for late in range(3):
            assert told([admission(store, f"late-{number}-{late}", identity="same")]) == [("attached", job.id)]
        assert told(batch(store, *_equal(number))) == [("attached", job.id)] * 5
        end(store, job)
    assert told(batch(store, *_equal(9))) == [("admitted", "batch-9-0")] + [("attached", "batch-9-0")] * 4


def _equal(number: int) -> list[Submission]:
    return [submission(f"batch-{number}-{each}", identity="same") for each in range(5)]


# --- twins ----------------------------------------------------------------------------------------------------------


def _twins(prefix: str, way: str, number: int) -> list[Submission]:
    """Return submissions of three identities, most of them alike, and for one of these some that are not."""
    submissions = []
    for each in range(number):
        values: dict[str, Any] = {"identity": f"{prefix}{each % 3}", "task": f"{prefix}task", **CONFLICT_POLICIES[way]}
        if each % 3 == 2 and each % 5 == 0:
            values |= {"fingerprint": "other", "delay": 3.0}
        submissions.append(submission(f"{prefix}twin-{each}", nonce=f"{prefix}{each}", submitter=prefix, **values))
    return submissions


@pytest.mark.parametrize("way", ["attach", "raise", "replace"])
@pytest.mark.parametrize("state", ["none", "waiting", "running", "ended"])
def test_twins_come_to_what_they_come_to_one_by_one(
    ledger: Ledger, store: Store, clock: ManualClock, way: str, state: str
) -> None:
    """Equal submissions that a ledger gets at once leave the rows, counts and duplicates that they leave one by one."""
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
    one_by_one = [ledger.submit(new) for new in _twins("one-", way, 70)]
    at_once = ledger.submit_many(_twins("all-", way, 70))
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
    for tally in store.duplicate_counts(GroupBy.SUBMITTER, limit=9):
        counts[tally.name] += tally.count
    assert counts["all-"] == counts["one-"] == sum(job.duplicate_count for job in jobs["one-"])


def _ids(answers: Sequence[Admission]) -> list[str]:
    return sorted({answer.job.id.removeprefix("one-") for answer in answers})


def test_a_repetition_is_no_twin(ledger: Ledger, store: Store) -> None:
    """A submission that is twice in one batch is answered twice and counted once."""
    new = submission("job-1", identity="same")
    assert told(ledger.submit_many([new, new])) == [("admitted", "job-1")] * 2
    assert read(store).duplicate_count == 0


def test_twins_without_duplicates_are_jobs_all_the_same(
    ledger: Ledger, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the duplicates of twins cannot be kept, all of the batch are answered as if they had been."""

    def away(*_args: Any, **_more: Any) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(store, "record", away)
    submissions = [submission(f"job-{number}", identity=str(number % 2)) for number in range(4)]
    assert told(ledger.submit_many(submissions)) == [
        ("admitted", "job-0"), ("admitted", "job-1"), ("attached", "job-0"), ("attached", "job-1"),
    ]  # fmt: skip
