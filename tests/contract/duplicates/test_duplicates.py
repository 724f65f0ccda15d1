"""Duplicates: each is recorded with its outcome and source; the newest are kept, the statistics count all."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import FINAL, Transition
from onejob.jobs.model import Duplicate, Outcome, Retention
from onejob.jobs.records import DuplicateCount
from onejob.jobs.visibility import Visibility
from onejob.ledger.ledger import Ledger
from onejob.ledger.reader import JobReader
from onejob.stores.protocol import DUPLICATE_LIMIT, OTHER_SUBMITTERS, GroupBy
from tests.contract.support import (
    CONFLICT_POLICIES,
    REPLACE,
    RUN_AGAIN,
    START,
    UNKNOWN,
    ManualClock,
    admission,
    assert_changed,
    counted,
    end,
    events,
    get,
    queue_next,
    read,
    run,
    submission,
    submit,
    submit_one,
    untouched,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onejob.jobs.model import Job
    from onejob.stores.protocol import Store

ORIGIN: dict[str, Any] = {"source": "delay", "submitter": "billing", "host": "north"}
OTHER: dict[str, Any] = {"fingerprint": "other", "payload": "[2]"}


def duplicate(number: int = 2, **values: Any) -> Duplicate:
    """Return the duplicate of job-1 that a submission of job-`number` without a submitter leaves."""
    defaults: dict[str, Any] = {
        "job_id": "job-1", "submission_nonce": f"nonce-of-job-{number}", "outcome": Outcome.ATTACHED,
        "answered_by": "job-1",
        "source": "submit", "submitter": "", "host": "", "fingerprint": "fingerprint-1", "arguments_differ": False,
        "at": START,
    }  # fmt: skip
    return Duplicate(**(defaults | values))


def kept(store: Store) -> Job:
    """Have job-1 succeed and keep its identity for a while."""
    return Ledger(store).complete(run(store, identity="same"), "1", keep=Retention(identity_for=5000.0))


@contextmanager
def untouched_row(store: Store, job: Job) -> Iterator[None]:
    """Assert that a block leaves a job's row and history as they are."""
    before = get(store, job.id), store.history(job.id)
    yield
    assert (get(store, job.id), store.history(job.id)) == before


# --- what a duplicate records -----------------------------------------------------------------------------------------

DUPLICATES: list[tuple[Outcome, Callable[[Store], Job], dict[str, Any], dict[str, Any]]] = [
    (Outcome.ATTACHED, lambda store: submit(store, identity="same", delay=50.0), {"delay": 80.0}, {}),
    (Outcome.ATTACHED, lambda store: submit(store, identity="same", delay=50.0), {}, {"rescheduled": True}),
    (Outcome.ATTACHED, lambda store: submit(store, identity="same"), {"priority_rank": 1}, {"rescheduled": True}),
    (Outcome.ATTACHED, lambda store: run(store, identity="same"), OTHER, {"arguments_differ": True}),
    (Outcome.REJECTED, lambda store: submit(store, identity="same", delay=50.0), {"rejects": True}, {}),
    (Outcome.REJECTED, lambda store: run(store, identity="same"), OTHER | {"rejects": True},
    {"arguments_differ": True}),
    (Outcome.REPLACED, lambda store: submit(store, identity="same"), OTHER | {"replaces": True},
    {"arguments_differ": True}),
    (Outcome.REPLACED, lambda store: submit(store, identity="same"), OTHER | {"replaces": True, "priority_rank": 1},
     {"arguments_differ": True, "rescheduled": True}),
    (Outcome.QUEUED_NEXT, lambda store: run(store, identity="same"), RUN_AGAIN, {"answered_by": "job-2"}),
    (Outcome.QUEUED_NEXT, lambda store: run(store, identity="same"), OTHER | RUN_AGAIN,
     {"answered_by": "job-2", "arguments_differ": True}),
    (Outcome.REPLAYED, kept, {}, {}),
    (Outcome.REPLAYED, kept, OTHER, {"arguments_differ": True}),
]  # fmt: skip


