"""What readers see: searches find each job once, in windows of time, and a visibility leaves out the others' jobs."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest

from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.ledger.reader import JobReader, Visibility
from onejob.ledger.search import Count, count_matching, search
from onejob.stores.protocol import INDEXED_STATES, OTHER_SUBMITTERS, GroupBy
from tests.contract.ledger.world import World
from tests.contract.support import START, end, run, submit

JOBS = 40


@pytest.fixture
def filled(world: World) -> World:
    """Return a ledger with forty jobs, of which many have equal times."""
    for number in range(JOBS):
        values: dict[str, Any] = {
            "task": "even" if number % 2 == 0 else "odd", "submitter": "ada" if number % 3 else "bob",
            "payload": json.dumps({"args": [number % 7]}),
        }  # fmt: skip
        if number % 4:
            submit(world.store, f"job-{number:02}", **values)
        else:
            end(world.store, run(world.store, f"job-{number:02}", **values))
        world.clock.advance(1.0 if number % 9 == 0 else 0.0)
    return world


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


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_the_continuations_find_each_job_once(filled: World, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    """Following the continuations finds exactly the jobs of the whole list, in its order, in full pages with time."""
    monkeypatch.setattr("onejob.ledger.search.WINDOW", window)
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


def test_a_search_stops_after_a_window(filled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """When its time is over, a search has read one window, unless an index leads to its jobs."""
    monkeypatch.setattr("onejob.ledger.search.WINDOW", 10)
    jobs = filled.store.find(Query(limit=100))
    result = search(JobReader(filled.store), Query(arguments="nothing", offset=5), is_over=lambda: True)
    assert (result.jobs, result.after, result.searched_to) == ([], None, jobs[10].created_at)
    failed = Query(states=frozenset({State.FAILED}))
    assert pages(JobReader(filled.store), failed, is_over=lambda: True) == [[]]


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_a_count_says_whether_it_is_complete(filled: World, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    """A count has all jobs of a query; it is not complete at its limit, nor after one window when its time is over."""
    monkeypatch.setattr("onejob.ledger.search.WINDOW", window)
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


def test_an_indexed_query_has_no_other_filter(world: World) -> None:
    """The jobs of a query have an index if it has no filter, or one state that has an index."""
    store, listed = world.store, (*INDEXED_STATES, State.RUNNING)
    assert store.is_indexed(Query(since=START, limit=7))
    assert {state for state in State if store.is_indexed(Query(states=frozenset({state})))} == set(listed)
    others: list[dict[str, Any]] = [
        {"task": "a"}, {"tasks": frozenset()}, {"queue": ""}, {"arguments": "a"}, {"node": "a"}, {"reason": "a"},
        {"states": frozenset({State.FAILED, State.CANCELED})}, {"states": frozenset({State.FAILED}), "task": "a"},
        {"unsettled": True}, {"submitter": ""}, {"submitter": "a", "task": "a"},
    ]  # fmt: skip
    assert [values for values in others if store.is_indexed(Query(**values))] == []


def test_a_reader_sees_its_jobs_only(world: World) -> None:
    """Counts, the backlog, followers, edges and statistics have what a reader may see, and nothing of the others."""
    store = world.store
    for number, (task, name) in enumerate([("a", "ada"), ("a", "bob"), ("b", "ada"), ("b", "bob")]):
        submit(store, f"job-{number}", task=task, submitter=name, identity=f"{number}")
        submit(store, f"late-{number}", task=task, submitter=name, identity=f"{number}")
        world.clock.advance(1.0)
    run(store, "run", task="a", submitter="ada", identity="run")
    world.follow("mine", follows="run", submitter="ada", task="c")
    world.follow("other", follows="run", submitter="bob", task="c")
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


def test_nobody_sees_the_sums_of_the_other_submitters(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A submitter with the name under which further submitters are counted sees no statistics of them."""
    monkeypatch.setattr("onejob.stores.sqlite.submission.SUBMITTER_LIMIT", 1)
    for name in "abc":
        submit(world.store, f"job-{name}", identity="same", submitter=name)
    assert OTHER_SUBMITTERS in {each.name for each in world.store.duplicate_counts(GroupBy.SUBMITTER, limit=9)}
    reader = JobReader(world.store, Visibility(submitter=OTHER_SUBMITTERS))
    assert [reader.duplicate_counts(by) for by in GroupBy] == [[], [], []]
