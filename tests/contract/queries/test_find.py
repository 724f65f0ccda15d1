"""Find and get: which jobs are returned, and in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from onejob.errors import JobNotFoundError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.records import Query
from onejob.jobs.timestamps import format_timestamp, parse_timestamp
from tests.contract.support import (
    START,
    UNKNOWN,
    ManualClock,
    apply,
    end,
    get,
    queue_next,
    read,
    run,
    steps_to,
    submission,
    submit,
    submit_one,
)

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger
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


def test_get_returns_the_job_or_none(store: Store) -> None:
    """`get` returns the job as it was written, or None for an unknown id."""
    job = submit(store)
    assert get(store, job.id) == job
    assert get(store, UNKNOWN) is None
    assert get(store, "") is None


def test_many_are_read_at_once(store: Store) -> None:
    """`get_many` returns each job as `get` would, and leaves out unknown ids."""
    ids = [f"job-{number}" for number in range(150)]
    for job_id in ids:
        submit(store, job_id)
    found = store.get_many([*ids, UNKNOWN, "job-1"])
    assert sorted(found) == sorted(ids)
    assert found["job-7"] == get(store, "job-7")
    assert store.get_many([]) == {}


def test_the_holder_of_an_identity_is_found(store: Store) -> None:
    """The job that holds an identity is found, also after its end; for a free identity the result is None."""
    assert store.find_existing("same", None) is None
    job = apply(store, run(store, identity="same"), Transition.COMPLETE, keeps_identity=True)
    assert store.find_existing("same", None) == job
    apply(store, job, Transition.RELEASE_IDENTITY, keeps_identity=False)
    assert store.find_existing("same", None) is None


def test_unsettled_jobs_are_found(store: Store) -> None:
    """The unsettled jobs are those that have not ended, and those whose canvas is still to be notified of their end."""
    for number, state in enumerate(State):
        steps_to(store, f"job-{number}", state)
    end(store, run(store, "with-canvas", canvas=True))
    expected = {job.id for job in store.find(Query()) if not job.state.final} | {"with-canvas"}
    assert set(_find(store, unsettled=True)) == expected
    assert store.counts(Query(unsettled=True))[State.COMPLETED] == 1


def test_the_time_is_that_of_the_stores_clock(store: Store) -> None:
    """`read_clock` returns a time between the times of creation of a job before it and of one after it."""
    before = submit(store, "job-1").created_at
    now = store.read_clock()
    assert before <= now <= submit(store, "job-2").created_at


def test_the_ledger_raises_for_an_unknown_id(ledger: Ledger) -> None:
    """For an unknown id the ledger raises `JobNotFoundError`, which has the id."""
    with pytest.raises(JobNotFoundError, match=UNKNOWN) as caught:
        ledger.get(UNKNOWN)
    assert caught.value.job_id == UNKNOWN
    with pytest.raises(JobNotFoundError):
        ledger.cancel(UNKNOWN)


def test_an_empty_store_has_no_jobs(ledger: Ledger) -> None:
    """In an empty store no job is found."""
    assert ledger.find(Query()) == []


def test_find_returns_whole_jobs(store: Store, clock: ManualClock) -> None:
    """`find` returns jobs as `get` would."""
    jobs = [end(store, run(store, "job-1")), run(store, "job-2")]
    assert {job.id: job for job in store.find(Query())} == {job.id: job for job in jobs}


@pytest.mark.usefixtures("five")
def test_the_newest_jobs_are_first(store: Store) -> None:
    """Jobs are listed newest first."""
    assert _find(store) == _ids(4, 3, 2, 1, 0)


@pytest.mark.parametrize(("limit", "expected"), [(1, (4,)), (3, (4, 3, 2)), (50, (4, 3, 2, 1, 0))])
@pytest.mark.usefixtures("five")
def test_no_more_than_the_limit(store: Store, limit: int, expected: tuple[int, ...]) -> None:
    """A list has at most `limit` jobs, the newest."""
    assert _find(store, limit=limit) == _ids(*expected)


def test_a_list_has_fifty_jobs_by_default(store: Store, clock: ManualClock) -> None:
    """Without a limit, fifty jobs are listed."""
    for number in range(60):
        submit(store, f"job-{number}")
        clock.advance(1.0)
    assert _find(store) == [f"job-{number}" for number in range(59, 9, -1)]


@pytest.mark.usefixtures("five")
def test_before_is_exclusive(store: Store) -> None:
    """`before` is the time from which a list continues, itself excluded."""
    assert _find(store, before=START + 3.0) == _ids(2, 1, 0)
    assert _find(store, before=START + 3.5) == _ids(3, 2, 1, 0)
    assert _find(store, before=START) == []
    assert _find(store, before=START + 3.0, limit=2) == _ids(2, 1)


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


@pytest.mark.parametrize(
    ("offset", "limit", "expected"),
    [(0, 2, (4, 3)), (1, 2, (3, 2)), (4, 2, (0,)), (5, 2, ()), (9, 9, ())],
)
@pytest.mark.usefixtures("five")
def test_an_offset_skips_the_newest_jobs(store: Store, offset: int, limit: int, expected: tuple[int, ...]) -> None:
    """`offset` is the number of matching jobs that are skipped, the newest first."""
    assert _find(store, offset=offset, limit=limit) == _ids(*expected)
    evens = (4, 2, 0)[offset : offset + limit]
    assert _find(store, task="even", offset=offset, limit=limit) == _ids(*evens)


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


@pytest.mark.usefixtures("five")
def test_a_list_of_one_task(store: Store) -> None:
    """`task` lists the jobs of that task only."""
    assert _find(store, task="even") == _ids(4, 2, 0)
    assert _find(store, task="odd") == _ids(3, 1)
    assert _find(store, task="eve") == []


@pytest.mark.usefixtures("five")
def test_a_list_of_one_identity(store: Store) -> None:
    """`identity` lists the jobs of that identity only."""
    assert _find(store, identity="identity-3") == _ids(3)
    assert _find(store, identity="identity") == []


def test_an_identity_lists_all_its_jobs(store: Store, clock: ManualClock) -> None:
    """All jobs that ever had an identity are listed: holders, ended jobs and followers."""
    end(store, run(store, "job-0", identity="same"))
    clock.advance(1.0)
    submit(store, "job-1", identity="same")
    clock.advance(1.0)
    submit_one(store, submission("job-2", identity="same", follows=True), wake_in=1.0)
    assert _find(store, identity="same") == _ids(2, 1, 0)


def test_a_list_of_one_submitter(store: Store) -> None:
    """`submitter` lists the jobs that it submitted first, whatever duplicates they have; "" is no submitter."""
    run(store, "job-0", identity="same", submitter="user:1")
    submit(store, "duplicate", identity="same", submitter="user:2")
    queue_next(store, "job-1", submitter="user:2")
    submit_one(store, submission("job-2", identity="same", submitter="user:3", follows=True), wake_in=1.0)
    submit(store, "job-3")
    by = {name: _find(store, submitter=name) for name in ("user:1", "user:2", "user:3", "", "user")}
    assert by == {"user:1": _ids(0), "user:2": _ids(1), "user:3": _ids(2), "": _ids(3), "user": []}
    assert {job.id: job.submitter for job in store.find(Query(submitter="user:3"))} == {"job-2": "user:3"}


@pytest.mark.parametrize("state", State)
def test_a_list_of_one_state(store: Store, state: State) -> None:
    """`states` lists the jobs in these states only."""
    for each in State:
        steps_to(store, f"job-{each}", each)
    assert _find(store, states=frozenset({state})) == [f"job-{state}"]


def test_a_list_of_several_states(store: Store, clock: ManualClock) -> None:
    """Several states are listed together, in one order; an empty `states` lists all."""
    for each in State:
        steps_to(store, f"job-{each}", each)
        clock.advance(1.0)
    ended = frozenset({State.COMPLETED, State.FAILED, State.CANCELED})
    assert _find(store, states=ended) == ["job-canceled", "job-failed", "job-completed"]
    assert len(_find(store, states=frozenset())) == len(State)


@pytest.mark.usefixtures("five")
def test_filters_are_combined(store: Store) -> None:
    """A job is listed if all filters match."""
    run_states = frozenset({State.RUNNING})
    assert _find(store, task="even", identity="identity-2") == _ids(2)
    assert _find(store, task="odd", identity="identity-2") == []
    assert _find(store, task="even", states=run_states) == []
    assert _find(store, task="even", before=START + 4.0, limit=1) == _ids(2)
    assert _find(store, states=frozenset({State.QUEUED}), identity="identity-1", before=START + 1.0) == []


def test_the_limit_counts_matching_jobs(store: Store, clock: ManualClock) -> None:
    """The limit counts the jobs that match the filters, not the jobs that were read."""
    for number in range(30):
        submit(store, f"job-{number}", task="rare" if number < 3 else "common")
        clock.advance(1.0)
    assert _find(store, task="rare", limit=2) == _ids(2, 1)


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
