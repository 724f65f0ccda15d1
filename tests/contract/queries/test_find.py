"""Find and get: which jobs are returned, and in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.records import Query
from onejob.jobs.timestamps import format_timestamp, parse_timestamp
from tests.contract.support import (
    START,
    ManualClock,
    apply,
    end,
    read,
    run,
    steps_to,
    submit,
)

if TYPE_CHECKING:
    from onejob.stores.protocol import Store


def _find(store: Store, **values: Any) -> list[str]:
    return [job.id for job in store.find(Query(**values))]


def _ids(*numbers: int) -> list[str]:
    return [f"job-{number}" for number in numbers]


@pytest.fixture
def five(store: Store, clock: ManualClock) -> None:
    """Write job-0 to job-4, a second apart."""
    for number in range(5):
        submit(store, f"job-{number}", task="even" if number % 2 == 0 else "odd", identity=f"identity-{number}")
        clock.advance(1.0)


def test_a_list_has_fifty_jobs_by_default(store: Store, clock: ManualClock) -> None:
    """Without a limit, fifty jobs are listed."""
    for number in range(60):
        submit(store, f"job-{number}")
        clock.advance(1.0)
    assert _find(store) == [f"job-{number}" for number in range(59, 9, -1)]


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, START + 2.0, (1, 0)),
        (START + 2.0, None, (4, 3, 2)),
        (START + 1.0, START + 3.0, (2, 1)),
        (START + 1.5, START + 1.6, ()),
        (START + 3.0, START + 1.0, ()),
        (START + 9.0, None, ()),
        (START, START + 5.0, (4, 3, 2, 1, 0)),
    ],
)
@pytest.mark.usefixtures("five")
def test_since_is_inclusive_and_until_is_exclusive(
    store: Store, since: float | None, until: float | None, expected: tuple[int, ...]
) -> None:
    """`since` is the earliest time of the listed jobs, and `until` the first time after them."""
    assert _find(store, since=since, until=until) == _ids(*expected)
    assert sum(store.counts(Query(since=since, until=until)).values()) == len(expected)


def test_a_formatted_time_finds_its_job(store: Store) -> None:
    """Times have microseconds: the time of a submission in RFC 3339 finds its job."""
    jobs = [submit(store, f"job-{number}") for number in range(50)]
    assert [parse_timestamp(format_timestamp(job.created_at)) for job in jobs] == [job.created_at for job in jobs]


@pytest.mark.usefixtures("five")
def test_until_and_before_are_combined(store: Store) -> None:
    """A page ends at `until` or at `before`, whichever is earlier."""
    assert _find(store, until=START + 3.0, before=START + 4.0, before_id="job-4") == _ids(2, 1, 0)
    assert _find(store, until=START + 3.0, before=START + 3.0, before_id="job-9") == _ids(2, 1, 0)
    assert _find(store, until=START + 3.0, before=START + 2.0, before_id="job-2") == _ids(1, 0)
    assert _find(store, since=START + 1.0, before=START + 3.0) == _ids(2, 1)


def test_an_offset_may_exceed_the_batch_size_of_a_store(store: Store, clock: ManualClock) -> None:
    """An offset may span several batches of a store, with a filter or without one."""
    for number in range(250):
        submit(store, f"job-{number:03}", task="even" if number % 2 == 0 else "odd")
    assert _find(store, offset=240, limit=3) == ["job-009", "job-008", "job-007"]
    assert _find(store, task="odd", offset=120, limit=3) == ["job-009", "job-007", "job-005"]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pages_leave_no_job_out(store: Store, clock: ManualClock, limit: int) -> None:
    """Pages that continue after the last job show each job once, whatever their size, also if times are equal."""
    for number in range(7):
        submit(store, f"job-{number}", task="even" if number % 2 == 0 else "odd")
        clock.advance(1.0 if number in {1, 5} else 0.0)
    assert _pages(store, limit) == _ids(6, 5, 4, 3, 2, 1, 0)
    assert _pages(store, limit, task="odd") == _ids(5, 3, 1)


def test_many_jobs_with_equal_times_are_paged(store: Store, clock: ManualClock) -> None:
    """More jobs with equal times than a store reads in one batch are paged like any others."""
    for number in range(230):
        submit(store, f"job-{number}")
    assert _pages(store, 60) == sorted((f"job-{number}" for number in range(230)), reverse=True)


def _pages(store: Store, limit: int, **values: Any) -> list[str]:
    """Return the ids of all pages, each of which continues after the last job of the one before."""
    seen: list[str] = []
    query = Query(limit=limit, **values)
    while page := store.find(query):
        seen += [job.id for job in page]
        query = replace(query, before=page[-1].created_at, before_id=page[-1].id)
    return seen


def test_a_change_of_state_moves_a_job_between_lists(store: Store) -> None:
    """A job is listed under its current state."""
    job = run(store)
    assert _find(store, states=frozenset({State.RUNNING})) == ["job-1"]
    end(store, job)
    assert _find(store, states=frozenset({State.RUNNING})) == []
    assert _find(store, states=frozenset({State.COMPLETED})) == ["job-1"]
    assert read(store).state is State.COMPLETED


def test_jobs_of_several_tasks_and_of_a_submitter(store: Store, clock: ManualClock) -> None:
    """`tasks` and `submitter` restrict what is found and counted, alone, together and page by page; no task: no job."""
    for number in range(6):
        submit(store, f"job-{number}", task="abc"[number % 3], identity=f"{number}", submitter="xy"[number % 2])
        clock.advance(1.0)
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"tasks": frozenset("ab")}, _ids(4, 3, 1, 0)),
        ({"tasks": frozenset("ab"), "task": "a"}, _ids(3, 0)),
        ({"tasks": frozenset("ab"), "task": "c"}, []),
        ({"tasks": frozenset()}, []),
        ({"submitter": "x"}, _ids(4, 2, 0)),
        ({"submitter": "x", "tasks": frozenset("ab")}, _ids(4, 0)),
        ({"submitter": "x", "limit": 1, "offset": 1}, _ids(2)),
        ({"submitter": "x", "before": START + 4.0, "before_id": "job-4"}, _ids(2, 0)),
        ({"submitter": ""}, []),
    ]
    for values, expected in cases:
        assert _find(store, **values) == expected, values
        if not values.keys() & {"limit", "before"}:
            assert sum(store.counts(Query(**values)).values()) == len(expected)


def test_a_light_list_has_no_large_fields(store: Store, clock: ManualClock) -> None:
    """A light list has the same jobs as the whole one, with their large fields empty."""
    for number, state in enumerate(State):
        steps_to(store, f"job-{number}", state)
        clock.advance(1.0)
    job = run(store, "large", payload='{"args": ["large"]}', options='{"queue": "large"}')
    store.report(job.id, job.token, '"large"', sources=frozenset({State.RUNNING}))
    apply(store, job, Transition.COMPLETE, result='"large"', wake_in=100.0)
    queries: list[dict[str, Any]] = [{}, {"states": frozenset({State.COMPLETED})}, {"limit": 2, "offset": 1}]
    for values in queries:
        whole = store.find(Query(**values))
        expected = [replace(job, payload="", options="", progress=None, result=None) for job in whole]
        assert store.find(Query(**values, light=True)) == expected != whole
