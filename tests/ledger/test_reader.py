"""What readers see: searches find each job once, a visibility leaves out others; queues, and failures in groups."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest

from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.jobs.route import Route
from onejob.jobs.workers import Registration
from onejob.ledger.bulk import Selection, bulk_apply
from onejob.ledger.dead_letters import SAMPLE_LIMIT, group_failures, group_key, in_group
from onejob.ledger.reader import JobReader, Visibility
from onejob.ledger.search import Count, count_matching, search, windows
from onejob.ledger.stats import QUEUE_SERIES, QueueLoad, read_metrics, read_queues
from onejob.stores.protocol import INDEXED_STATES, OTHER_SUBMITTERS, GroupBy
from tests.cases import for_each
from tests.conftest import every_store
from tests.ledger.harness import LedgerHarness
from tests.stores.support import START, apply, claim, end, queue_next, read, run, submit

JOBS = 40


@pytest.fixture
def filled(harness: LedgerHarness) -> LedgerHarness:
    """Return a ledger with forty jobs, of which many have equal times."""
    for number in range(JOBS):
        values: dict[str, Any] = {
            "task": "even" if number % 2 == 0 else "odd", "submitter": "ada" if number % 3 else "bob",
            "payload": json.dumps({"args": [number % 7]}),
        }  # fmt: skip
        if number % 4:
            submit(harness.store, f"job-{number:02}", **values)
        else:
            end(harness.store, run(harness.store, f"job-{number:02}", **values))
        harness.clock.advance(1.0 if number % 9 == 0 else 0.0)
    return harness


def pages(reader: JobReader, query: Query, *, is_over: Callable[[], bool]) -> list[list[str]]:
    """Return the ids of all pages of a search, each of which continues where the one before ended."""
    found: list[list[str]] = []
    while True:
        result = search(reader, query, is_over=is_over)
        found.append([job.id for job in result.jobs])
        if result.after is not None:
            assert result.searched_to is None
            query = replace(query, before=result.after.created_at, before_id=result.after.id)
        elif result.searched_to is not None:
            query = replace(query, until=result.searched_to, before=None, before_id=None)
        else:
            return found


QUERIES: list[dict[str, Any]] = [
    {}, {"task": "odd"}, {"arguments": "[3]"}, {"arguments": "nothing"}, {"states": frozenset({State.COMPLETED})},
    {"submitter": "bob", "task": "even"}, {"task": "odd", "since": START + 1.0}, {"task": "odd", "until": START + 2.0},
    {"task": "odd", "before": START + 2.0, "before_id": "job-30"},
]  # fmt: skip


def set_window(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    for name in ("WINDOW", "PAYLOAD_WINDOW"):
        monkeypatch.setattr(f"onejob.ledger.search.{name}", window)


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_the_continuations_find_each_job_once(
    filled: LedgerHarness, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """Following the continuations finds exactly the jobs of the whole list, in its order, in full pages with time."""
    set_window(monkeypatch, window)
    for values, limit, is_over in product(QUERIES, (1, 4, 100), (True, False)):
        whole = [job.id for job in filled.store.find(Query(limit=1000, **values))]
        found = pages(JobReader(filled.store), Query(limit=limit, **values), is_over=partial(bool, is_over))
        assert [job_id for page in found for job_id in page] == whole, (values, limit, is_over)
        assert max(map(len, found)) <= limit
        assert is_over or {len(page) for page in found[:-1]} <= {limit}
    visibility = Visibility(submitter="ada", tasks=frozenset({"even"}), predicate=lambda job: job.id > "job-20")
    reader = JobReader(filled.store, visibility)
    expected = [job.id for job in filled.store.find(Query(limit=100)) if visibility.includes(job)]
    for is_over in (True, False):
        found = pages(reader, Query(limit=3), is_over=partial(bool, is_over))
        assert [job_id for page in found for job_id in page] == expected
    assert pages(reader, Query(task="odd"), is_over=lambda: True) == [[]]


def test_a_search_stops_after_a_window(filled: LedgerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """When its time is over, a search has read one window, unless an index leads to its jobs."""
    set_window(monkeypatch, 10)
    jobs = filled.store.find(Query(limit=100))
    result = search(JobReader(filled.store), Query(arguments="nothing", offset=5), is_over=lambda: True)
    assert (result.jobs, result.after, result.searched_to) == ([], None, jobs[10].created_at)
    failed = Query(states=frozenset({State.FAILED}))
    assert pages(JobReader(filled.store), failed, is_over=lambda: True) == [[]]


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_a_count_says_whether_it_is_complete(
    filled: LedgerHarness, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """A count has all jobs of a query; it is not complete at its limit, nor after one window when its time is over."""
    set_window(monkeypatch, window)
    reader = JobReader(filled.store)
    for values in (each for each in QUERIES if "before" not in each):  # a position does not limit a count
        query, whole = Query(**values), len(filled.store.find(Query(limit=1000, **values)))
        assert count_matching(reader, query, limit=100, is_over=lambda: False) == Count(whole, is_complete=True)
        if whole:
            counted = count_matching(reader, query, limit=whole, is_over=lambda: False)
            assert counted == Count(whole, is_complete=False)
    soon = count_matching(reader, Query(task="odd"), limit=100, is_over=lambda: True)
    assert soon.is_complete is (window == 1000)
    assert soon.count <= max(window, JOBS // 2)


def test_a_search_of_one_submitter_reads_no_other_jobs(harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The windows of a submitter's search are those of its jobs: without any it ends at once, whatever others have."""
    set_window(monkeypatch, 2)
    for number in range(6):
        submit(harness.store, f"mine-{number}", submitter="ada")
        submit(harness.store, f"other-{number}", submitter="bob")
        harness.clock.advance(1.0)
    ada, nobody = (JobReader(harness.store, Visibility(submitter=name)) for name in ("ada", "nobody"))
    for query in (Query(arguments="none"), Query(task="app.add"), Query(states=frozenset({State.FAILED}))):
        assert [since for _, since in windows(nobody, query)] == [None]
        assert [since for _, since in windows(ada, query)] == [START + 3.0, START + 0.0, None]