@pytest.mark.parametrize(("outcome", "prepare", "wanted", "columns"), DUPLICATES)
def test_a_duplicate_is_recorded(
    store: Store, clock: ManualClock, outcome: Outcome, prepare: Any, wanted: dict[str, Any], columns: dict[str, Any]
) -> None:
    """A duplicate records its outcome, the job that answers, its submitter, how it differs, and its time."""
    prepare(store)
    now = clock.advance(2.0)
    answer = admission(store, "job-2", identity="same", **wanted, **ORIGIN)
    expected = duplicate(
        outcome=outcome, fingerprint=wanted.get("fingerprint", "fingerprint-1"), at=now, **ORIGIN, **columns
    )
    assert answer.outcome is outcome
    assert store.duplicates("job-1") == [expected]
    assert store.duplicates("job-2") == []


def test_a_duplicate_of_the_job_queued_next_is_recorded_on_the_running_job(store: Store, clock: ManualClock) -> None:
    """The duplicate belongs to the holder of the identity, is compared with it, and names the job that answers."""
    run(store, identity="same")
    queue_next(store, delay=50.0, **OTHER)
    now = clock.advance(2.0)
    admission(store, "job-3", identity="same", **RUN_AGAIN)
    assert store.duplicates("job-1")[1:] == [
        duplicate(3, outcome=Outcome.REPLACED, answered_by="job-2", rescheduled=True, at=now)
    ]
    assert (store.duplicates("job-2"), read(store, "job-2").duplicate_count) == ([], 0)


# --- the newest are kept --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "step"), [(DUPLICATE_LIMIT, 1.0), (DUPLICATE_LIMIT + 1, -1.0), (DUPLICATE_LIMIT * 2 + 7, 0.0)]
)
def test_the_newest_duplicates_are_kept_in_order(store: Store, clock: ManualClock, count: int, step: float) -> None:
    """The newest duplicates are returned oldest first, up to the limit, also when the clock goes back."""
    submit(store, identity="same")
    for number in range(count):
        clock.advance(step)
        submit(store, f"other-{number}", identity="same", submitter=str(number))
    duplicates = store.duplicates("job-1")
    assert [each.submitter for each in duplicates] == [str(n) for n in range(max(0, count - DUPLICATE_LIMIT), count)]
    assert duplicates[-1].at == clock()
    assert read(store).duplicate_count == count


def test_a_nonce_that_contains_another_is_another_submission(store: Store) -> None:
    """A submission whose nonce is a part of an earlier one's is no repetition of it."""
    submit(store, "first", identity="same", nonce="0")
    for job_id, nonce in (("second", "ab"), ("third", "b"), ("fourth", "a")):
        assert admission(store, job_id, identity="same", nonce=nonce).outcome is Outcome.ATTACHED
    assert read(store, "first").duplicate_count == 3


def test_a_deletion_deletes_the_duplicates(store: Store) -> None:
    """The duplicates of a deleted job are deleted, and a new job under its id has none."""
    job = run(store, identity="same")
    for number in range(3):
        submit(store, f"other-{number}", identity="same")
    end(store, job)
    store.delete(["job-1"], sources=FINAL)
    assert store.duplicates("job-1") == []
    submit(store, identity="same")
    assert store.duplicates("job-1") == []
    submit(store, "job-2", identity="same")
    assert [each.submission_nonce for each in store.duplicates("job-1")] == ["nonce-of-job-2"]


# --- all are counted ------------------------------------------------------------------------------------------------


def test_a_deletion_does_not_change_the_sums(store: Store) -> None:
    """The deletion of a job does not change the sums of its task, and ends the counts of its identity."""
    for number in range(3):
        run(store, identity="same")
        for other in range(DUPLICATE_LIMIT + 2):
            submit(store, f"{number}-{other}", identity="same")
        end(store, read(store))
        store.delete(["job-1"], sources=FINAL)
    expected = 3 * (DUPLICATE_LIMIT + 2)
    assert counted(store, GroupBy.TASK) == {("app.add", "attached"): expected}
    assert counted(store, GroupBy.SUBMITTER) == {("", "attached"): expected}
    assert counted(store, GroupBy.IDENTITY) == {}
    submit(store, identity="same")
    submit(store, "job-2", identity="same", submitter="billing")
    assert counted(store, GroupBy.TASK) == {("app.add", "attached"): expected + 1}
    assert counted(store, GroupBy.IDENTITY) == {("same", "attached"): 1}


