"""Searching: windows of jobs, newest first, until a page is full, the ledger is exhausted, or the time is over."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.jobs.visibility import Visibility
from onejob.ledger.reader import JobReader
from onejob.ledger.search import search
from tests.contract.support import START, ManualClock, end, run, submit

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.stores.protocol import Store

JOBS = 40


@pytest.fixture(params=[True, False], ids=["equal times", "different times"])
def filled(request: pytest.FixtureRequest, store: Store, clock: ManualClock) -> Store:
    """Return a store with forty jobs, of which most have equal times, or none."""
    for number in range(JOBS):
        values: dict[str, Any] = {
            "task": "even" if number % 2 == 0 else "odd", "submitter": "ada" if number % 3 else "bob",
            "payload": json.dumps({"args": [number % 7]}),
        }  # fmt: skip
        if number % 4:
            submit(store, f"job-{number:02}", **values)
        else:
            end(store, run(store, f"job-{number:02}", **values))
        clock.advance(1.0 if number % 20 == 0 or not request.param else 0.0)
    return store


@pytest.fixture(params=[1, 7, 1000])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Search so many jobs at a time."""
    monkeypatch.setattr("onejob.ledger.search.WINDOW", request.param)
    return int(request.param)


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
    {},
    {"task": "odd"},
    {"arguments": "[3]"},
    {"arguments": "nothing"},
    {"states": frozenset({State.COMPLETED})},
    {"submitter": "bob"},
    {"submitter": "bob", "task": "even"},
    {"task": "odd", "since": START + 1.0},
    {"task": "odd", "until": START + 2.0},
    {"task": "odd", "before": START + 2.0, "before_id": "job-30"},
]


@pytest.mark.usefixtures("window")
def test_the_continuations_find_each_job_once(filled: Store) -> None:
    """Following the continuations finds exactly the jobs of the whole list, in its order, each once."""
    for values, limit, is_over in product(QUERIES, (1, 4, 100), (True, False)):
        whole = [job.id for job in filled.find(Query(limit=1000, **values))]
        found = pages(JobReader(filled), Query(limit=limit, **values), is_over=partial(bool, is_over))
        assert [job_id for page in found for job_id in page] == whole, (values, limit, is_over)
        assert max(map(len, found)) <= limit


@pytest.mark.usefixtures("window")
def test_a_search_with_time_left_fills_its_pages(filled: Store) -> None:
    """While there is time, a page ends when it is full, and only the last one has fewer jobs."""
    found = pages(JobReader(filled), Query(task="odd", limit=7), is_over=lambda: False)
    assert [len(page) for page in found] == [7, 7, 6]


@pytest.mark.usefixtures("window")
def test_a_search_sees_what_its_reader_sees(filled: Store) -> None:
    """A search finds each job once that the reader sees, also if a predicate leaves out most of a page."""
    visibility = Visibility(submitter="ada", tasks=frozenset({"even"}), predicate=lambda job: job.id > "job-20")
    reader = JobReader(filled, visibility)
    expected = [job.id for job in filled.find(Query(limit=100)) if visibility.includes(job)]
    for is_over in (True, False):
        found = pages(reader, Query(limit=3), is_over=partial(bool, is_over))
        assert [job_id for page in found for job_id in page] == expected
    assert pages(reader, Query(task="odd"), is_over=lambda: True) == [[]]


def test_a_search_stops_after_a_window(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """When its time is over, a search has read one window, and says back to which time; an offset changes nothing."""
    monkeypatch.setattr("onejob.ledger.search.WINDOW", 10)
    jobs = filled.find(Query(limit=100))
    result = search(JobReader(filled), Query(arguments="nothing", offset=5), is_over=lambda: True)
    assert (result.jobs, result.after, result.searched_to) == ([], None, jobs[10].created_at)


def test_an_indexed_search_has_no_windows(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs of an index are searched to the end, even if the time is over."""
    monkeypatch.setattr("onejob.ledger.search.WINDOW", 1)
    query = Query(states=frozenset({State.FAILED}))
    assert pages(JobReader(filled), query, is_over=lambda: True) == [[]]


# --- the edge of a window -------------------------------------------------------------------------------------------


def test_an_empty_store_has_no_edge(store: Store) -> None:
    """Without jobs there is no edge, however few are skipped."""
    assert store.edge(Query(), skip=0) is None


EDGES: list[dict[str, Any]] = [
    {},
    {"task": "odd", "arguments": "nothing", "limit": 1, "offset": 9, "states": frozenset({State.FAILED})},
    {"since": START + 1.0},
    {"until": START + 3.0},
    {"since": START + 1.0, "until": START + 3.0},
    {"before": START + 2.0},
    {"before": START + 1.0, "before_id": "job-15"},
    {"before": START + 1.0, "before_id": "job-15", "since": START + 1.0},
    {"before": START + 1.0, "before_id": "job-15", "until": START + 1.0},
    {"before": START + 3.0, "before_id": "job-50", "until": START + 2.0},
]


def test_an_edge_is_the_time_of_a_job(filled: Store) -> None:
    """The edge is the time of the job so many places after the position, of all jobs in the time range."""
    for values in EDGES:
        place = {name: values[name] for name in ("since", "until", "before", "before_id") if name in values}
        times = [job.created_at for job in filled.find(Query(limit=1000, **place))]
        for skip in (0, 1, 5, 19, 20, 21, JOBS):
            assert filled.edge(Query(**values), skip=skip) == (times[skip] if skip < len(times) else None), values


def test_an_edge_is_that_of_the_ledger(store: Store) -> None:
    """A reader's edge counts all jobs; for a query of jobs that it does not see there is none."""
    submit(store, task="a")
    reader = JobReader(store, Visibility(tasks=frozenset({"b"})))
    assert reader.edge(Query(), skip=0) == store.edge(Query(), skip=0) is not None
    assert reader.edge(Query(task="a"), skip=0) is None