def test_an_indexed_query_has_no_other_filter(harness: LedgerHarness) -> None:
    """The jobs of a query have an index if it has no filter, a submitter, or one state that has an index."""
    store, listed = harness.store, (*INDEXED_STATES, State.RUNNING)
    assert store.is_indexed(Query(since=START, limit=7))
    assert store.is_indexed(Query(submitter="ada", since=START))
    assert {state for state in State if store.is_indexed(Query(states=frozenset({state})))} == set(listed)
    others: list[dict[str, Any]] = [
        {"task": "a"}, {"tasks": frozenset()}, {"queue": ""}, {"arguments": "a"}, {"node": "a"}, {"reason": "a"},
        {"states": frozenset({State.FAILED, State.CANCELED})}, {"states": frozenset({State.FAILED}), "task": "a"},
        {"unsettled": True}, {"submitter": ""}, {"submitter": "a", "task": "a"},
    ]  # fmt: skip
    assert [values for values in others if store.is_indexed(Query(**values))] == []


def test_a_reader_sees_its_jobs_only(harness: LedgerHarness) -> None:
    """Counts, the backlog, followers, edges and statistics have what a reader may see, and nothing of the others."""
    store = harness.store
    for number, (task, name) in enumerate([("a", "ada"), ("a", "bob"), ("b", "ada"), ("b", "bob")]):
        submit(store, f"job-{number}", task=task, submitter=name, identity=f"{number}")
        submit(store, f"late-{number}", task=task, submitter=name, identity=f"{number}")
        harness.clock.advance(1.0)
    run(store, "run", task="a", submitter="ada", identity="run")
    harness.follow("mine", follows="run", submitter="ada", task="c")
    harness.follow("other", follows="run", submitter="bob", task="c")
    ada, ada_b = (JobReader(store, Visibility(submitter="ada", tasks=tasks)) for tasks in (None, frozenset("b")))
    zeros = dict.fromkeys(State, 0)
    assert JobReader(store).count_states(limit=4) == zeros | {State.QUEUED: 4, State.RUNNING: 1}
    assert ada.count_states(limit=10) == zeros | {State.QUEUED: 3, State.RUNNING: 1}
    assert ada.count_states(limit=2) == zeros | {State.QUEUED: 1, State.RUNNING: 1}
    both = frozenset("ab")
    found = [(each.task, each.state, each.count) for each in ada.backlog(tasks=both, limit=9)]
    assert found == [("a", State.QUEUED, 1), ("a", State.RUNNING, 1), ("b", State.QUEUED, 1)]
    assert [(each.task, each.count) for each in ada_b.backlog(tasks=both, limit=9)] == [("b", 1)]
    assert [each.id for each in ada.followers("run", limit=10)] == ["mine"]
    assert [(each.name, each.count) for each in ada_b.duplicate_counts(GroupBy.IDENTITY)] == [("2", 1)]
    assert ada.edge(Query(), skip=0) == store.edge(Query(), skip=0) is not None
    assert ada_b.edge(Query(task="a"), skip=0) is None