def _limit_submitters(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    modules = (
        "postgres.statements", "sqlite.store", "sqlite.submission", "redis.duplicate_stats", "redis.submission",
    )  # fmt: skip
    for module in modules:
        monkeypatch.setattr(f"onejob.stores.{module}.SUBMITTER_LIMIT", limit)


def test_the_submitters_of_a_job_are_limited(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit, new submitters of duplicates are counted together, and the known ones as before."""
    _limit_submitters(monkeypatch, 3)
    submit(store, identity="same")
    for number, name in enumerate("abcdea"):
        submit(store, f"job-{number}-{name}", identity="same", submitter=name)
    store.record(duplicate(8, submitter="f"), also=["nonce-of-job-9"])
    expected = {("a", "attached"): 2, ("b", "attached"): 1, ("c", "attached"): 1, (OTHER_SUBMITTERS, "attached"): 4}
    assert counted(store, GroupBy.SUBMITTER) == expected


def test_nobody_sees_the_sums_of_the_other_submitters(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A submitter with the name under which further submitters are counted sees no statistics of them."""
    _limit_submitters(monkeypatch, 1)
    submit(store, identity="same")
    for name in "abc":
        submit(store, f"job-{name}", identity="same", submitter=name)
    assert (OTHER_SUBMITTERS, "attached") in counted(store, GroupBy.SUBMITTER)
    reader = JobReader(store, Visibility(submitter=OTHER_SUBMITTERS))
    assert [reader.duplicate_counts(by) for by in GroupBy] == [[], [], []]


def test_the_submitters_of_a_task_are_limited(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of deleted jobs distinguish so many submitters of a task, however many jobs it has had."""
    _limit_submitters(monkeypatch, 3)
    for names in ("ab", "cd", "ae"):
        job = run(store, names, identity="same")
        for name in names:
            submit(store, f"{names}-{name}", identity="same", submitter=name)
        end(store, job)
        store.delete([names], sources=FINAL)
    expected = {("a", "attached"): 2, ("b", "attached"): 1, ("c", "attached"): 1, (OTHER_SUBMITTERS, "attached"): 2}
    assert counted(store, GroupBy.SUBMITTER) == expected


def _submit_duplicates(store: Store, times: int, **values: Any) -> None:
    """Submit a job with an identity of its own, and so many duplicates of it."""
    key = "-".join(map(str, values.values()))
    identity = values.setdefault("identity", f"identity-{key}")
    submitter = values.pop("submitter", "")
    submit(store, f"job-{key}", **values)
    for number in range(times):
        submit(store, f"{key}-{number}", **(values | {"identity": identity, "submitter": submitter}))


def test_statistics_are_by_task(store: Store) -> None:
    """By task, the tasks with the most duplicates are first, with each of their outcomes."""
    for task, times in (("app.few", 1), ("app.most", 3), ("app.some", 2)):
        _submit_duplicates(store, times, task=task)
    admission(store, "late", task="app.some", identity="identity-app.some", rejects=True)
    admission(store, "later", task="app.most", identity="identity-app.most", **OTHER, **REPLACE | {"max_wait": 0.0})
    assert store.duplicate_counts(GroupBy.TASK, limit=10) == [
        DuplicateCount("app.most", "app.most", Outcome.ATTACHED, 3),
        DuplicateCount("app.most", "app.most", Outcome.REPLACED, 1),
        DuplicateCount("app.some", "app.some", Outcome.ATTACHED, 2),
        DuplicateCount("app.some", "app.some", Outcome.REJECTED, 1),
        DuplicateCount("app.few", "app.few", Outcome.ATTACHED, 1),
    ]


def test_statistics_are_by_identity(store: Store) -> None:
    """By identity, each entry has the task of its jobs."""
    _submit_duplicates(store, 1, task="app.one", identity="few")
    _submit_duplicates(store, 2, task="app.two", identity="more")
    assert store.duplicate_counts(GroupBy.IDENTITY, limit=10) == [
        DuplicateCount("more", "app.two", Outcome.ATTACHED, 2),
        DuplicateCount("few", "app.one", Outcome.ATTACHED, 1),
    ]


def test_statistics_are_by_submitter(store: Store) -> None:
    """By submitter, each entry has the task of its duplicates; submissions without a submitter are one entry."""
    _submit_duplicates(store, 2, task="app.one", submitter="billing")
    _submit_duplicates(store, 1, task="app.two", submitter="billing")
    _submit_duplicates(store, 4, task="app.one", identity="x")
    assert store.duplicate_counts(GroupBy.SUBMITTER, limit=10) == [
        DuplicateCount("", "app.one", Outcome.ATTACHED, 4),
        DuplicateCount("billing", "app.one", Outcome.ATTACHED, 2),
        DuplicateCount("billing", "app.two", Outcome.ATTACHED, 1),
    ]


@pytest.mark.parametrize(("limit", "names"), [(2, ["c", "b"]), (9, ["c", "b", "a"])])
@pytest.mark.parametrize("by", GroupBy)
def test_the_limit_counts_names(store: Store, by: GroupBy, limit: int, names: list[str]) -> None:
    """The limit counts names, each with all its outcomes; the names with the most duplicates are first."""
    for times, name in enumerate("abc", start=1):
        values: dict[str, Any] = {"task": name, "identity": name, "submitter": name}
        _submit_duplicates(store, times, **values)
        admission(store, f"late-{name}", **values, rejects=True)
    found = [(each.name, str(each.outcome)) for each in store.duplicate_counts(by, limit=limit)]
    assert found == [(name, outcome) for name in names for outcome in ("attached", "rejected")]


def test_equal_counts_are_sorted_by_name(store: Store) -> None:
    """Names with equal counts are in alphabetical order."""
    for name in ("b", "c", "a"):
        _submit_duplicates(store, 2, task=name)
    assert [each.name for each in store.duplicate_counts(GroupBy.TASK, limit=2)] == ["a", "b"]


@pytest.mark.parametrize("name", ["v1-Ω:with:colons", "{v1}", "a b|c", 'x"y', "x" * 200])
def test_names_are_any_text(store: Store, name: str) -> None:
    """Tasks, identities and submitters are counted under their names, whatever characters these have."""
    values: dict[str, Any] = {"task": name, "identity": name, "submitter": name}
    submit(store, "job-1", **values)
    for number in range(2):
        submit(store, f"other-{number}", **values)
    for by in GroupBy:
        assert store.duplicate_counts(by, limit=10) == [DuplicateCount(name, name, Outcome.ATTACHED, 2)]
    assert {each.submitter for each in store.duplicates("job-1")} == {name}


@pytest.mark.parametrize("conflict_policy", CONFLICT_POLICIES)
def test_a_repeated_submission_is_counted_once(store: Store, conflict_policy: str) -> None:
    """A submission that is repeated because its response was lost is one duplicate."""
    submit(store, identity="same")
    for _ in range(3):
        admission(store, "job-2", identity="same", **OTHER, **(CONFLICT_POLICIES[conflict_policy] | {"max_wait": 0.0}))
    assert (
        sum(counted(store, GroupBy.TASK).values()) == read(store).duplicate_count == len(store.duplicates("job-1")) == 1
    )


# --- recorded by other callers --------------------------------------------------------------------------------------


def test_a_recorded_duplicate_is_kept_and_counted(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """A recorded duplicate is stored with the store's time and counted, and changes nothing else."""
    job = submit(store, identity="same")
    now = clock.advance(3.0)
    given = duplicate(
        9, outcome=Outcome.REPLAYED, fingerprint="other", arguments_differ=True, rescheduled=True, **ORIGIN, at=1.0
    )
    ledger.record(given)
    assert_changed(store, job, get(store, "job-1"), duplicate_count=1)
    (found,) = store.duplicates("job-1")
    assert (found.at, found.outcome, found.submitter, found.arguments_differ, found.rescheduled) == (
        now, Outcome.REPLAYED, "billing", True, True,
    )  # fmt: skip
    assert store.duplicate_counts(GroupBy.SUBMITTER, limit=10) == [
        DuplicateCount("billing", "app.add", Outcome.REPLAYED, 1)
    ]
    assert counted(store, GroupBy.IDENTITY) == {("same", "replayed"): 1}
    assert events(store) == ["submit"]


def test_recorded_duplicates_stand_among_the_others(store: Store, clock: ManualClock) -> None:
    """Recorded duplicates and those of submissions are in one list, in the order of their arrival."""
    submit(store, identity="same")
    for number in range(DUPLICATE_LIMIT + 4):
        clock.advance(1.0)
        if number % 2:
            store.record(duplicate(number))
        else:
            submit(store, f"job-{number}", identity="same", nonce=f"nonce-of-job-{number}")
    assert store.duplicates("job-1") == [duplicate(n, at=START + 1.0 + n) for n in range(4, DUPLICATE_LIMIT + 4)]


@pytest.mark.parametrize("count", [2, DUPLICATE_LIMIT, 3 * DUPLICATE_LIMIT + 1])
def test_duplicates_recorded_at_once_are_those_recorded_one_by_one(
    store: Store, clock: ManualClock, count: int
) -> None:
    """Duplicates that are recorded in one call are counted and kept as if they were recorded one by one."""
    clock.advance(1.0)
    nonces = [f"nonce-{number}" for number in range(count)]
    for job_id in ("one", "all"):
        submit(store, job_id, identity=job_id)
        admission(store, f"before-{job_id}", identity=job_id, nonce="before")
    for nonce in nonces:
        store.record(duplicate(job_id="one", submission_nonce=nonce, answered_by="job-1", submitter="one"))
    store.record(
        duplicate(job_id="all", submission_nonce=nonces[0], answered_by="job-1", submitter="all"), also=nonces[1:]
    )
    kept = {name: [(each.submission_nonce, each.at) for each in store.duplicates(name)] for name in ("one", "all")}
    assert kept["all"] == kept["one"]
    assert read(store, "all").duplicate_count == read(store, "one").duplicate_count == count + 1
    counts = {each.name: each.count for each in store.duplicate_counts(GroupBy.SUBMITTER, limit=10)}
    assert counts["all"] == counts["one"] == count


def test_duplicates_recorded_at_once_are_recorded_once(store: Store) -> None:
    """Duplicates that are recorded again, some of them together with others, are counted once each."""
    submit(store)
    store.record(duplicate(submission_nonce="a"), also=["b", "c"])
    store.record(duplicate(submission_nonce="b"), also=["c", "d"])
    assert [each.submission_nonce for each in store.duplicates("job-1")] == ["a", "b", "c", "d"]
    assert read(store).duplicate_count == 4
    assert counted(store, GroupBy.TASK) == {("app.add", "attached"): 4}


def test_a_redelivered_message_is_no_duplicate(store: Store, clock: ManualClock) -> None:
    """Each redelivery is counted apart from the outcomes, the latest is kept, and `duplicate_count` does not change."""
    job = submit(store, identity="same")
    for number in range(3):
        clock.advance(1.0)
        with untouched_row(store, job):
            store.record(duplicate(submission_nonce="", source="redelivery", host=str(number)))
    assert store.duplicates("job-1") == [duplicate(submission_nonce="", source="redelivery", host="2", at=START + 3.0)]
    for by, name in ((GroupBy.TASK, "app.add"), (GroupBy.IDENTITY, "same"), (GroupBy.SUBMITTER, "")):
        assert store.duplicate_counts(by, limit=10) == [DuplicateCount(name, "app.add", None, 3)]


def test_redelivered_messages_do_not_affect_the_order(store: Store) -> None:
    """The groups with the most duplicates come first, however many redelivered messages the others have."""
    for task, times in (("app.few", 1), ("app.most", 2)):
        _submit_duplicates(store, times, task=task)
    for _ in range(4):
        store.record(duplicate(job_id="job-app.few", submission_nonce="", source="redelivery"))
    assert [(each.name, each.count) for each in store.duplicate_counts(GroupBy.TASK, limit=9)] == [
        ("app.most", 2), ("app.few", 1), ("app.few", 4),
    ]  # fmt: skip


def test_a_duplicate_is_recorded_once(store: Store) -> None:
    """A duplicate that is recorded again, because the response was lost, changes nothing."""
    kept(store)
    store.record(duplicate())
    before = store.duplicate_counts(GroupBy.TASK, limit=10)
    with untouched(store):
        store.record(duplicate())
    assert store.duplicate_counts(GroupBy.TASK, limit=10) == before


def test_a_redelivered_message_is_listed_last(store: Store) -> None:
    """A redelivery is listed after the duplicates of submissions, also of later ones."""
    kept(store)
    store.record(duplicate(submission_nonce="", source="redelivery"))
    submit(store, "job-2", identity="same")
    assert [bool(each.submission_nonce) for each in store.duplicates("job-1")] == [True, False]


@pytest.mark.parametrize("count", [3, DUPLICATE_LIMIT, DUPLICATE_LIMIT + 3])
def test_redeliveries_push_out_no_duplicates(store: Store, clock: ManualClock, count: int) -> None:
    """However often a message is redelivered, the newest duplicates and the latest redelivery are kept."""
    submit(store, identity="same")
    for number in range(count):
        submit(store, f"other-{number}", identity="same", nonce=str(number))
        store.record(duplicate(submission_nonce="", source="redelivery"))
        store.record(duplicate(submission_nonce="", source="redelivery"))
    duplicates = store.duplicates("job-1")
    expected = [str(number) for number in range(max(0, count - DUPLICATE_LIMIT), count)]
    assert [each.submission_nonce for each in duplicates if each.submission_nonce] == expected
    assert sum(not each.submission_nonce for each in duplicates) == 1
    assert (read(store).duplicate_count, sum(counted(store, GroupBy.TASK).values())) == (count, 3 * count)


@pytest.mark.parametrize("event", [Transition.COMPLETE, Transition.FAIL, Transition.ABANDON])
def test_a_duplicate_can_be_recorded_after_the_end(store: Store, event: Transition) -> None:
    """A job that has ended can have further duplicates."""
    ended = end(store, run(store), event)
    store.record(duplicate())
    assert_changed(store, ended, get(store, "job-1"), duplicate_count=1)
    assert store.duplicates("job-1") == [duplicate(at=store.duplicates("job-1")[0].at)]


def test_a_duplicate_of_an_unknown_job_is_ignored(store: Store) -> None:
    """A duplicate of a job that does not exist is neither kept nor counted."""
    submit(store)
    with untouched(store, "job-1", UNKNOWN):
        store.record(duplicate(job_id=UNKNOWN))
    assert store.duplicate_counts(GroupBy.TASK, limit=10) == []


def test_a_submission_is_no_repetition_of_another_jobs_duplicate(store: Store) -> None:
    """Each job has its own duplicates: a nonce that one job has is new for another."""
    for identity in ("one", "two"):
        submit(store, identity, identity=identity)
    for identity in ("one", "two"):
        assert submit_one(store, submission("late", identity=identity, nonce="n"), wake_in=1.0).job.duplicate_count == 1


def test_statistics_of_one_submitter_or_of_tasks(store: Store) -> None:
    """Counts are of one submitter or of some tasks if these are given, also after the deletion of the jobs."""
    for task, identity in (("a", "one"), ("b", "two")):
        job = run(store, identity, task=task, identity=identity, submitter="ada")
        for number, name in enumerate(("ada", "bob", "bob")):
            submit(store, f"{identity}-{number}", task=task, identity=identity, submitter=name)
        if task == "b":
            end(store, job)
    run(store, "three", task="a", identity="three", submitter="bob")
    submit(store, "again", task="a", identity="three", submitter="bob")

    def counts(by: GroupBy, **values: Any) -> dict[tuple[str, str], int]:
        return {(each.name, each.task): each.count for each in store.duplicate_counts(by, **{"limit": 10} | values)}

    by_identity = {("one", "a"): 3, ("two", "b"): 3}
    assert counts(GroupBy.IDENTITY, submitter="ada") == by_identity
    assert counts(GroupBy.IDENTITY, submitter="bob") == {("three", "a"): 1}
    assert counts(GroupBy.IDENTITY, submitter="ada", tasks=frozenset("b")) == {("two", "b"): 3}
    for is_deleted in (False, True):
        if is_deleted:
            assert store.delete(["two"], sources=FINAL) == ["two"]
        everyone = {("ada", "a"): 1, ("bob", "a"): 3, ("ada", "b"): 1, ("bob", "b"): 2}
        assert counts(GroupBy.SUBMITTER) == everyone
        assert counts(GroupBy.SUBMITTER, submitter="ada") == {("ada", "a"): 1, ("ada", "b"): 1}
        assert counts(GroupBy.TASK, submitter="bob") == {("a", "a"): 3, ("b", "b"): 2}
        assert counts(GroupBy.TASK, submitter="bob", tasks=frozenset("b"), limit=1) == {("b", "b"): 2}
        assert counts(GroupBy.TASK, submitter="") == counts(GroupBy.TASK, tasks=frozenset()) == {}