def test_nobody_sees_the_sums_of_the_other_submitters(harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A submitter with the name under which further submitters are counted sees no statistics of them."""
    monkeypatch.setattr("onejob.stores.sqlite.submission.SUBMITTER_LIMIT", 1)
    for name in "abc":
        submit(harness.store, f"job-{name}", identity="same", submitter=name)
    assert OTHER_SUBMITTERS in {each.name for each in harness.store.duplicate_counts(GroupBy.SUBMITTER, limit=9)}
    reader = JobReader(harness.store, Visibility(submitter=OTHER_SUBMITTERS))
    assert [reader.duplicate_counts(by) for by in GroupBy] == [[], [], []]


# --- the load of queues -----------------------------------------------------------------------------------------------

TASK = "app.add"


def load(queue: str, **values: float) -> QueueLoad:
    """Return a load whose other numbers are 0."""
    numbers: dict[str, float] = dict.fromkeys(("due", "running", "oldest_due", "slots", "workers"), 0)
    return QueueLoad(queue=queue, **(numbers | values))  # type: ignore[arg-type]


@every_store
def test_the_load_of_a_queue(harness: LedgerHarness) -> None:
    """A queue has the jobs that may run and that run, and its workers' slots: no delayed, ended or following jobs."""
    store = harness.store
    for number, queue in enumerate(("fast", "fast", "slow", "")):
        submit(store, f"due-{number}", route=queue)
        harness.clock.advance(1.0)
    submit(store, "exchange", route=Route("topics", "key", "fast").encode())
    submit(store, "later", route="fast", delay=5.0)
    submit(store, "webhook", route="slow", task="onejob.webhook", publisher_task=TASK)
    submit(store, "unknown", route="fast", task="of.nobody")
    run(store, "running", route="fast")
    end(store, run(store, "ended", route="fast"))
    run(store, "holder", route="idle", identity="same")
    queue_next(store, "next", route="fast")
    harness.follow("follower", follows="due-0", route="fast")
    apply(store, run(store, "again", route="idle"), Transition.RETRY, run_in=7.0, wake_after=7.0)
    store.heartbeat("a", lasts=60.0, registration=Registration(tasks=(TASK,), queues=("fast", "empty"), concurrency=4))
    store.heartbeat("b", lasts=60.0, registration=Registration(queues=("fast",), concurrency=2))
    store.heartbeat("dead", lasts=1.0, registration=Registration(queues=("fast", "gone"), concurrency=8))
    harness.clock.advance(2.0)
    loads = [
        load("empty", slots=4, workers=1),
        load("fast", due=3, running=1, oldest_due=6.0, slots=6, workers=2),
        load("idle", running=1),
        load("slow", due=2, oldest_due=4.0),
    ]
    assert read_queues(harness.ledger) == loads
    metrics = read_metrics(harness.ledger)
    for series, field in QUEUE_SERIES.items():
        assert metrics[series] == {(series, each.queue): getattr(each, field) for each in loads}
    claim(store, "due-0")
    harness.clock.advance(10.0)
    fast, idle = (each for each in read_queues(harness.ledger) if each.queue in {"fast", "idle"})
    assert (fast.due, fast.running, fast.oldest_due) == (3, 2, 15.0)
    assert (idle.due, idle.oldest_due) == (1, harness.clock.now - read(store, "again").run_at)


def test_the_tasks_of_queues_without_workers_are_those_that_were_submitted(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a worker the jobs of counted tasks are found, for an autoscaler that starts at none; up to a limit."""
    submit(harness.store, "job-1", task="counted", route="slow")
    assert read_queues(harness.ledger) == []
    harness.store.increment({'["submissions_total", "counted", "admitted"]': 1.0})
    assert read_queues(harness.ledger) == [load("slow", due=1)]
    monkeypatch.setattr("onejob.ledger.stats.LOOKED_AT", 2)
    for number in range(3):
        submit(harness.store, f"more-{number}", task="counted", route="slow")
    assert [each.due for each in read_queues(harness.ledger)] == [2]


# --- groups of dead letters -------------------------------------------------------------------------------------------

UUID = "d516792d-ede0-48fa-87ad-c2c95e863786"


def fail(harness: LedgerHarness, job_id: str, kind: str, message: str, task: str = "app.add") -> JobRow:
    """Let a job fail with an error."""
    job = harness.run(job_id, task=task, payload='{"large": 1}')
    return harness.ledger.fail(
        job, json.dumps({"type": kind, "message": message, "traceback": "t"}), f"{kind}: {message}"
    )


@every_store
def test_failures_are_grouped(harness: LedgerHarness) -> None:
    """Each group has its number of jobs, the times of its first and last failure, and the newest message."""
    failures = [
        ("KeyError", f"no row {UUID}", "app.add"), ("TimeoutError", "after 30.5 s", "app.add"),
        ("KeyError", "no row 17", "app.add"), ("KeyError", "no row 18", "other.task"),
        ("ValueError", "no row 18", "app.add"),
    ]  # fmt: skip
    times = {}
    for number, failure in enumerate(failures):
        times[number] = harness.clock.advance(10.0)
        fail(harness, f"job-{number}", *failure)
    groups = group_failures(harness.ledger)
    assert [(each.task, each.error_type, each.count, each.message) for each in groups] == [
        ("app.add", "ValueError", 1, "no row 18"), ("other.task", "KeyError", 1, "no row 18"),
        ("app.add", "KeyError", 2, "no row 17"), ("app.add", "TimeoutError", 1, "after 30.5 s"),
    ]  # fmt: skip
    third = groups[2]
    assert (third.pattern, third.job_ids) == ("no row …", ["job-2", "job-0"])
    assert (third.first_at, third.last_at) == (times[0], times[2])
    assert [each.task for each in group_failures(harness.ledger, task="other.task")] == ["other.task"]
    assert sum(each.count for each in group_failures(harness.ledger, limit=2)) == 2


def test_the_message_is_that_of_the_last_failure(harness: LedgerHarness) -> None:
    """Message and first id are those of the job that failed last, whenever it was submitted; the sample is bounded."""
    slow = harness.run("slow")
    for number in range(SAMPLE_LIMIT + 1):
        fail(harness, f"job-{number}", "E", f"try {number}")
    harness.clock.advance(5.0)
    harness.ledger.fail(slow, '{"type": "E", "message": "try 99"}', "E")
    (group,) = group_failures(harness.ledger)
    assert (group.message, group.count, len(group.job_ids)) == ("try 99", SAMPLE_LIMIT + 2, SAMPLE_LIMIT)
    assert (group.last_at, group.job_ids[0]) == (harness.clock(), slow.id)


@for_each(
    "one, other, equal",
    [
        ("row 17", "row 4711", True),
        ("took 1.5 s", "took 12 s", True),
        (f"no {UUID}", "no 00000000-0000-4000-8000-000000000000", True),
        ("commit deadbeef01", "commit 0123456789abcdef", True),
        ("commit deadbeef01", "commit 12345678", True),
        ("at 0x7f0a", "at 0xffffffff", True),
        ("no column 'a b'", "no column 'c'", True),
        ('no column "a"', 'no column "b 7"', True),
        ("can't open x, won't retry", "can't open y, won't retry", False),
        ("row not found", "column not found", False),
        ("", "x", False),
    ],
)
def test_ids_and_numbers_do_not_split_groups(harness: LedgerHarness, one: str, other: str, equal: bool) -> None:
    """Numbers, UUIDs, hexadecimal and quoted texts are equal to all others; words are not."""
    number = len(harness.store.find(Query(limit=1000)))
    keys = {group_key(fail(harness, f"{number}-{index}", "E", text)) for index, text in enumerate((one, other))}
    assert len(keys) == (1 if equal else 2)


@for_each("error", ["", "null", "[]", "{", '"lost"', "{}"])
def test_an_error_of_another_form_is_grouped_by_its_reason(harness: LedgerHarness, error: str) -> None:
    """A dead letter whose error has no class is grouped by its reason."""
    number = len(harness.store.find(Query(limit=1000)))
    job = harness.ledger.fail(harness.run(f"job-{number}"), error, f"lost {number} times")
    assert group_key(job) == ("app.add", "", "lost … times")


def test_a_follower_is_in_no_group(harness: LedgerHarness) -> None:
    """A follower that failed as its job did is no failure of its own."""
    job = fail(harness, "job", "KeyError", "no row")
    follower = harness.ledger.fail(
        harness.start(harness.follow("follower", follows=job.id).id), str(job.error), "as its job"
    )
    (group,) = group_failures(harness.ledger)
    assert group.count == 1
    assert group.job_ids == ["job"]
    assert not in_group(follower, group.key)


def test_a_bulk_operation_acts_on_a_group(harness: LedgerHarness) -> None:
    """The jobs of a group can be selected for a bulk operation; a redriven job is in no group."""
    for number in range(3):
        fail(harness, f"job-{number}", "KeyError" if number != 1 else "E", f"no row {number}")
    key = next(each.key for each in group_failures(harness.ledger) if each.error_type == "KeyError")
    selection = Selection(query=Query(), matches=lambda job: in_group(job, key))
    assert bulk_apply(harness.ledger, selection, lambda job: harness.ledger.redrive(job.id)).done == ["job-2", "job-0"]
    assert not in_group(harness.read("job-2"), key)
